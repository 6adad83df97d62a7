"""log of runs -> log of runs: the same contract; what becomes of runs is counted, and said in the server's log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from time import perf_counter
from typing import TypeVar

from antwort.engine.runs.live import RunSummary
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.run_log import (
    Claimed,
    Ending,
    Fenced,
    Lease,
    Load,
    NewRun,
    Outline,
    Record,
    Renewed,
    RunLog,
    Traits,
    Worker,
)
from antwort.telemetry import run_lines
from antwort.telemetry.run_counts import RunCounts

T = TypeVar("T")


class WatchedRunLog:
    """It knows what this process holds, so that what is lost is told once, and what was lost before is not released."""

    def __init__(self, runs: RunLog, counts: RunCounts) -> None:
        self._runs, self._counts = runs, counts
        self._held: dict[str, Lease] = {}
        self._finished: set[str] = set()

    async def _timed(self, operation: str, work: Awaitable[T]) -> T:
        began = perf_counter()
        outcome = "ok"
        try:
            return await work
        except Fenced:
            outcome = "fenced"
            raise
        except StoreFault:
            outcome = "error"
            raise
        finally:
            self._counts.time.add((operation, outcome), perf_counter() - began)

    async def _held_by(self, operation: str, lease: Lease, work: Awaitable[T]) -> T:
        try:
            return await self._timed(operation, work)
        except Fenced:
            self._lose(lease)
            raise

    # ---- what becomes of runs ----

    def _take(self, claimed: Claimed) -> None:
        lease = claimed.lease
        self._held[lease.run_id] = lease
        if claimed.waited is not None:
            self._counts.wait.add((), claimed.waited)
        kind = "taken_over" if claimed.attempt > 1 else "handed_over" if claimed.waited is None else "new"
        self._counts.claims.add((kind,))
        run_lines.log_claimed(claimed, kind)

    def _lose(self, lease: Lease) -> None:
        if self._let_go(lease):
            self._counts.left.add(("lost",))
            run_lines.log_lost(lease.run_id)

    def _let_go(self, lease: Lease) -> bool:
        """Whether it was held until now."""
        is_held = self._held.get(lease.run_id) == lease
        if is_held:
            del self._held[lease.run_id]
        return is_held

    def ended(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`: log the end of a run under a lease, unless a request reports it in its own line."""
        if ended.response.id in self._finished:
            self._finished.discard(ended.response.id)
            if not ended.is_read:
                run_lines.log_ended(ended)

    # ---- workers ----

    @property
    def traits(self) -> Traits:
        return self._runs.traits

    async def join(self, worker: Worker) -> None:
        await self._timed("join", self._runs.join(worker))

    async def leave(self, worker: str) -> None:
        await self._timed("leave", self._runs.leave(worker))

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        renewed = await self._timed("renew", self._runs.renew(worker, leases))
        for lease in renewed.lost:
            self._lose(lease)
        return renewed

    async def owner(self, identity: Identity, response_id: str) -> Worker | None:
        return await self._timed("owner", self._runs.owner(identity, response_id))

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        await self._timed("submit", self._runs.submit(run))

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        lease = await self._timed("adopt", self._runs.adopt(worker, identity, response_id))
        self._held[lease.run_id] = lease
        return lease

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        found = await self._timed("claim", self._runs.claim(worker, count))
        for claimed in found:
            self._take(claimed)
        return found

    async def take(self, worker: str, identity: Identity, response_id: str) -> Claimed | None:
        claimed = await self._timed("take", self._runs.take(worker, identity, response_id))
        if claimed is not None:
            self._take(claimed)
        return claimed

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        return await self._timed("is_busy", self._runs.is_busy(identity, conversation_id))

    async def records(self, lease: Lease) -> Sequence[Record]:
        return await self._held_by("records", lease, self._runs.records(lease))

    async def append(self, lease: Lease, record: Record) -> None:
        await self._held_by("append", lease, self._runs.append(lease, record))

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        await self._held_by("finish", lease, self._runs.finish(lease, ending, record))
        self._let_go(lease)
        self._finished.add(lease.run_id)

    async def give_up(self, lease: Lease, ending: Ending) -> None:
        await self._held_by("give_up", lease, self._runs.give_up(lease, ending))
        self._let_go(lease)
        self._finished.add(lease.run_id)

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        await self._timed("release", self._runs.release(lease, is_lost=is_lost))
        if self._let_go(lease):
            self._counts.left.add(("handed_over",))
            run_lines.log_handed_over(lease.run_id)

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        return await self._timed("cancel", self._runs.cancel(identity, response_id))

    # ---- reading ----

    def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """As it is: how long it takes is for the run to say."""
        return self._runs.read(identity, response_id, after, follow=follow)

    async def has_log(self, identity: Identity, response_id: str) -> bool:
        return await self._timed("has_log", self._runs.has_log(identity, response_id))

    async def sent(self, identity: Identity, response_id: str) -> int:
        return await self._timed("sent", self._runs.sent(identity, response_id))

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        return await self._timed("outline", self._runs.outline(identity, response_id))

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        await self._runs.wait_for_work(seconds)

    async def wait_for_cancels(self, seconds: float) -> None:
        await self._runs.wait_for_cancels(seconds)

    async def load(self) -> Load:
        return await self._timed("load", self._runs.load())

    async def sweep(self) -> int:
        return await self._timed("sweep", self._runs.sweep())

    async def close(self) -> None:
        await self._runs.close()
