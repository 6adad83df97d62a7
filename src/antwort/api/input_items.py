"""Read input items: fill in what a client may leave out, and keep unknown fields and types as they came."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import Raw

from antwort.api.additional_tools import checked_item, is_additional
from antwort.api.bodies import value_steps
from antwort.api.credentials import KEY, bared, login_steps, may_hold_logins
from antwort.api.items import (
    ContentPart,
    InputItem,
    InputText,
    KnownItem,
    Message,
    OpaqueItem,
    OutputText,
    Phase,
    Refusal,
    ResultPart,
    Role,
    Text,
    ToolError,
    text_of,
)
from antwort.api.limits import Limits
from antwort.api.standard import own_kind
from antwort.api.status import ItemStatus
from antwort.api.steps import Steps, at_once
from antwort.api.validation import convert, kind_of, without_inner_nulls, without_nulls
from antwort.api.wire import UNSET, Plain, Wire, encode
from antwort.errors import InvalidField
from antwort.ids import new_id


def input_list(value: object) -> list[Any]:
    """Return the entries of an input in any of its forms."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidField("input", f"expected a string or a list of items, got {kind_of(value)}.")
    return value


def read_input(value: object, limits: Limits) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """Return the input items, and the JSON of each as it was received."""
    return read_items(input_list(value), "input", limits, most=limits.input_items)


def read_items(
    value: object, path: str, limits: Limits, *, most: int
) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """Return the items of a list, and the JSON of each as it was received."""
    return at_once(item_steps(value, path, limits, most=most))


