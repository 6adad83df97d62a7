"""Write the appends of many runs together. Those that come while a transaction is under way go with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from antwort.errors import StoreFault
from antwort.storage import run_log_statements as sql
from antwort.storage.database import Connection, Database
from antwort.storage.log_codec import encode_events
from antwort.storage.notifications import Notifications
from antwort.storage.run_log import Lease, Record, Unavailable
from antwort.storage.sql_responses import TRANSACTION_BYTES


class Append(NamedTuple):
    """A record to be written under the fence of a lease."""

    key: int
    id: str
    fence: int
    at: int
    first: int
    next: int
    events: bytes


class AppendQueue:
    """The appends of one process. No transaction has more than `TRANSACTION_BYTES`, unless a single append has."""

    def __init__(self, database: Database, notifications: Notifications) -> None:
        self._database, self._notifications = database, notifications
        self._waiting: list[tuple[Append, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, lease: Lease, record: Record) -> bool:
        """Return whether the lease held, and the record is written, now or before."""
        events = encode_events(record.events)
        append = Append(lease.key, lease.run_id, lease.fence, record.at, record.first, record.next, events)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((append, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return await done

    async def close(self) -> None:
        """Wait until all that was accepted is written."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._waiting:
                sizes = accumulate(len(append.events) for append, _ in self._waiting)
                count = max(1, sum(size <= TRANSACTION_BYTES for size in sizes))
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._write(sorted(batch, key=lambda waiting: (waiting[0].key, waiting[0].at)))
        finally:
            self._task = None

    async def _write(self, batch: Sequence[tuple[Append, asyncio.Future[bool]]]) -> None:
        outcome: set[int] | Exception
        try:
            outcome = await self._database.write(partial(self._insert, appends=[append for append, _ in batch]))
        except Exception as exc:  # every waiter must get it
            outcome = exc
        for place, (_, done) in enumerate(batch):
            if done.done():  # the waiter was cancelled
                continue
            if isinstance(outcome, Exception):
                done.set_exception(Unavailable.because_of(outcome) if isinstance(outcome, StoreFault) else outcome)
            else:
                done.set_result(place in outcome)

    def _insert(self, connection: Connection, appends: Sequence[Append]) -> set[int]:
        """Return the places of those whose fence held."""
        if connection.dialect == "sqlite":
            held = set[int]()
            for place, append in enumerate(appends):
                values = append._asdict()
                is_new = connection.execute(sql.APPEND, values).rowcount > 0
                if is_new or connection.execute(sql.HELD_BY, values).fetchone() is not None:
                    held.add(place)
            return held
        columns = zip(*appends, strict=True)
        names = ("keys", "ids", "fences", "ats", "firsts", "nexts", "events")
        lists = {name: list(column) for name, column in zip(names, columns, strict=True)}
        held = {place for (place,) in connection.execute(sql.APPEND_ALL, lists)}
        self._notifications.send_events(connection, [appends[place].id for place in held])
        return held
