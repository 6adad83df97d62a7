"""What the code that is observed calls: hooks that log tool calls and runs, and time what is stored.

Only `log_content` writes what was asked and answered: the other lines have no arguments, results or texts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from antwort.api.wire import encode
from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.errors import StoreFault
from antwort.notes import Fields, note
from antwort.server.exchange import cause_of
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import ClaimedRun, Fenced, Lease, RunLog
from antwort.telemetry.logging import CONTENT_LOG, Content

if TYPE_CHECKING:
    from antwort.telemetry.metrics import Metrics  # with it, `prometheus_client` is loaded

_tools_log = logging.getLogger("antwort.tools")
_runs_log = logging.getLogger("antwort.runs")
_content_log = logging.getLogger(CONTENT_LOG)

MAX_CONTENT_BYTES = 64 * 1024
"""Of each of the three fields, before escaping: so a line is smaller than what the log buffers."""
_MAX_NAME_CHARS = 100
_CLAIMED = {"new": "begins", "handed_over": "goes on here", "taken_over": "is taken over: whoever made it was lost"}


# ---- tool calls and content ----


def log_call(called: CallRecord) -> None:
    """For `Engine(on_call=…)`."""
    if _tools_log.isEnabledFor(logging.INFO):
        tool, ms = called.tool[:_MAX_NAME_CHARS], round(called.seconds * 1000, 1)
        note(
            _tools_log,
            logging.INFO,
            f"tool {tool} {called.end} {ms:.1f} ms",
            said={"event": "tool_call", "tool": tool, "outcome": called.end, "duration_ms": ms},
            server_label=None if called.label is None else called.label[:_MAX_NAME_CHARS],
            call_id=called.call_id,
            response_id=called.response_id,
        )


def log_content(ended: RunSummary) -> None:
    """For `Engine(on_end=…)`. Tools are left out: their declarations may carry credentials."""
    if _content_log.isEnabledFor(logging.INFO):
        response = ended.response
        note(
            _content_log,
            logging.INFO,
            "content of a response",
            event="content",
            response_id=response.id,
            instructions=_cut((response.instructions or "").encode("utf-8", "replace")) or None,
            input=_cut(encode(ended.plan.request.input)),
            output=_cut(encode(response.output)),
        )


def _cut(text: bytes) -> Content:
    if len(text) <= MAX_CONTENT_BYTES:
        return Content(text.decode())
    kept = text[:MAX_CONTENT_BYTES].decode("utf-8", "ignore")  # the last character may be cut in two
    return Content(f"{kept}… ({len(text) - MAX_CONTENT_BYTES} bytes more)")


# ---- the store and the run log ----


def timed_store(store: ResponseStore, metrics: Metrics) -> ResponseStore:
    """Return the store with each operation timed. One that fails is an error; "not found" is a result."""
    return cast("ResponseStore", TimedOperations(store, metrics))


class TimedOperations:
    """Everything that a store or a run log has. The time of each of its operations is observed under its name and its
    outcome, and `observer` hears of what the operations of a run log have returned.

    Operations are timed here, where the engine calls them: one takes several transactions, or shares one.
    """

    def __init__(
        self, target: ResponseStore | RunLog, metrics: Metrics | None, observer: RunObserver | None = None
    ) -> None:
        self._target, self._observer = target, observer
        self._seconds: dict[tuple[str, ...], Callable[[float], None]] | None = None
        if metrics is not None:
            self._seconds = metrics.store_seconds if observer is None else metrics.run_log_seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if iscoroutinefunction(found) and name not in ("close", "wait_for_work", "wait_for_cancels"):
            found = self._timed(name, found)
        setattr(self, name, found)
        return found

    def _timed(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        seconds, observer = self._seconds, self._observer

        async def timed(*args: Any, **named: Any) -> Any:
            began, outcome = perf_counter(), "ok"
            try:
                result = await operation(*args, **named)
            except Fenced:
                outcome = "fenced"
                if observer is not None:
                    observer.on_fenced(args[0] if args else None)
                raise
            except StoreFault:
                outcome = "error"
                raise
            finally:
                if seconds is not None:
                    seconds[name, outcome](perf_counter() - began)
            if observer is not None:
                observer.on_result(name, args[0] if args else None, result)
            return result

        return timed


# ---- background runs ----


class RunObserver:
    """Follow the leases of this process: each lost run is reported once, and one that was lost before is not reported
    as released.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self._held: dict[str, Lease] = {}
        self._finished: set[str] = set()

    def observe(self, runs: RunLog) -> RunLog:
        """Return the run log with each operation timed and followed."""
        return cast("RunLog", TimedOperations(runs, self._metrics, self))

    def on_end(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`. Log the end of a run under a lease, and the failure of any other, unless a request
        reports it in its own line.
        """
        response, is_held = ended.response, ended.response.id in self._finished
        self._finished.discard(response.id)
        if ended.is_read or not (is_held or ended.error is not None):
            return
        ms = round(ended.seconds * 1000, 1)
        note(
            _runs_log,
            logging.INFO if ended.error is None else logging.WARNING,
            f"a response in the background is {response.status} {ms:.1f} ms",
            said={"event": "run_ended", "response_status": response.status, "duration_ms": ms},
            response_id=response.id,
            key=ended.plan.identity.key or None,
            model=response.model[:_MAX_NAME_CHARS],
            reason=response.incomplete_details.reason if response.incomplete_details else None,
            error=response.error.code if response.error else None,
            cause=cause_of(ended.error),
            turns=ended.turns,
            input_tokens=response.usage.input_tokens if response.usage else None,
            output_tokens=response.usage.output_tokens if response.usage else None,
        )

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
                    self._on_left(lease, "lost")
            case "release":
                self._on_left(first, "handed_over")
            case "finish" | "give_up":
                self._held.pop(first.run_id, None)
                self._finished.add(first.run_id)

    def on_fenced(self, first: Any) -> None:
        """A run that could not be adopted was not held."""
        if isinstance(first, Lease):
            self._on_left(first, "lost")

    def _on_claim(self, claimed: ClaimedRun) -> None:
        self._held[claimed.lease.run_id] = claimed.lease
        waited, response = claimed.waited, claimed.response
        kind = "taken_over" if claimed.attempt > 1 else "handed_over" if waited is None else "new"
        if self._metrics is not None:
            self._metrics.run_claims[(kind,)](1)
            if waited is not None:
                self._metrics.run_wait(waited)
        note(
            _runs_log,
            logging.WARNING if kind == "taken_over" else logging.INFO,
            f"a response in the background {_CLAIMED[kind]}",
            said={"event": "run_claimed", "kind": kind},
            response_id=response.id,
            model=response.model[:_MAX_NAME_CHARS],
            attempt=claimed.attempt,
            waited_ms=None if waited is None else round(waited * 1000, 1),
        )

    def _on_left(self, lease: Lease, how: str) -> None:
        """Report a run that this process does not make to its end, if it was held until now."""
        if self._held.get(lease.run_id) != lease:
            return
        del self._held[lease.run_id]
        if self._metrics is not None:
            self._metrics.runs_left[(how,)](1)
        is_lost = how == "lost"  # this process has missed its heartbeats
        said: Fields = {"event": "run_lost" if is_lost else "run_handed_over"}
        words = "a response in the background is " + ("lost to others" if is_lost else "handed over")
        note(_runs_log, logging.WARNING if is_lost else logging.INFO, words, said=said, response_id=lease.run_id)
