"""Make the schemas of the OpenAPI document from the types in `api/`.

msgspec makes a schema of each type. Answers always have all their fields and no others. Requests are read more
generously than the types say: a client may leave out ids and types, send null for a field that it does not set, and
use the forms of Chat Completions in some places. Their schemas end in `Param`; what `api/` parses is repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from antwort.api.decoding import Limits
from antwort.api.events import Event, ResponseRequiresAction, StreamEvent
from antwort.api.items import MAX_ITEM_ID, ContentPart, KnownItem, OutputItem, ResultPart, ToolError
from antwort.api.requests import COMPACTION_FIELDS, LONGEST_KEY, PlainFields
from antwort.api.resources import Conversation
from antwort.api.responses import CompactedResponse
from antwort.api.standard import STANDARD, item_kind, tool_kind
from antwort.api.tools import AllowedTools, ChoiceMode, CustomTool, Forced, FunctionTool, McpTool, NamespaceTool
from antwort.api.wire import Plain, Wire
from antwort.server.errors import ErrorBody, SocketError
from antwort.server.messages import CREATE, MAX_NAME
from antwort.server.resources import ApprovalList, ConversationDeleted
from antwort.server.routes import Deleted, InputTokens, ModelList, ResponseList, ToolsetList

Schemas = dict[str, Plain]
"""Schemas by their names."""
StructType: TypeAlias = type[msgspec.Struct]

PLACE = "#/components/schemas/"
NULL: Plain = {"type": "null"}
TEXT: Plain = {"type": "string"}
OBJECT: Plain = {"type": "object", "additionalProperties": True}
"""Any object. Code generators take an object without properties for an empty one, unless it says this."""
TOOL_NAME = "^[a-zA-Z0-9_.-]{1,128}$"
SERVER_LABEL = "^[a-zA-Z0-9_.-]{1,64}$"


class Health(Wire):
    status: Literal["ok"]


# ---- helpers ----


def ref(name: str) -> Plain:
    return {"$ref": f"{PLACE}{name}"}


def any_of(*schemas: Plain, **more: Any) -> Plain:
    return {"anyOf": list(schemas), **more}


def described(schema: Plain, description: str) -> Plain:
    return {**schema, "description": description}


def one_of(*texts: str) -> Plain:
    return {"type": "string", "enum": [*texts]}


def nonempty_text(max_length: int | None = None) -> Plain:
    return {**TEXT, "minLength": 1, **({} if max_length is None else {"maxLength": max_length})}


def or_null(schema: Plain) -> Plain:
    """Return a schema that allows null too. The description stays outside."""
    choices = schema.get("anyOf", [schema])
    about = {"description": schema["description"]} if "description" in schema else {}
    plain = [{key: value for key, value in choice.items() if key not in about} for choice in choices]
    return schema if NULL in choices else any_of(*plain, NULL, **about)


def _array(items: Plain, **more: Any) -> Plain:
    return {"type": "array", "items": items, **more}


def _object(properties: Plain, required: Iterable[str] = (), **more: Any) -> Plain:
    return {"type": "object", "properties": properties, "required": [*required], **more}


def _closed(properties: Plain) -> Plain:
    return _object(properties, properties, additionalProperties=False)


def _with_fields(schema: Plain, **fields: Plain) -> Plain:
    return {**schema, "properties": {**schema["properties"], **fields}}


def _any_other(known: Iterable[str], description: str, *required: str) -> Plain:
    """Return the schema of an object whose type is none of the known ones."""
    kind = {**nonempty_text(), "not": {"enum": sorted(known)}}
    return described({**OBJECT, **_object({"type": kind}, ("type", *required))}, description)


def members(union: Any) -> tuple[StructType, ...]:
    """Return the structs of a union, or the one struct that it is."""
    return tuple(each for each in get_args(union) or (union,) if issubclass(each, msgspec.Struct))


def tag_of(struct: StructType) -> str:
    return str(struct.__struct_config__.tag)


def _union_of(structs: Iterable[StructType], **more: Any) -> Plain:
    """Return a union whose members are told apart by their `type`."""
    mapping = {tag_of(struct): f"{PLACE}{struct.__name__}" for struct in structs}
    refs = [{"$ref": place} for place in mapping.values()]
    return {"oneOf": refs, "discriminator": {"propertyName": "type", "mapping": mapping}, **more}


def _components(*structs: StructType) -> Schemas:
    """Return the schemas of these structs and of all that they hold."""
    _, made = msgspec.json.schema_components(structs, ref_template=PLACE + "{name}")
    return {name: _rewritten(_without(schema, "title"), _opened) for name, schema in made.items()}


def _rewritten(value: Any, change: Callable[[Plain], Plain]) -> Any:
    """Return `value` with each object in it changed, the inner ones first."""
    match value:
        case dict():
            return change({key: _rewritten(each, change) for key, each in value.items()})
        case list():
            return [_rewritten(each, change) for each in value]
    return value


def _opened(schema: Plain) -> Plain:
    return {**OBJECT, **schema} if schema.get("type") == "object" and "properties" not in schema else schema


def _without(schema: Plain, key: str) -> Plain:
    return {name: value for name, value in schema.items() if name != key}


def references(value: Any, place: str = PLACE) -> Iterator[str]:
    """Yield the name of each component at this place that `value` refers to, as often as it does."""
    match value:
        case dict():
            for each in value.values():
                yield from references(each, place)
        case list():
            for each in value:
                yield from references(each, place)
        case str() if value.startswith(place):
            yield value.removeprefix(place)


def reachable(schemas: Schemas, start: Any) -> Schemas:
    """Return the schemas that `start` refers to, directly or not, by name."""
    found: set[str] = set()
    new = set(references(start))
    while new:
        found |= new
        new = {name for each in new for name in references(schemas[each])} - found
    return {name: schemas[name] for name in sorted(found)}


# ---- answers ----

TOOLS: tuple[StructType, ...] = (FunctionTool, CustomTool, NamespaceTool, McpTool)
FORCED = members(Forced)
CHOICES: tuple[StructType, ...] = (*FORCED, AllowedTools)
EVENTS = members(StreamEvent)
_LISTS: tuple[StructType, ...] = (ApprovalList, ModelList, ResponseList, ToolsetList)
_OTHERS: tuple[StructType, ...] = (CompactedResponse, Conversation, ConversationDeleted, Deleted, Health, InputTokens)
_ERRORS: tuple[StructType, ...] = (ErrorBody, SocketError)
_STREAM_ID = described(nonempty_text(MAX_NAME), "The client's name for a stream on a WebSocket. Its events repeat it.")


def answer_schemas(*, strict: bool = False) -> Schemas:
    """Return the schemas of what the server writes. `strict`: in the names of the standard."""
    made = {
        name: _as_written(schema)
        for name, schema in _components(*_LISTS, *_OTHERS, *_ERRORS, *TOOLS, *CHOICES, *EVENTS).items()
    }
    for event in EVENTS:
        made[event.__name__] = _numbered(made[event.__name__])
    output = _array(ref("OutputItem"), description="What the model wrote and called, in order.")
    made["CompactedResponse"] = _with_fields(made["CompactedResponse"], output=output)
    made["Response"] = _response(made["Response"], output)
    for secret in ("authorization", "headers"):  # never repeated
        del made["McpTool"]["properties"][secret]
    # Clients get the additional fields of an item back as they sent them.
    items = [item.__name__ for item in members(OutputItem)]
    sent = {f"{name}AsSent": {**made[name], "additionalProperties": True} for name in items}
    stored = any_of(ref("OutputItem"), *map(ref, sent), ref("OtherItem"), description="An input item, as stored.")
    choices = [ref(choice.__name__) for choice in CHOICES]
    readiness = {"status": {"enum": ["ok", "unavailable"]}}
    made |= {
        **sent,
        "OutputItem": _union_of(members(OutputItem)),
        "Item": stored,
        "ItemList": _with_fields(made["ResponseList"], data=_array(ref("Item"))),
        "OtherItem": _any_other(map(tag_of, members(KnownItem)), "An item of an unknown type, as it came.", "id"),
        "Tool": any_of(*[ref(tool.__name__) for tool in TOOLS], ref("OtherTool")),
        "OtherTool": _any_other(map(tag_of, TOOLS), "A tool of another type. The operator decides what it does."),
        "ToolChoice": any_of({"enum": list(get_args(ChoiceMode))}, *choices),
        **_text_echo(),
        "StreamEvent": _union_of(EVENTS, description="An event of a stream: the data of one frame."),
        "WebSocketErrorEvent": _with_fields(made.pop("SocketError"), stream_id=_STREAM_ID),
        "Readiness": described(
            _object(readiness, readiness, additionalProperties=TEXT),
            "Whether the server can work. Authenticated clients also see each part, as `ok` or with its problem.",
        ),
        "Document": described(OBJECT, "An OpenAPI 3.1 document."),
    }
    return _in_standard_names(made) if strict else made


def _as_written(schema: Plain) -> Plain:
    """Every field is there, unless it has neither a default nor is required: then it can be UNSET."""
    fields, needed = schema["properties"], schema.get("required", ())
    required = [name for name, field in fields.items() if name in needed or "default" in field]
    properties = {name: _without(field, "default") for name, field in fields.items()}
    return {**schema, "properties": properties, "required": required, "additionalProperties": False}


def _numbered(event: Plain) -> Plain:
    """An event gets its number, and the name of its stream, when it is sent."""
    number = {"type": "integer", "minimum": 0, "description": "Counts the events of the stream from 0."}
    properties = {"type": {}, "sequence_number": number, "stream_id": _STREAM_ID, **event["properties"]}
    return {**event, "properties": properties, "required": ["type", "sequence_number", *event["required"][1:]]}


def _response(schema: Plain, output: Plain) -> Plain:
    """The engine keeps what it echoes of the request as plain values. They have a form all the same."""
    tools = _array(ref("Tool"), description="The tools that the request declares, without their credentials.")
    echoed = _with_fields(schema, output=output, tools=tools, tool_choice=ref("ToolChoice"), text=ref("TextEcho"))
    return {**echoed, "required": [*schema["required"], "text"], "description": "A response, as it stands or ended."}


def _text_echo() -> Schemas:
    schema = {
        "type": {"const": "json_schema"},
        "name": TEXT,
        "description": or_null(TEXT),
        "schema": or_null(OBJECT),
        "strict": {"type": "boolean"},
    }
    formats = any_of(ref("PlainFormat"), ref("SchemaFormat"))
    echo = {"format": formats, "verbosity": {"enum": ["low", "medium", "high"]}}
    return {
        "PlainFormat": _closed({"type": {"enum": ["text", "json_object"]}}),
        "SchemaFormat": _closed(schema),
        "TextEcho": described({**_closed(echo), "required": ["format"]}, "The form of the answer's text."),
    }


def _in_standard_names(schemas: Schemas) -> Schemas:
    """Use the standard's names for types, and leave out the event that strict servers never send."""
    names = {
        **{event.__name__: STANDARD.name(event) for event in EVENTS if issubclass(event, Event)},
        **{item.__name__: item_kind(tag_of(item)) for item in members(OutputItem)},
        **{tool.__name__: tool_kind(tag_of(tool)) for tool in (*TOOLS, *FORCED) if tool.__struct_config__.tag},
    }
    sent = _union_of(event for event in EVENTS if event is not ResponseRequiresAction)
    schemas = {**schemas, "StreamEvent": {**schemas["StreamEvent"], **sent}}
    for name in schemas.keys() & names:
        schemas[name] = _with_fields(schemas[name], type={"enum": [names[name]]})

    def rename(schema: Plain) -> Plain:
        if "mapping" not in schema:
            return schema
        mapping = {names.get(place.removeprefix(PLACE), tag): place for tag, place in schema["mapping"].items()}
        return {**schema, "mapping": mapping}

    return {name: _rewritten(schema, rename) for name, schema in schemas.items()}


