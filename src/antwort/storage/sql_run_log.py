"""The run log in a database, beside the responses that its runs make and in the same transactions.

The functions inside the methods are operations: plain functions that run in a transaction, on a thread of the database,
and may run a second time after a rollback. What commonly happens is returned, not raised: an operation that raises
makes the database repeat all of its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from antwort.api.responses import Response
from antwort.api.status import FINAL, IllegalTransition
from antwort.api.wire import UNSET
from antwort.errors import Damaged, QueueFull, ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.limiter import Limiter
from antwort.storage import sql_run_events as events
from antwort.storage.database import (
    Connection,
    Database,
    DatabaseClient,
    Operation,
    Value,
    Values,
    reading,
    writing,
)
from antwort.storage.event_codec import encode_identity, without_output
from antwort.storage.notifications import KEEPALIVE_SECONDS, Notifications
from antwort.storage.rows import ItemRow, RowValues, name_of, to_response
from antwort.storage.run_log import (
    ClaimedRun,
    EventRecord,
    Fenced,
    Gone,
    Lease,
    Load,
    NewRun,
    Outline,
    Renewed,
    RunEnding,
    Traits,
    Unavailable,
    WorkerInfo,
    records_after,
)
from antwort.storage.sql_responses import (
    INSERT_RECORD,
    NewRows,
    begin_response,
    early_pieces,
    fail_response,
    finish_response,
    has_begun,
    stage_output,
    to_new_rows,
    to_update_rows,
    write_new,
    write_output,
)
from antwort.storage.sql_run_claims import (
    DELETE_RUN,
    choose,
    choose_and_claim,
    claim_chosen,
    claim_one,
    clock,
    delete_run,
)
from antwort.storage.sql_run_events import AppendQueue, StoredPiece

if TYPE_CHECKING:
    from antwort.storage.postgres import PostgresDatabase

T = TypeVar("T")

_log = logging.getLogger("antwort.runs")

LOST = "The process that made this response is gone."

_SPARE_CHOICES = 8
"""Runs that are chosen beyond the free slots: other workers may claim some of them first."""
_PARALLEL_READS = 2
"""Pieces of logs that are read at once, so that other reads do not wait for long."""
_RETRY_SECONDS = 0.05
"""After a claim or a cancel that other processes were in the way of."""
_FOREVER = 1e18
_ORPHANS_AT_ONCE = 200
_LOGS_AT_ONCE = 50
"""In one transaction of `sweep`: others have to write, too."""
_MAX_WARNINGS = 1000
_DEAD_LEASES = 10
"""A dead worker is deleted after so many times the duration of a lease."""

# ---- statements ----

_JOIN = """
    INSERT INTO workers (name, address, expires_at) VALUES (:worker, :address, :expires_at)
    ON CONFLICT (name) DO UPDATE SET address = excluded.address, expires_at = excluded.expires_at
"""
_LEAVE = "DELETE FROM workers WHERE name = :worker"
_DELETE_WORKERS = "DELETE FROM workers"
_DELETE_DEAD_WORKERS = "DELETE FROM workers WHERE expires_at <= :long_ago"
_HELD = "SELECT id, response_key, fence FROM runs WHERE worker = :worker"
_CANCELLED = """
    SELECT id FROM runs WHERE worker = :worker AND is_cancelled
    UNION
    SELECT id FROM responses
    WHERE status IN ('queued', 'in_progress') AND worker = :worker AND cancelled_at IS NOT NULL AND deleted_at IS NULL
