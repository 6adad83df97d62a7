"""Parse input items: fill in what a client may leave out, and keep unknown fields and types as they came."""

from __future__ import annotations

from typing import get_args

import msgspec
from msgspec import Raw

from antwort.api.decoding import (
    Limits,
    Steps,
    at_once,
    convert,
    kind_of,
    value_steps,
    without_inner_nulls,
    without_nulls,
)
from antwort.api.items import (
    MAX_ITEM_ID,
    InputItem,
    InputText,
    KnownItem,
    Message,
    OpaqueItem,
    ResultPart,
    ToolError,
    is_additional,
    new_item_id,
    text_of,
)
from antwort.api.standard import own_kind
from antwort.api.tool_parsing import KEY, bared, checked_item, login_steps, may_hold_logins
from antwort.api.wire import Plain, Wire, encode
from antwort.errors import InvalidField
from antwort.ids import new_id

_STEP_BYTES = 64 * 1024
"""Bytes of items that are read between two yields."""


def read_input(value: object, limits: Limits) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """Return the items of an input, and the JSON of each as it was received."""
    return at_once(input_steps(value, limits))


def input_steps(value: object, limits: Limits) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Do what `read_input` does, in pieces. A text is one message."""
    if value is None:
        return (), ()
    if isinstance(value, str):
        _check_size(value, "input[0].content[0].text", limits)
        message = Message(id=new_id("msg"), role="user", content=(InputText(text=value),))
        return (message,), (encode({"type": "message", "role": "user", "content": value}),)
    if not isinstance(value, list):
        raise InvalidField("input", f"expected a string or a list of items, got {kind_of(value)}.")
    return (yield from item_steps(value, "input", limits, most=limits.input_items))


def item_steps(
    value: object, path: str, limits: Limits, *, most: int
) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Parse a list of items, in pieces. Return them, and the JSON of each as it was received."""
    if not isinstance(value, list):
        raise InvalidField(path, f"expected a list of items, got {kind_of(value)}.")
    if len(value) > most:
        raise InvalidField(path, f"{len(value)} items; at most {most} are allowed.", code="too_many_items")
    items: list[InputItem] = []
    raws: list[bytes] = []
    since = 0
    for i, entry in enumerate(value):
        where, plain, raw = f"{path}[{i}]", entry, b""
        is_clean = False
        if isinstance(entry, Raw):  # of a large body
            raw = bytes(entry)
            plain = yield from value_steps(raw, where, limits)
            if len(raw) > _STEP_BYTES:
                yield
            is_clean = b"\\u00" not in raw and not (yield from login_steps(raw))
        if not isinstance(plain, dict):
            raise InvalidField(where, f"expected an object, got {kind_of(plain)}.")
        given = plain
        if not is_clean:
            raw = encode(given)
            # Items may declare tools, and credentials are not stored.
            if may_hold_logins(raw) and (plain := bared(given, raw)) is not given:
                raw = encode(plain)
        item = read_item(plain, where, limits, size=len(raw))
        if isinstance(item, OpaqueItem) and is_additional(item):
            item = checked_item(item, given, where)
            raw = encode(item) if KEY in given else raw
        items.append(item)
        raws.append(raw)
        if (since := since + len(raw)) > _STEP_BYTES:
            since = 0
            yield
    return tuple(items), tuple(raws)


# ---- one item ----

_CLASSES: dict[object, type[Wire]] = {item.__struct_config__.tag: item for item in get_args(KnownItem)}
"""The class of each type. Converting to one class takes a tenth of the time of converting to the union."""
_COMPACTIONS = frozenset({"compaction_summary", "context_compaction"})
"""Other names that clients give to a compaction."""


def read_item(
    value: object, path: str, limits: Limits, *, item_id: str | None = None, size: int | None = None
) -> InputItem:
    """Parse one item. `item_id` is its id in the store; otherwise a client's own id is kept and a missing one is made.
    `size` is the length of its JSON in bytes, if known.
    """
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = value.get("type")
    if kind.__class__ is not str or kind not in _CLASSES:
        kind = _kind_of_item(value, path)
    plain = {**value, "type": kind}
    if (known := _CLASSES.get(kind)) is not None:
        if None in value.values():
            plain = without_nulls(plain)
        _normalize(plain, path)
    given = plain.get("id")
    if item_id:
        plain["id"] = item_id
    elif given is None or given == "":
        plain["id"] = new_item_id(kind)
    elif not isinstance(given, str):
        raise InvalidField(f"{path}.id", f"expected a string, got {kind_of(given)}.")
    elif len(given) > MAX_ITEM_ID:
        raise InvalidField(f"{path}.id", f"longer than {MAX_ITEM_ID} characters.", code="string_above_max_length")
    is_short = size is not None and size <= limits.part_bytes  # as all that is in it is then
    if not is_short and kind != "compaction":  # which holds many, each of which was measured when it came
        _check_sizes(plain, path, limits)
    if known is None:
        return OpaqueItem(kind, plain["id"], plain)
    item: InputItem = convert(plain, known, path)
    return item


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


