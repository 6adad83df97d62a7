"""What the server takes, as schemas: the structs' own, and one layer over them for what reading a request makes up.

A client may leave out what can be told from the rest, write null for what it leaves out, and use the shapes of Chat
Completions in some places. `api/inputs.py` and `api/choices.py` read that; what they take is said here.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from antwort.api.decoding import Limits
from antwort.api.items import MAX_ITEM_ID, ContentPart, KnownItem, OutputItem, ResultPart, ToolError
from antwort.api.requests import COMPACTION_FIELDS, LONGEST_KEY, PlainFields
from antwort.api.tools import AllowedTools, ChoiceMode
from antwort.api.wire import Plain
from antwort.server.openapi.answers import FORCED, TOOLS
from antwort.server.openapi.notes import FIELDS
from antwort.server.openapi.schemas import (
    NULL,
    OBJECT,
    TEXT,
    Schemas,
    any_of,
    array,
    components,
    members,
    or_null,
    other_than,
    ref,
    renamed,
    tag_of,
    with_fields,
)

PARAM = "Param"
"""What comes in is named for what it becomes: `MessageParam` is what a `Message` is read from."""
TOOL_NAME = "^[a-zA-Z0-9_.-]{1,128}$"
SERVER_LABEL = "^[a-zA-Z0-9_.-]{1,64}$"
_NOT_EMPTY: Plain = {"type": "string", "minLength": 1}
_NAMED: Plain = {"type": "string", "pattern": TOOL_NAME}
_LEFT_OUT: Plain = {"not": {}}
_ID: Plain = any_of({"type": "string", "maxLength": 512}, NULL)
_CONVERSATION: Plain = {"type": "string", "minLength": 1, "maxLength": MAX_ITEM_ID}
_ERROR: Plain = any_of(TEXT, OBJECT, NULL)
_FILE_ID: Plain = any_of(TEXT, NULL, description="An image with nothing else is refused: no files are kept here.")
_FILE: Plain = any_of(TEXT, NULL, description="A file with nothing else is refused: only `file_data` is taken.")
_APPROVAL: Plain = {
    "description": "Which calls the client must approve before they are run. The operator may demand more. Left out:"
    " all of a server that is named by its address, unless the operator says otherwise; of others, what it says."
}
_READ_AS_THEY_ARE = ("McpToolFilter", "TextFormat", "FunctionTool", "GrammarInput")
"""In these, null stands for nothing but where their own types say so."""


def request_schemas(limits: Limits, *, background: bool = True) -> Schemas:
    """Every schema of a request, by its name. `background`: whether responses are made in it."""
    roots: list[type[msgspec.Struct]] = [*members(KnownItem), *TOOLS, *FORCED, AllowedTools, PlainFields]
    made = {f"{name}{PARAM}": schema for name, schema in components(roots, _as_read).items()}
    fields = made.pop(f"{PlainFields.__name__}{PARAM}")
    create = _create(fields, limits, background=background)
    del made[f"{ToolError.__name__}{PARAM}"]  # the errors of all servers are read
    return {
        **made,
        **_changed(made),
        "InputItemParam": _item(),
        "OtherItemParam": _other_item(),
        "ContentPartParam": _part(ContentPart),
        "ResultPartParam": _part(ResultPart),
        "ThoughtParam": _thought(),
        **_tools(made),
        **_choices(),
        "ChatImageParam": _chat_image(),
        "TextFormatParam": _format(made["TextFormatParam"]),
        "ConversationParam": {"type": "object", "properties": {"id": _CONVERSATION}, "required": ["id"]},
        "CreateResponse": create,
        "CompactResponse": _compact(create),
        **_conversations(fields, limits),
    }


def _as_read(schema: Plain, struct: type) -> Plain:
    """As a client may send it: it need not have an id, and what it can leave out may be null."""
    required = [name for name in schema.get("required", ()) if name != "id"]
    is_plain = struct.__name__ in _READ_AS_THEY_ARE
    fields = {name: _without_default(field) for name, field in schema["properties"].items()}
    properties = {name: field if name in required or is_plain else or_null(field) for name, field in fields.items()}
    if "id" in properties:
        properties["id"] = _ID
    made: Plain = renamed({**schema, "properties": properties, "required": required}, PARAM)
    return made


def _without_default(field: Plain) -> Plain:
    """Generators of code take what has a default for something that is always there, in requests too."""
    return {key: value for key, value in field.items() if key != "default"}


# ---- items ----


def _changed(made: Schemas) -> Schemas:
    """The schemas that reading is more generous about than the structs are, or stricter."""
    output = any_of(TEXT, array(ref("ResultPartParam")))
    content = any_of(TEXT, array(ref("ContentPartParam")), NULL)
    thoughts = any_of(TEXT, array(any_of(TEXT, ref("ThoughtParam"))), NULL)
    call = {"call_id": _NOT_EMPTY, "name": _NOT_EMPTY}
    inner = array(ref("NamespacedToolParam"))
    listed = or_null(array(ref("McpToolInfoParam")))
    some = array(ref("NamedToolParam"), minItems=1, maxItems=128)
    changes: dict[str, dict[str, Any]] = {
        "MessageParam": {"required": ["role"], "content": content, "type": {"enum": ["message", None]}},
        "ItemReferenceParam": {
            "required": ["id"],
            "id": _NOT_EMPTY | {"maxLength": MAX_ITEM_ID},
            "type": {"enum": ["item_reference", None]},
        },
        "ReasoningParam": {"content": thoughts, "summary": thoughts},
        "FunctionCallParam": call,
        "CustomToolCallParam": call,
        "FunctionCallOutputParam": {"output": output},
        "CustomToolCallOutputParam": {"output": output},
        "InputImageParam": {
            "image_url": any_of(TEXT, ref("ChatImageParam"), NULL),
            "type": {"enum": _IMAGES},
            "file_id": _FILE_ID,
        },
        "InputFileParam": {"file_id": _FILE, "file_url": _FILE},
        "McpListToolsParam": {"required": ["type", "server_label"], "tools": listed, "error": _ERROR},
        "McpToolInfoParam": {"required": ["name"], "input_schema": or_null(OBJECT), "annotations": {}},
        "McpCallParam": {
            "output": or_null(output),
            "error": _ERROR,
            "content": or_null(array(ref("ResultPartParam"))),
        },
        "McpToolParam": {
            "server_label": {"type": "string", "pattern": SERVER_LABEL},
            "require_approval": made["McpToolParam"]["properties"]["require_approval"] | _APPROVAL,
        },
        "FunctionToolParam": {"name": _NAMED},
        "CustomToolParam": {"name": _NAMED},
        "NamespaceToolParam": {"name": _NAMED, "tools": inner},
        "AllowedToolsParam": {"tools": some},
        "ForcedHostedParam": {"type": {**_NOT_EMPTY, "not": {"enum": _CHOICES}}},
    }
    changed = {name: with_fields(made[name], **change) for name, change in changes.items()}
    changed["InputImageParam"] |= any_of(_has("image_url", {"not": NULL}), _has("file_id", TEXT))
    single = _has("type", {"not": {"enum": _SEVERAL}})
    changed["NamedToolParam"] = made["NamedToolParam"] | any_of(_has("name", TEXT), _has("server_label", TEXT), single)
    return changed


_IMAGES = ["input_image", "image_url"]
_CHOICES = ["allowed_tools", "custom", "function", "mcp"]
_SEVERAL = ["custom", "function", "mcp", "namespace"]
"""Of tools of other types there is one, and its type is its name."""


def _has(field: str, schema: Plain) -> Plain:
    return {"required": [field], "properties": {field: schema}}


def _thought() -> Plain:
    kinds = [None, "text", "input_text", "output_text", "reasoning_text", "summary_text"]
    return {"type": "object", "properties": {"type": {"enum": kinds}, "text": TEXT}, "required": ["text"]}


def _chat_image() -> Plain:
    detail = {"enum": ["low", "high", "auto", None]}
    return {
        "type": "object",
        "description": _AS_IN_CHAT,
        "properties": {"url": TEXT, "detail": detail},
        "required": ["url"],
    }


def _other_item() -> Plain:
    other = other_than(map(tag_of, members(KnownItem)), "An item of any other type, kept as it came.")
    return with_fields(other, id={"type": ["string", "null"], "maxLength": MAX_ITEM_ID})


def _item() -> Plain:
    names = [f"{struct.__name__}{PARAM}" for struct in (*members(OutputItem), *members(KnownItem)[-1:])]
    about = "The type may be left out of a message, and of a reference to an item of an earlier response."
    return any_of(*map(ref, names), ref("OtherItemParam"), description=about)


def _part(union: Any) -> Plain:
    about = "A part of the content; a plain text stands for an `input_text`."
    return any_of(TEXT, *[ref(f"{struct.__name__}{PARAM}") for struct in members(union)], description=about)


# ---- tools ----


def _nested(kind: str, inner: Plain, **more: Plain) -> Plain:
    """What stands where Chat Completions puts it: below its type."""
    outer = {"type": {"const": kind}, kind: inner, **more}
    return {"type": "object", "description": _AS_IN_CHAT, "properties": outer, "required": ["type", kind]}


_AS_IN_CHAT = "As Chat Completions has it."
_NESTED = {"function": "Function", "custom": "Custom"}


def _tools(made: Schemas) -> Schemas:
    """In a namespace there are only tools that are the client's; what else stands there is left to a setting."""
    about = "Tools are an open set: what is none of these is left to a setting, and not an error by itself."
    known = [ref(f"{tool.__name__}{PARAM}") for tool in TOOLS]
    nested = [ref(f"Chat{name}Tool{PARAM}") for name in _NESTED.values()]
    return {
        **_chat_tools(made),
        "ToolParam": any_of(*known, *nested, ref("OtherToolParam"), description=about),
        "NamespacedToolParam": any_of(*known[:2], *nested, ref("OtherNamespacedToolParam")),
        "OtherToolParam": other_than(
            map(tag_of, TOOLS), "A tool of any other type: a setting says what becomes of it."
        ),
        "OtherNamespacedToolParam": other_than(_NESTED, "A tool of any other type."),
    }


