"""Appends of many runs as one. What comes while a write is under way waits for its end, and goes with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from antwort.errors import Damaged, StoreFault
from antwort.runs import notices
from antwort.runs import statements as sql
from antwort.runs.codec import from_events
from antwort.runs.dialects import notify
from antwort.storage.database import Connection, Database
from antwort.storage.run_log import Fenced, Lease, Record, Unavailable
from antwort.storage.sql_responses import TRANSACTION_BYTES as PIECE_BYTES


class Append(NamedTuple):
    key: int
    id: str
    fence: int
    at: int
    first: int
    next: int
    events: bytes


class Appends:
    """Those of one process."""

    def __init__(self, database: Database, sender: str, tell: Callable[[str, int, Record], None]) -> None:
        """`tell` those who read along in this process."""
        self._database, self._sender, self._tell = database, sender, tell
        self._waiting: list[tuple[Append, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, lease: Lease, record: Record) -> None:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        raw = from_events(record.events)
        self._waiting.append(
            (Append(lease.key, lease.run_id, lease.fence, record.at, record.first, record.next, raw), done)
        )
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        if not await done:
            raise Fenced
        self._tell(lease.run_id, lease.key, record)

    async def close(self) -> None:
        """Wait for what was accepted."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = _batch(self._waiting)
                write = partial(write_appends, appends=[append for append, _ in waiting], sender=self._sender)
                _settle([done for _, done in waiting], await self._try(write))
        finally:
            self._writing = None

    async def _try(self, write: Callable[[Connection], set[int]]) -> set[int] | Exception:
        try:
            return await self._database.write(write)
        except Exception as exc:  # every waiter must hear of it
            return exc


def _batch(
    waiting: list[tuple[Append, asyncio.Future[bool]]],
) -> tuple[list[tuple[Append, asyncio.Future[bool]]], list[tuple[Append, asyncio.Future[bool]]]]:
    """Those of one transaction, and the rest."""
    sizes = accumulate(len(append.events) for append, _ in waiting)
    count = max(1, sum(size <= PIECE_BYTES for size in sizes))
    return sorted(waiting[:count], key=_place), waiting[count:]


def _place(waiting: tuple[Append, asyncio.Future[bool]]) -> tuple[int, int]:
    append, _ = waiting
    return append.key, append.at


def _settle(waiting: Sequence[asyncio.Future[bool]], outcome: set[int] | Exception) -> None:
    for place, done in enumerate(waiting):
        if done.done():  # whoever waited was cancelled
            continue
        if isinstance(outcome, Exception):
            done.set_exception(unavailable(outcome) if isinstance(outcome, StoreFault) else outcome)
        else:
            done.set_result(place in outcome)


def unavailable(fault: StoreFault) -> StoreFault:
    """What a caller of the log is told: that it may ask again, unless that is of no use."""
    if isinstance(fault, Damaged):
        return fault
    unknown = Unavailable(f"{fault.message} ({fault.why})" if fault.why else fault.message)
    unknown.__cause__ = fault
    return unknown


def write_appends(connection: Connection, appends: Sequence[Append], sender: str) -> set[int]:
    """The places of those whose fence held: they are written, now or before."""
    if connection.dialect == "sqlite":
        return {place for place, append in enumerate(appends) if _write_one(connection, append)}
    columns = zip(*appends, strict=True)
    names = ("keys", "ids", "fences", "ats", "firsts", "nexts", "events")
    values = {name: list(column) for name, column in zip(names, columns, strict=True)}
    held = {place for (place,) in connection.execute(sql.APPEND_ALL, values)}
    notify(connection, *notices.events(sender, [appends[place].id for place in held]))
    return held


def _write_one(connection: Connection, append: Append) -> bool:
    key, run_id, fence, at, first, behind, events = append
    if connection.execute(sql.APPEND, (at, first, behind, events, key, run_id, fence)).rowcount:
        return True
    return connection.execute(sql.HOLD, {"key": key, "id": run_id, "fence": fence}).fetchone() is not None