def _normalize(plain: Plain, path: str) -> None:
    """Bring an item of a known type, without nulls, into the protocol's shape."""
    match plain["type"]:
        case "message":
            content = plain.get("content", [])
            if isinstance(content, str):
                kind = "output_text" if plain.get("role") == "assistant" else "input_text"
                plain["content"] = [{"type": kind, "text": content}]
            elif isinstance(content, list):
                plain["content"] = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
            else:
                problem = f"expected a string or a list of parts, got {kind_of(content)}."
                raise InvalidField(f"{path}.content", problem)
        case "item_reference":
            if not plain.get("id"):
                raise InvalidField(f"{path}.id", "missing.", code="missing_required_parameter")
        case "reasoning":
            _normalize_reasoning(plain)
        case "function_call" | "custom_tool_call":
            for key in ("call_id", "name"):
                if plain.get(key) == "":
                    raise InvalidField(f"{path}.{key}", "must not be empty.")
        case "mcp_list_tools":
            _normalize_tool_list(plain)
        case _:
            _normalize_parts(plain, "output", path)
            if plain["type"] == "mcp_call":
                _normalize_mcp_call(plain, path)


def _normalize_parts(plain: Plain, field: str, path: str) -> None:
    if isinstance(parts := plain.get(field), list):
        plain[field] = [_part(part, f"{path}.{field}[{i}]") for i, part in enumerate(parts)]


def _part(value: object, path: str) -> object:
    """Return a content part in the protocol's shape. The shapes of Chat Completions are accepted, too."""
    if isinstance(value, str):
        return {"type": "input_text", "text": value}
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    part = without_nulls(value) if None in value.values() else value
    match part.get("type"):
        case "output_text":
            if isinstance(probs := part.get("logprobs"), list):
                part = {**part, "logprobs": without_inner_nulls(probs)}
            if isinstance(annotations := part.get("annotations"), list):
                part = {**part, "annotations": [_annotation(annotation) for annotation in annotations]}
        case "input_image" | "image_url":
            part = _image(part, path)
        case "input_audio":
            raise InvalidField(f"{path}.type", "audio is not taken by this server.")
    return part


def _image(part: Plain, path: str) -> Plain:
    url = part.get("image_url")
    if url is None and "file_id" not in part:
        raise InvalidField(f"{path}.image_url", "missing.", code="missing_required_parameter")
    if isinstance(url, dict) and isinstance(url.get("url"), str):
        nested = {} if url.get("detail") is None else {"detail": url["detail"]}
        part = {**nested, **part, "image_url": url["url"]}
    return {**part, "type": "input_image"}


def _annotation(value: object) -> object:
    """Return an annotation under our name for its type, which the strict setting writes otherwise."""
    if isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        return {**value, "type": own_kind(kind)}
    return value


_TEXTS = (None, "text", "input_text", "output_text", "reasoning_text", "summary_text")


def _normalize_reasoning(plain: Plain) -> None:
    """Remove empty fields, and accept texts as plain strings or under the name of another kind of text."""
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        if isinstance(parts := plain.get(field), str):
            parts = [parts] if parts else []
        if isinstance(parts, list):
            plain[field] = [_reasoning_part(part, kind) for part in parts]
    for field, empty in (("content", []), ("encrypted_content", "")):
        if plain.get(field) == empty:
            del plain[field]


def _reasoning_part(part: object, kind: str) -> object:
    if isinstance(part, str):
        return {"type": kind, "text": part}
    return {**part, "type": kind} if isinstance(part, dict) and part.get("type") in _TEXTS else part


def _normalize_tool_list(plain: Plain) -> None:
    """Fill in a list of tools. A list that failed may be null, and so may all fields of a tool but its name."""
    tools = plain.setdefault("tools", [])
    if isinstance(tools, list):
        plain["tools"] = [_listed_tool(tool) if isinstance(tool, dict) else tool for tool in tools]
    _normalize_error(plain)


def _listed_tool(value: Plain) -> Plain:
    tool = without_nulls(value)
    tool.setdefault("input_schema", {})
    if not isinstance(tool.get("annotations"), dict):
        tool.pop("annotations", None)
    return tool


def _normalize_mcp_call(plain: Plain, path: str) -> None:
    """Keep an output that consists of parts both as parts and as text."""
    _normalize_parts(plain, "content", path)
    try:  # the form that we write ourselves
        msgspec.convert(plain.get("error"), ToolError)
    except msgspec.ValidationError:
        _normalize_error(plain)
    if isinstance(parts := plain.get("output"), list):
        content: tuple[ResultPart, ...] = convert(parts, tuple[ResultPart, ...], f"{path}.output")
        plain["output"], plain["content"] = text_of(content), parts


def _normalize_error(plain: Plain) -> None:
    """Replace an error object, as OpenAI writes it, by its message."""
    match plain.get("error"):
        case {"message": str(message)}:
            plain["error"] = message
        case {"content": list(parts)}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            plain["error"] = "\n".join(texts) or encode(parts).decode()
        case {"content": str(text)}:
            plain["error"] = text
        case {**error}:
            plain["error"] = encode(error).decode()


# ---- sizes ----


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