# ---- requests ----

FIELDS = {
    "input": "A text, or a list of items: messages, calls, results, reasoning, references. Optional with `instructions`"
    " or `previous_response_id`.",
    "tools": "The tools that the model may call.",
    "tool_choice": "Whether the model may, must or must not call tools, or which one it must call. Default: `auto`.",
    "allowed_tools": "Extension: the only tools whose calls are run. A string is the name of a function.",
    "conversation": "The conversation to continue, by its id or as an object with the id. Its items come before the"
    " input; input and output are added to it. Not together with `previous_response_id`.",
    "prompt": "Not supported: send `instructions` and `input`.",
    "model": "The model to ask. Optional if the server has a default model, or only one.",
    "previous_response_id": "The stored response to continue.",
    "include": "Additional output, such as `reasoning.encrypted_content`. Extension: `mcp_call.progress`.",
    "metadata": "Stored with the response and returned. Keys have at most 64 characters, values 512.",
    "text": "The form of the answer: text, JSON, or JSON that matches a schema.",
    "temperature": "The sampling temperature. Higher values make the text more random.",
    "top_p": "Sample from the most likely tokens that together have this probability.",
    "presence_penalty": "Penalize tokens that have occurred before.",
    "frequency_penalty": "Penalize tokens by how often they have occurred before.",
    "parallel_tool_calls": "Whether the model may make several calls in one turn. Default: true.",
    "stream": "Whether to answer with a stream of events. Default: false.",
    "stream_options": "Accepted and ignored.",
    "background": "Whether to run in the background: the request returns at once with the status `queued`. Requires"
    " `store`.",
    "max_output_tokens": "The most tokens that the model may write for this response.",
    "max_tool_calls": "The most calls that are run for this response, up to the server's own limit.",
    "max_turns": "Extension: the most inferences for this response. Cannot exceed the server's limit.",
    "deadline": "Extension: the seconds that the response may take. Cannot exceed the server's limit.",
    "token_budget": "Extension: the input and output tokens of all inferences together. Cannot exceed the server's"
    " limit.",
    "reasoning": "How much the model reasons, and whether to summarize its reasoning.",
    "safety_identifier": "Your identifier for the end user. Returned.",
    "prompt_cache_key": "Groups requests with a common prefix. Passed on to backends that support it, and returned.",
    "truncation": "What to do when the input exceeds the context of the model. `auto`: shorten long tool results and"
    " drop the oldest turns, with a note to the model. `disabled`: fail. Default: a setting of the server.",
    "instructions": "The system message of this response. Not inherited by later ones.",
    "store": "Whether to store the response, to be read and continued later. Default: true.",
    "service_tier": "Returned. The only tier is `default`; `auto` means the same.",
    "top_logprobs": "How many likely tokens to return at each position of the answer.",
    "user": "Older name for an identifier of the end user. Passed on and returned.",
    "context_management": "With an entry of type `compaction`: summarize the context before an inference of"
    " `compact_threshold` tokens or more.",
    "generate": "False: store the input to continue from, without asking the model. Default: true.",
}
"""What each field of a request does."""

