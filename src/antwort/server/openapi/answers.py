"""What the server writes, as schemas: they say all of it, so that an answer that fits is right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from antwort.api.events import StreamEvent
from antwort.api.items import KnownItem, OutputItem
from antwort.api.resources import Conversation
from antwort.api.responses import CompactedResponse
from antwort.api.tools import (
    AllowedTools,
    ChoiceMode,
    CustomTool,
    ForcedCustom,
    ForcedFunction,
    ForcedHosted,
    ForcedServer,
    FunctionTool,
    McpTool,
    NamespaceTool,
)
from antwort.api.wire import Plain, Wire
from antwort.server.errors import ErrorBody, SocketError
from antwort.server.openapi.schemas import (
    OBJECT,
    TEXT,
    Schemas,
    any_of,
    array,
    as_written,
    components,
    members,
    or_null,
    other_than,
    ref,
    tag_of,
    union_of,
    with_fields,
)
from antwort.server.openapi.sockets import ERROR, LANE
from antwort.server.resources import ApprovalList, ConversationDeleted, ItemList
from antwort.server.routes import Deleted, InputTokens, ModelList, ResponseList, ToolsetList

Structs: TypeAlias = tuple[type[msgspec.Struct], ...]

TOOLS: Structs = (FunctionTool, CustomTool, NamespaceTool, McpTool)
FORCED: Structs = (ForcedFunction, ForcedCustom, ForcedServer, ForcedHosted)
EVENTS = members(StreamEvent)
_SECRET = ("authorization", "headers")


class Health(Wire):
    """The process answers."""

    status: Literal["ok"]


def answer_schemas() -> Schemas:
    """Every schema of an answer, by its name."""
    lists: Structs = (ApprovalList, InputTokens, ItemList, ModelList, ResponseList, ToolsetList)
    kept: Structs = (CompactedResponse, Conversation, ConversationDeleted)
    roots: Structs = (ErrorBody, SocketError, Health, Deleted, *lists, *kept, *TOOLS, *FORCED, AllowedTools, *EVENTS)
    made = components(roots, as_written)
    made.update({event.__name__: _numbered(made[event.__name__]) for event in EVENTS})
    made["Response"] = _response(made["Response"])
    made["CompactedResponse"] = with_fields(made["CompactedResponse"], output=array(ref("OutputItem")))
    made["McpTool"] = _without_secrets(made["McpTool"])
    made["ItemList"] = with_fields(made["ItemList"], data=array(ref("Item")))
    # Further fields of an item are given back as its client sent them.
    sent = {
        f"{each.__name__}AsSent": {**made[each.__name__], "additionalProperties": True} for each in members(OutputItem)
    }
    return {
        **made,
        "OutputItem": union_of(members(OutputItem)),
        "Item": any_of(
            ref("OutputItem"), *map(ref, sent), ref("OtherItem"), description="An item of the input, as it was stored."
        ),
        **sent,
        "OtherItem": other_than(
            map(tag_of, members(KnownItem)), "An item of a type that this version does not know, as it came.", _OTHER
        ),
        "Tool": any_of(*[ref(tool.__name__) for tool in TOOLS], ref("OtherTool")),
        "OtherTool": other_than(map(tag_of, TOOLS), "A tool of a type that only its operator knows."),
        "ToolChoice": _choice(),
        **_text(),
        ERROR: with_fields(made[SocketError.__name__], stream_id=LANE),
        "StreamEvent": union_of(EVENTS, description="An event of a stream: the data of one frame."),
        "Readiness": _readiness(),
    }


_OTHER = ("type", "id")


def _numbered(event: Plain) -> Plain:
    """An event never knows its number; it has one when it is sent."""
    number = {"type": "integer", "minimum": 0, "description": "Counts the events of the stream, from 0."}
    around = {"type": event["properties"]["type"], "sequence_number": number, "stream_id": LANE}
    properties = {**around, **event["properties"]}
    return {**event, "properties": properties, "required": ["type", "sequence_number", *event["required"][1:]]}


def _response(schema: Plain) -> Plain:
    """What it echoes of its request is kept as plain values; here it has a shape."""
    output = array(ref("OutputItem"), description="What the model said and called, in order.")
    tools = array(ref("Tool"), description="The tools that the request declares, without their credentials.")
    changed = with_fields(schema, output=output, tools=tools, tool_choice=ref("ToolChoice"), text=ref("TextEcho"))
    return {**changed, "description": "A response: what was asked for, how it stands, and what came of it."}


def _without_secrets(tool: Plain) -> Plain:
    """Credentials are never repeated."""
    return {**tool, "properties": {name: field for name, field in tool["properties"].items() if name not in _SECRET}}


def _choice() -> Plain:
    forced = [ref(struct.__name__) for struct in FORCED]
    return any_of({"enum": list(get_args(ChoiceMode))}, *forced, ref(AllowedTools.__name__))


def _text() -> Schemas:
    """How the text of an answer is written: the formats, and what holds one."""
    plain = {"type": {"enum": ["text", "json_object"]}}
    schema = {
        "type": {"const": "json_schema"},
        "name": TEXT,
        "description": or_null(TEXT),
        "schema": or_null(OBJECT),
        "strict": {"type": "boolean"},
    }
    echo = {
        "format": any_of(ref("PlainFormat"), ref("SchemaFormat")),
        "verbosity": {"enum": ["low", "medium", "high"]},
    }
    about = "How the text of the answer is written."
    return {
        "PlainFormat": _closed(plain, plain),
        "SchemaFormat": _closed(schema, schema),
        "TextEcho": {"description": about, **_closed(echo, ["format"])},
    }


def _closed(properties: Plain, required: Iterable[str]) -> Plain:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _readiness() -> Plain:
    about = "Whether the server can work. The parts, each `ok` or what is wrong with it, are for those who may come in."
    status = {"enum": ["ok", "unavailable"]}
    return {
        "type": "object",
        "description": about,
        "properties": {"status": status},
        "required": ["status"],
        "additionalProperties": TEXT,
    }
