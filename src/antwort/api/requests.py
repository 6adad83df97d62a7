"""Parse requests: decode to plain values, normalize, convert to structs.

Every fault is an `InvalidField` that names the path (`input[2].content[0].type`), and is found before any work begins.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antwort.api.decoding import (
    MAX_UNKNOWN_FIELDS,
    KnownFields,
    Limits,
    Steps,
    at_once,
    body_steps,
    convert,
    kind_of,
    without_nulls,
)
from antwort.api.item_parsing import input_steps, item_steps
from antwort.api.items import MAX_ITEM_ID, InputItem, OpaqueItem, is_additional
from antwort.api.responses import Metadata
from antwort.api.tool_parsing import (
    Declaration,
    Declared,
    check_steps,
    declared_steps,
    entries_of,
    offered,
    read_allowed,
    read_choice,
    tool_steps,
)
from antwort.api.tools import AllowedTools, ChoiceMode, Forced, NamedTool, Tool, ToolChoice
from antwort.api.wire import Plain, Wire, encode, replace
from antwort.errors import InvalidField, MissingField
from antwort.suggestions import WITHOUT_EFFECT, field_warnings, missing


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


class ContextManagement(Wire):
    """How to keep the context small. Only the type `compaction` has an effect."""

    type: str
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None
    """The number of tokens from which on the context is compacted."""


Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=512)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]


class PlainFields(Wire):
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
    max_turns: Positive | None = None
    """How many inferences may be made. This field and the next two are extensions of ours."""
    deadline: Annotated[float, Meta(gt=0)] | None = None
    """Seconds that the response may take."""
    token_budget: Positive | None = None
    """Input and output tokens that all inferences may take together."""
    reasoning: ReasoningOptions | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    instructions: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    user: str | None = None
    context_management: tuple[ContextManagement, ...] | None = None
    generate: bool | None = None
    """False: store the input to continue from it, and make no inference."""


class CreateRequest(PlainFields):
    """A whole request: items with ids, tools and choice in one form, and the JSON as it was received."""

    input: tuple[InputItem, ...] = ()
    raw_input: tuple[bytes, ...] = ()
    """The JSON of each input item as it was received, with fields that we do not know."""
    tools: tuple[Tool, ...] = ()
    additional: tuple[Declaration, ...] = ()
    """The tools that `additional_tools` items declare: those of the input and, in a plan, of the history."""
    tool_choice: ToolChoice = "auto"
    allowed_tools: tuple[NamedTool, ...] | None = None
    """Both forms of the allowed list in one; None: all tools are allowed."""
    conversation: str | None = None
    """The id of the conversation that it continues."""
    raw: bytes = b"{}"
    """The body as it was received; of a large one, without the input and unknown fields."""
    unknown_fields: tuple[str, ...] = ()
    """The first top-level fields that are not known. They have no effect, and a warning names them."""

    def __repr__(self) -> str:
        """Show the model only: other fields may hold credentials."""
        return f"CreateRequest(model={self.model!r})"

    @property
    def declarations(self) -> list[Declaration]:
        """All tools that the request offers, its own first."""
        return offered(self.tools, self.additional)

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def warnings(self) -> str:
        """Return the warning about unknown fields, in printable ASCII."""
        return field_warnings(self.unknown_fields, REQUEST_FIELDS) if self.unknown_fields else ""

    def missing(self, field: str, advice: str) -> MissingField:
        """Return the error for a field that is missing: maybe an unknown one stands for it."""
        hint = missing(field, self.unknown_fields, REQUEST_FIELDS) if self.unknown_fields else ""
        return MissingField(field, f"{advice} {hint}".rstrip())

    @property
    def choice_mode(self) -> ChoiceMode | Forced:
        """The choice without the allowed list, which is in `allowed_tools`."""
        return self.tool_choice.mode if isinstance(self.tool_choice, AllowedTools) else self.tool_choice


_NO_PROMPTS = "stored prompts are not offered by this server; send 'instructions' and 'input'."
_PLAIN = frozenset(PlainFields.__struct_fields__) - {"text"}
REQUEST_FIELDS = (
    *PlainFields.__struct_fields__,
    "input",
    "tools",
    "tool_choice",
    "allowed_tools",
    "conversation",
    "prompt",
)
_BODY = KnownFields(*REQUEST_FIELDS, without_effect=WITHOUT_EFFECT)
_TOLERATED = frozenset(REQUEST_FIELDS) | {"type", "stream_id"}
"""The last two are of messages over WebSocket."""


def parse_request(body: bytes, limits: Limits) -> CreateRequest:
    """Parse the request in `body`. Raises `InvalidField` for the first thing that is wrong."""
    return at_once(request_steps(body, limits))


def request_steps(body: bytes, limits: Limits) -> Steps[CreateRequest]:
    """Do what `parse_request` does, in pieces."""
    plain, raw = yield from body_steps(body, _BODY, limits)
    return (yield from read_steps(plain, limits, raw=raw))


def read_request(plain: Plain, limits: Limits, *, raw: bytes | None = None) -> CreateRequest:
    """Parse the request in `plain`, as `parse_request` does with bytes."""
    return at_once(read_steps(plain, limits, raw=raw))


def read_steps(plain: Plain, limits: Limits, *, raw: bytes | None = None) -> Steps[CreateRequest]:
    """Do what `read_request` does, in pieces."""
    if plain.get("prompt") is not None:
        raise InvalidField("prompt", _NO_PROMPTS, code="unsupported_parameter")
    given = plain
    if isinstance(text := plain.get("text"), dict):
        given = {**plain, "text": without_nulls(text)}
    try:
        fields: PlainFields = convert(given, PlainFields, "")
    except InvalidField:  # some programs write 5.0 for 5
        whole = {name: _with_whole_numbers(given[name]) for name in _PLAIN.intersection(given)}
        fields = convert({**given, **whole}, PlainFields, "")
    if fields.metadata is not None:
        check_metadata(fields.metadata, limits)
    items, raw_items = yield from input_steps(plain.get("input"), limits)
    tools = (yield from tool_steps(plain["tools"], limits)) if "tools" in plain else ()
    has_additional = OpaqueItem in map(type, items)
    additional = (yield from _additional_steps(items, "input", tools, limits)) if has_additional else ()
    choice = read_choice(plain["tool_choice"]) if "tool_choice" in plain else "auto"
    is_limited = "allowed_tools" in plain or isinstance(choice, AllowedTools)
    return CreateRequest(
        **{name: getattr(fields, name) for name in _PLAIN.intersection(plain)},
        text=None if fields.text is None else _read_text(fields.text),
        input=items,
        raw_input=raw_items,
        tools=tools,
        additional=additional,
        tool_choice=choice,
        allowed_tools=read_allowed(plain.get("allowed_tools"), choice) if is_limited else None,
        conversation=_read_conversation(plain["conversation"], fields) if "conversation" in plain else None,
        raw=encode(plain) if raw is None else raw,
        unknown_fields=() if _TOLERATED.issuperset(plain) else _unknown(plain),
    )


def _unknown(plain: Plain) -> tuple[str, ...]:
    return tuple(islice((name for name in plain if name not in _TOLERATED), MAX_UNKNOWN_FIELDS))


def _with_whole_numbers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case [*entries]:
            return [_with_whole_numbers(entry) for entry in entries]
        case {"compact_threshold": float(number)}:
            return {**value, "compact_threshold": _with_whole_numbers(number)}
        case _:
            return value


def _additional_steps(
    items: tuple[InputItem, ...], path: str, tools: tuple[Tool, ...], limits: Limits
) -> Steps[tuple[Declaration, ...]]:
    """Parse the tools that items declare, and check them together with `tools`."""
    declared = [Declared(entries_of(item), f"{path}[{i}].tools") for i, item in enumerate(items) if is_additional(item)]
    additional = yield from declared_steps(declared, limits.tools)
    yield from check_steps(offered(tools, additional), limits)
    return additional


def less_input(request: bytes) -> bytes:
    """Return the JSON of a request without its `input`. Raises a `MsgspecError` if it is not a JSON object."""
    fields = _decode_fields.decode(request)
    if "input" not in fields:
        return request
    del fields["input"]
    return bytes(memoryview(encode(fields)))  # what the encoder gives out has room to grow


_decode_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


LONGEST_KEY = 64
"""Characters of a key of metadata, as OpenAI documents it."""


def read_metadata(value: object, limits: Limits) -> Metadata:
    """Parse metadata; null means none."""
    metadata: Metadata = {} if value is None else convert(value, dict[str, ShortText], "metadata")
    check_metadata(metadata, limits)
    return metadata


def check_metadata(metadata: Metadata, limits: Limits) -> None:
    """Check the number and the length of keys."""
    if len(metadata) > limits.metadata_keys:
        raise InvalidField("metadata", f"more than {limits.metadata_keys} keys.", code="too_many_keys")
    for key in metadata:
        if not key:
            raise InvalidField("metadata", "a key must not be empty.")
        if len(key) > LONGEST_KEY:
            problem = f"a key must not be longer than {LONGEST_KEY} characters."
            raise InvalidField(f"metadata.{key[:LONGEST_KEY]}...", problem, code="string_above_max_length")


_ConversationId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ITEM_ID)]


class _Conversation(Wire):
    id: _ConversationId


def _read_conversation(value: object, fields: PlainFields) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | dict):
        raise InvalidField("conversation", f"expected an id or an object with one, got {kind_of(value)}.")
    found: _Conversation | str = convert(
        value, _ConversationId if isinstance(value, str) else _Conversation, "conversation"
    )
    if fields.previous_response_id is not None:
        problem = "it cannot be given together with 'previous_response_id'."
        raise InvalidField("conversation", problem, code="mutually_exclusive_parameters")
    return found if isinstance(found, str) else found.id


_FORMAT_NAME = "response"
"""The name of a schema without one: backends require it."""


def _read_text(text: TextOptions) -> TextOptions:
    """Read a `json_schema` without a schema, which some clients send for any JSON, as `json_object`; fill in a name."""
    if text.format.type != "json_schema":
        return text
    if text.format.schema is None:
        return replace(text, format=TextFormat(type="json_object"))
    return text if text.format.name is not None else replace(text, format=replace(text.format, name=_FORMAT_NAME))


# ---- items of a conversation ----


def added_steps(value: object, limits: Limits) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Parse items to add to a conversation, in pieces. Return them, and the JSON of each as it was received."""
    items, raw = yield from item_steps(value, "items", limits, most=limits.conversation_items)
    yield from _additional_steps(items, "items", (), limits)
    return items, raw


# ---- compaction ----

COMPACTION_FIELDS = ("model", "input", "previous_response_id", "instructions", "prompt_cache_key")
"""The fields that count. Others that clients send, such as tools, are ignored."""
_COMPACTION_BODY = KnownFields(*COMPACTION_FIELDS)


class CompactRequest(CreateRequest):
    """A request for a compacted context instead of an answer. Nothing of it is stored."""


def compaction_steps(body: bytes, limits: Limits) -> Steps[CompactRequest]:
    """Parse the request in `body`, in pieces. Raises `InvalidField` for the first thing that is wrong."""
    plain, raw = yield from body_steps(body, _COMPACTION_BODY, limits)
    known = {name: plain[name] for name in COMPACTION_FIELDS if name in plain}
    return as_compaction((yield from read_steps(known, limits, raw=raw)))


def as_compaction(request: CreateRequest) -> CompactRequest:
    """Return the request with the fields that count for a compaction. It must name the model, because a default cannot
    know which model summarizes and which one continues.
    """
    if not request.model:
        raise InvalidField("model", "missing.", code="missing_required_parameter")
    fields = (*COMPACTION_FIELDS, "additional", "raw_input", "raw")
    return CompactRequest(store=False, **{name: getattr(request, name) for name in fields})
