"""Logs of runs that have ended, in one compressed piece. They are read piece by piece."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from antwort.api.payload import PIECE
from antwort.concurrency import Turns
from antwort.errors import Damaged
from antwort.runs.base import Record
from antwort.runs.codec import UNREADABLE
from antwort.runs.packed import LargeRecords, Unpacker, pack

_LEVEL = 3
"""Text that a model wrote gets little smaller by more."""
_SLICE = 2**18
"""Bytes that are read at once."""


def packed(records: Iterable[Record]) -> bytes:
    return zlib.compress(pack(record.events for record in records), _LEVEL)


class Inflater:
    """Takes the events out of a compressed log, a step at a time."""

    def __init__(self, response_id: str, shared: LargeRecords) -> None:
        self._unpacker = Unpacker(response_id, shared)
        self._inflating = zlib.decompressobj()
        self._fed = b""

    def feed(self, data: bytes) -> None:
        self._fed += data

    @property
    def is_hungry(self) -> bool:
        """Whether it needs more to go on."""
        return not self._fed

    def take(self) -> Record | None:
        """The next piece, if one step gives one. Raises `Damaged`."""
        try:
            if (record := self._unpacker.take()) is None and self._fed:
                self._unpacker.feed(self._inflating.decompress(self._fed, PIECE))
                self._fed = self._inflating.unconsumed_tail
                record = self._unpacker.take()
        except (zlib.error, *UNREADABLE) as exc:
            raise Damaged from exc
        return record

    def end(self) -> None:
        """There is no more to feed. Raises `Damaged` when there should be."""
        if not self._inflating.eof or not self._unpacker.is_whole:
            raise Damaged


def unpacked(log: bytes) -> list[Record]:
    """The same events with the same numbers; the records are others."""
    inflater = Inflater("", {})
    inflater.feed(log)
    records: list[Record] = []
    while (record := inflater.take()) is not None or not inflater.is_hungry:
        records += [] if record is None else [record]
    inflater.end()
    return records


async def inflated(
    inflater: Inflater, length: int, read: Callable[[int, int], Awaitable[bytes]], turns: Turns
) -> AsyncGenerator[Record, None]:
    """The records of a log of that `length`, of which `read` gives a slice by its start and size."""
    start = 0
    while True:
        async with turns:
            record = inflater.take()
        if record is not None:
            yield record
            del record
        elif not inflater.is_hungry:
            continue
        elif start >= length:
            break
        else:
            inflater.feed(await read(start, _SLICE))
            start += _SLICE
    inflater.end()
