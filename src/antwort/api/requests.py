"""Reading a request: decoded to plain values, normalised, then converted to structs.

Every fault is an `InvalidField` that names the path (`input[2].content[0].type`), found before any work is done.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from antwort.api.faults import convert, described, kind_of
from antwort.api.items import InputItem, KnownItem, OpaqueItem
from antwort.api.tools import (
    AllowedTools,
    ChoiceMode,
    ForcedFunction,
    ForcedServer,
    FunctionTool,
    McpTool,
    NamedTool,
    OpaqueTool,
    Tool,
    ToolChoice,
)
from antwort.api.wire import Plain, Wire, encode
from antwort.errors import InvalidField
from antwort.ids import new_id

T = TypeVar("T")


class Limits(Wire):
    """How large a request may be."""

    input_items: int = 1000
    part_bytes: int = 10 * 2**20
    tools: int = 128
    metadata_keys: int = 16


class ReasoningOptions(Wire):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Wire):
    include_obfuscation: bool | None = None


class TextFormat(Wire):
    type: Literal["text", "json_schema", "json_object"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Wire):
    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=512)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]


class _Fields(Wire):
    """The fields of a request that need no normalising. Null means unset."""

    model: str | None = None
    previous_response_id: str | None = None
    include: tuple[str, ...] | None = None
    metadata: dict[str, ShortText] | None = None
    text: TextOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    instructions: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    user: str | None = None


class CreateRequest(_Fields):
    """A request, whole: items with ids, tools and choice in one form, and all of it as it came."""

    input: tuple[InputItem, ...] = ()
    raw_input: tuple[bytes, ...] = ()
    """The JSON of each input item as it came in; nothing is lost because we did not know it."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    allowed_tools: tuple[NamedTool, ...] | None = None
    """Both forms of the allowed list, as one; None: all are allowed."""
    raw: bytes = b"{}"

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def choice_mode(self) -> ChoiceMode | ForcedFunction | ForcedServer:
        """The choice without the allowed list, which is kept apart."""
        return self.tool_choice.mode if isinstance(self.tool_choice, AllowedTools) else self.tool_choice


_UNSUPPORTED = {
    "conversation": "conversations are not offered by this server; use 'previous_response_id'",
    "prompt": "stored prompts are not offered by this server; send 'instructions' and 'input'",
}
_OWN_KEYS = frozenset({"input", "tools", "tool_choice", "allowed_tools", "raw", "raw_input"})


def parse_request(body: bytes, limits: Limits) -> CreateRequest:
    """The request in `body`, or the first thing that is wrong with it."""
    try:
        plain = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidField("", f"The body is not valid JSON: {described(exc)}.", code="invalid_json") from exc
    if not isinstance(plain, dict):
        raise InvalidField("", "The body must be a JSON object.", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _DEPTH:  # fewer cannot be nested too deeply
        _check_depth(plain)
    return read_request(plain, limits, raw=body)


_DEPTH = 200
"""How deep a body may be nested: far beyond any real one, and within what can be written out again anywhere."""


def _check_depth(plain: Plain) -> None:
    level: list[Any] = [plain]
    for _ in range(_DEPTH):
        inside = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InvalidField("", f"The body is nested more than {_DEPTH} levels deep.", code="invalid_json")


def read_request(plain: Plain, limits: Limits, *, raw: bytes | None = None) -> CreateRequest:
    """The request in `plain`, as `parse_request` reads it from bytes."""
    for key, problem in _UNSUPPORTED.items():
        if plain.get(key) is not None:
            raise InvalidField(key, f"{problem}.", code="unsupported_parameter")
    # Converting to the plain fields first keeps one place that knows what they may be.
    given = {k: v for k, v in plain.items() if k not in _OWN_KEYS}
    if isinstance(given.get("text"), dict):
        given["text"] = _without_nulls(given["text"])
    fields = convert(given, _Fields, "")
    if fields.metadata is not None and len(fields.metadata) > limits.metadata_keys:
        raise InvalidField("metadata", f"more than {limits.metadata_keys} keys.", code="too_many_keys")
    _check_format(fields.text)
    items, raw_items = read_input(plain.get("input"), limits)
    tools = _read_tools(plain.get("tools"), limits)
    choice = _read_choice(plain.get("tool_choice"))
    return CreateRequest(
        **{name: getattr(fields, name) for name in _Fields.__struct_fields__},
        input=items,
        raw_input=raw_items,
        tools=tools,
        tool_choice=choice,
        allowed_tools=_read_allowed(plain.get("allowed_tools"), choice),
        raw=encode(plain) if raw is None else raw,
    )


def _check_format(text: TextOptions | None) -> None:
    if text is not None and text.format.type == "json_schema":
        for key in ("name", "schema"):
            if getattr(text.format, key) is None:
                raise InvalidField(f"text.format.{key}", "missing required field.", code="missing_required_parameter")


# ---- input ----


def read_input(value: object, limits: Limits) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """The input items and the JSON of each as it came."""
    if value is None:
        return (), ()
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidField("input", f"expected a string or a list of items, got {kind_of(value)}.")
    if len(value) > limits.input_items:
        problem = f"{len(value)} items; at most {limits.input_items} are allowed."
        raise InvalidField("input", problem, code="too_many_items")
    items = tuple(read_item(entry, f"input[{i}]", limits) for i, entry in enumerate(value))
    return items, tuple(encode(entry) for entry in value)


def read_item(value: object, path: str, limits: Limits, *, item_id: str | None = None) -> InputItem:
    """One item. `item_id` is the id it was stored under; a client's own id is kept, a missing one is made."""
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = _kind_of_item(value, path)
    plain = _normalised(value, kind, path) if kind in _PREFIX else {**value, "type": kind}
    plain["id"] = item_id or _own_id(plain, path) or new_id(_PREFIX.get(kind, "item"))
    _check_sizes(plain, path, limits)
    if kind not in _PREFIX:
        return OpaqueItem(kind, plain["id"], plain)
    item: InputItem = convert(plain, _CLASSES[kind], path)
    return item


def _own_id(plain: Plain, path: str) -> str:
    """The id a client gave the item, if any."""
    given = plain.get("id")
    if not isinstance(given, str | None):
        raise InvalidField(f"{path}.id", f"expected a string, got {kind_of(given)}.")
    return given or ""


_PREFIX = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "item_reference": "ref",
}
_CLASSES: dict[object, type[Wire]] = {item.__struct_config__.tag: item for item in get_args(KnownItem)}
"""Converting to the one class takes a tenth of the time that converting to the union takes."""


