"""Run the tool calls of a response, concurrently. Each ends in exactly one result.

A call may begin while the model is still writing. That changes when it begins and nothing else, so it is done only
where the end of the turn cannot change anything: where no call could pause the turn for the client or for an approval.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from antwort.api.events import Batch
from antwort.api.items import FunctionCall, McpCall
from antwort.engine.history.calls import PendingCall
from antwort.engine.loop.custom_input import input_of
from antwort.engine.loop.fold import Run
from antwort.engine.loop.limits import calls_left
from antwort.engine.loop.result_events import INTERRUPTED, Answers, Handed, Outcome
from antwort.engine.loop.steps import UNFIT, Ready, Refused, RunTools, answer_to
from antwort.engine.loop.turn import Turn
from antwort.engine.plan import Plan
from antwort.storage.run_log import DETACHED
from antwort.tools.base import (
    ClientsTurn,
    Failure,
    Progress,
    ToolCall,
    ToolContext,
    ToolKind,
    ToolResult,
)
from antwort.tools.grammar import Checks
from antwort.tools.routing import Route, route

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")
_tools_log = logging.getLogger("antwort.tools")  # an exception of a tool is not for the engine's log


CallEnd: TypeAlias = Literal["ok", "error", "arguments", "timeout", "refused", "handed", "cancelled"]
"""`arguments`: they did not fit, and the tool was not run; `handed`: to the client; `cancelled`: with the run."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What logs and metrics get of a call that was answered. Neither arguments nor output."""

    response_id: str
    call_id: str
    tool: str
    """As its server calls it; of a refused call, what the model wrote."""
    label: str | None
    """Of the server or toolset, where the tool has one."""
    is_local: bool
    """Whether a function of this process ran it: then its name is not the client's to choose."""
    end: CallEnd
    seconds: float


class RunningCall(msgspec.Struct, eq=False):
    """A call that was started, until a step reads its outcome."""

    ready: Ready
    at: int = -1
    """Its place among the calls of the step, once a step has asked for it."""
    task: asyncio.Task[None] | None = None
    outcome: Outcome | Exception | None = None
    """An exception where the call could not be recorded; None until it has ended, or where it was cancelled."""