"""
_OWNER = """
    SELECT workers.name, workers.address FROM runs
    JOIN workers ON workers.name = runs.worker AND workers.expires_at > :now
    WHERE runs.tenant = :tenant AND runs.owner = :owner AND runs.id = :id
    UNION ALL
    SELECT workers.name, workers.address FROM responses
    JOIN workers ON workers.name = responses.worker AND workers.expires_at > :now
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.status IN ('queued', 'in_progress') AND responses.deleted_at IS NULL
"""
_EXISTS = "SELECT 1 FROM responses WHERE tenant = :tenant AND owner = :owner AND id = :id"
_COUNT_QUEUED = "SELECT count(*) FROM runs WHERE worker IS NULL"
_INSERT_RUN = """
    INSERT INTO runs (response_key, tenant, owner, id, conversation_id, identity, queued_at, begun_at, worker, fence,
                      attempt, is_cancelled)
    VALUES (:key, :tenant, :owner, :id, :conversation_id, :identity, :queued_at, :begun_at, :worker, :fence,
            :attempt, :is_cancelled)
"""
_TO_ADOPT = """
    SELECT responses.key, responses.status, responses.worker, responses.created_at, responses.cancelled_at,
           responses.body, runs.worker, runs.fence
    FROM responses LEFT JOIN runs ON runs.response_key = responses.key
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.deleted_at IS NULL
"""
_RELEASE = """
    UPDATE runs SET worker = NULL, fence = fence + 1, attempt = attempt + :lost
    WHERE response_key = :key AND id = :id AND fence = :fence
"""
_LOCK_HELD_BY = f"{events.HELD_BY} /*pg: FOR UPDATE */"
# The output that an earlier holder wrote in advance, because it was about to finish the run.
_DELETE_OUTPUT = """
    DELETE FROM items WHERE direction = 'output'
      AND position >= (SELECT coalesce(max(items_end), 0) FROM turns WHERE turns.response_key = items.response_key)
      AND response_key IN (SELECT response_key FROM runs WHERE response_key = :key AND id = :id AND fence = :fence)
"""
_INSERT_LOG = "INSERT INTO run_logs (response_key, ended_at) VALUES (:key, :ended_at)"
# Cancels wait for no row: many of them go in one transaction, in any order, and each would hold its row for the others.
# They do not touch a fence, so that this lock lets appends through.
_CANCEL_LOCK = "/*pg: FOR NO KEY UPDATE SKIP LOCKED */"
_RUN_TO_CANCEL = "SELECT response_key FROM runs WHERE tenant = :tenant AND owner = :owner AND id = :id"
_CANCEL_RUN = "UPDATE runs SET is_cancelled = true WHERE response_key = :key"
_RESPONSE_TO_CANCEL = """
    SELECT key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND status IN ('queued', 'in_progress')
      AND worker IS NOT NULL AND deleted_at IS NULL
"""
_CANCEL_RESPONSE = "UPDATE responses SET cancelled_at = :at WHERE key = :key"
_OUTLINE = """
    SELECT body,
           CASE WHEN EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
                  OR EXISTS (SELECT 1 FROM run_logs WHERE run_logs.response_key = responses.key) THEN 1 ELSE 0 END
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
_IS_BUSY = "SELECT 1 FROM runs WHERE tenant = :tenant AND owner = :owner AND conversation_id = :conversation_id LIMIT 1"
_LOAD = """
    SELECT count(*), count(worker), min(CASE WHEN worker IS NULL THEN queued_at END) FROM runs
"""
_LOCK_ORPHANS = """
    SELECT responses.key, responses.body FROM responses
    WHERE responses.status IN ('queued', 'in_progress') AND responses.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = responses.worker AND expires_at > :now)
      AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
    LIMIT :limit
    /*pg: FOR UPDATE SKIP LOCKED */
"""


