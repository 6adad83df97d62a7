"""Read request bodies: bounded in values before they are decoded, and decoded piece by piece where they are large.

The decoder holds the interpreter lock, so a large body would delay every other client, even in a thread. Bodies are
therefore read by generators, and the caller may do other work at each `yield`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from antwort.api.json_text import MOST_DIGITS, long_number_steps, repair_steps, value_counts
from antwort.api.limits import Limits
from antwort.api.steps import Steps
from antwort.api.validation import described
from antwort.api.wire import Plain, decode_any
from antwort.errors import InvalidField, TooManyValues

__all__ = ["SMALL_BODY", "body_steps", "known_fields", "value_steps"]

SMALL_BODY = 64 * 1024
"""Bytes that are decoded whole, unless fewer values may be in a part of them."""
_PIECE = 2**20
"""Bytes of a value that is decoded at once."""
_STEP = 256 * 1024
"""Bytes after which the reader yields."""
_DEEPEST = 200
"""Levels that a body may be nested: far more than any real one has, and few enough for every encoder."""
_ITEMS = frozenset({"input", "items"})
_LISTS = _ITEMS | {"tools"}
"""Fields whose entries are left undecoded, to be read one by one."""

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_OBJECT = "The body must be a JSON object."
_decode_list: Any = msgspec.json.Decoder(list[Raw]).decode
_decode_object: Any = msgspec.json.Decoder(dict[str, Raw]).decode


def known_fields(*names: str) -> type[msgspec.Struct]:
    """Return the type of a body with these fields, each of which stays undecoded."""
    return msgspec.defstruct("Body", [(name, Raw, Raw()) for name in names])


def body_steps(body: bytes, known: type[msgspec.Struct], limits: Limits) -> Steps[tuple[Plain, bytes]]:
    """Read the object that `body` is the JSON of, and return it with the text that it was read from. Lone surrogates
    are replaced in both.

    Of a large body, the fields that are not `known` are left out of both, those that are lists hold `Raw` values, and
    the text is without the items, each of which is there by itself.
    """
    if len(body) > limits.body_values:
        for number in value_counts(body, limits.body_values):
            if number > limits.body_values:
                raise TooManyValues(limits.body_values)
            yield
    for is_too_long in long_number_steps(body) if len(body) > MOST_DIGITS else ():
        if is_too_long:
            raise InvalidField("", f"The body holds a number of more than {MOST_DIGITS} digits.", code="invalid_json")
        yield
    try:
        if len(body) <= min(SMALL_BODY, limits.item_values):
            return _decoded(body), body
        fields = _split(body, known)
    except _NOT_JSON as exc:
        yield
        repaired = yield from repair_steps(body)
        if repaired is body:
            raise _not_json(exc) from exc
        return (yield from body_steps(repaired, known, limits))
    yield
    plain: Plain = {}
    kept: list[bytes] = []
    for name, raw in fields.items():
        if name not in _ITEMS:
            if len(raw) > limits.part_bytes:
                problem = f"longer than {limits.part_bytes} bytes."
                raise InvalidField(name, problem, code="string_above_max_length")
            kept.append(b'"%b":%b' % (name.encode(), bytes(raw)))
        if name not in _LISTS or _first(raw) != b"[":
            plain[name] = yield from value_steps(raw, name, limits)
        else:
            if name not in _ITEMS:
                yield from _check_values(raw, name, limits)
            plain[name] = _decode_list(raw)
        yield
    return plain, b"{%b}" % b",".join(kept)


def _decoded(body: bytes) -> Plain:
    plain: object = decode_any(body)
    if not isinstance(plain, dict):
        raise InvalidField("", _NO_OBJECT, code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _DEEPEST:  # fewer cannot be nested too deeply
        _check_depth(plain)
    return plain


def _split(body: bytes, known: type[msgspec.Struct]) -> dict[str, Raw]:
    """Return the known fields that are present, undecoded."""
    try:
        fields = msgspec.json.decode(body, type=known)
    except msgspec.ValidationError:
        raise InvalidField("", _NO_OBJECT, code="invalid_json") from None
    return {name: raw for name in known.__struct_fields__ if (raw := getattr(fields, name))}


def value_steps(raw: Raw | bytes, path: str, limits: Limits) -> Steps[Any]:
    """Decode a value of a body, within the limits."""
    yield from _check_values(raw, path, limits)
    try:
        value = yield from _value_steps(raw, path, limits.part_bytes)
    except _NOT_JSON as exc:
        raise _not_json(exc) from exc
    if len(raw) > _DEEPEST:
        _check_depth(value)
    return value


def _check_values(raw: Raw | bytes, path: str, limits: Limits) -> Steps[None]:
    if len(raw) > limits.item_values:
        for number in value_counts(bytes(raw), limits.item_values):
            if number > limits.item_values:
                raise TooManyValues(limits.item_values, param=path)
            yield


def _value_steps(raw: Raw | bytes, path: str, longest: int) -> Steps[Any]:
    if len(raw) <= _PIECE:
        return decode_any(raw)
    kind, since = _first(raw), 0
    if kind == b"[":
        found: list[Any] = []
        for i, entry in enumerate(_decode_list(raw)):
            found.append((yield from _value_steps(entry, f"{path}[{i}]", longest)))
            if (since := since + len(entry)) > _STEP:
                since = 0
                yield
        return found
    if kind == b"{":
        fields: Plain = {}
        for name, entry in _decode_object(raw).items():
            fields[name] = yield from _value_steps(entry, f"{path}.{name[:64]}", longest)
            if (since := since + len(entry)) > _STEP:
                since = 0
                yield
        return fields
    # An escape is at most six bytes for one, and hardly ever more than two for one in a whole text.
    if len(raw) > 2 * longest and not path.endswith(".encrypted_content"):
        raise InvalidField(path, f"longer than {longest} bytes.", code="string_above_max_length")
    return decode_any(raw)


def _first(raw: Raw | bytes) -> bytes:
    return bytes(memoryview(raw)[:1])


def _not_json(exc: Exception) -> InvalidField:
    return InvalidField("", f"The body is not valid JSON: {described(exc)}.", code="invalid_json")


def _check_depth(plain: Any) -> None:
    level: list[Any] = [plain] if isinstance(plain, dict | list) else []
    for _ in range(_DEEPEST):
        inside = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InvalidField("", f"The body is nested more than {_DEEPEST} levels deep.", code="invalid_json")
