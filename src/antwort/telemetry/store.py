"""Time the operations of the store and of the run log, and report what becomes of the runs of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, cast

from antwort.engine.runs.live import RunSummary
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import ClaimedRun, EventRecord, Fenced, Lease, Renewed, RunEnding, RunLog, WorkerInfo
from antwort.telemetry.counting import Histogram
from antwort.telemetry.log_events import log_claimed, log_ended, log_handed_over, log_lost
from antwort.telemetry.metrics import Metrics, RunCounts

_UNTIMED = frozenset({"close", "wait_for_work", "wait_for_cancels"})


def timed_store(store: ResponseStore, metrics: Metrics) -> ResponseStore:
    """Return the store with each operation timed. One that fails is an error; "not found" is a result."""
    return cast("ResponseStore", TimedOperations(store, metrics.store_time))


def observed_runs(runs: RunLog, counts: RunCounts) -> tuple[RunLog, Callable[[RunSummary], None]]:
    """Return the run log with each operation timed and the runs of this process counted and logged, and a callback
    for `Engine(on_end=...)`.
    """
    observed = ObservedRunLog(runs, counts)
    return cast("RunLog", observed), observed.on_end


class TimedOperations:
    """Everything that `target` has. The time of each coroutine is added under its name and its outcome."""

    def __init__(self, target: ResponseStore | RunLog, times: Histogram) -> None:
        self._target, self._times = target, times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if iscoroutinefunction(found) and name not in _UNTIMED:
            found = self._timed(name)
        setattr(self, name, found)
        return found

    def _timed(self, name: str) -> Callable[..., Awaitable[Any]]:
        operation, times = getattr(self._target, name), self._times
        succeeded = times.series((name, "ok"))

        async def timed(*args: object, **named: object) -> object:
            began, series = perf_counter(), succeeded
            try:
                return await operation(*args, **named)
            except Fenced:
                series = times.series((name, "fenced"))
                raise
            except StoreFault:
                series = times.series((name, "error"))
                raise
            finally:
                series.add(perf_counter() - began)

        return timed


class ObservedRunLog(TimedOperations):
    """A run log that remembers the leases of this process: each lost run is reported once, and one that was lost before
    is not reported as released.
    """

    def __init__(self, runs: RunLog, counts: RunCounts) -> None:
        super().__init__(runs, counts.time)
        self._counts = counts
        extended = ("adopt", "claim", "take", "renew", "release", "records", "append", "finish", "give_up")
        self._operations = {name: self._timed(name) for name in extended}
        self._held: dict[str, Lease] = {}
        self._finished: set[str] = set()

    def on_end(self, ended: RunSummary) -> None:
        """Log the end of a run under a lease, unless a request reports it in its own line."""
        if ended.response.id in self._finished:
            self._finished.discard(ended.response.id)
            if not ended.is_read:
                log_ended(ended)

    # ---- leases ----

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        lease: Lease = await self._operations["adopt"](worker, identity, response_id)
        self._held[lease.run_id] = lease
        return lease

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        found: Sequence[ClaimedRun] = await self._operations["claim"](worker, count)
        for claimed in found:
            self._on_claim(claimed)
        return found

    async def take(self, worker: str, identity: Identity, response_id: str) -> ClaimedRun | None:
        claimed: ClaimedRun | None = await self._operations["take"](worker, identity, response_id)
        if claimed is not None:
            self._on_claim(claimed)
        return claimed

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        renewed: Renewed = await self._operations["renew"](worker, leases)
        for lease in renewed.lost:
            self._on_loss(lease)
        return renewed

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        await self._operations["release"](lease, is_lost=is_lost)
        if self._forget(lease):
            self._counts.left.add(("handed_over",))
            log_handed_over(lease.run_id)

    # ---- writes under a lease ----

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        return cast("Sequence[EventRecord]", await self._under("records", lease))

    async def append(self, lease: Lease, record: EventRecord) -> None:
        await self._under("append", lease, record)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        await self._under("finish", lease, ending, record)
        self._forget(lease)
        self._finished.add(lease.run_id)

    async def give_up(self, lease: Lease, ending: RunEnding) -> None:
        await self._under("give_up", lease, ending)
        self._forget(lease)
        self._finished.add(lease.run_id)

    async def _under(self, name: str, lease: Lease, *args: object) -> object:
        try:
            return await self._operations[name](lease, *args)
        except Fenced:
            self._on_loss(lease)
            raise

    # ---- what becomes of runs ----

    def _on_claim(self, claimed: ClaimedRun) -> None:
        self._held[claimed.lease.run_id] = claimed.lease
        if claimed.waited is not None:
            self._counts.wait.add((), claimed.waited)
        kind = "taken_over" if claimed.attempt > 1 else "handed_over" if claimed.waited is None else "new"
        self._counts.claims.add((kind,))
        log_claimed(claimed, kind)

    def _on_loss(self, lease: Lease) -> None:
        if self._forget(lease):
            self._counts.left.add(("lost",))
            log_lost(lease.run_id)

    def _forget(self, lease: Lease) -> bool:
        """Return whether the lease was held until now."""
        is_held = self._held.get(lease.run_id) == lease
        if is_held:
            del self._held[lease.run_id]
        return is_held
