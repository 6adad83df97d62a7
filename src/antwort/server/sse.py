"""Events as bytes: one frame an event, LF, no `id:` lines (a client that keeps an id stumbles over comments)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from antwort.api.events import StreamEvent
from antwort.api.payload import CUT_FROM, json_pieces, payload
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.engine.runs.event_log import NumberedBatch

KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
SLICE = 2**17
"""Bytes, about, that are written before it is looked whether the client keeps up."""

_heads: dict[Wording, dict[type, tuple[bytes, int]]] = {OPENAI: {}, STANDARD: {}}


def _head(kind: type[StreamEvent], wording: Wording) -> tuple[bytes, int]:
    """How a frame of this kind begins, up to its number; and how much of the event's JSON that replaces."""
    name = wording.name(kind)
    opening = f'{{"type":"{name}"'
    head = f'event: {name}\ndata: {opening},"sequence_number":'.encode()
    _heads[wording][kind] = found = head, len(opening)
    return found


def written(batches: Sequence[NumberedBatch], wording: Wording = OPENAI) -> tuple[bytes, Iterator[bytes] | None]:
    """All frames of the batches, and for a tick without events a comment: up to the first batch that is large, and the
    rest, if there is more, in slices, each made when it is asked for.

    The number is spliced into the encoded event: an event never knows its own.
    """
    heads, encode, parts = _heads[wording], wording.encode, list[bytes]()
    for place, batch in enumerate(batches):
        if batch.size > CUT_FROM:
            return b"".join(parts), slices(batches[place:], wording)
        if not batch.events:
            parts.append(KEEPALIVE)
        for number, event in enumerate(batch.events, batch.first):
            head, cut = heads.get(event.__class__) or _head(event.__class__, wording)
            parts.append(b"%b%d%b\n\n" % (head, number, encode(event)[cut:]))
    return b"".join(parts), None


def slices(batches: Sequence[NumberedBatch], wording: Wording = OPENAI) -> Iterator[bytes]:
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


def _frames(batches: Sequence[NumberedBatch], wording: Wording) -> Iterator[bytes]:
    for batch in batches:
        if not batch.events:
            yield KEEPALIVE
        for number, event in enumerate(batch.events, batch.first):
            head, cut = _heads[wording].get(event.__class__) or _head(event.__class__, wording)
            if payload(event) > CUT_FROM:
                yield from _large(event, wording, head, cut, number)
            else:
                yield b"%b%d%b\n\n" % (head, number, wording.encode(event)[cut:])


def _large(event: StreamEvent, wording: Wording, head: bytes, cut: int, number: int) -> Iterator[bytes]:
    pieces = json_pieces(wording.plain(event))
    yield b"%b%d%b" % (head, number, next(pieces)[cut:])
    yield from pieces
    yield b"\n\n"