class ToolRunner:
    """Run the calls of a step, and those that begin while their turn is still being written."""

    group: asyncio.TaskGroup
    """The run's task enters it. All calls of the run are tasks in it."""

    def __init__(self, live: LiveRun) -> None:
        self._live: LiveRun = weakref.proxy(live)  # so that a run is freed without a garbage collection
        self._plan, self._signal = live.plan, live.signal
        self.checks = Checks()
        """Checks the inputs of free-form tools against their grammars."""
        self.has_acted = live.run.calls_run > 0
        """Whether a tool was started: to run the response again could do twice what it did."""
        self.running: set[str] = set()
        """The ids of the calls of this step that tools work on."""
        self._open: dict[str, RunningCall] = {}
        """The calls whose outcome no step has read, by their ids."""
        self._ended: list[RunningCall] = []
        """Those of them that have an outcome."""
        self._waiter: asyncio.Future[None] | None = None
        """Done when a call ends, while a step waits for one."""
        self._asked: set[str] = set()
        """The ids of the calls that were passed to their executors."""
        self._begun: set[str] = set()
        """The ids of those that got their slots: a tool may have seen them."""

    def has_begun(self, call_id: str) -> bool:
        """Whether a tool may have seen the call."""
        return call_id in self._begun

    def is_queued(self, call_id: str) -> bool:
        """Whether the call waits for a slot, or waited for one when it was stopped."""
        return call_id in self._asked and call_id not in self._begun

    # ---- calls that begin early ----

    @property
    def has_early_calls(self) -> bool:
        """Whether calls of the last turn have begun that no step has asked for yet."""
        return bool(self._open)

    @cached_property
    def _may_begin_early(self) -> bool:
        return may_begin_early(self._plan)

    def begin_early(self, turn: Turn, before: Run) -> None:
        """Start the calls that are complete of a turn that is still being written; `before` is the run before it. The
        step that asks for them takes them over.
        """
        if self._may_begin_early:
            for ready in early_calls(turn, calls_left(before, self._plan), self._plan):
                if self._signal.reason is None:
                    self._start(ready)

    async def stop_early(self, turn: Turn) -> Mapping[str, ToolResult]:
        """Stop the calls that began early, because their turn was cut or broke off. Return what is shown of them.

        One that has no result and may have run says so: it must not be run again, and the model must know of it. One
        that was handed to the client, or that no tool has seen yet, is left as if it had not begun. A call that has
        grown since it began is not what the model asked for.
        """
        if not self._open:
            return {}
        calls = [*self._open.values()]
        self._signal.fired.set()  # all that a thread can see
        await self.close()
        whole = {call.call_id for call in turn.calls() if call.is_whole}
        results: dict[str, ToolResult] = {}
        for call in calls:
            call_id, outcome = call.ready.call.call_id, call.outcome
            if call_id not in whole or isinstance(outcome, Handed):
                continue
            if isinstance(outcome, ToolResult):
                results[call_id] = outcome
            elif call_id in self._begun:
                results[call_id] = ToolResult(call_id, INTERRUPTED, is_error=True)
        return results

    # ---- the calls of a step ----

    async def run(self, step: RunTools) -> AsyncGenerator[Batch, None]:
        """Run the calls of a step, and yield their results as events: those of functions in the order of the calls, the
        others as they are ready. Results that have come count, also where the run stops.
        """
        calls = step.calls if (reason := self._signal.reason) is None else _due(step, reason)
        answers = Answers(calls, self._live.run.response.output)
        waiting: deque[tuple[int, Ready]] = deque()
        width = len(calls) if step.is_parallel else 1
        failure: Exception | None = None
        rest: Batch = []
        try:
            for at, each in enumerate(calls):
                if isinstance(each, Refused):
                    answers.take(at, await self._refuse(each))
                    continue
                if not (self._open and await self._take_over(each, at)):
                    waiting.append((at, each))
            if batch := answers.batch():
                yield batch
            while waiting or self._open:
                while waiting and len(self._open) < width and self._signal.reason is None:
                    at, ready = waiting.popleft()
                    self.running.add(ready.call.call_id)
                    self._start(ready, at)
                await self._signal.race(self._next_end)
                if (failure := self._read(answers)) is not None:
                    raise failure
                if batch := answers.batch():
                    yield batch
        except Exception as error:
            await self._stop()
            late = self._read(answers)
            failure = failure or late or error
            if not isinstance(failure, DETACHED):  # the process that resumes the run decides about begun calls
                answers.stop(self.has_begun, self.is_queued)
            rest = answers.batch(is_last=True)
        finally:
            if self._open:
                await self.close()
        if rest:
            yield rest
        if failure is not None:
            raise failure

    async def _take_over(self, ready: Ready, at: int) -> bool:
        """Return whether the call began early. One that has grown since then is stopped: it is another call now."""
        call_id = ready.call.call_id
        if (early := self._open.get(call_id)) is None:
            return False
        if early.ready.call.arguments.rstrip() == ready.call.arguments.rstrip():
            early.at = at
            if early.outcome is None:
                self.running.add(call_id)
            return True
        assert early.task is not None, "it was started"
        early.task.cancel()
        await asyncio.wait([early.task])
        del self._open[call_id]
        if early in self._ended:
            self._ended.remove(early)
        return False

    def _start(self, ready: Ready, at: int = -1) -> None:
        self.has_acted = True  # before it can have begun
        call = self._open[ready.call.call_id] = RunningCall(ready, at)
        call.task = self.group.create_task(self._execute(call))

    async def _next_end(self) -> None:
        """Wait until there is a call that has ended and was not read."""
        if not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _read(self, answers: Answers) -> Exception | None:
        """Take the outcomes of the calls that have ended, in the order of the calls. Return the first exception."""
        ended, self._ended = self._ended, []
        if len(ended) > 1:
            ended.sort(key=lambda call: call.at)
        failure: Exception | None = None
        for call in ended:
            del self._open[call.ready.call.call_id]
            if isinstance(call.outcome, Exception):
                failure = failure or call.outcome
            elif call.outcome is not None:
                answers.take(call.at, call.outcome)
        return failure

    async def _stop(self) -> None:
        """Cancel the calls that have not ended, and wait for them. The limits of their executors end them in time."""
        if tasks := [call.task for call in self._open.values() if call.task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stop all calls, and wait until they have ended."""
        if self._open:
            await self._stop()
            self._open.clear()
            self._ended.clear()
        self.running.clear()

    # ---- one call ----

    async def _execute(self, call: RunningCall) -> None:
        """Run a call, and record it where another process could settle it too."""
        ready, call_id = call.ready, call.ready.call.call_id
        records = self._plan.call_records if ready.call.at is None else None
        try:
            outcome: Outcome | None = None
            if records is not None:
                outcome = await records.claim(call_id, ready.may_be_repeated)  # it may have a result already
            if outcome is None:
                if self._plan.is_durable and not ready.definition.is_search:
                    await self._live.begin_call(call_id)
                self._asked.add(call_id)
                outcome = await self._answer(ready)
                if records is not None:
                    self.running.discard(call_id)
                    await (records.finish(outcome) if isinstance(outcome, ToolResult) else records.release(call_id))
            call.outcome = outcome
        except asyncio.CancelledError:
            if records is not None and self.is_queued(call_id):
                with suppress(TimeoutError):  # a store that hangs goes on with it beside
                    async with asyncio.timeout(self._plan.settings.tool_grace):
                        await records.release(call_id)
            raise
        except Exception as error:
            call.outcome = error
        finally:
            self.running.discard(call_id)
        self._ended.append(call)
        if (waiter := self._waiter) is not None and not waiter.done():
            waiter.set_result(None)

    async def _answer(self, ready: Ready) -> Outcome:
        """Have the executor run the call, and report it to the hooks."""
        call, call_id, executor, began = ready.call, ready.call.call_id, ready.executor, perf_counter()
        failures: list[Failure] = []
        end: CallEnd = "cancelled"
        try:
            if executor is None:
                end = "error"
                return ToolResult(call_id, f"The tool {call.name!r} is not available any more.", is_error=True)
            asked = ToolCall(id=call_id, name=call.name, arguments=call.arguments or "{}", definition=ready.definition)
            context = ToolContext(
                response_id=self._plan.response.id,
                idempotency_key=call_id,
                identity=self._plan.identity,
                deadline=self._plan.deadline,
                cancelled=self._signal.fired,
                progress=partial(self._report_progress, call_id),
                failed=failures.append,
                began=partial(self._begun.add, call_id),
                grace=self._plan.settings.tool_grace,
            )
            result = await executor.execute(asked, context)
            end = failures[0] if failures else "error" if result.is_error else "ok"
            return result
        except Exception as error:
            if isinstance(error, ClientsTurn) and isinstance(call.item, FunctionCall):
                end = "handed"
                return Handed()
            end = failures[0] if failures else "error"
            _tools_log.warning("the tool %s failed", call.name, exc_info=True)
            return ToolResult(call_id, str(error) or type(error).__name__, is_error=True)
        finally:
            is_local = executor is not None and executor.kind is ToolKind.LOCAL
            self._report(call, ready.definition.own_name, end, perf_counter() - began, is_local=is_local)

    async def _refuse(self, refused: Refused) -> ToolResult:
        """Return the result of a call that is not run here. An earlier response's call may have a result already."""
        self._report(refused.call, refused.call.name, "refused", 0.0)
        call_id, message, records = refused.call.call_id, refused.message, self._plan.call_records
        if refused.grammar is not None:
            place = self.checks.mismatch(refused.grammar, input_of(refused.call.arguments))
            message = message if place is None else UNFIT.format(refused.call.name, f" It stops matching at {place}.")
        if refused.call.at is not None or records is None:
            return ToolResult(call_id, message, is_error=True)
        return await self._signal.race(partial(records.refuse, call_id, message, for_good=refused.is_declined))

    def _report(self, call: PendingCall, tool: str, end: CallEnd, seconds: float, *, is_local: bool = False) -> None:
        if not (hooks := self._live.hooks.on_call):
            return
        record = CallRecord(
            response_id=self._plan.response.id,
            call_id=call.call_id,
            tool=tool,
            label=call.item.server_label if isinstance(call.item, McpCall) else None,
            is_local=is_local,
            end=end,
            seconds=seconds,
        )
        for notify in hooks:
            notify(record)

    def _report_progress(self, call_id: str, progress: str | Progress) -> None:
        _log.debug("a tool of %s reports progress", self._plan.response.id)  # its message is content
        self._live.report_progress(call_id, progress)


def _due(step: RunTools, reason: Exception) -> Sequence[Ready | Refused]:
    """Return the calls of a step of a run that is to stop. Raises `reason` for calls of an earlier response: one that
    shows as run counts as begun, and is never begun again. Of one that was begun before, that is said all the same.
    """
    if any(each.call.at is not None for each in step.calls):
        return step.calls
    if lost := [each for each in step.calls if isinstance(each, Refused) and each.is_lost]:
        return lost
    raise reason


# ---- which calls may begin early ----


def may_begin_early(plan: Plan) -> bool:
    """Whether calls of this response may begin before their turn has ended."""
    toolbox = plan.toolbox
    if not plan.settings.eager or plan.request.parallel_tool_calls is False or not toolbox.may_run:
        return False
    return all(
        not tool.needs_approval and route(tool.name, toolbox) is not Route.CLIENT for tool in toolbox.tools.values()
    )


def early_calls(turn: Turn, left: int, plan: Plan) -> list[Ready]:
    """Return the calls of the turn that have become complete and would run at its end. The response may run `left`."""
    found: list[Ready] = []
    for call in turn.take_complete_calls():
        answer = answer_to(call.pending(), plan)
        if not isinstance(answer, Ready) or not (answer.definition.is_search or call.before < left):
            continue
        if not plan.is_durable or answer.may_be_repeated:
            # Another process that continues the run makes an unfinished inference anew, and its calls with it.
            found.append(answer)
    return found
