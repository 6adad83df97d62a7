"""Decode untrusted JSON within limits, and convert it to types.

The decoder holds the interpreter lock, so a large body would delay every other client, even in a thread. Large bodies
are therefore decoded by generators, `Steps`, and the caller may do other work at each `yield`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from antwort.api.wire import Plain, Wire, decode_any
from antwort.errors import InvalidField, TooManyValues

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A generator that pauses at each `yield` and returns the result."""

_Count: TypeAlias = Annotated[int, Meta(ge=1)]


def at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


class Limits(Wire):
    """How large a request may be, and the answer of a model."""

    input_items: _Count = 10_000
    """How many items the input may have."""
    part_bytes: _Count = 10 * 2**20
    """How large a text, an image or a file of an item may be, and, as JSON, any other field of a body."""
    tools: _Count = 128
    """How many tools a request may name."""
    servers: _Count = 16
    """How many MCP servers a request may name by address."""
    metadata_keys: _Count = 16
    """How many entries its metadata may have."""
    conversation_items: _Count = 20
    """How many items may be added to a conversation at once."""
    media_hosts: tuple[str, ...] = ()
    """Hosts whose images and videos requests may name by any address: over http, and although they are not public.
    `media.example.com`, `*.example.com`, `10.1.0.0/16`; each with `:port` where only that is meant. `*` allows every
    address. Otherwise an address is a `data:` URL, or a public one that begins with `https://`.
    """
    body_values: _Count = 300_000
    """How many JSON values a body may hold: objects, lists, texts, numbers, booleans and nulls. The names of fields do
    not count.
    """
    item_values: _Count = 100_000
    """How many of them a single item may hold, or all tools together wherever they are declared, or any other field."""
    output_bytes: _Count = 8 * 2**20
    """How much a model may write in one turn: text, reasoning and the arguments of calls together. A longer answer is
    cut there, and the response ends as `incomplete` (`max_output_bytes`)."""
    turn_calls: _Count = 1000
    """How many calls a model may make in one turn. With more, the turn is cut, and the response ends as `incomplete`
    (`max_turn_calls`)."""
    history_bytes: _Count = 64 * 2**20
    """How much of the conversation before a request is read: the JSON of its items and responses, and 512 bytes for
    each item. A longer one is a 400, or is read from its end backwards with `truncation: auto`."""
    history_memory: _Count = 192 * 2**20
    """How many bytes of such history all requests under way may hold at once, those of less than 1 MiB apart; the next
    ones wait for their turn, a minute at most. One tenant gets half of it."""


_MANY = 2**62
UNLIMITED = Limits(
    input_items=_MANY,
    part_bytes=_MANY,
    tools=_MANY,
    servers=_MANY,
    metadata_keys=_MANY,
    body_values=_MANY,
    item_values=_MANY,
)
"""For what was accepted before, maybe under other limits."""

# ---- bodies ----

SMALL_BODY = 64 * 1024
"""Bytes that are decoded whole, unless fewer values may be in a part of them."""
_PIECE_BYTES = 2**20
"""Size of a value that is decoded at once."""
_STEP_BYTES = 256 * 1024
"""Bytes of values that are decoded between two yields."""
MAX_DEPTH = 200
"""Levels that a body may be nested: far more than any real one has, and few enough for every encoder."""
_ITEM_FIELDS = frozenset({"input", "items"})
_LIST_FIELDS = _ITEM_FIELDS | {"tools"}
"""Fields whose entries stay undecoded, to be read one by one."""

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_OBJECT = "The body must be a JSON object."
_decode_list: Any = msgspec.json.Decoder(list[Raw]).decode
_decode_object: Any = msgspec.json.Decoder(dict[str, Raw]).decode


_MAX_NAMES = 30_000
"""Names of fields, at any depth, of a large body whose unknown fields are named."""
MAX_UNKNOWN_FIELDS = 32


class KnownFields:
    """The fields of a body that count. Where others are to be named, those without effect are named at no cost."""

    def __init__(self, *names: str, without_effect: Collection[str] = ()) -> None:
        self.names, self.without_effect = names, tuple(without_effect)
        fields = [(name, Raw, Raw()) for name in (*names, *without_effect)]
        self.type = msgspec.defstruct("Body", fields)
        """A body with these fields, each of which stays undecoded."""
        self.only = msgspec.defstruct("Body", fields, forbid_unknown_fields=True) if without_effect else None


