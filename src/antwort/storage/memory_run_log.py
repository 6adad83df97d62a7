"""The run log in the memory of this process, over the store that holds the responses there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias
from weakref import WeakValueDictionary

from antwort.api.payload import PIECE, payload
from antwort.api.responses import Response
from antwort.api.status import FINAL, IllegalTransition
from antwort.api.wire import UNSET, replace
from antwort.errors import QueueFull, ResponseNotFound
from antwort.event_loop import next_turn
from antwort.identity import Identity
from antwort.storage.event_codec import unpack
from antwort.storage.memory import MemoryStore
from antwort.storage.notifications import TailBuffers, Wakeup
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
    WorkerInfo,
    records_after,
)

Key: TypeAlias = tuple[str, str, str]
"""Tenant, owner and id."""


@dataclass(slots=True, eq=False)
class MemoryRun:
    """A run and its log. When the run has ended, only the log matters."""

    key: int
    identity: Identity
    response: Response
    request: bytes
    queued_at: float
    log: list[EventRecord] = field(default_factory=list)
    worker: str | None = None
    fence: int = 0
    attempt: int = 0
    begun_at: float | None = None
    is_cancelled: bool = False
    ended_at: float | None = None

    @property
    def name(self) -> Key:
        return self.identity.tenant, self.identity.owner, self.response.id

    @property
    def owner(self) -> tuple[str, str]:
        return self.identity.tenant, self.identity.owner

    @property
    def conversation_id(self) -> str | None:
        return None if self.response.conversation is UNSET else self.response.conversation.id

    @property
    def lease(self) -> Lease:
        return Lease(run_id=self.response.id, fence=self.fence, worker=self.worker or "", key=self.key)

    def add(self, record: EventRecord) -> bool:
        """Return whether the record is new."""
        if record.at < len(self.log):
            return False
        assert record.at == len(self.log), "a record is missing before this one"
        self.log.append(record)
        return True


class MemoryRunLog:
    """Both the log and its workers end with the process: a worker is alive until it leaves."""

    traits = Traits(durability="process", many=False)

    def __init__(
        self,
        store: MemoryStore,
        *,
        queue: int = 1000,
        per_owner: int | None = None,
        keep_log: float = 604800.0,
        poll: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`poll` is the number of seconds between the keep-alives of a reader."""
        self._store, self._queue, self._per_owner = store, queue, per_owner
        self._keep_log, self._poll, self._clock = keep_log, poll, clock
        self._workers: dict[str, WorkerInfo] = {}
        self._runs: dict[Key, MemoryRun] = {}
        """All runs that have a log, also those that have ended."""
        self._open: dict[int, MemoryRun] = {}
        """The runs that have not ended."""
        self._keys = count(1)
        self._work, self._cancels, self._tails = Wakeup(), Wakeup(), TailBuffers()
        self._unpacked: WeakValueDictionary[tuple[str, int], EventRecord] = WeakValueDictionary()
        """Pieces of packed logs that readers hold right now, to share them."""
        store.is_durable = self._runs.__contains__

    # ---- workers ----

    async def join(self, worker: WorkerInfo) -> None:
        self._workers[worker.name] = worker

    async def leave(self, worker: str) -> None:
        self._workers.pop(worker, None)
        self._work.set()

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        self._cancels.clear()
        self._workers[worker.name] = worker
        own = [run for run in self._open.values() if run.worker == worker.name]
        return Renewed(
            lost=frozenset(lease for lease in leases if self._find_held(lease) is None),
            cancelled=frozenset(run.response.id for run in own if run.is_cancelled),
            strays=frozenset(run.lease for run in own) - frozenset(leases),
        )

    async def owner(self, identity: Identity, response_id: str) -> WorkerInfo | None:
        run = await self._find(identity, response_id)
        return None if run is None or run.worker is None else self._workers.get(run.worker)

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        new = run.new
        if await self._find(new.identity, new.response.id) is not None:
            return
        if self._count_queued() >= self._queue:
            await self._drop_deleted()
        if (queued := self._count_queued()) >= self._queue:
            raise QueueFull(queued)
        await self._store.begin(new)
        made = MemoryRun(next(self._keys), new.identity, new.response, new.request, self._clock())
        made.add(EventRecord(0, 0, run.events))
        self._runs[made.name] = self._open[made.key] = made
        self._work.set()

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        run = await self._find(identity, response_id)
        if run is None:
            link = await self._store.link(identity, response_id)
            if link is None or link.response.status in FINAL:
                raise Fenced
            began = float(link.response.created_at)
            run = MemoryRun(next(self._keys), identity, link.response, link.request, began)
            run.worker, run.fence, run.attempt, run.begun_at = worker, 1, 1, began
            self._runs[run.name] = self._open[run.key] = run
        elif run.worker != worker or run.ended_at is not None:
            raise Fenced
        return run.lease

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        self._work.clear()
        if worker not in self._workers:
            return ()
        await self._drop_deleted()
        return [self._take(run, worker) for run in self._next_runs()[:count]]

    async def take(self, worker: str, identity: Identity, response_id: str) -> ClaimedRun | None:
        run = await self._find(identity, response_id)
        if run is None or run.ended_at is not None or run.worker in self._workers or worker not in self._workers:
            return None
        return self._take(run, worker)

    def _next_runs(self) -> list[MemoryRun]:
        """Return the runs that may be claimed, the next one first. Each counts as running for those of the same owner
        after it. A cancelled run only has to be ended, so it waits for nothing.
        """
        free = [run for run in self._open.values() if run.worker not in self._workers]
        running = Counter(run.owner for run in self._open.values() if run.worker in self._workers)
        ranked: list[tuple[bool, int, float, int, MemoryRun]] = []
        for run in sorted(free, key=lambda run: (not run.is_cancelled, run.queued_at, run.key)):
            if not run.is_cancelled and self._waits_in_conversation(run):
                continue
            running[run.owner] += 1
            if run.is_cancelled or self._per_owner is None or running[run.owner] <= self._per_owner:
                ranked.append((not run.is_cancelled, running[run.owner], run.queued_at, run.key, run))
        return [run for *_, run in sorted(ranked)]

    def _waits_in_conversation(self, run: MemoryRun) -> bool:
        """Return whether the conversation has another run that is running, cancelled or older."""
        return run.conversation_id is not None and any(
            other.worker in self._workers
            or other.is_cancelled
            or (other.queued_at, other.key) < (run.queued_at, run.key)
            for other in self._open.values()
            if other is not run and other.conversation_id == run.conversation_id and other.owner == run.owner
        )

    def _take(self, run: MemoryRun, worker: str) -> ClaimedRun:
        self._store.set_in_progress(run.identity, run.response.id)
        run.begun_at = self._clock() if run.begun_at is None else run.begun_at
        if run.attempt == 0 or run.worker is not None:
            run.attempt += 1
        run.fence += 1
        run.worker = worker
        return ClaimedRun(
            lease=run.lease,
            identity=run.identity,
            request=run.request,
            response=run.response,
            attempt=run.attempt,
            is_cancelled=run.is_cancelled,
            begun_at=run.begun_at,
            waited=max(run.begun_at - run.queued_at, 0.0) if run.fence == 1 else None,
        )

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        await self._drop_deleted()
        owner = identity.tenant, identity.owner
        return any(run.owner == owner and run.conversation_id == conversation_id for run in self._open.values())

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        return tuple((await self._require_held(lease)).log)

    async def append(self, lease: Lease, record: EventRecord) -> None:
        run = await self._require_held(lease)
        if run.add(record):
            self._tails.publish(run.response.id)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        run = self._find_held(lease)
        if run is None:
            ended = await self._find(ending.identity, lease.run_id)
            if ended is None or ended.ended_at is None or ended.fence != lease.fence or ended.log[-1] != record:
                raise Fenced
            return
        await self._finish_response(run, ending)
        run.add(record)
        run.ended_at, run.worker = self._clock(), None
        del self._open[run.key]
        self._tails.publish(run.response.id)
        self._work.set()  # the next run of its conversation or its owner may begin

    async def give_up(self, lease: Lease, ending: RunEnding) -> None:
        run = self._find_held(lease)
        if run is None:
            raise Fenced
        await self._finish_response(run, ending)
        self._drop(run)
        self._work.set()

    async def _finish_response(self, run: MemoryRun, ending: RunEnding) -> None:
        try:
            await self._store.finish(ending.identity, ending.response, ending.marks, ending.entries, ending.approvals)
        except (ResponseNotFound, IllegalTransition) as exc:
            self._drop(run)
            raise Fenced from exc

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        run = self._find_held(lease)
        if run is not None:
            run.worker, run.fence, run.attempt = None, run.fence + 1, run.attempt + is_lost
            self._work.set()

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        run = await self._find(identity, response_id)
        if run is None or run.ended_at is not None:
            return False
        run.is_cancelled = True
        self._cancels.set()
        self._work.set()
        return True

    # ---- reading ----

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[EventRecord], None]:
        run = await self._find(identity, response_id)
        if run is None:  # it ran in the foreground: the store has the log
            log = self._store.log_of(identity, response_id)
            if log is None:
                raise Gone
            for at, piece in enumerate(log):
                await next_turn()
                record = self._unpacked.get((response_id, at))
                if record is None:
                    record = EventRecord(at, piece.first, unpack(piece.data, lambda: log[0].data))
                    self._unpacked[response_id, at] = record
                if found := records_after([record], after):
                    yield found
            return
        at = 0
        with self._tails.follow(response_id, run.key) as tail:
            while True:
                tail.wakeup.clear()
                records = _next_records(run.log, at)
                at += len(records)
                if found := records_after(records, after):
                    yield found
                if records and records[-1].is_last:
                    return
                if at < len(run.log):
                    continue
                if not follow:
                    return
                if await self._find(identity, response_id) is not run:
                    raise Gone
                if at == len(run.log) and not await tail.wakeup.wait(self._poll):
                    yield []

    async def has_log(self, identity: Identity, response_id: str) -> bool:
        if await self._find(identity, response_id) is not None:
            return True
        return self._store.log_of(identity, response_id) is not None

    async def sent(self, identity: Identity, response_id: str) -> int:
        run = await self._find(identity, response_id)
        log = run.log if run is not None else self._store.log_of(identity, response_id)
        return log[-1].next if log else 0

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        response = await self._store.get(identity, response_id)
        if response is None:
            return None
        return Outline(response=replace(response, output=()), has_log=await self.has_log(identity, response_id))

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        await self._work.wait(seconds)

    async def wait_for_cancels(self, seconds: float) -> None:
        await self._cancels.wait(seconds)

    async def load(self) -> Load:
        await self._drop_deleted()
        queued = self._count_queued()
        now = self._clock()
        oldest = now - min((run.queued_at for run in self._open.values() if run.worker is None), default=now)
        return Load(queued=queued, running=len(self._open) - queued, oldest=max(oldest, 0.0))

    async def sweep(self) -> int:
        """Delete old logs. No response of a dead worker is left: it ended with the process."""
        old = self._clock() - self._keep_log
        for run in [*self._runs.values()]:
            if run.ended_at is not None and run.ended_at <= old:
                self._drop(run)
            else:
                await self._find(run.identity, run.response.id)
        return 0

    async def close(self) -> None:
        """There is nothing to release."""

    # ---- lookups ----

    async def _find(self, identity: Identity, response_id: str) -> MemoryRun | None:
        """Return the run; drop it if its response was deleted."""
        run = self._runs.get((identity.tenant, identity.owner, response_id))
        if run is not None and await self._store.get(identity, response_id) is None:
            self._drop(run)
            return None
        return run

    def _drop(self, run: MemoryRun) -> None:
        self._open.pop(run.key, None)
        self._runs.pop(run.name, None)
        self._tails.publish(run.response.id)

    async def _drop_deleted(self) -> None:
        for run in [*self._open.values()]:
            await self._find(run.identity, run.response.id)

    def _count_queued(self) -> int:
        return sum(run.worker is None for run in self._open.values())

    def _find_held(self, lease: Lease) -> MemoryRun | None:
        """Return the run if the lease still holds it."""
        run = self._open.get(lease.key)
        return run if run is not None and run.fence == lease.fence else None

    async def _require_held(self, lease: Lease) -> MemoryRun:
        run = self._find_held(lease)
        if run is None or await self._find(run.identity, run.response.id) is None:
            raise Fenced
        return run


def _next_records(log: Sequence[EventRecord], at: int) -> list[EventRecord]:
    """Return the records from that index on that make one piece."""
    found: list[EventRecord] = []
    size = 0
    for place in range(at, len(log)):
        size += sum(map(payload, log[place].events))
        if found and size > PIECE:
            break
        found.append(log[place])
    return found