def item_steps(
    value: object, path: str, limits: Limits, *, most: int
) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Do what `read_items` does, in pieces."""
    if not isinstance(value, list):
        raise InvalidField(path, f"expected a list of items, got {kind_of(value)}.")
    if len(value) > most:
        raise InvalidField(path, f"{len(value)} items; at most {most} are allowed.", code="too_many_items")
    items: list[InputItem] = []
    raws: list[bytes] = []
    since = 0
    for i, entry in enumerate(value):
        if isinstance(entry, Raw):
            came = bytes(entry)
            decoded = yield from value_steps(came, f"{path}[{i}]", limits)
            if len(came) > _STEP:
                yield
            plain, raw = yield from _bared_steps(decoded, came)
        else:
            decoded = entry
            plain, raw = _bared(entry)
        size = len(raw)
        # Only `read_item` describes errors.
        item = _easy_message(plain, size, limits) or read_item(plain, f"{path}[{i}]", limits, size=size)
        if item.__class__ is OpaqueItem and is_additional(item):
            item = checked_item(item, decoded, f"{path}[{i}]")
            raw = encode(item) if KEY in decoded else raw
        items.append(item)
        raws.append(raw)
        if (since := since + size) > _STEP:
            since = 0
            yield
    return tuple(items), tuple(raws)


_STEP = 64 * 1024
"""Bytes of items after which the reader yields."""


class _GivenMessage(Wire, tag="message"):
    """A message as a client may write it: some write null for what they leave out."""

    role: Role
    content: str | tuple[InputText | Text | Refusal, ...] | None = None
    id: str | None = None
    status: ItemStatus | None = None
    phase: Phase | None = None


def _easy_message(value: object, size: int, limits: Limits) -> Message | None:
    """Return the item if it is a message of plain texts, as nearly all are; None for any other, which `read_item` reads
    with the same result, at several times the cost.
    """
    if not isinstance(value, dict) or value.get("type", "message") != "message" or size > limits.part_bytes:
        return None
    try:
        given = msgspec.convert(value, _GivenMessage)
    except msgspec.ValidationError:
        return None
    if given.id is not None and len(given.id) > LONGEST_ID:
        return None
    content: tuple[ContentPart, ...] = ()
    if isinstance(given.content, str):
        said = given.content
        content = (OutputText(text=said) if given.role == "assistant" else InputText(text=said),)
    elif given.content is not None:
        content = given.content
    return Message(
        id=given.id or new_id("msg"),
        role=given.role,
        content=content,
        status=given.status or "completed",
        phase=given.phase or UNSET,
    )


def _bared(entry: object) -> tuple[object, bytes]:
    """Return the entry without credentials, and its JSON. Items may declare tools, and credentials are not stored."""
    if not isinstance(entry, dict):
        return entry, b""  # which is no item
    raw = encode(entry)
    if not may_hold_logins(raw):
        return entry, raw
    bare = bared(entry, raw)
    return (entry, raw) if bare is entry else (bare, encode(bare))


def _bared_steps(entry: object, came: bytes) -> Steps[tuple[object, bytes]]:
    """Do what `_bared` does for an item whose JSON is known and may be long, in pieces."""
    if isinstance(entry, dict) and b"\\u00" not in came and not (yield from login_steps(came)):
        return entry, came
    return _bared(entry)


def read_item(
    value: object, path: str, limits: Limits, *, item_id: str | None = None, size: int | None = None
) -> InputItem:
    """Read one item. `item_id` is its id in the store; otherwise a client's own id is kept and a missing one is made.
    `size` is the length of its JSON in bytes, if known.
    """
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = _kind_of_item(value, path)
    plain = _normalised(value, kind, path) if kind in _PREFIX else {**value, "type": kind}
    plain["id"] = item_id or _own_id(plain, path) or new_item_id(kind)
    is_short = size is not None and size <= limits.part_bytes  # as all that is in it is then
    if not is_short and kind != "compaction":  # which holds many, each of which was measured when it came
        _check_sizes(plain, path, limits)
    if kind not in _PREFIX:
        return OpaqueItem(kind, plain["id"], plain)
    item: InputItem = convert(plain, _CLASSES[kind], path)
    return item


def _own_id(plain: Plain, path: str) -> str:
    """Return the id that a client gave the item, or an empty string."""
    given = plain.get("id")
    if not isinstance(given, str | None):
        raise InvalidField(f"{path}.id", f"expected a string, got {kind_of(given)}.")
    if given and len(given) > LONGEST_ID:
        raise InvalidField(f"{path}.id", f"longer than {LONGEST_ID} characters.", code="string_above_max_length")
    return given or ""


LONGEST_ID = 512
"""Characters of an id of an item: those of clients have about forty."""


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
_OPAQUE_PREFIX = {"additional_tools": "at"}


def new_item_id(kind: str) -> str:
    """Make an id for an item of this type."""
    return new_id(_PREFIX.get(kind) or _OPAQUE_PREFIX.get(kind, "item"))


_CLASSES: dict[object, type[Wire]] = {item.__struct_config__.tag: item for item in get_args(KnownItem)}
"""The class of each type. Converting to one class takes a tenth of the time of converting to the union."""


def _kind_of_item(value: Plain, path: str) -> str:
    """Return the type of an item. A client may leave it out if the rest of the item shows it."""
    kind = value.get("type")
    if kind is None:
        if value.get("role") is not None:
            return "message"
        if value.get("id") is not None:
            return "item_reference"
        raise InvalidField(f"{path}.type", "missing.", code="missing_required_parameter")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", f"expected a string, got {kind_of(kind)}.")
    if not (kind := own_kind(kind)):
        raise InvalidField(f"{path}.type", "must not be empty.")
    return "compaction" if kind in _COMPACTIONS and isinstance(value.get("encrypted_content"), str) else kind


_COMPACTIONS = frozenset({"compaction_summary", "context_compaction"})
"""Other names that clients give to a compaction."""


def _normalised(value: Plain, kind: str, path: str) -> Plain:
    """Return the item with missing fields filled in, and without nulls for unset fields."""
    plain = without_nulls(value)
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
    elif kind == "mcp_list_tools":
        normalise_listing(plain)
    elif isinstance(plain.get("output"), list):
        plain["output"] = [_part(part, f"{path}.output[{i}]") for i, part in enumerate(plain["output"])]
    if kind == "mcp_call":
        if isinstance(plain.get("content"), list):
            plain["content"] = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(plain["content"])]
        normalise_server_call(plain, path)
    return plain


_CALLS = {"function_call": ("call_id", "name"), "custom_tool_call": ("call_id", "name")}


def _check_call(plain: Plain, path: str) -> None:
    for key in _CALLS[plain["type"]]:
        if plain.get(key) == "":
            raise InvalidField(f"{path}.{key}", "must not be empty.")


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
    """Return a content part in the protocol's shape. The shapes of Chat Completions are accepted, too."""
    if isinstance(value, str):
        return {"type": "input_text", "text": value}
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    part = without_nulls(value)
    if part.get("type") == "input_audio":
        raise InvalidField(f"{path}.type", "audio is not taken by this server.")
    if part.get("type") in ("input_image", "image_url"):
        _normalise_image(part, path)
    if isinstance(probs := part.get("logprobs"), list):
        part["logprobs"] = without_inner_nulls(probs)
    if isinstance(annotations := part.get("annotations"), list):
        part["annotations"] = [_annotation(annotation) for annotation in annotations]
    return part