def body_steps(body: bytes, known: KnownFields, limits: Limits) -> Steps[tuple[Plain, bytes]]:
    """Decode a body, which must be an object, and return it with its JSON. Lone surrogates are replaced in both.

    Of a large body, the fields that are not `known` are left out of both, lists of items and tools hold `Raw` values,
    and the JSON is without the items, which carry their own. Where others are to be named, each is there with None for
    its value, unless the body has too many names.
    """
    if len(body) > limits.body_values:
        for number in value_counts(body, limits.body_values):
            if number > limits.body_values:
                raise TooManyValues(limits.body_values)
            yield
    if len(body) > MAX_DIGITS:
        for is_too_long in long_number_steps(body):
            if is_too_long:
                problem = f"The body holds a number of more than {MAX_DIGITS} digits."
                raise InvalidField("", problem, code="invalid_json")
            yield
    try:
        if len(body) <= min(SMALL_BODY, limits.item_values):
            plain = decode_any(body)
            if not isinstance(plain, dict):
                raise InvalidField("", _NO_OBJECT, code="invalid_json")
            if body.count(b"[") + body.count(b"{") > MAX_DEPTH:  # fewer cannot be nested too deeply
                _check_depth(plain)
            return plain, body
        others: Plain = {}
        try:
            fields = msgspec.json.decode(body, type=known.only or known.type)
        except msgspec.ValidationError:
            if known.only is None or _first(body.lstrip()) != b"{":
                raise InvalidField("", _NO_OBJECT, code="invalid_json") from None
            yield
            fields = msgspec.json.decode(body, type=known.type)
            yield
            others = yield from _other_steps(body, known)
    except _NOT_JSON as exc:
        yield
        repaired = yield from repair_steps(body)
        if repaired is body:
            raise _not_json(exc) from exc
        return (yield from body_steps(repaired, known, limits))
    yield
    plain, kept = yield from _field_steps(fields, known.names, limits)
    for name in known.without_effect:
        if getattr(fields, name):
            others[name] = None
    return {**plain, **others} if others else plain, kept


def _other_steps(body: bytes, known: KnownFields) -> Steps[Plain]:
    """Return the first names of a body that are not known, with None for the values."""
    if body.count(b":") > _MAX_NAMES:
        names = 0
        for outside in _outside_texts(body):
            names += outside.count(b":")
            if names > _MAX_NAMES:
                return {}
            yield
    try:
        fields = _decode_object(body)
    except _NOT_JSON:  # then no field is named
        return {}
    others = (name for name in fields if name not in known.names)
    return dict.fromkeys(islice(others, MAX_UNKNOWN_FIELDS))


def _field_steps(fields: msgspec.Struct, names: Sequence[str], limits: Limits) -> Steps[tuple[Plain, bytes]]:
    """Decode the fields of a large body that are present."""
    plain: Plain = {}
    kept: list[bytes] = []
    for name in names:
        if not (raw := getattr(fields, name)):
            continue
        if name not in _ITEM_FIELDS:
            if len(raw) > limits.part_bytes:
                raise _too_long(name, limits.part_bytes)
            kept.append(b'"%b":%b' % (name.encode(), bytes(raw)))
        if name not in _LIST_FIELDS or _first(raw) != b"[":
            plain[name] = yield from value_steps(raw, name, limits)
        else:
            if name not in _ITEM_FIELDS:
                yield from _count_steps(raw, name, limits)
            plain[name] = _decode_list(raw)
        yield
    return plain, b"{%b}" % b",".join(kept)


def value_steps(raw: Raw | bytes, path: str, limits: Limits) -> Steps[Any]:
    """Decode a value of a body, within the limits."""
    yield from _count_steps(raw, path, limits)
    try:
        value = decode_any(raw) if len(raw) <= _PIECE_BYTES else (yield from _piece_steps(raw, path, limits))
    except _NOT_JSON as exc:
        raise _not_json(exc) from exc
    if len(raw) > MAX_DEPTH:
        _check_depth(value)
    return value


def _count_steps(raw: Raw | bytes, path: str, limits: Limits) -> Steps[None]:
    if len(raw) > limits.item_values:
        for number in value_counts(bytes(raw), limits.item_values):
            if number > limits.item_values:
                raise TooManyValues(limits.item_values, param=path)
            yield


