"""Logs of runs that have ended, in compressed pieces. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from antwort.api.events import RunEvent
from antwort.errors import Damaged
from antwort.runs.codec import UNREADABLE
from antwort.runs.packed import pack, unpack
from antwort.storage.base import LogPiece
from antwort.storage.run_log import Record

_LEVEL = 3
"""Text that a model wrote gets little smaller by more."""


def packed(records: Iterable[Record]) -> list[LogPiece]:
    pieces = pack(record.events for record in records)
    return [replace(piece, data=zlib.compress(piece.data, _LEVEL)) for piece in pieces]


def unpacked(piece: bytes, opening: Callable[[], bytes]) -> list[RunEvent]:
    """The same events with the same numbers. `opening` gives the first piece of the log."""
    try:
        return unpack(zlib.decompress(piece), lambda: zlib.decompress(opening()))
    except (zlib.error, *UNREADABLE) as exc:
        raise Damaged from exc