def _chat_tools(made: Schemas) -> Schemas:
    tools: Schemas = {}
    for kind, name in _NESTED.items():
        fields = made[f"{name}Tool{PARAM}"]["properties"].items()
        properties = {field: schema for field, schema in fields if field != "type"} | {"name": _NAMED}
        tools[f"Chat{name}{PARAM}"] = {"type": "object", "properties": properties, "required": ["name"]}
        tools[f"Chat{name}Tool{PARAM}"] = _nested(kind, ref(f"Chat{name}{PARAM}"), name=_LEFT_OUT)
    return tools


def _choices() -> Schemas:
    modes = {"enum": list(get_args(ChoiceMode))}
    forced = [ref(f"{struct.__name__}{PARAM}") for struct in FORCED]
    named = {"type": "object", "properties": {"name": TEXT, "namespace": or_null(TEXT)}, "required": ["name"]}
    nested = {f"ChatForced{name}{PARAM}": _nested(kind, ref("ChatNameParam")) for kind, name in _NESTED.items()}
    choice = any_of(modes, *forced, ref("AllowedToolsParam"), *map(ref, nested))
    return {**nested, "ChatNameParam": named, "ToolChoiceParam": choice}


# ---- the whole request ----


def _format(schema: Plain) -> Plain:
    """Of a schema, its name may be left out, and with the schema itself left out it asks for any JSON."""
    about = "Without a `schema`, `json_schema` is read as `json_object`; without a `name`, it is called `response`."
    about += " The type is `text` where it is left out."
    return {**schema, "description": about}


