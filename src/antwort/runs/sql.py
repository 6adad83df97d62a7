"""Runs in a database, beside the responses that they make, in the same transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic as clock
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from antwort.errors import HandedOver, QueueFull, StoreFault
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.runs import adopting, claiming, reading, sweeping, writing
from antwort.runs.appending import Appends, unavailable
from antwort.runs.codec import behind, is_last
from antwort.runs.hints import Tail
from antwort.runs.news import KEEPALIVE_SECONDS, News
from antwort.runs.packed import LargeRecords
from antwort.storage.database import Database, Operation
from antwort.storage.rows import ItemRow
from antwort.storage.run_log import (
    Claimed,
    Ending,
    Fenced,
    Gone,
    Lease,
    Load,
    NewRun,
    Outline,
    Record,
    Renewed,
    Traits,
    Worker,
)
from antwort.storage.sql_responses import UpdateRows as Finishing
from antwort.storage.sql_responses import early_pieces, staged, staged_output
from antwort.storage.sql_responses import to_new_rows as to_beginning
from antwort.storage.sql_responses import to_update_rows as to_finishing

if TYPE_CHECKING:
    from antwort.storage.postgres import PostgresDatabase

T = TypeVar("T")

_SPARE = 8
"""Runs that are chosen beyond those that there is room for: others may take some of them first."""
_READS = 2
"""Pieces of logs that are read at once, so that all else that is read does not wait for long."""
_AGAIN = 0.05
"""Seconds after which a claim that others were in the way of is worth another try."""


class SqlRunLog:
    """Over an open and migrated database that the store closes. `close` this one first.

    With SQLite there is one process, which has a lock on the file: a worker lives as long as the process, and those of
    earlier processes are dead. With PostgreSQL a worker lives for `lease` seconds, by the clock of the database.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease: float = 20.0,
        queue: int = 1000,
        per_owner: int | None = None,
        keep_log: float = 604800.0,
        poll: float | None = None,
        keepalive_seconds: tuple[float, float] = KEEPALIVE_SECONDS,
    ) -> None:
        """`poll`: seconds after which one who follows a run looks for itself, and gives a sign of life. Where it is not
        told, that depends on what is heard (`News`), as `keepalive_seconds` says."""
        self._database, self._lease = database, lease
        self._queue, self._per_owner, self._keep_log = queue, per_owner, keep_log
        self._is_alone = database.dialect == "sqlite"
        self._is_first = self._is_alone
        """No worker has joined yet: those on record are of processes that have ended."""
        self._sender = new_id("sender")
        connect = None if self._is_alone else cast("PostgresDatabase", database).connect
        self._news = News(self._sender, connect, poll, keepalive_seconds)
        self._appends = Appends(database, self._sender, self._news.tails.tell)
        self._ending: set[Lease] = set()
        """What `finish` is about to end."""
        self._damaged: set[int] = set()
        """Logs of which it was told that they are."""
        self._gate = asyncio.Semaphore(_READS)
        self._shared: LargeRecords = WeakValueDictionary()

    @property
    def traits(self) -> Traits:
        return Traits(durability="system" if self._is_alone else "disk", many=not self._is_alone)

    async def close(self) -> None:
        await self._appends.close()
        await self._news.close()

    # ---- workers ----

    async def join(self, worker: Worker) -> None:
        self._news.listen()
        if self._is_first:
            await self._write(claiming.forget_workers)
            self._is_first = False
        await self._write(partial(claiming.join, worker=worker, lease=self._lease_of))

    async def leave(self, worker: str) -> None:
        await self._write(partial(claiming.leave, worker=worker))
        self._news.work.set()

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        self._news.cancels.clear()
        held = frozenset(leases)
        renewed = await self._hasten(partial(claiming.renew, worker=worker, leases=held, lease=self._lease_of))
        # What is being ended right now has ended, or will hear for itself that another has it.
        return msgspec.structs.replace(renewed, lost=renewed.lost - self._ending)

    async def owner(self, identity: Identity, response_id: str) -> Worker | None:
        return await self._read(partial(claiming.owner, identity=identity, response_id=response_id))

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        new, first = run.new, writing.to_row(Record(0, 0, run.events))
        try:
            if early_pieces(self._database, (rows := to_beginning(new)).items):  # before much is written in vain
                already = await self._database.read(writing.waiting)
                if already >= self._queue:
                    raise QueueFull(already)
            async with staged(self._database, rows) as beginning:
                submission = writing.Submission(new.identity, new.response, beginning, first)
                submit = partial(writing.submit, new=submission, queue=self._queue, sender=self._sender)
                if (waiting := await self._database.write(submit)) is not None:
                    raise QueueFull(waiting)
        except StoreFault as exc:
            raise unavailable(exc) from exc
        self._news.work.set()

    async def adopt(
        self,
        worker: str,
        identity: Identity,
        response_id: str,
        records: Sequence[Record],
        *,
        has_room: bool | None = None,
    ) -> Lease:
        rows = [writing.to_row(record) for record in records]
        terms = adopting.Terms(has_room, self._per_owner, self._queue)
        new = adopting.Adopted(worker, identity, response_id, rows)
        adopt = partial(adopting.adopt, new=new, terms=terms, sender=self._sender)
        found = await self._write(adopt)
        while found == "busy":
            await asyncio.sleep(_AGAIN)
            found = await self._write(adopt)
        match found:
            case Lease():
                return found
            case int():
                raise QueueFull(found)
            case "waits":
                self._news.work.set()
                raise HandedOver
        raise Fenced

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        self._news.work.clear()
        if self._per_owner is not None:
            return await self._claim_counted(worker, count, self._per_owner)
        chosen = await self._read(partial(claiming.choose, worker=worker, count=count + _SPARE, per_owner=None))
        if not chosen:
            return ()
        claimed = await self._write(partial(claiming.claim, worker=worker, chosen=chosen, count=count))
        if len(claimed) < min(count, len(chosen)):  # others were faster, and there may be more behind
            self._news.work.set_in(_AGAIN)
        return claimed

    async def _claim_counted(self, worker: str, count: int, per_owner: int) -> Sequence[Claimed]:
        claim = partial(claiming.claim_counted, worker=worker, count=count, per_owner=per_owner)
        if (claimed := await self._write(claim)) is None:
            self._news.work.set_in(_AGAIN)
            return ()
        return claimed

    async def take(self, worker: str, identity: Identity, response_id: str) -> Claimed | None:
        return await self._write(partial(claiming.take, worker=worker, identity=identity, response_id=response_id))

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        return await self._read(partial(reading.is_busy, identity=identity, conversation_id=conversation_id))

    async def records(self, lease: Lease) -> Sequence[Record]:
        if (found := await self._read(partial(reading.whole, lease=lease))) is None:
            raise Fenced
        return found

    async def append(self, lease: Lease, record: Record) -> None:
        await self._appends.append(lease, record)

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        finishing = to_finishing(ending.identity, ending.response, ending.marks, ending.entries, ending.approvals)
        end = writing.End(lease, finishing, writing.to_last_row(record))
        self._ending.add(lease)
        try:
            async with self._staged(lease, finishing):
                is_written = await self._write(partial(writing.finish, end=end, sender=self._sender))
        finally:
            self._ending.discard(lease)
        if not is_written:
            raise Fenced
        self._news.tails.tell(lease.run_id, lease.key, record)
        self._news.work.set()

    async def give_up(self, lease: Lease, ending: Ending) -> None:
        finishing = to_finishing(ending.identity, ending.response, ending.marks, ending.entries, ending.approvals)
        give_up = partial(writing.give_up, lease=lease, finishing=finishing, sender=self._sender)
        async with self._staged(lease, finishing):
            is_written = await self._write(give_up)
        if not is_written:
            raise Fenced
        self._news.work.set()

    @asynccontextmanager
    async def _staged(self, lease: Lease, finishing: Finishing) -> AsyncIterator[None]:
        if self._is_alone and lease.fence > 1:  # one who had it before may have been about to end it
            await self._write(partial(writing.drop_output, lease=lease))

        def stage(items: list[ItemRow]) -> Awaitable[None]:
            return self._write(partial(writing.stage_output, lease=lease, values=finishing.values, items=items))

        async with staged_output(self._database, finishing.items, stage):
            yield

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        await self._write(partial(writing.release, lease=lease, is_lost=is_lost, sender=self._sender))
        self._news.work.set()

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        cancel = partial(writing.cancel, identity=identity, response_id=response_id, sender=self._sender)
        is_found = await self._hasten(cancel)
        while is_found is None:
            await asyncio.sleep(_AGAIN)
            is_found = await self._hasten(cancel)
        if is_found:
            self._news.cancels.set()
            self._news.work.set()
        return is_found

    # ---- reading ----

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        self._news.listen()
        look = partial(self._look, identity, response_id)
        found = await look(reading.From(after))
        with self._news.tails.follow(response_id, found.key) as tail:
            is_new = True  # what came between the first look and this is not told any more
            while True:
                if found.records:
                    yield found.records
                    after = found.records[-1].next - 1
                if found.is_over or not (follow or found.is_full):
                    return
                due = clock() + self._news.look_in()
                while not (is_new or found.is_full or await tail.hint.wait(self._news.pause)):
                    yield []
                    if clock() >= due or not self._news.is_enough:
                        break
                is_new = False
                tail.hint.clear()
                found = _heard(tail, found, after) or await look(reading.From(after, found.at, found.is_packed))

    async def _look(self, identity: Identity, response_id: str, start: reading.From) -> reading.Look:
        look = partial(reading.look, identity=identity, response_id=response_id, start=start, shared=self._shared)
        async with self._gate:
            found = await self._read(look)
        if found is None:
            raise Gone
        return found

    async def has_log(self, identity: Identity, response_id: str) -> bool:
        return await self._read(partial(reading.has_log, identity=identity, response_id=response_id))

    async def sent(self, identity: Identity, response_id: str) -> int:
        return await self._read(partial(reading.sent, identity=identity, response_id=response_id))

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        return await self._read(partial(reading.outline, identity=identity, response_id=response_id))

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        await self._news.work.wait(seconds)

    async def wait_for_cancels(self, seconds: float) -> None:
        await self._news.cancels.wait(seconds)

    async def load(self) -> Load:
        return await self._read(reading.load)

    async def sweep(self) -> int:
        try:
            return await sweeping.sweep(self._database, self._lease, self._keep_log, self._damaged)
        except StoreFault as exc:
            raise unavailable(exc) from exc

    # ---- the database ----

    @property
    def _lease_of(self) -> float | None:
        return None if self._is_alone else self._lease

    async def _write(self, operation: Operation[T]) -> T:
        try:
            return await self._database.write(operation)
        except StoreFault as exc:
            raise unavailable(exc) from exc

    async def _hasten(self, operation: Operation[T]) -> T:
        try:
            return await self._database.write_urgent(operation)
        except StoreFault as exc:
            raise unavailable(exc) from exc

    async def _read(self, operation: Operation[T]) -> T:
        try:
            return await self._database.read(operation)
        except StoreFault as exc:
            raise unavailable(exc) from exc


def _heard(tail: Tail, last: reading.Look, after: int) -> reading.Look | None:
    """What was written in this process goes to those who read here as it is; not to who reads a packed log, which has
    other places.
    """
    records = [] if last.is_packed else tail.take(last.at)
    if not records:
        return None
    return reading.Look(last.key, behind(records, after), records[-1].at + 1, is_last(records[-1]))
