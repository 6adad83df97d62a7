"""A run in progress: the task that drives it from its plan to its terminal event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter

import msgspec

from antwort.api.events import DELTAS, TERMINAL, Batch, CallBegun, Compacted, TurnAbandoned, TurnEnded
from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.caching import Cache
from antwort.concurrency import Once, Signal
from antwort.engine.loop.fold import Run, fold
from antwort.engine.loop.loop import run_loop
from antwort.engine.loop.tool_runner import CallRecord, ToolRunner
from antwort.engine.plan import Plan
from antwort.engine.runs.event_log import EventLog
from antwort.engine.runs.keepalive import KeepAlive
from antwort.engine.runs.subscription import LiveSubscription
from antwort.errors import AntwortError, DeadlinePassed, HandedOver, Interrupted, ServerFault
from antwort.identity import TENANT, Identity
from antwort.notes import RESPONSE_ID
from antwort.providers.base import Provider
from antwort.storage.run_log import DETACHED
from antwort.tools.base import Progress

_DELTAS = frozenset(DELTAS)
MAX_UNRECORDED = 1000
"""Ended runs in memory whose outcome could not be recorded."""


class LiveRun:
    """One response in progress, or one that has just ended.

    Nothing cancels its task: `stop` gives it a reason, and it ends itself with a terminal event. A durable run may also
    stop without one, because another process continues it: then it `is_detached`.
    """

    error: Exception | None = None
    """Why the run failed. Of a detached run, the unexpected error for which it stopped: another attempt may succeed."""
    _tools: ToolRunner | None = None
    _keepalive: KeepAlive | None = None

    def __init__(
        self,
        plan: Plan,
        provider: Provider,
        log: EventLog,
        hooks: LiveRuns,
        *,
        run: Run | None = None,
        opening: Batch | None = None,
        signal: Signal | None = None,
        seconds_before: float = 0.0,
    ) -> None:
        """`run` is where it continues, and `opening` what closes the items that were left open there. A `signal` that
        is set already ends it before its first step. `seconds_before`: how long other processes have worked on it.
        """
        self.plan, self.log, self.hooks = plan, log, hooks
        self.run = Run(plan.response) if run is None else run
        """The fold of all events that were appended to the log."""
        self.signal = signal or Signal()
        """Why the run is to stop."""
        self.answered: Once[None] = Once()
        """The backend has answered the first inference, or `response.created` is not held back any longer. It has the
        error of a run that failed before that.
        """
        if not plan.settings.hold_back:
            self.answered.set(None)
        self.ended: Once[Response] = Once()
        self.stats = RunStats(perf_counter() - seconds_before)
        response_id, loop = plan.response.id, asyncio.get_running_loop()
        hooks[response_id] = self
        work = self._run(provider, opening, self.signal.reason, loop)
        # Without tools and earlier calls, there is nothing that it could start.
        if plan.toolbox.tools or plan.history.leftovers:
            work = self._in_task_group(work)
        self.task = self.signal.task = loop.create_task(work, name=response_id)
        if plan.request.stream:
            self._keepalive = KeepAlive(self)

    @property
    def tools(self) -> ToolRunner:
        """Runs its calls. It is made with the first one."""
        if self._tools is None:
            self._tools = ToolRunner(self)
        return self._tools

    @property
    def has_called(self) -> bool:
        """Whether the run has, or had, calls to answer."""
        return self._tools is not None

    @property
    def clients(self) -> list[object]:
        """The requests that have asked for the response and have not left."""
        return self.log.clients

    @property
    def response_id(self) -> str:
        return self.plan.response.id

    @property
    def is_durable(self) -> bool:
        """Whether another process can continue it."""
        return self.plan.is_durable

    @property
    def is_detached(self) -> bool:
        """Whether it has stopped without an end: another process continues it, or finds it lost."""
        return isinstance(self.ended.error, HandedOver)

    @property
    def identity(self) -> Identity:
        return self.plan.identity

    @property
    def response(self) -> Response:
        """The response so far; of a durable run, as far as it is on record."""
        return self.run.response

    def subscribe(self) -> LiveSubscription:
        """Return the subscription of the client that started the run: when it is slow, it holds the run back."""
        self.log.clients.append(client := object())
        return LiveSubscription(self, self.log.read(holds_back=True) if self.plan.request.stream else None, client)

    async def wait(self) -> None:
        """Wait until the run and everything it started has ended."""
        await asyncio.wait([self.task])

    # ---- stopping ----

    def stop(self, reason: Exception) -> None:
        if isinstance(reason, HandedOver):
            self.log.recorder.leave()
        self.signal.set(reason)

    def abort(self) -> None:
        """The process ends now: cancel the task. Another process finds the run lost, or continues it."""
        self.task.cancel()

    # ---- the record ----

    def report_progress(self, call_id: str, report: str | Progress) -> None:
        """A running tool reports that it is getting on."""
        if self._keepalive is not None:
            self._keepalive.report(call_id, report)

    async def begin_call(self, call_id: str) -> None:
        """Return when the record says that a tool is about to be called, where another process could continue the run.
        A caller that stops waiting leaves no half of a record behind.
        """
        if self.is_durable:
            await asyncio.shield(self.log.submit([CallBegun(call_id=call_id)], self.run))

    def publish(self, batch: Batch) -> None:
        """Publish events that the loop does not make, such as keep-alives; of a durable run, when they are recorded."""
        if self.is_durable:
            self.log.submit(batch, self.run)
        else:
            self.log.publish(batch)

    def summary(self) -> RunSummary:
        """Return what there is to say of the run so far; from its end on, always the same."""
        stats = self.stats
        if stats.summary is not None:
            return stats.summary
        summary = RunSummary(
            plan=self.plan,
            response=self.run.response,
            turns=self.run.turns,
            seconds=perf_counter() - stats.began,
            first=None if stats.first_output is None else stats.first_output - stats.began,
            untold=count_untold(self.run) + stats.is_asking,
            truncated=stats.truncated,
            is_read=bool(self.log.clients),
            error=self.error,
        )
        if self.ended.is_set:
            stats.summary = summary
        return summary

    # ---- the task ----

    async def _in_task_group(self, work: Coroutine[None, None, None]) -> None:
        async with asyncio.TaskGroup() as self.tools.group:
            await work

    async def _run(
        self,
        provider: Provider,
        opening: Batch | None,
        stopped: Exception | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        plan = self.plan
        RESPONSE_ID.set(plan.response.id)
        TENANT.set(plan.identity.tenant)
        timers = [loop.call_at(plan.deadline, _pass_deadline, self.signal)]
        if plan.request.stream and not self.answered.is_set:
            timers.append(loop.call_later(plan.settings.hold_back, self.answered.set, None))
        detached: Exception | None = None
        try:
            await self._end(await run_loop(self, provider, opening, stopped))
        except DETACHED:
            detached, self.error = HandedOver(), self.log.recorder.failure
        except asyncio.CancelledError:
            if self.task.cancelling():  # by `abort`; otherwise something inside the run was cancelled
                detached, self.error = HandedOver(), self.log.recorder.failure
            raise
        except Exception as error:
            if not plan.is_durable:
                raise
            detached, self.error = HandedOver(), error
        finally:
            for timer in timers:
                timer.cancel()
            self._close(detached)

    async def emit(self, batch: Batch) -> None:
        """Fold a batch of the loop, which is not its last, and append it to the log."""
        log, run = self.log, fold(self.run, batch)
        if log.recorder.records_each_batch:
            await log.append(batch, run)
        else:
            log.publish(batch)
        self.run = run
        if type(batch[-1]) in _DELTAS and self.stats.first_output is None:
            self.stats.first_output = perf_counter()
        if log.primary is not None and log.is_full:
            # A slow reader holds the run back, and with it the backend. A run that is to stop does not wait.
            with contextlib.suppress(Interrupted, AntwortError):
                await self.signal.race(log.wait_for_room)

    async def _end(self, batch: Batch) -> None:
        """Append the last batch. When its end is on record, the next turn of the conversation may begin."""
        if self._keepalive is not None:
            self._keepalive.pause()
        run = fold(self.run, batch)
        *_, last = await self.log.append(batch, run)
        assert isinstance(last, TERMINAL)
        if last is not batch[-1]:  # the outcome could not be recorded
            self.error = self.log.recorder.failure
            run = msgspec.structs.replace(run, response=last.response)
        self.run = run
        self.plan.release()
        # A request that is not streamed waits for the end: no timer tells it that its failure comes late.
        if self.error is not None and perf_counter() - self.stats.began < self.plan.settings.hold_back:
            self.answered.fail(self.error)
        self.answered.set(None)
        self.ended.set(last.response)

    def _close(self, detached: Exception | None) -> None:
        """The task ends. `detached` says why, where the run has no end."""
        if self._keepalive is not None:
            self._keepalive.stop()
            self._keepalive = None  # with it, the run would be freed only by a garbage collection
        self.log.end()
        if self.signal.reason is not None:  # without its frames, which would hold the run until a garbage collection
            self.signal.reason.__traceback__ = self.signal.reason.__context__ = None
        if not self.ended.is_set:
            self.plan.release()
            detached = detached or ServerFault("The run was broken off.")
            self.answered.fail(detached)
            self.ended.fail(detached)
        else:
            if self.error is not None:
                self.error.__traceback__ = self.error.__context__ = None
            if self.log.observer is not None:
                self.log.observer.on_end()
        self.hooks.on_end(self)


def _pass_deadline(signal: Signal) -> None:
    signal.set(DeadlinePassed())


class RunStats(msgspec.Struct):
    """What is counted and measured of a run for its summary."""

    began: float
    """By `perf_counter`, as all times here."""
    first_output: float | None = None
    is_asking: bool = False
    """Whether an inference that the backend took up has not reported its usage: it is in progress, or was cut."""
    truncated: int = 0
    """Inferences from which something was left out, so that they fit into the context."""
    summary: RunSummary | None = None
    """Made when the run has ended."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a run that has ended."""

    plan: Plan
    response: Response
    turns: int
    seconds: float
    first: float | None = None
    """Seconds from the start to the first delta of the model's output; None: there was none."""
    untold: int = 0
    """Inferences whose usage is not in that of the response: the backend does not report it, or they were cut."""
    truncated: int = 0
    """Inferences from which something was left out, so that they fit into the context."""
    is_read: bool = False
    """Whether a request waits for the run, and reports it in its own log line."""
    error: Exception | None = None
    """Why it failed."""