_NAME: Plain = {"type": "string", "pattern": TOOL_NAME}
_AS_IN_CHAT = "The form of Chat Completions."
_NESTED = {"function": "Function", "custom": "Custom"}
"""Tools that Chat Completions puts under a key that is named for their type."""
_WITHOUT_NULLS = ("McpToolFilter", "TextFormat", "FunctionTool", "GrammarInput")
"""Null is allowed in these only where their types say so."""


def request_schemas(limits: Limits, *, background: bool = True) -> Schemas:
    """Return the schemas of what the server reads. `background`: whether it runs responses in the background."""
    parsed = _components(*members(KnownItem), *TOOLS, *CHOICES, PlainFields)
    made = {f"{name}Param": _as_read(name, schema) for name, schema in parsed.items()}
    del made[f"{ToolError.__name__}Param"]  # items of other servers hold errors of any form
    fields = made.pop(f"{PlainFields.__name__}Param")["properties"]
    made |= {name: _with_fields(made[name], **changes) for name, changes in _changed_fields(made).items()}
    made["MessageParam"]["required"] = ["role"]
    made["ItemReferenceParam"]["required"] = ["id"]
    made["McpListToolsParam"]["required"] = ["type", "server_label"]
    made["McpToolInfoParam"]["required"] = ["name"]
    made["InputImageParam"] |= any_of(_has("image_url", {"not": NULL}), _has("file_id", TEXT))
    # The type of any other tool is its name: there is one of it.
    is_single = _has("type", {"not": {"enum": ["custom", "function", "mcp", "namespace"]}})
    made["NamedToolParam"] |= any_of(_has("name", TEXT), _has("server_label", TEXT), is_single)
    made["TextFormatParam"]["description"] = (
        "Without a `schema`, `json_schema` means `json_object`; without a `name`, the schema is called `response`."
        " Default type: `text`."
    )
    create = _create(fields, limits, background=background)
    return {**made, **_item_params(), **_tool_params(made), **_conversation_bodies(create, limits), **_bodies(create)}


