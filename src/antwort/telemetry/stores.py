"""Time the operations of the store and of the run log, and count what becomes of runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, cast

from antwort.engine.runs.summary import RunSummary
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import ResponseStore
from antwort.storage.run_log.base import Claimed, Ending, Fenced, Lease, Record, Renewed, RunLog, Worker
from antwort.telemetry.counting import Histogram
from antwort.telemetry.log_events import log_claimed, log_ended, log_handed_over, log_lost
from antwort.telemetry.metrics import Metrics, RunCounts

_UNTIMED = frozenset({"close", "traits", "read", "wait_for_work", "wait_for_cancels"})
"""What ends, is no call, or takes as long as there is nothing to report."""


class TimedCalls:
    """Pass calls on to a store or a run log, and time each. "Not found" is no error: the store has done its work."""

    def __init__(self, target: object, times: Histogram) -> None:
        self._target, self._times = target, times

    def __getattr__(self, name: str) -> Any:
        """Return the timed method; the next lookup finds it in the instance."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target, name)
        if name not in _UNTIMED:
            value = self.__dict__[name] = self._timed(name)
        return value

    def _timed(self, operation: str) -> Callable[..., Awaitable[Any]]:
        method, times = getattr(self._target, operation), self._times
        succeeded = times.series((operation, "ok"))

        async def timed(*values: object, **fields: object) -> Any:
            series, began = succeeded, perf_counter()
            try:
                return await method(*values, **fields)
            except Fenced:
                series = times.series((operation, "fenced"))
                raise
            except StoreFault:
                series = times.series((operation, "error"))
                raise
            finally:
                series.add(perf_counter() - began)

        return timed


def measured_store(store: ResponseStore, metrics: Metrics) -> ResponseStore:
    return cast("ResponseStore", TimedCalls(store, metrics.store_time))


class WatchedRunLog(TimedCalls):
    """Time a run log, and count and log what becomes of the runs that this process holds."""

    def __init__(self, runs: RunLog, counts: RunCounts) -> None:
        super().__init__(runs, counts.time)
        self._counts = counts
        overridden = ("adopt", "claim", "take", "renew", "records", "append", "finish", "give_up", "release")
        self._calls = {operation: self._timed(operation) for operation in overridden}
        self._held: dict[str, Lease] = {}
        self._finished: set[str] = set()

    def ended(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`: log the end of a run under a lease, unless a request reports it in its own line."""
        if ended.response.id in self._finished:
            self._finished.discard(ended.response.id)
            if not ended.is_read:
                log_ended(ended)

    # ---- runs that this process gets ----

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        lease: Lease = await self._calls["adopt"](worker, identity, response_id)
        self._held[lease.run_id] = lease
        return lease

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        found: Sequence[Claimed] = await self._calls["claim"](worker, count)
        for claimed in found:
            self._claimed(claimed)
        return found

    async def take(self, worker: str, identity: Identity, response_id: str) -> Claimed | None:
        claimed: Claimed | None = await self._calls["take"](worker, identity, response_id)
        if claimed is not None:
            self._claimed(claimed)
        return claimed

    def _claimed(self, claimed: Claimed) -> None:
        self._held[claimed.lease.run_id] = claimed.lease
        if claimed.waited is not None:
            self._counts.wait.add((), claimed.waited)
        kind = "taken_over" if claimed.attempt > 1 else "handed_over" if claimed.waited is None else "new"
        self._counts.claims.add((kind,))
        log_claimed(claimed, kind)

    # ---- runs that it writes, finishes or loses ----

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        renewed: Renewed = await self._calls["renew"](worker, leases)
        for lease in renewed.lost:
            self._lose(lease)
        return renewed

    async def records(self, lease: Lease) -> Sequence[Record]:
        found: Sequence[Record] = await self._fenced("records", lease)
        return found

    async def append(self, lease: Lease, record: Record) -> None:
        await self._fenced("append", lease, record)

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        await self._fenced("finish", lease, ending, record)
        self._finish(lease)

    async def give_up(self, lease: Lease, ending: Ending) -> None:
        await self._fenced("give_up", lease, ending)
        self._finish(lease)

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        await self._calls["release"](lease, is_lost=is_lost)
        if self._drop(lease):
            self._counts.left.add(("handed_over",))
            log_handed_over(lease.run_id)

    async def _fenced(self, operation: str, lease: Lease, *values: object) -> Any:
        try:
            return await self._calls[operation](lease, *values)
        except Fenced:
            self._lose(lease)
            raise

    def _finish(self, lease: Lease) -> None:
        self._drop(lease)
        self._finished.add(lease.run_id)

    def _lose(self, lease: Lease) -> None:
        if self._drop(lease):
            self._counts.left.add(("lost",))
            log_lost(lease.run_id)

    def _drop(self, lease: Lease) -> bool:
        """Forget the lease, and return whether it was held."""
        is_held = self._held.get(lease.run_id) == lease
        if is_held:
            del self._held[lease.run_id]
        return is_held
