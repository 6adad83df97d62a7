"""Inspect and repair JSON text before it is decoded.

The number of values decides how much time and memory decoding takes, and so does the length of each number. Half of a
surrogate pair, such as `"half \\ud83d"`, is legal JSON that no decoder of texts takes; programs write it when they cut
a string in the middle of an emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from antwort.api.steps import Steps, at_once

_COUNTED_BYTES = 2**20
"""Bytes that are counted at a time."""
MOST_DIGITS = 256
"""Digits of one number. The time to read and write a whole number grows with the square of its length."""
_STRIDE = 16
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_MAY_BE_LONG = b"0" * (MOST_DIGITS // _STRIDE)
_LONG = b"0" * (MOST_DIGITS + 1)


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
    for start in range(0, len(raw), 8 * _COUNTED_BYTES):
        highest += sum(raw.count(sign, start, start + 8 * _COUNTED_BYTES) for sign in (b",", b"[", b"{"))
        yield 0
    if highest > most:
        number = 1
        for outside in _outside_texts(raw):
            # A value stands behind each comma, and behind each bracket that is not closed at once.
            number += sum(map(outside.count, (b",", b"[", b"{"))) - outside.count(b"[]") - outside.count(b"{}")
            yield number


def has_long_number(raw: bytes) -> bool:
    """Return whether JSON text holds a number of more than `MOST_DIGITS` digits in a row."""
    return len(raw) > MOST_DIGITS and any(long_number_steps(raw))


def long_number_steps(raw: bytes) -> Iterator[bool]:
    """Yield, piece by piece, whether a long number was found. The caller stops at the first that is true."""
    # Of so many digits, every few bytes one is seen: most bodies need no closer look.
    for start in range(0, len(raw), 8 * _COUNTED_BYTES):
        if _MAY_BE_LONG in raw[start : start + 8 * _COUNTED_BYTES + MOST_DIGITS : _STRIDE].translate(_ALIKE):
            break
        yield False
    else:
        return
    before = b""
    for outside in _outside_texts(raw):
        yield _LONG in (before + outside).translate(_ALIKE)
        before = outside[-MOST_DIGITS:]


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


MOST_SURROGATES = 100_000
"""Escapes of surrogates, paired or not, that are examined: each costs about a microsecond."""
_REPLACEMENT = b"\\ufffd"
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_SEARCHED_BYTES = 8 * 2**20
"""Bytes that are searched at a time."""
_ESCAPES_PER_STEP = 10_000
"""Escapes that are examined at a time."""
_RUN = 4096
"""Bytes in which the backslashes before an escape are counted at a time."""


def repair_surrogates(raw: bytes) -> bytes:
    """Return the JSON text with U+FFFD for each escaped surrogate that has no other half; pairs stay.

    It has the length that it had. A text with more than `MOST_SURROGATES` comes back as it is.
    """
    return at_once(repair_steps(raw))


def repair_steps(raw: bytes) -> Steps[bytes]:
    """Do what `repair_surrogates` does, in pieces."""
    found: list[int] = []
    for prefix in (b"\\ud", b"\\uD"):
        for start in range(0, len(raw), _SEARCHED_BYTES):
            found += _places(raw, prefix, start, start + _SEARCHED_BYTES + len(prefix) - 1)
            if len(found) > MOST_SURROGATES:
                return raw
            yield
    alone: list[int] = []
    first = -1  # where the last first half stands
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


def _places(raw: bytes, prefix: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the places of `prefix`, at most one more than `MOST_SURROGATES`."""
    at = start - len(prefix)
    for _ in range(MOST_SURROGATES + 1):
        if (at := raw.find(prefix, at + len(prefix), end)) < 0:
            return
        yield at


def _backslashes(raw: bytes, end: int) -> int:
    """Count the backslashes right before `end`. After an odd number, what follows is not an escape."""
    start = end
    while start > 0 and raw[start - 1 : start] == b"\\":
        window = raw[max(0, start - _RUN) : start]
        start -= len(window) - len(window.rstrip(b"\\"))
        if window.strip(b"\\"):
            break
    return end - start