class SqlRunLog(DatabaseClient):
    """A run log in an open and migrated database, which the store closes: `close` this one first.

    SQLite belongs to one process, which has a lock on the file: a worker lives as long as the process, and those of
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
        """`poll` and `keepalive_seconds` are those of `Notifications`."""
        super().__init__(database)
        self._lease_seconds = lease
        self._queue, self._per_owner, self._keep_log = queue, per_owner, keep_log
        self._is_alone = database.dialect == "sqlite"
        self._has_joined = not self._is_alone
        """False: the registered workers are those of processes that have ended."""
        connect = None if self._is_alone else cast("PostgresDatabase", database).connect
        self._notifications = Notifications(connect, poll, keepalive_seconds)
        self._appends = AppendQueue(database, self._notifications)
        self._finishing: set[Lease] = set()
        self._damaged_keys: set[int] = set()
        """Of the logs that a warning was logged for."""
        self._read_slots = Limiter(_PARALLEL_READS)
        self._large_records: WeakValueDictionary[tuple[str, int], EventRecord] = WeakValueDictionary()
        """Large records that readers hold right now, to share them."""

    @property
    def traits(self) -> Traits:
        return Traits(durability=self.database.durability, many=not self._is_alone)

    async def close(self) -> None:
        await self._appends.close()
        await self._notifications.close()

    # ---- workers ----

    async def join(self, worker: WorkerInfo) -> None:
        self._notifications.listen()
        if not self._has_joined:
            await self._write(lambda connection: connection.execute(_DELETE_WORKERS).rowcount)
            self._has_joined = True
        await self._write(partial(self._extend, worker=worker))

    async def leave(self, worker: str) -> None:
        await self._write(lambda connection: connection.execute(_LEAVE, {"worker": worker}).rowcount)
        self._notifications.work.set()

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        self._notifications.cancels.clear()
        named = frozenset(leases)

        def renew(connection: Connection) -> Renewed:
            self._extend(connection, worker)
            of_worker = {"worker": worker.name}
            rows = connection.execute(_HELD, of_worker).fetchall()
            held = frozenset(Lease(run_id, fence, worker.name, key) for run_id, key, fence in rows)
            cancelled = frozenset(response_id for (response_id,) in connection.execute(_CANCELLED, of_worker))
            return Renewed(lost=named - held, cancelled=cancelled, strays=held - named)

        renewed = await _as_unavailable(self.database.write_urgent, renew)
        # A run that is being finished has ended, or `finish` will tell that it was lost.
        return msgspec.structs.replace(renewed, lost=renewed.lost - self._finishing)

    def _extend(self, connection: Connection, worker: WorkerInfo) -> None:
        expires_at = _FOREVER if self._is_alone else clock(connection) + self._lease_seconds
        connection.execute(_JOIN, {"worker": worker.name, "address": worker.address, "expires_at": expires_at})

    @reading
    def owner(self, connection: Connection, identity: Identity, response_id: str) -> WorkerInfo | None:
        values: Values = {**name_of(identity, response_id), "now": clock(connection)}
        row = connection.execute(_OWNER, values).fetchone()
        return None if row is None else WorkerInfo(*row)

    # ---- new runs ----

    async def submit(self, run: NewRun) -> None:
        first = events.to_row(EventRecord(0, 0, run.events))

        async def write(rows: NewRows) -> None:
            queued = await self.database.write(partial(submit, rows=rows))
            if queued is not None:
                raise QueueFull(queued)

        def submit(connection: Connection, rows: NewRows) -> int | None:
            """Return how many runs are queued if the queue is full."""
            exists = has_begun if rows.is_staged else _exists
            if exists(connection, rows.values):
                return None
            if (queued := _count_queued(connection)) >= self._queue:
                return queued
            key = begin_response(connection, rows)
            values = _run_values(run.new.identity, run.new.response, key) | {"queued_at": clock(connection)}
            connection.execute(_INSERT_RUN, values)
            connection.execute(INSERT_RECORD, (key, *first))
            self._notifications.send_work(connection)
            return None

        try:
            rows = to_new_rows(run.new)
            if early_pieces(self.database, rows.items):  # before much is written in vain
                queued = await self.database.read(_count_queued)
                if queued >= self._queue:
                    raise QueueFull(queued)
            await write_new(self.database, rows, write)
        except StoreFault as exc:
            raise Unavailable.because_of(exc) from exc
        self._notifications.work.set()

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        name = name_of(identity, response_id)

        def adopt(connection: Connection) -> Lease | None:
            found = connection.execute(_TO_ADOPT, name).fetchone()
            if found is None:
                return None
            key, status, maker, created_at, cancelled_at, body, holder, fence = found
            if fence is None:
                if status in FINAL or maker not in (None, worker):
                    return None
                begun_at, fence = float(created_at), 1
                values = _run_values(identity, to_response(body), key) | {
                    "queued_at": begun_at,
                    "begun_at": begun_at,
                    "worker": worker,
                    "fence": fence,
                    "attempt": 1,
                    "is_cancelled": cancelled_at is not None,
                }
                connection.execute(_INSERT_RUN, values)
            elif holder != worker:  # else the answer to an earlier call was lost
                return None
            return Lease(response_id, fence, worker, key)

        if (lease := await self._write(adopt)) is None:
            raise Fenced
        return lease

    # ---- claims ----

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        self._notifications.work.clear()

        if self._per_owner is not None:
            found = await self._write(partial(choose_and_claim, worker=worker, count=count, per_owner=self._per_owner))
            claimed, is_incomplete = found or [], found is None
        else:  # the choice looks at all queued runs, so no write should wait for it
            chosen = await self._read(partial(choose, worker=worker, count=count + _SPARE_CHOICES, per_owner=None))
            claim = partial(claim_chosen, worker=worker, count=count, chosen=chosen)
            claimed = await self._write(claim) if chosen else []
            is_incomplete = len(claimed) < min(count, len(chosen))  # others were faster; there may be more behind
        if is_incomplete:
            self._notifications.work.set_later(_RETRY_SECONDS)
        return claimed

    @writing
    def take(self, connection: Connection, worker: str, identity: Identity, response_id: str) -> ClaimedRun | None:
        return claim_one(connection, worker, name_of(identity, response_id))

    @reading
    def is_busy(self, connection: Connection, identity: Identity, conversation_id: str) -> bool:
        values = {"tenant": identity.tenant, "owner": identity.owner, "conversation_id": conversation_id}
        return connection.execute(_IS_BUSY, values).fetchone() is not None

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        def release(connection: Connection) -> None:
            connection.execute(_RELEASE, {**_values_of(lease), "lost": int(is_lost)})
            self._notifications.send_work(connection)

        await self._write(release)
        self._notifications.work.set()

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        name = name_of(identity, response_id)

        def cancel(connection: Connection) -> bool | None:
            """Return None when another transaction has locked the row."""
            for find, change in ((_RUN_TO_CANCEL, _CANCEL_RUN), (_RESPONSE_TO_CANCEL, _CANCEL_RESPONSE)):
                if (row := connection.execute(f"{find} {_CANCEL_LOCK}", name).fetchone()) is not None:
                    connection.execute(change, {"key": row[0], "at": int(clock(connection))})
                    self._notifications.send_cancels(connection)
                    self._notifications.send_work(connection)
                    return True
                if connection.execute(find, name).fetchone() is not None:
                    return None
            return False

        is_found = await _as_unavailable(self.database.write_urgent, cancel)
        while is_found is None:
            await asyncio.sleep(_RETRY_SECONDS)
            is_found = await _as_unavailable(self.database.write_urgent, cancel)
        if is_found:
            self._notifications.cancels.set()
            self._notifications.work.set()
        return is_found

    # ---- writing ----

    async def append(self, lease: Lease, record: EventRecord) -> None:
        if not await self._appends.append(lease, record):
            raise Fenced
        self._notifications.publish(lease.run_id)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        self._finishing.add(lease)
        try:
            await self._end(lease, ending, record)
        finally:
            self._finishing.discard(lease)
        self._notifications.publish(lease.run_id)

    async def give_up(self, lease: Lease, ending: RunEnding) -> None:
        await self._end(lease, ending, None)

    async def _end(self, lease: Lease, ending: RunEnding, record: EventRecord | None) -> None:
        key, values = lease.key, _values_of(lease)
        last = None if record is None else msgspec.structs.replace(record, events=without_output(record.events))
        row = None if last is None else events.to_row(last)
        update = to_update_rows(ending.identity, ending.response, ending.marks, ending.entries, ending.approvals)

        def stage(items: list[ItemRow]) -> Awaitable[None]:
            """Write a part of a large output in advance, unless another worker has the run."""

            def write(connection: Connection) -> None:
                if connection.execute(events.HELD_BY, values).fetchone() is not None:
                    stage_output(connection, update.values, items)

            return self._write(write)

        def end(connection: Connection) -> bool:
            """Return whether it is written, now or before."""
            if connection.execute(_LOCK_HELD_BY, values).fetchone() is None:
                return last is not None and events.has_ended_with(connection, key, last, update)
            try:
                finish_response(connection, update)
                is_written = True
            except (ResponseNotFound, IllegalTransition):  # raised before anything was written
                is_written = False
            if is_written and row is not None:
                connection.execute(INSERT_RECORD, (key, *row))
                connection.execute(_INSERT_LOG, {"key": key, "ended_at": int(clock(connection))})
                connection.execute(DELETE_RUN, {"key": key})
            else:
                delete_run(connection, key)
            # Other runs may have waited for it, in its conversation or for the limit of its owner.
            self._notifications.send_events(connection, [lease.run_id])
            self._notifications.send_work(connection)
            return is_written

        if self._is_alone and lease.fence > 1:  # an earlier holder may have been about to finish it in another way
            await self._write(lambda connection: connection.execute(_DELETE_OUTPUT, values).rowcount)
        if not await write_output(self.database, update.items, stage, partial(self._write, end)):
            raise Fenced
        self._notifications.work.set()

    # ---- reading ----

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        def read(connection: Connection) -> list[EventRecord] | None:
            is_held = connection.execute(events.HELD_BY, _values_of(lease)).fetchone() is not None
            return events.read_records(connection, lease.key) if is_held else None

        if (records := await self._read(read)) is None:
            raise Fenced
        return records

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[EventRecord], None]:
        self._notifications.listen()
        name = name_of(identity, response_id)
        piece = await self._next_piece(name, after, None)
        with self._notifications.follow(response_id) as wakeup:
            is_new = True  # nothing has told of what was written between the first look and now
            while True:
                if found := records_after(piece.records, after):
                    yield found
                    after = found[-1].next - 1
                if piece.is_last or not (follow or piece.has_more):
                    return
                look_at = monotonic() + self._notifications.poll_seconds()
                while not (is_new or piece.has_more):
                    if await wakeup.wait(self._notifications.keepalive_seconds):
                        break
                    yield []
                    if monotonic() >= look_at or not self._notifications.arrive:
                        break
                is_new = False
                wakeup.clear()
                piece = await self._next_piece(name, after, piece)

    async def _next_piece(self, name: RowValues, after: int, last: StoredPiece | None) -> StoredPiece:
        if last is not None and last.has_more:
            await asyncio.sleep(0)  # in memory, other tasks run between two pieces
        async with self._read_slots:
            piece = await self._read(
                partial(events.read_piece, name=name, after=after, last=last, shared=self._large_records)
            )
        if piece is None:
            raise Gone
        return piece

    @reading
    def sent(self, connection: Connection, identity: Identity, response_id: str) -> int:
        row = connection.execute(events.SENT, name_of(identity, response_id)).fetchone()
        if row is None:
            return 0
        key, end = row
        if end is None and (packed := events.read_packed(connection, key, 0)) is not None:
            return packed.next  # the only piece
        return end or 0

    @reading
    def outline(self, connection: Connection, identity: Identity, response_id: str) -> Outline | None:
        row = connection.execute(_OUTLINE, name_of(identity, response_id)).fetchone()
        return None if row is None else Outline(response=to_response(row[0]), has_log=bool(row[1]))

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        await self._notifications.work.wait(seconds)

    async def wait_for_cancels(self, seconds: float) -> None:
        await self._notifications.cancels.wait(seconds)

    @reading
    def load(self, connection: Connection) -> Load:
        total, running, first = connection.execute(_LOAD).fetchone()
        oldest = 0.0 if first is None else max(clock(connection) - first, 0.0)
        return Load(queued=total - running, running=running, oldest=oldest)

    # ---- housekeeping ----

    async def sweep(self) -> int:
        def fail_orphans(connection: Connection) -> int:
            values = {"now": clock(connection), "limit": _ORPHANS_AT_ONCE}
            rows = connection.execute(_LOCK_ORPHANS, values).fetchall()
            for key, body in rows:
                fail_response(connection, key, body, LOST)
            return len(rows)

        def delete_old_logs(connection: Connection) -> int:
            values = {"old": int(clock(connection) - self._keep_log), "limit": _LOGS_AT_ONCE}
            keys = connection.execute(events.DELETE_OLD_LOGS, values).fetchall()
            for key in keys:
                connection.execute(events.DELETE_RECORDS, key)
            return len(keys)

        def delete_dead_workers(connection: Connection) -> None:
            long_ago = clock(connection) - _DEAD_LEASES * self._lease_seconds
            connection.execute(_DELETE_DEAD_WORKERS, {"long_ago": long_ago})

        failed_count = 0
        while count := await self._write(fail_orphans):
            failed_count += count
            if count < _ORPHANS_AT_ONCE:
                break
        await self._pack_logs()
        while await self._write(delete_old_logs) == _LOGS_AT_ONCE:
            pass
        await self._write(delete_dead_workers)
        return failed_count

    async def _pack_logs(self) -> None:
        """Pack the logs of ended runs one by one, compressed on a thread of its own: nothing waits for more than one
        log, and only one is in memory.
        """

        last = -1
        while logs := await self._read(partial(events.find_unpacked, after=last, limit=_LOGS_AT_ONCE)):
            for key, response_id in logs:
                try:
                    records = await self._unpacked(key)
                except Damaged:  # it is found again each time, and logged once
                    if key not in self._damaged_keys and len(self._damaged_keys) < _MAX_WARNINGS:
                        self._damaged_keys.add(key)
                        _log.warning("the log of %s cannot be read: it stays unpacked until it is too old", response_id)
                    continue
                if records is None:
                    continue
                pieces = await asyncio.to_thread(events.pack_and_compress, records)
                await self._write(partial(events.write_packed, key=key, response_id=response_id, pieces=pieces))
            last = logs[-1][0]

    async def _unpacked(self, key: int) -> Sequence[EventRecord] | None:
        """Return the records of a log that is to be packed; None where another process has done that."""
        records: list[EventRecord] = []
        while True:
            await asyncio.sleep(0)  # in memory, other tasks run between two pieces
            piece = await self._read(partial(events.read_unpacked, key=key, at=len(records)))
            if not piece:
                return piece if piece is None else records
            records += piece

    # ---- the database ----

    async def _write(self, operation: Operation[T]) -> T:
        return await _as_unavailable(self.database.write, operation)

    async def _read(self, operation: Operation[T]) -> T:
        return await _as_unavailable(self.database.read, operation)


def _exists(connection: Connection, values: RowValues) -> bool:
    return connection.execute(_EXISTS, values).fetchone() is not None


def _count_queued(connection: Connection) -> int:
    return int(connection.execute(_COUNT_QUEUED).fetchone()[0])


# ---- values ----


def _values_of(lease: Lease) -> dict[str, Value]:
    return {"key": lease.key, "id": lease.run_id, "fence": lease.fence}


def _run_values(identity: Identity, response: Response, key: int) -> RowValues:
    """Return the values of a run that waits, but for `queued_at`."""
    return name_of(identity, response.id) | {
        "key": key,
        "identity": encode_identity(identity),
        "conversation_id": None if response.conversation is UNSET else response.conversation.id,
        "begun_at": None,
        "worker": None,
        "fence": 0,
        "attempt": 0,
        "is_cancelled": False,
    }


async def _as_unavailable(submit: Callable[[Operation[T]], Awaitable[T]], operation: Operation[T]) -> T:
    """Raise `Unavailable` for a fault of the database, so that the caller tries again, unless that is of no use."""
    try:
        return await submit(operation)
    except StoreFault as exc:
        raise Unavailable.because_of(exc) from exc
