"""Look at the values in JSON text before it is decoded: what it takes to decode and to hold goes by their number, and
by the length of each number.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["MOST_DIGITS", "has_long_number", "has_more_values", "long_number_steps", "value_counts"]

_PIECE = 2**20
"""Bytes that are counted at a time."""
MOST_DIGITS = 256
"""Of one number. Whole numbers take time by the square of their length, to read and to write."""
_STRIDE = 16
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_MAY_BE_LONG = b"0" * (MOST_DIGITS // _STRIDE)
_LONG = b"0" * (MOST_DIGITS + 1)


def has_more_values(raw: bytes, most: int) -> bool:
    """Return whether JSON text holds more than `most` values."""
    return len(raw) > most and any(number > most for number in value_counts(raw, most))


def value_counts(raw: bytes, most: int) -> Iterator[int]:
    """Yield how many values JSON text holds up to here, piece by piece; no more pieces follow once it is clear that it
    holds at most `most`. Whoever asks stops at the first number that is too large.

    Objects, lists, texts, numbers, booleans and nulls count. The names of fields do not, and what stands in a text does
    not either.
    """
    # Most bodies are long for their texts, and have few of these bytes even with the texts.
    highest = 1
    for start in range(0, len(raw), 8 * _PIECE):
        highest += sum(raw.count(sign, start, start + 8 * _PIECE) for sign in (b",", b"[", b"{"))
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
    """Yield the same piece by piece. Whoever asks stops at the first that is true."""
    # Of so many digits, every few bytes one is seen: most bodies need no closer look.
    for start in range(0, len(raw), 8 * _PIECE):
        if _MAY_BE_LONG in raw[start : start + 8 * _PIECE + MOST_DIGITS : _STRIDE].translate(_ALIKE):
            break
        yield False
    else:
        return
    before = b""
    for outside in _outside_texts(raw):
        yield _LONG in (before + outside).translate(_ALIKE)
        before = outside[-MOST_DIGITS:]


def _outside_texts(raw: bytes) -> Iterator[bytes]:
    """Yield JSON text piece by piece, without what stands in texts."""
    is_inside, start = False, 0
    while start < len(raw):
        piece = raw[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends in the middle of an escape
            piece += raw[start + _PIECE : start + _PIECE + 1]
        start += len(piece)
        bare = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # what quotes are left begin or end a text
        parts = bare.split(b'"')
        yield b'"'.join(parts[is_inside::2])
        is_inside = is_inside == bool(len(parts) % 2)