def _kind_of_item(value: Plain, path: str) -> str:
    """The type of an item. A client may leave it out where the rest of the item shows it."""
    kind = value.get("type")
    if kind is None:
        if value.get("role") is not None:
            return "message"
        if value.get("id") is not None:
            return "item_reference"
        raise InvalidField(f"{path}.type", "missing.", code="missing_required_parameter")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", f"expected a string, got {kind_of(kind)}.")
    return kind


def _normalised(value: Plain, kind: str, path: str) -> Plain:
    """The item with what a client may leave out filled in, and nulls for unset fields taken out."""
    plain = _without_nulls(value)
    plain["type"] = kind
    if kind == "message":
        _normalise_message(plain, path)
    elif kind == "item_reference":
        if not plain.get("id"):
            raise InvalidField(f"{path}.id", "missing.", code="missing_required_parameter")
    elif kind == "reasoning":
        _normalise_reasoning(plain)
    elif kind in _CALLS:
        _check_call(plain, path)
    elif kind == "mcp_list_tools" and isinstance(plain.get("tools"), list):
        plain["tools"] = [_without_nulls(tool) if isinstance(tool, dict) else tool for tool in plain["tools"]]
    elif isinstance(plain.get("output"), list):
        plain["output"] = [_part(part, f"{path}.output[{i}]") for i, part in enumerate(plain["output"])]
    return plain


_CALLS = {"function_call": ("call_id", "name"), "custom_tool_call": ("call_id", "name")}


def _check_call(plain: Plain, path: str) -> None:
    for key in _CALLS[plain["type"]]:
        if plain.get(key) == "":
            raise InvalidField(f"{path}.{key}", "must not be empty.")


def _without_nulls(value: Plain) -> Plain:
    return {key: entry for key, entry in value.items() if entry is not None}


def _normalise_message(plain: Plain, path: str) -> None:
    plain.setdefault("status", "completed")
    content = plain.get("content", [])
    if isinstance(content, str):
        kind = "output_text" if plain.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    if not isinstance(content, list):
        raise InvalidField(f"{path}.content", f"expected a string or a list of parts, got {kind_of(content)}.")
    plain["content"] = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]


def _part(value: object, path: str) -> object:
    """A content part in the protocol's shape; the Chat Completions shapes that clients send are understood too."""
    if isinstance(value, str):
        return {"type": "input_text", "text": value}
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    part = _without_nulls(value)
    if part.get("type") in ("input_image", "image_url"):
        _normalise_image(part, path)
    return part


def _normalise_image(part: Plain, path: str) -> None:
    part["type"] = "input_image"
    url = part.get("image_url")
    if isinstance(url, dict) and isinstance(url.get("url"), str):
        part["image_url"] = url["url"]
        if url.get("detail") is not None:
            part.setdefault("detail", url["detail"])
    if url is None and "file_id" not in part:
        raise InvalidField(f"{path}.image_url", "missing.", code="missing_required_parameter")