def _annotation(value: object) -> object:
    """Return an annotation under our name for its type, which the strict setting writes otherwise."""
    if isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        return {**value, "type": own_kind(kind)}
    return value


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
    """Remove empty fields, and accept texts as plain strings or under the name of another kind of text."""
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        if isinstance(parts := plain.get(field), str):
            parts = [parts] if parts else []
        if isinstance(parts, list):
            plain[field] = [_thought(part, kind) for part in parts]
    for field, empty in (("content", []), ("encrypted_content", "")):
        if plain.get(field) == empty:
            del plain[field]


def _thought(part: object, kind: str) -> object:
    if isinstance(part, str):
        return {"type": kind, "text": part}
    return {**part, "type": kind} if isinstance(part, dict) and part.get("type") in _TEXTS else part


_TEXTS = (None, "text", "input_text", "output_text", "reasoning_text", "summary_text")


def _check_sizes(plain: Plain, path: str, limits: Limits) -> None:
    """Check that no string of an item, or of a part in it, is longer than the limit for a part."""
    for key, entry in plain.items():
        if isinstance(entry, str):
            _check_size(entry, f"{path}.{key}", limits)
        elif isinstance(entry, dict):
            _check_sizes(entry, f"{path}.{key}", limits)
        elif isinstance(entry, list):
            for i, part in enumerate(entry):
                if isinstance(part, dict):
                    _check_sizes(part, f"{path}.{key}[{i}]", limits)
                elif isinstance(part, str):
                    _check_size(part, f"{path}.{key}[{i}]", limits)


def _check_size(text: str, path: str, limits: Limits) -> None:
    # A character takes at most four bytes: only a text that may be too long is encoded to be measured.
    if len(text) * 4 <= limits.part_bytes or (text.isascii() and len(text) <= limits.part_bytes):
        return
    if len(text.encode()) > limits.part_bytes:
        raise InvalidField(path, f"longer than {limits.part_bytes} bytes.", code="string_above_max_length")


def normalise_listing(plain: Plain) -> None:
    """Fill in a list of tools. A list that failed may be null, and so may all fields of a tool but its name."""
    tools = plain.setdefault("tools", [])
    if isinstance(tools, list):
        plain["tools"] = [_tool(tool) if isinstance(tool, dict) else tool for tool in tools]
    _normalise_error(plain)


def _tool(value: Plain) -> Plain:
    tool = without_nulls(value)
    tool.setdefault("input_schema", {})
    if not isinstance(tool.get("annotations"), dict):
        tool.pop("annotations", None)
    return tool


def normalise_server_call(plain: Plain, path: str) -> None:
    """Keep an output that consists of parts both as parts and as text."""
    if not _is_ours(plain.get("error")):
        _normalise_error(plain)
    if isinstance(parts := plain.get("output"), list):
        content: tuple[ResultPart, ...] = convert(parts, tuple[ResultPart, ...], f"{path}.output")
        plain["output"], plain["content"] = text_of(content), parts


def _is_ours(error: object) -> bool:
    """Return whether the error has the form that we write."""
    try:
        return isinstance(msgspec.convert(error, ToolError), ToolError)
    except msgspec.ValidationError:
        return False


def _normalise_error(plain: Plain) -> None:
    """Replace an error object, as OpenAI writes it, by its message."""
    error = plain.get("error")
    if isinstance(error, dict):
        plain["error"] = _message(error)


def _message(error: Plain) -> str:
    match error:
        case {"message": str(message)}:
            return message
        case {"content": list(parts)}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            return "\n".join(texts) or encode(parts).decode()
        case {"content": str(text)}:
            return text
        case _:
            return encode(error).decode()