def count_untold(run: Run) -> int:
    """Return how many inferences of the run have no known usage."""
    untold = 0
    for _, mark in run.marks:
        if isinstance(mark, TurnEnded):
            untold += mark.usage is UNSET
        elif isinstance(mark, Compacted):
            untold += mark.usage is UNSET and mark.is_missing is UNSET
        else:
            untold += isinstance(mark, TurnAbandoned)
    return untold


class LiveRuns(dict[str, LiveRun]):
    """The runs of an engine that are in progress, by response id, and what is called when something happens to them."""

    def __init__(
        self,
        on_summary: Sequence[Callable[[RunSummary], None]] = (),
        on_call: Sequence[Callable[[CallRecord], None]] = (),
    ) -> None:
        """`on_summary` are called when a run has ended, `on_call` when a tool call was answered; they must neither wait
        nor raise.
        """
        super().__init__()
        self.on_summary, self.on_call = tuple(on_summary), tuple(on_call)
        self.on_unread: Callable[[LiveRun], None] | None = None
        """Called when the last client of a run that outlives its client has left, and the run continues."""
        self.unrecorded = Cache[str, LiveRun](MAX_UNRECORDED)
        """Runs that have ended and whose outcome could not be recorded. It is recorded when a client asks for them, or
        else their rows are ended at the next start.
        """

    def find(self, identity: Identity, response_id: str) -> LiveRun | None:
        run = self.get(response_id)
        return run if run is not None and run.identity.is_same(identity) else None

    async def catch_up(self, identity: Identity, response_id: str) -> None:
        """Record the outcome of a run that could not be recorded when it ended. Other identities learn nothing of it,
        not even by an error.
        """
        run = self.unrecorded.get(response_id)
        if run is not None and run.identity.is_same(identity):
            await run.log.recorder.record_again(run.run)
            self.unrecorded.discard(response_id)

    async def catch_up_all(self, identity: Identity) -> None:
        for response_id in [*self.unrecorded]:
            await self.catch_up(identity, response_id)

    def on_end(self, run: LiveRun) -> None:
        """Take note that a run is over in this process. A detached one is reported by the process that ends it."""
        response_id = run.plan.response.id
        if self.get(response_id) is run:  # else a new claim runs here
            del self[response_id]
        if not run.is_detached:
            if run.log.recorder.failure is not None and run.response.store:
                self.unrecorded.put(response_id, run)
            self.report(run.summary())

    def report(self, summary: RunSummary) -> None:
        for notify in self.on_summary:
            notify(summary)
