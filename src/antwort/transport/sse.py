"""Events as bytes: one frame an event, LF, no `id:` lines (a client that keeps an id stumbles over comments)."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.events import StreamEvent
from antwort.api.wire import encode
from antwort.engine.pipe import Numbered

KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_heads: dict[type, tuple[bytes, int]] = {}


def _head(kind: type[StreamEvent]) -> tuple[bytes, int]:
    """How a frame of this kind begins, up to its number; and how much of the event's JSON that replaces."""
    name = kind.__struct_config__.tag
    opening = f'{{"type":"{name}"'
    head = f'event: {name}\ndata: {opening},"sequence_number":'.encode()
    _heads[kind] = head, len(opening)
    return _heads[kind]


def frames(batch: Numbered) -> bytes:
    """All frames of a batch, or the comment that stands for a tick without events.

    The number is spliced into the encoded event: an event never knows its own.
    """
    if not batch.events:
        return KEEPALIVE
    parts = []
    for number, event in enumerate(batch.events, batch.first):
        head, cut = _heads.get(event.__class__) or _head(event.__class__)
        parts.append(b"%b%d%b\n\n" % (head, number, encode(event)[cut:]))
    return b"".join(parts)


def written(batches: Sequence[Numbered]) -> bytes:
    """Whatever has gathered, for one write."""
    return frames(batches[0]) if len(batches) == 1 else b"".join([frames(batch) for batch in batches])
