"""Logs of runs that have ended, in one compressed piece. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from antwort.errors import Damaged
from antwort.runs.base import Record
from antwort.runs.codec import UNREADABLE
from antwort.runs.packed import in_records, pack, unpack

_LEVEL = 3
"""Text that a model wrote gets little smaller by more."""


def packed(records: Iterable[Record]) -> bytes:
    return zlib.compress(pack(record.events for record in records), _LEVEL)


def unpacked(log: bytes) -> list[Record]:
    """The same events with the same numbers; the records are others."""
    try:
        events = unpack(zlib.decompress(log))
    except (zlib.error, *UNREADABLE) as exc:
        raise Damaged from exc
    return in_records(events)
