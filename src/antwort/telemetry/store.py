"""Time the operations of the store and of the run log, and report what becomes of the runs of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, cast

from antwort.engine.runs.live import RunSummary
from antwort.errors import StoreFault
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import ClaimedRun, Fenced, Lease, RunLog
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
    observer = RunObserver(counts)
    return cast("RunLog", TimedOperations(runs, counts.time, observer)), observer.on_end


class TimedOperations:
    """Everything that `target` has. The time of each coroutine is added under its name and its outcome."""

    def __init__(self, target: ResponseStore | RunLog, times: Histogram, observer: RunObserver | None = None) -> None:
        self._target, self._times, self._observer = target, times, observer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if iscoroutinefunction(found) and name not in _UNTIMED:
            found = self._timed(name, found)
        setattr(self, name, found)
        return found

    def _timed(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        times, observer = self._times, self._observer
        succeeded = times[name, "ok"]

        async def timed(*args: Any, **named: Any) -> Any:
            began, series = perf_counter(), succeeded
            try:
                result = await operation(*args, **named)
            except Fenced:
                series = times[name, "fenced"]
                if observer is not None:
                    observer.on_fenced(args[0] if args else None)
                raise
            except StoreFault:
                series = times[name, "error"]
                raise
            finally:
                series.add(perf_counter() - began)
            if observer is not None:
                observer.on_result(name, args[0] if args else None, result)
            return result

        return timed


class RunObserver:
    """Follows the leases of this process: each lost run is reported once, and one that was lost before is not reported
    as released.
    """

    def __init__(self, counts: RunCounts) -> None:
        self._counts = counts
        self._held: dict[str, Lease] = {}
        self._finished: set[str] = set()

    def on_end(self, ended: RunSummary) -> None:
        """Log the end of a run under a lease, unless a request reports it in its own line."""
        if ended.response.id in self._finished:
            self._finished.discard(ended.response.id)
            if not ended.is_read:
                log_ended(ended)

    def on_result(self, operation: str, first: Any, result: Any) -> None:
        """`first` is the first argument of the operation of the run log, which has returned `result`."""
        match operation:
            case "adopt":
                self._held[result.run_id] = result
            case "claim":
                for claimed in result:
                    self._on_claim(claimed)
            case "take" if result is not None:
                self._on_claim(result)
            case "renew":
                for lease in result.lost:
                    self._on_loss(lease)
            case "release":
                if self._forget(first):
                    self._counts.left[("handed_over",)] += 1
                    log_handed_over(first.run_id)
            case "finish" | "give_up":
                self._forget(first)
                self._finished.add(first.run_id)

    def on_fenced(self, first: Any) -> None:
        """A run that could not be adopted was not held."""
        if isinstance(first, Lease):
            self._on_loss(first)

    def _on_claim(self, claimed: ClaimedRun) -> None:
        self._held[claimed.lease.run_id] = claimed.lease
        if claimed.waited is not None:
            self._counts.wait[()].add(claimed.waited)
        kind = "taken_over" if claimed.attempt > 1 else "handed_over" if claimed.waited is None else "new"
        self._counts.claims[(kind,)] += 1
        log_claimed(claimed, kind)

    def _on_loss(self, lease: Lease) -> None:
        if self._forget(lease):
            self._counts.left[("lost",)] += 1
            log_lost(lease.run_id)

    def _forget(self, lease: Lease) -> bool:
        """Return whether the lease was held until now."""
        is_held = self._held.get(lease.run_id) == lease
        if is_held:
            del self._held[lease.run_id]
        return is_held