def _as_read(name: str, schema: Plain) -> Plain:
    """Ids may be left out, and what may be left out may be null.

    Code generators take a field with a default for one that is always there, so requests have none.
    """
    required = [each for each in schema.get("required", ()) if each != "id"]
    fields = {each: _without(field, "default") for each, field in schema["properties"].items()}
    if name not in _WITHOUT_NULLS:
        fields = {each: field if each in required else or_null(field) for each, field in fields.items()}
    if "id" in fields:
        fields["id"] = any_of({"type": "string", "maxLength": MAX_ITEM_ID}, NULL)
    read: Plain = _rewritten({**schema, "properties": fields, "required": required}, _to_params)
    return read


def _to_params(schema: Plain) -> Plain:
    """Let references point to the schemas of requests."""
    return {
        key: f"{value}Param" if isinstance(value, str) and value.startswith(PLACE) else value
        for key, value in schema.items()
    }


def _changed_fields(made: Schemas) -> dict[str, dict[str, Plain]]:
    """Return the fields that are read more generously than their types say, or less, by schema."""
    output = any_of(TEXT, _array(ref("ResultPartParam")))
    thoughts = any_of(TEXT, _array(any_of(TEXT, ref("ThoughtParam"))), NULL)
    call = {"call_id": nonempty_text(), "name": nonempty_text()}
    error = any_of(TEXT, OBJECT, NULL)
    image = any_of(TEXT, NULL, description="An image with this alone is refused: the server stores no files.")
    file = any_of(TEXT, NULL, description="A file with this alone is refused: only `file_data` is supported.")
    approval = (
        "Which calls need the approval of the client. The operator may require more. Default: all of a server that the"
        " request names by its address, unless the operator says otherwise."
    )
    return {
        "MessageParam": {
            "content": any_of(TEXT, _array(ref("ContentPartParam")), NULL),
            "type": {"enum": ["message", None]},
        },
        "ItemReferenceParam": {
            "id": nonempty_text(MAX_ITEM_ID),
            "type": {"enum": ["item_reference", None]},
        },
        "ReasoningParam": {"content": thoughts, "summary": thoughts},
        "FunctionCallParam": call,
        "CustomToolCallParam": call,
        "FunctionCallOutputParam": {"output": output},
        "CustomToolCallOutputParam": {"output": output},
        "InputImageParam": {
            "image_url": any_of(TEXT, ref("ChatImageParam"), NULL),
            "type": {"enum": ["input_image", "image_url"]},
            "file_id": image,
        },
        "InputFileParam": {"file_id": file, "file_url": file},
        "McpListToolsParam": {"tools": or_null(_array(ref("McpToolInfoParam"))), "error": error},
        "McpToolInfoParam": {"input_schema": or_null(OBJECT), "annotations": {}},
        "McpCallParam": {
            "output": or_null(output),
            "error": error,
            "content": or_null(_array(ref("ResultPartParam"))),
        },
        "McpToolParam": {
            "server_label": {"type": "string", "pattern": SERVER_LABEL},
            "require_approval": described(made["McpToolParam"]["properties"]["require_approval"], approval),
        },
        "FunctionToolParam": {"name": _NAME},
        "CustomToolParam": {"name": _NAME},
        "NamespaceToolParam": {"name": _NAME, "tools": _array(ref("NamespacedToolParam"))},
        "AllowedToolsParam": {"tools": _array(ref("NamedToolParam"), minItems=1, maxItems=128)},
        "ForcedHostedParam": {
            "type": {**nonempty_text(), "not": {"enum": ["allowed_tools", "custom", "function", "mcp"]}}
        },
    }


