"""Read request bodies: bounded in values before they are decoded, and decoded piece by piece where they are large.

A decoder does not let go of the interpreter, so that a large body would keep every other client waiting, in a thread as
well. What reads one is a generator therefore, and whoever drives it may do other work at each `yield`.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from antwort.api.faults import described
from antwort.api.surrogates import repair_surrogates
from antwort.api.values import value_counts
from antwort.api.wire import Plain
from antwort.errors import InvalidField, TooManyValues

__all__ = ["SMALL_BODY", "Steps", "at_once", "body_steps", "known_fields", "value_steps"]

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work in pieces, none of which takes long."""

SMALL_BODY = 64 * 1024
"""Bytes that are decoded whole."""
_PIECE = 4 * 2**20
"""Bytes of a value that is decoded at once."""
_STEP = 256 * 1024
"""Bytes after which others get their turn."""
_DEEPEST = 200
"""How deep a body may be nested: far beyond any real one, and within what can be written out again anywhere."""
_LISTS = frozenset({"input", "items", "tools"})
"""Fields that are left in pieces, for whoever reads them one by one."""

_NO_OBJECT = "The body must be a JSON object."
_decode = msgspec.json.Decoder().decode
_decode_list: Any = msgspec.json.Decoder(list[Raw]).decode
_decode_object: Any = msgspec.json.Decoder(dict[str, Raw]).decode


def at_once(steps: Steps[T]) -> T:
    """Return what the steps lead to, without a pause between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def known_fields(*names: str) -> type[msgspec.Struct]:
    """Return the type of a body with these fields, each of which is left as it is."""
    return msgspec.defstruct("Body", [(name, Raw, Raw()) for name in names])


def body_steps(body: bytes, known: type[msgspec.Struct], most: int, longest: int) -> Steps[tuple[Plain, bytes]]:
    """Read the object that `body` is the JSON of, and return it with the text that it was read from: lone surrogates
    are replaced in both. It may hold `most` values, and texts of `longest` bytes.

    Of a large body, the fields that are not `known` are left out, and those that are lists hold `Raw` values.
    """
    if len(body) > most:
        for number in value_counts(body, most):
            if number > most:
                raise TooManyValues(most)
            yield
    try:
        return (_decoded(body) if len(body) <= SMALL_BODY else (yield from _decoded_steps(body, known, longest))), body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        repaired = repair_surrogates(body)
        if repaired == body:
            raise InvalidField("", f"The body is not valid JSON: {described(exc)}.", code="invalid_json") from exc
    yield
    return (yield from body_steps(repaired, known, most, longest))


def _decoded(body: bytes) -> Plain:
    plain: object = _decode(body)
    if not isinstance(plain, dict):
        raise InvalidField("", _NO_OBJECT, code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _DEEPEST:  # fewer cannot be nested too deeply
        _check_depth(plain)
    return plain


def _decoded_steps(body: bytes, known: type[msgspec.Struct], longest: int) -> Steps[Plain]:
    yield from _check_characters(body)
    try:
        fields = msgspec.json.decode(body, type=known)
    except msgspec.ValidationError:
        raise InvalidField("", _NO_OBJECT, code="invalid_json") from None
    yield
    plain: Plain = {}
    for name in known.__struct_fields__:
        if raw := getattr(fields, name):
            is_list = name in _LISTS and bytes(memoryview(raw)[:1]) == b"["
            plain[name] = _decode_list(raw) if is_list else (yield from value_steps(raw, name, longest))
            yield
    return plain


def _check_characters(body: bytes) -> Steps[None]:
    """What is passed over is not looked at by the decoder, and is kept all the same."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), _PIECE):
        decoder.decode(body[start : start + _PIECE])
        yield
    decoder.decode(b"", final=True)


def value_steps(raw: Raw | bytes, path: str, longest: int) -> Steps[Any]:
    """Decode a value, and check that it is not nested too deeply and that no text in it is longer than `longest`."""
    value = yield from _value_steps(raw, path, longest)
    if len(raw) > _DEEPEST:
        _check_depth(value)
    return value


def _value_steps(raw: Raw | bytes, path: str, longest: int) -> Steps[Any]:
    if len(raw) <= _PIECE:
        return _decode(raw)
    kind, since = bytes(memoryview(raw)[:1]), 0
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
    return _decode(raw)


def _check_depth(plain: Any) -> None:
    level: list[Any] = [plain] if isinstance(plain, dict | list) else []
    for _ in range(_DEEPEST):
        inside = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InvalidField("", f"The body is nested more than {_DEEPEST} levels deep.", code="invalid_json")
