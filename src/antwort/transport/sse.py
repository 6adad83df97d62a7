"""Events as bytes: one frame an event, LF, no `id:` lines (a client that keeps an id stumbles over comments)."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.events import StreamEvent
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.engine.pipe import Numbered

KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_heads: dict[Wording, dict[type, tuple[bytes, int]]] = {OPENAI: {}, STANDARD: {}}


def _head(kind: type[StreamEvent], wording: Wording) -> tuple[bytes, int]:
    """How a frame of this kind begins, up to its number; and how much of the event's JSON that replaces."""
    name = wording.name(kind)
    opening = f'{{"type":"{name}"'
    head = f'event: {name}\ndata: {opening},"sequence_number":'.encode()
    _heads[wording][kind] = found = head, len(opening)
    return found


def frames(batch: Numbered, wording: Wording = OPENAI) -> bytes:
    """All frames of a batch, or the comment that stands for a tick without events.

    The number is spliced into the encoded event: an event never knows its own.
    """
    if not batch.events:
        return KEEPALIVE
    heads, encode, parts = _heads[wording], wording.encode, []
    for number, event in enumerate(batch.events, batch.first):
        head, cut = heads.get(event.__class__) or _head(event.__class__, wording)
        parts.append(b"%b%d%b\n\n" % (head, number, encode(event)[cut:]))
    return b"".join(parts)


def written(batches: Sequence[Numbered], wording: Wording = OPENAI) -> bytes:
    """Whatever has gathered, for one write."""
    if len(batches) == 1:
        return frames(batches[0], wording)
    return b"".join([frames(batch, wording) for batch in batches])