def _has(field: str, schema: Plain) -> Plain:
    return {"required": [field], "properties": {field: schema}}


def _item_params() -> Schemas:
    known = members(KnownItem)
    other = _any_other(map(tag_of, known), "An item of any other type. It is stored as it came.")
    thought = [None, "text", "input_text", "output_text", "reasoning_text", "summary_text"]
    detail = {"enum": ["low", "high", "auto", None]}
    return {
        "InputItemParam": any_of(
            *(ref(f"{struct.__name__}Param") for struct in known),
            ref("OtherItemParam"),
            description="Messages and references to items of earlier responses need no type.",
        ),
        "OtherItemParam": _with_fields(other, id={"type": ["string", "null"], "maxLength": MAX_ITEM_ID}),
        "ThoughtParam": _object({"type": {"enum": thought}, "text": TEXT}, ["text"]),
        "ChatImageParam": described(_object({"url": TEXT, "detail": detail}, ["url"]), _AS_IN_CHAT),
        **{
            name: any_of(
                TEXT,
                *(ref(f"{struct.__name__}Param") for struct in members(union)),
                description="A part of the content. A string means an `input_text`.",
            )
            for name, union in {"ContentPartParam": ContentPart, "ResultPartParam": ResultPart}.items()
        },
    }


def _nested(kind: str, inner: str, **more: Plain) -> Plain:
    return described(_object({"type": {"const": kind}, kind: ref(inner), **more}, ["type", kind]), _AS_IN_CHAT)