def _piece_steps(raw: Raw | bytes, path: str, limits: Limits) -> Steps[Any]:
    if len(raw) <= _PIECE_BYTES:
        return decode_any(raw)
    since = 0
    match _first(raw):
        case b"[":
            entries: list[Any] = []
            for i, entry in enumerate(_decode_list(raw)):
                entries.append((yield from _piece_steps(entry, f"{path}[{i}]", limits)))
                if (since := since + len(entry)) > _STEP_BYTES:
                    since = 0
                    yield
            return entries
        case b"{":
            fields: Plain = {}
            for name, entry in _decode_object(raw).items():
                fields[name] = yield from _piece_steps(entry, f"{path}.{name[:64]}", limits)
                if (since := since + len(entry)) > _STEP_BYTES:
                    since = 0
                    yield
            return fields
    # An escape takes at most six bytes, but over a whole text hardly ever more than two bytes for one.
    if len(raw) > 2 * limits.part_bytes and not path.endswith(".encrypted_content"):
        raise _too_long(path, limits.part_bytes)
    return decode_any(raw)


def _first(raw: Raw | bytes) -> bytes:
    return bytes(memoryview(raw)[:1])


def _too_long(path: str, limit: int) -> InvalidField:
    return InvalidField(path, f"longer than {limit} bytes.", code="string_above_max_length")


def _not_json(exc: Exception) -> InvalidField:
    return InvalidField("", f"The body is not valid JSON: {described(exc)}.", code="invalid_json")


