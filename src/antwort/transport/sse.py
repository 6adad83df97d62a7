"""Events as bytes: one frame an event, LF, no `id:` lines (a client that keeps an id stumbles over comments)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from antwort.api.events import StreamEvent
from antwort.api.payload import CAN_BE_LARGE, CUT_FROM, json_pieces, payload
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.engine.pipe import Numbered

KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
SLICE = 2**17
"""Bytes, about, that are written before it is looked whether the client keeps up."""

_Head: TypeAlias = tuple[bytes, int, bool]
_heads: dict[Wording, dict[type, _Head]] = {OPENAI: {}, STANDARD: {}}


def _head(kind: type[StreamEvent], wording: Wording) -> _Head:
    """How a frame of this kind begins, up to its number; how much of the event's JSON that replaces; and whether the
    event can be large.
    """
    name = wording.name(kind)
    opening = f'{{"type":"{name}"'
    head = f'event: {name}\ndata: {opening},"sequence_number":'.encode()
    _heads[wording][kind] = found = head, len(opening), kind in CAN_BE_LARGE
    return found


def written(batches: Sequence[Numbered], wording: Wording = OPENAI) -> tuple[bytes, Iterator[bytes] | None]:
    """All frames of batches that were made just now, and for a tick without events a comment: up to the first batch
    behind `SLICE` bytes or the first large event, and the rest, if there is more, in slices, each made when it is asked
    for.

    The number is spliced into the encoded event: an event never knows its own.
    """
    heads, encode, parts, size = _heads[wording], wording.encode, list[bytes](), 0
    for place, batch in enumerate(batches):
        first, events, before = batch.first, batch.events, len(parts)
        if size >= SLICE:
            return b"".join(parts), slices(batches[place:], wording)
        if not events:
            parts.append(KEEPALIVE)
        for number, event in enumerate(events, first):
            head, cut, can_be_large = heads.get(event.__class__) or _head(event.__class__, wording)
            if can_be_large and payload(event) > CUT_FROM:
                left = [Numbered(number, events[number - first :]), *batches[place + 1 :]]
                return b"".join(parts), slices(left, wording)
            parts.append(b"%b%d%b\n\n" % (head, number, encode(event)[cut:]))
        size += sum(map(len, parts[before:]))
    return b"".join(parts), None


def slices(batches: Sequence[Numbered], wording: Wording = OPENAI) -> Iterator[bytes]:
    """All frames of the batches, in slices of about `SLICE` bytes."""
    return sliced(_frames(batches, wording))


def sliced(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, in slices of about `SLICE`."""
    ready: list[bytes] = []
    size = 0
    for piece in pieces:
        ready.append(piece)
        size += len(piece)
        if size >= SLICE:
            yield b"".join(ready)
            ready, size = [], 0
    if ready:
        yield b"".join(ready)


def _frames(batches: Sequence[Numbered], wording: Wording) -> Iterator[bytes]:
    for batch in batches:
        if not batch.events:
            yield KEEPALIVE
        for number, event in enumerate(batch.events, batch.first):
            head, cut, _ = _heads[wording].get(event.__class__) or _head(event.__class__, wording)
            if payload(event) > CUT_FROM:
                yield from _large(event, wording, head, cut, number)
            else:
                yield b"%b%d%b\n\n" % (head, number, wording.encode(event)[cut:])


def _large(event: StreamEvent, wording: Wording, head: bytes, cut: int, number: int) -> Iterator[bytes]:
    pieces = json_pieces(wording.plain(event))
    yield b"%b%d%b" % (head, number, next(pieces)[cut:])
    yield from pieces
    yield b"\n\n"