def _create(fields: Plain, limits: Limits, *, background: bool) -> Plain:
    items = array(ref("InputItemParam"), maxItems=limits.input_items)
    allowed = or_null(array(any_of(TEXT, ref("NamedToolParam"))))
    own: Schemas = {
        "input": any_of(TEXT, items, NULL),
        "tools": or_null(array(ref("ToolParam"), maxItems=limits.tools)),
        "tool_choice": or_null(ref("ToolChoiceParam")),
        "allowed_tools": allowed,
        "conversation": any_of(_CONVERSATION, ref("ConversationParam"), NULL),
        "prompt": NULL,
    }
    properties = {**own, **fields["properties"], "metadata": _metadata(fields, limits)}
    described = {name: {**schema, **_about(name)} for name, schema in properties.items()}
    if not background:
        described["background"] = NOT_IN_BACKGROUND
    return {
        "type": "object",
        "description": "What to answer, and how. Null stands for what is left out; fields that are not listed here"
        " are not looked at.",
        "properties": described,
        "not": {"required": [*_ONE_OF], "properties": {name: {"not": NULL} for name in _ONE_OF}},
    }


NOT_IN_BACKGROUND: Plain = {**or_null({"const": False}), "description": "Not offered: can only be false."}
_ONE_OF = ("conversation", "previous_response_id")
"""They say the same thing in two ways: only one of them may be there."""


def _compact(create: Plain) -> Plain:
    """Of the same fields, those that count. The model must be there."""
    fields = {name: create["properties"][name] for name in COMPACTION_FIELDS}
    return {
        "type": "object",
        "description": "What to compact. Fields that are not listed here are not looked at.",
        "properties": {**fields, "model": {**_NOT_EMPTY, "description": "The model that sums up."}},
        "required": ["model"],
    }


def _metadata(fields: Plain, limits: Limits) -> Plain:
    keys = {"maxProperties": limits.metadata_keys, "propertyNames": {"minLength": 1, "maxLength": LONGEST_KEY}}
    return or_null(fields["properties"]["metadata"]["anyOf"][0] | keys)


def _conversations(fields: Plain, limits: Limits) -> Schemas:
    """What conversations are made of, described by, and added to with."""
    items, metadata = array(ref("InputItemParam"), maxItems=limits.conversation_items), _metadata(fields, limits)
    return {
        "CreateConversation": {"type": "object", "properties": {"items": or_null(items), "metadata": metadata}},
        "UpdateConversation": {"type": "object", "properties": {"metadata": metadata}, "required": ["metadata"]},
        "AddItems": {"type": "object", "properties": {"items": items}, "required": ["items"]},
    }


def _about(name: str) -> Plain:
    return {"description": FIELDS[name]} if name in FIELDS else {}