def _check_depth(plain: Any) -> None:
    level: list[Any] = [plain] if isinstance(plain, dict | list) else []
    for _ in range(MAX_DEPTH):
        inside = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InvalidField("", f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


# ---- values and numbers of JSON text ----

MAX_DIGITS = 256
"""Digits of one number. The time to read and write a whole number grows with the square of its length."""
_COUNTED_BYTES = 2**20
"""Bytes in which values are counted at a time."""
_SEARCHED_BYTES = 8 * _COUNTED_BYTES
"""Bytes that are searched at a time."""
_STRIDE = 16
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_MAY_BE_LONG = b"0" * (MAX_DIGITS // _STRIDE)
_LONG = b"0" * (MAX_DIGITS + 1)


def has_more_values(raw: bytes, most: int) -> bool:
    """Return whether JSON text holds more than `most` values."""
    return len(raw) > most and any(number > most for number in value_counts(raw, most))


def value_counts(raw: bytes, most: int) -> Iterator[int]:
    """Yield how many values JSON text holds up to here, piece by piece; no more pieces follow once it is clear that it
    holds at most `most`. The caller stops at the first number that is too large.

    Objects, lists, texts, numbers, booleans and nulls count. Names of fields and the content of texts do not.
    """
    # Most bodies are long for their texts, and have few of these bytes even with the texts.
    highest = 1
    for start in range(0, len(raw), _SEARCHED_BYTES):
        highest += sum(raw.count(sign, start, start + _SEARCHED_BYTES) for sign in (b",", b"[", b"{"))
        yield 0
    if highest > most:
        number = 1
        for outside in _outside_texts(raw):
            # A value stands behind each comma, and behind each bracket that is not closed at once.
            number += sum(map(outside.count, (b",", b"[", b"{"))) - outside.count(b"[]") - outside.count(b"{}")
            yield number


def has_long_number(raw: bytes) -> bool:
    """Return whether JSON text holds a number of more than `MAX_DIGITS` digits in a row."""
    return len(raw) > MAX_DIGITS and any(long_number_steps(raw))


def long_number_steps(raw: bytes) -> Iterator[bool]:
    """Yield, piece by piece, whether a long number was found. The caller stops at the first that is true."""
    # A long number shows in a sample of every 16th byte: most bodies need no closer look.
    for start in range(0, len(raw), _SEARCHED_BYTES):
        if _MAY_BE_LONG in raw[start : start + _SEARCHED_BYTES + MAX_DIGITS : _STRIDE].translate(_DIGITS_AS_ZEROS):
            break
        yield False
    else:
        return
    before = b""
    for outside in _outside_texts(raw):
        yield _LONG in (before + outside).translate(_DIGITS_AS_ZEROS)
        before = outside[-MAX_DIGITS:]


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """Yield JSON text piece by piece, without the content of texts."""
    is_inside, start = False, 0
    while start < len(raw):
        piece = raw[start : start + _COUNTED_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends in the middle of an escape
            piece += raw[start + _COUNTED_BYTES : start + _COUNTED_BYTES + 1]
        start += len(piece)
        bare = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # what quotes are left begin or end a text
        parts = bare.split(b'"')
        yield b'"'.join(parts[is_inside::2])
        is_inside = is_inside == bool(len(parts) % 2)


# ---- lone surrogates ----
#
# Half of a surrogate pair, such as `"half \ud83d"`, is legal JSON that no decoder of texts takes; programs write it
# when they cut a string in the middle of an emoji.

MAX_SURROGATES = 100_000
"""Escapes of surrogates, paired or not, that are examined: each costs about a microsecond."""
_REPLACEMENT = b"\\ufffd"
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_ESCAPES_PER_STEP = 10_000
"""Escapes that are examined at a time."""
_WINDOW_BYTES = 4096
"""Bytes in which the backslashes before an escape are counted at a time."""


def repair_surrogates(raw: bytes) -> bytes:
    """Return the JSON text with U+FFFD for each escaped surrogate that has no other half; pairs stay.

    It has the length that it had. A text with more than `MAX_SURROGATES` comes back as it is.
    """
    return at_once(repair_steps(raw))


def repair_steps(raw: bytes) -> Steps[bytes]:
    """Do what `repair_surrogates` does, in pieces."""
    found: list[int] = []
    for prefix in (b"\\ud", b"\\uD"):
        for start in range(0, len(raw), _SEARCHED_BYTES):
            end = start + _SEARCHED_BYTES + len(prefix) - 1
            at = raw.find(prefix, start, end)
            while at >= 0:
                found.append(at)
                if len(found) > MAX_SURROGATES:
                    return raw
                at = raw.find(prefix, at + len(prefix), end)
            yield
    alone: list[int] = []
    first = -1  # position of the last first half
    for number, at in enumerate(sorted(found)):
        if number % _ESCAPES_PER_STEP == 0:
            yield
        if (escape := _SURROGATE.match(raw, at)) is None or _backslashes(raw, at) % 2:
            continue
        if escape[1] is None and first >= 0 and first + len(_REPLACEMENT) == at:
            alone.pop()  # they are a pair
            continue
        alone.append(at)
        first = at if escape[1] else -1
    if not alone:
        return raw
    yield
    repaired = bytearray(raw)
    for at in alone:
        repaired[at : at + len(_REPLACEMENT)] = _REPLACEMENT
    yield
    return bytes(repaired)


def _backslashes(raw: bytes, end: int) -> int:
    """Count the backslashes right before `end`. After an odd number, what follows is not an escape."""
    start = end
    while start > 0 and raw[start - 1 : start] == b"\\":
        window = raw[max(0, start - _WINDOW_BYTES) : start]
        start -= len(window) - len(window.rstrip(b"\\"))
        if window.strip(b"\\"):
            break
    return end - start


# ---- conversion ----

_AT = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_PATH_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_ANY_KEY = "[...]"
_MAX_KEY = 64
"""Characters of a key that an error repeats."""
_MAX_PROBLEM = 200
"""Characters of the converter's message that an error repeats."""
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def convert(value: object, to: Any, path: str) -> Any:
    """Convert `value` to the type `to`. Raises an `InvalidField` that names the place under `path`."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as exc:
        inner, problem = _problem(exc)
        where = f"{path}{_with_key(inner, value)}"
        code = "missing_required_parameter" if "missing required field" in problem else None
        raise InvalidField(where.removeprefix("."), f"{problem}.", code=code) from exc


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without fields that are null, which is how some clients write what they leave out."""
    if None not in value.values():
        return value.copy()
    return {key: entry for key, entry in value.items() if entry is not None}


def without_inner_nulls(value: Any) -> Any:
    """Remove fields that are null at every depth; nulls in a list stay."""
    if isinstance(value, dict):
        return {key: without_inner_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_inner_nulls(entry) for entry in value] if isinstance(value, list) else value


def kind_of(value: object) -> str:
    """Return the kind of a value in words for the person who sent it."""
    return _KINDS.get(type(value), "null")


def described(exc: Exception) -> str:
    """Return what is wrong, in the decoder's words."""
    return _problem(exc)[1]


def _problem(exc: Exception) -> tuple[str, str]:
    """Return the path inside the converted value, and what is wrong there."""
    text = str(exc)
    path = ""
    if (match := _AT.search(text)) is not None:
        path, text = match["path"], text[: match.start()]
    if (match := _MISSING.fullmatch(text)) is not None:
        return f"{path}.{match['name']}", "missing required field"
    if len(text) > _MAX_PROBLEM:  # it repeats what was sent
        text = f"{text[:_MAX_PROBLEM]}..."
    return path, text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _with_key(path: str, value: Any) -> str:
    """Replace the placeholder for a key by the key at fault: the converter does not name it. All such mappings hold
    short texts.
    """
    before, marker, after = path.partition(_ANY_KEY)
    if not marker:
        return path
    for step in _PATH_STEP.finditer(before):
        value = value[step["name"] if step["index"] is None else int(step["index"])]
    faulty = (key for key, entry in value.items() if not isinstance(entry, str) or len(entry) > 512)
    key = next(faulty, None)
    return path if key is None else f"{before}.{key[:_MAX_KEY]}{after}"
