"""Count the values in JSON text before it is decoded: what it takes to decode and to hold goes by their number."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["has_more_values", "value_counts"]

_PIECE = 2**20
"""Bytes that are counted at a time."""


def has_more_values(raw: bytes, most: int) -> bool:
    """Return whether JSON text holds more than `most` values."""
    return any(number > most for number in value_counts(raw, most))


def value_counts(raw: bytes, most: int) -> Iterator[int]:
    """Yield how many values JSON text holds up to here, piece by piece; no more pieces follow once it is clear that it
    holds at most `most`. Whoever asks stops at the first number that is too large.

    Objects, lists, texts, numbers, booleans and nulls count. The names of fields do not, and what stands in a text does
    not either.
    """
    if len(raw) <= most:
        return
    # Most bodies are long for their texts, and have few of these bytes even with the texts.
    highest = 1
    for start in range(0, len(raw), 8 * _PIECE):
        highest += sum(raw.count(sign, start, start + 8 * _PIECE) for sign in (b",", b"[", b"{"))
        yield 0
    if highest > most:
        yield from _outside_texts(raw)


def _outside_texts(raw: bytes) -> Iterator[int]:
    number, is_inside, start = 1, False, 0
    while start < len(raw):
        piece = raw[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends in the middle of an escape
            piece += raw[start + _PIECE : start + _PIECE + 1]
        start += len(piece)
        bare = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # what quotes are left begin or end a text
        parts = bare.split(b'"')
        outside = b'"'.join(parts[is_inside::2])
        is_inside = is_inside == bool(len(parts) % 2)
        # A value stands behind each comma, and behind each bracket that is not closed at once.
        number += sum(map(outside.count, (b",", b"[", b"{"))) - outside.count(b"[]") - outside.count(b"{}")
        yield number
