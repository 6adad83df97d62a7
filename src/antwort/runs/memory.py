"""Runs in the memory of this process, over the store that keeps their responses there."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import count
from weakref import WeakValueDictionary

from antwort.api.payload import PIECE, payload
from antwort.api.status import FINAL, IllegalTransition
from antwort.api.wire import replace
from antwort.errors import HandedOver, QueueFull, ResponseNotFound
from antwort.event_loop import next_turn
from antwort.identity import Identity
from antwort.runs.choosing import choose
from antwort.runs.codec import behind, is_last
from antwort.runs.hints import Hint, Tails
from antwort.runs.memory_run import Key, MemoryRun
from antwort.runs.packed import LargeRecords, unpack
from antwort.storage.base import LogPiece
from antwort.storage.memory import MemoryStore
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


class MemoryRunLog:
    """What it holds ends with the process, and so do those who make it: a worker is there until it leaves."""

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
        """`poll`: seconds between signs of life to those who follow a run."""
        self._store, self._queue, self._per_owner = store, queue, per_owner
        self._keep_log, self._poll, self._clock = keep_log, poll, clock
        self._workers: dict[str, Worker] = {}
        self._runs: dict[Key, MemoryRun] = {}
        """Those that have ended stay for their logs."""
        store.is_durable = self._runs.__contains__
        self._open: dict[int, MemoryRun] = {}
        self._keys = count(1)
        self._work, self._cancels, self._tails = Hint(), Hint(), Tails()
        self._shared: LargeRecords = WeakValueDictionary()

    # ---- workers ----

    async def join(self, worker: Worker) -> None:
        self._workers[worker.name] = worker

    async def leave(self, worker: str) -> None:
        self._workers.pop(worker, None)
        self._work.set()

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        self._cancels.clear()
        self._workers[worker.name] = worker
        own = [run for run in self._open.values() if run.worker == worker.name]
        return Renewed(
            lost=frozenset(lease for lease in leases if self._held(lease) is None),
            cancelled=frozenset(run.response.id for run in own if run.is_cancelled),
            strays=frozenset(run.lease for run in own) - frozenset(leases),
        )

    async def owner(self, identity: Identity, response_id: str) -> Worker | None:
        run = await self._find(identity, response_id)
        return None if run is None or run.worker is None else self._workers.get(run.worker)

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        new = run.new
        if await self._find(new.identity, new.response.id) is not None:
            return
        if len(self._free()) >= self._queue:
            await self._drop_deleted()
        if (waiting := len(self._free())) >= self._queue:
            raise QueueFull(waiting)
        await self._store.begin(new)
        made = MemoryRun(next(self._keys), new.identity, new.response, new.request, self._clock())
        made.add(Record(0, 0, run.events))
        self._keep(made)
        self._work.set()

    async def adopt(
        self,
        worker: str,
        identity: Identity,
        response_id: str,
        records: Sequence[Record],
        *,
        has_room: bool | None = None,
    ) -> Lease:
        run = await self._find(identity, response_id)
        is_new = run is None
        if run is None:
            run = await self._to_adopt(identity, response_id)
            waits = has_room is not None and not (has_room and self._has_place(run))
            if waits and (waiting := len(self._free())) >= self._queue:
                raise QueueFull(waiting)
            run.worker, run.fence, run.attempt, run.begun_at = None if waits else worker, 1, 1, run.queued_at
            self._keep(run)
        elif run.worker != worker or run.ended_at is not None:
            raise Fenced
        for record in records:
            run.add(record)
        if is_new and run.worker is None:
            self._work.set()
            raise HandedOver
        return run.lease

    def _has_place(self, run: MemoryRun) -> bool:
        held = [other for other in self._open.values() if other.worker in self._workers and other.whose == run.whose]
        return self._per_owner is None or len(held) < self._per_owner

    async def _to_adopt(self, identity: Identity, response_id: str) -> MemoryRun:
        link = await self._store.link(identity, response_id)
        if link is None or link.response.status in FINAL:
            raise Fenced
        response = link.response
        return MemoryRun(next(self._keys), identity, response, link.request, float(response.created_at))

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        self._work.clear()
        if worker not in self._workers:
            return ()
        await self._drop_deleted()
        free = self._free(lost=True)
        held = [run for run in self._open.values() if run.worker in self._workers]
        return [self._take(free[place], worker) for place in choose(free, held, count, self._per_owner)]

    async def take(self, worker: str, identity: Identity, response_id: str) -> Claimed | None:
        run = await self._find(identity, response_id)
        if run is None or run.ended_at is not None or run.worker in self._workers or worker not in self._workers:
            return None
        return self._take(run, worker)

    def _take(self, run: MemoryRun, worker: str) -> Claimed:
        self._store.set_in_progress(run.identity, run.response.id)
        return run.take(worker, self._clock())

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        await self._drop_deleted()
        whose = identity.tenant, identity.owner
        return any(run.whose == whose and run.conversation_id == conversation_id for run in self._open.values())

    async def records(self, lease: Lease) -> Sequence[Record]:
        return tuple((await self._hold(lease)).log)

    async def append(self, lease: Lease, record: Record) -> None:
        run = await self._hold(lease)
        if run.add(record):
            self._tails.tell(run.response.id, run.key)

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        run = self._held(lease)
        if run is None:
            if await self._has_ended_with(ending.identity, lease, record):
                return
            raise Fenced
        await self._finish_row(run, ending)
        run.add(record)
        run.ended_at, run.worker = self._clock(), None
        del self._open[run.key]
        self._tails.tell(run.response.id, run.key)
        self._work.set()  # those that wait for it, in its conversation or for its owner's places

    async def _finish_row(self, run: MemoryRun, ending: Ending) -> None:
        try:
            await self._store.finish(ending.identity, ending.response, ending.marks, ending.entries, ending.approvals)
        except (ResponseNotFound, IllegalTransition) as exc:
            self._drop(run)
            raise Fenced from exc

    async def give_up(self, lease: Lease, ending: Ending) -> None:
        run = self._held(lease)
        if run is None:
            raise Fenced
        await self._finish_row(run, ending)
        self._drop(run)
        self._work.set()

    async def _has_ended_with(self, identity: Identity, lease: Lease, record: Record) -> bool:
        run = await self._find(identity, lease.run_id)
        return run is not None and run.ended_at is not None and run.fence == lease.fence and run.log[-1] == record

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        run = self._held(lease)
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
    ) -> AsyncGenerator[list[Record], None]:
        run = await self._find(identity, response_id)
        if run is None:
            async with aclosing(self._unpacked(identity, response_id)) as reading:
                async for record in reading:
                    if records := behind([record], after):
                        yield records
            return
        at = 0
        with self._tails.follow(response_id, run.key) as tail:
            while True:
                tail.hint.clear()
                found = _piece(run.log, at)
                at += len(found)
                if records := behind(found, after):
                    yield records
                if found and is_last(found[-1]):
                    return
                if at < len(run.log):
                    continue
                if not follow:
                    return
                if await self._find(identity, response_id) is not run:
                    raise Gone
                if at == len(run.log) and not await tail.hint.wait(self._poll):
                    yield []

    async def _unpacked(self, identity: Identity, response_id: str) -> AsyncGenerator[Record, None]:
        """Of a response that was made in the foreground: the store keeps it."""
        log = self._store.log_of(identity, response_id)
        if log is None:
            raise Gone
        for at, piece in enumerate(log):
            name = (response_id, at)
            await next_turn()
            record = self._shared.get(name)
            if record is None:
                record = Record(at, piece.first, unpack(piece.data, lambda: log[0].data))
                self._shared[name] = record
            yield record

    async def has_log(self, identity: Identity, response_id: str) -> bool:
        if await self._find(identity, response_id) is not None:
            return True
        return self._store.log_of(identity, response_id) is not None

    async def sent(self, identity: Identity, response_id: str) -> int:
        run = await self._find(identity, response_id)
        said: Sequence[Record | LogPiece] | None = run.log if run else self._store.log_of(identity, response_id)
        return said[-1].next if said else 0

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
        free = self._free()
        oldest = self._clock() - min((run.queued_at for run in free), default=self._clock())
        return Load(queued=len(free), running=len(self._open) - len(free), oldest=max(oldest, 0.0))

    async def sweep(self) -> int:
        """Responses in the foreground end with the process, and so does their record."""
        old = self._clock() - self._keep_log
        for run in [*self._runs.values()]:
            if run.ended_at is not None and run.ended_at <= old:
                self._drop(run)
            else:
                await self._find(run.identity, run.response.id)
        return 0

    async def close(self) -> None:
        """Nothing is held but memory."""

    # ---- which ----

    def _keep(self, run: MemoryRun) -> None:
        self._runs[run.name] = self._open[run.key] = run

    async def _find(self, identity: Identity, response_id: str) -> MemoryRun | None:
        """It goes with its response."""
        run = self._runs.get((identity.tenant, identity.owner, response_id))
        if run is not None and await self._store.get(identity, response_id) is None:
            self._drop(run)
            return None
        return run

    def _drop(self, run: MemoryRun) -> None:
        self._open.pop(run.key, None)
        with suppress(KeyError):
            del self._runs[run.name]
        self._tails.tell(run.response.id, run.key)

    async def _drop_deleted(self) -> None:
        """Of those that have not ended."""
        for run in [*self._open.values()]:
            await self._find(run.identity, run.response.id)

    def _free(self, *, lost: bool = False) -> list[MemoryRun]:
        """Those that wait, and with `lost` those whose worker has gone."""
        free = [run for run in self._open.values() if run.worker is None]
        return free + [run for run in self._open.values() if run.worker and run.worker not in self._workers] * lost

    def _held(self, lease: Lease) -> MemoryRun | None:
        run = self._open.get(lease.key)
        return run if run is not None and run.fence == lease.fence else None

    async def _hold(self, lease: Lease) -> MemoryRun:
        run = self._held(lease)
        if run is None or await self._find(run.identity, run.response.id) is None:
            raise Fenced
        return run


def _piece(log: Sequence[Record], at: int) -> list[Record]:
    """The next records, as many as make a piece."""
    found: list[Record] = []
    size = 0
    for place in range(at, len(log)):
        size += sum(map(payload, log[place].events))
        if found and size > PIECE:
            break
        found.append(log[place])
    return found