def _normalise_reasoning(plain: Plain) -> None:
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = [
            {"type": "reasoning_text", "text": part} if isinstance(part, str) else part for part in content
        ]
    if content == []:
        del plain["content"]


def _check_sizes(plain: Plain, path: str, limits: Limits) -> None:
    """No string of an item, nor of a part in it, may be longer than the limit for a part."""
    for key, entry in plain.items():
        if isinstance(entry, str):
            _check_size(entry, f"{path}.{key}", limits)
        elif isinstance(entry, list):
            for i, part in enumerate(entry):
                if isinstance(part, dict):
                    _check_sizes(part, f"{path}.{key}[{i}]", limits)


def _check_size(text: str, path: str, limits: Limits) -> None:
    # A character takes at most four bytes: only a text that may be too long is encoded to be measured.
    if len(text) * 4 > limits.part_bytes and len(text.encode()) > limits.part_bytes:
        raise InvalidField(path, f"longer than {limits.part_bytes} bytes.", code="string_above_max_length")


# ---- tools ----


def _read_tools(value: object, limits: Limits) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidField("tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > limits.tools:
        raise InvalidField("tools", f"{len(value)} tools; at most {limits.tools} are allowed.", code="too_many_tools")
    tools = tuple(_read_tool(entry, f"tools[{i}]") for i, entry in enumerate(value))
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            if tool.name in seen:
                raise InvalidField(f"tools[{i}].name", f"{tool.name!r} is declared twice.", code="duplicate_tool")
            seen.add(tool.name)
    return tools


def _read_tool(value: object, path: str) -> Tool:
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", "missing, or not a string.", code="missing_required_parameter")
    if kind == "function":
        return _read_function(value, path)
    if kind == "mcp":
        server: McpTool = convert(_without_nulls(value), McpTool, path)
        return server
    return OpaqueTool(kind, value)


def _read_function(value: Plain, path: str) -> FunctionTool:
    # Some clients nest the function as Chat Completions does.
    nested = value.get("function")
    if isinstance(nested, dict) and "name" not in value:
        value, path = {"type": "function", **nested}, f"{path}.function"
    tool: FunctionTool = convert(value, FunctionTool, path)
    if not _NAME.fullmatch(tool.name):
        problem = f"{tool.name!r} is not a name of 1 to 128 letters, digits, '_', '-' or '.'."
        raise InvalidField(f"{path}.name", problem)
    return tool


_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def _read_choice(value: object) -> ToolChoice:
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice: ToolChoice = convert(value, ChoiceMode, "tool_choice")
        return choice
    if isinstance(value, dict):
        return _read_choice_object(_without_nulls(value))
    raise InvalidField("tool_choice", f"expected a string or an object, got {kind_of(value)}.")


def _read_choice_object(value: Plain) -> ToolChoice:
    if value.get("type") == "function" and isinstance(value.get("function"), dict):
        value = {"type": "function", **value["function"]}
    if isinstance(value.get("tools"), list):
        value["tools"] = [_without_nulls(entry) if isinstance(entry, dict) else entry for entry in value["tools"]]
    choice: ForcedFunction | ForcedServer | AllowedTools = convert(
        value, ForcedFunction | ForcedServer | AllowedTools, "tool_choice"
    )
    if isinstance(choice, AllowedTools):
        if not 1 <= len(choice.tools) <= 128:
            raise InvalidField("tool_choice.tools", "must name 1 to 128 tools.", code="invalid_value")
        _check_named(choice.tools, "tool_choice.tools")
    return choice


def _read_allowed(value: object, choice: ToolChoice) -> tuple[NamedTool, ...] | None:
    """The allowed list of either form, or what both allow. An empty top-level list allows all."""
    standard = choice.tools if isinstance(choice, AllowedTools) else None
    if not value:
        if value not in (None, []):
            raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
        return standard
    if not isinstance(value, list):
        raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
    entries = [_without_nulls(entry) if isinstance(entry, dict) else entry for entry in value]
    named = [{"type": "function", "name": entry} if isinstance(entry, str) else entry for entry in entries]
    own: tuple[NamedTool, ...] = convert(named, tuple[NamedTool, ...], "allowed_tools")
    _check_named(own, "allowed_tools")
    return own if standard is None else tuple(entry for entry in own if entry in standard)


def _check_named(entries: tuple[NamedTool, ...], path: str) -> None:
    """An entry that names nothing would allow nothing, in silence."""
    for i, entry in enumerate(entries):
        if not isinstance(entry.name, str) and not isinstance(entry.server_label, str):
            raise InvalidField(f"{path}[{i}].name", "missing required field.", code="missing_required_parameter")