def _tool_params(made: Schemas) -> Schemas:
    """Return the tools and tool choices in every form that is read. A namespace holds only tools of the client."""
    known, other = [ref(f"{tool.__name__}Param") for tool in TOOLS], "A tool of any other type."
    chat = [ref(f"Chat{name}ToolParam") for name in _NESTED.values()]
    schemas: Schemas = {
        "ToolParam": any_of(*known, *chat, ref("OtherToolParam")),
        "NamespacedToolParam": any_of(*known[:2], *chat, ref("OtherNamespacedToolParam")),
        "OtherToolParam": _any_other(map(tag_of, TOOLS), f"{other} A setting decides what becomes of it."),
        "OtherNamespacedToolParam": _any_other(_NESTED, other),
        "ChatNameParam": _object({"name": TEXT, "namespace": or_null(TEXT)}, ["name"]),
        "ToolChoiceParam": any_of(
            {"enum": list(get_args(ChoiceMode))},
            *(ref(f"{choice.__name__}Param") for choice in CHOICES),
            *(ref(f"ChatForced{name}Param") for name in _NESTED.values()),
        ),
    }
    for kind, name in _NESTED.items():
        fields = {**made[f"{name}ToolParam"]["properties"]}
        del fields["type"]
        schemas |= {
            f"Chat{name}Param": _object(fields, ["name"]),
            f"Chat{name}ToolParam": _nested(kind, f"Chat{name}Param", name={"not": {}}),
            f"ChatForced{name}Param": _nested(kind, "ChatNameParam"),
        }
    return schemas


def _create(fields: Plain, limits: Limits, *, background: bool) -> Plain:
    """Return the schema of a whole request. `conversation` and `previous_response_id` exclude each other."""
    keys = {"maxProperties": limits.metadata_keys, "propertyNames": {"minLength": 1, "maxLength": LONGEST_KEY}}
    own = {
        "input": any_of(TEXT, _array(ref("InputItemParam"), maxItems=limits.input_items), NULL),
        "tools": or_null(_array(ref("ToolParam"), maxItems=limits.tools)),
        "tool_choice": or_null(ref("ToolChoiceParam")),
        "allowed_tools": or_null(_array(any_of(TEXT, ref("NamedToolParam")))),
        "conversation": any_of(nonempty_text(MAX_ITEM_ID), ref("ConversationParam"), NULL),
        "prompt": NULL,
    }
    metadata = or_null(fields["metadata"]["anyOf"][0] | keys)
    properties = {
        name: described(field, FIELDS[name]) for name, field in {**own, **fields, "metadata": metadata}.items()
    }
    if not background:
        properties["background"] = described(or_null({"const": False}), "Not supported by this server.")
    one_of = ("conversation", "previous_response_id")
    return {
        "type": "object",
        "description": "A request for a response. Null means that a field is not set. Unknown fields are ignored.",
        "properties": properties,
        "not": {"required": [*one_of], "properties": {name: {"not": NULL} for name in one_of}},
    }


def _bodies(create: Plain) -> Schemas:
    fields = create["properties"]
    compacted = {name: fields[name] for name in COMPACTION_FIELDS}
    model = described(nonempty_text(), "The model that writes the summary.")
    message = {
        "type": {"enum": [CREATE]},
        "stream": described({"enum": [True, None]}, "Optional: the answer is always a stream."),
        "stream_id": any_of(_STREAM_ID, NULL),
        "background": described({"enum": [False, None]}, "Optional: not supported on a WebSocket."),
    }
    about = "Asks for a response on a WebSocket: a `CreateResponse` with a type."
    return {
        "CreateResponse": create,
        "CompactResponse": _object({**compacted, "model": model}, ["model"]),
        "WebSocketResponseCreateEvent": described(_object(message, ["type"], allOf=[ref("CreateResponse")]), about),
    }


def _conversation_bodies(create: Plain, limits: Limits) -> Schemas:
    items = _array(ref("InputItemParam"), maxItems=limits.conversation_items)
    metadata = _without(create["properties"]["metadata"], "description")
    return {
        "ConversationParam": _object({"id": nonempty_text(MAX_ITEM_ID)}, ["id"]),
        "CreateConversation": {"type": "object", "properties": {"items": or_null(items), "metadata": metadata}},
        "UpdateConversation": _object({"metadata": metadata}, ["metadata"]),
        "AddItems": _object({"items": items}, ["items"]),
    }
