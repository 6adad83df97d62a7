"""Running calls side by side. Each ends in exactly one result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any

from antwort.api.events import Batch
from antwort.api.items import FunctionCall, McpCall
from antwort.concurrency import stop
from antwort.engine.answers import Answers, Handed, Outcome
from antwort.engine.control import Called, CallEnd, Control
from antwort.engine.draft import Run
from antwort.engine.plan import OpenCall, Plan
from antwort.engine.steps import Ready, Refused, RunTools
from antwort.tools.base import (
    ClientsTurn,
    Failure,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
)
from antwort.tools.routing import find_executor

_log = logging.getLogger("antwort.engine")
_tools_log = logging.getLogger("antwort.tools")  # what a tool says in an exception is not for the log
_abandoned: set[asyncio.Task[Any]] = set()
"""Tools that would not stop in time. Held until they end, so that they end as tasks and not as garbage."""


async def run_tools(step: RunTools, run: Run, plan: Plan, control: Control) -> AsyncGenerator[Batch, None]:
    """Answer the calls; results of functions come in the order of the calls, the others as they are ready."""
    stopped = control.signal.reason
    if stopped is not None and all(each.call.at is None for each in step.calls):
        raise stopped  # an earlier response's call that shows as run counts as begun, and nobody begins it again
    answers = Answers(step.calls, run.output)
    if opening := answers.open():
        yield opening
    width = len(step.calls) if step.is_parallel else 1
    running = _Running(plan, control)
    failure: Exception | None = None
    try:
        async with aclosing(running.results(step.calls, width)) as results:
            async for ready in results:
                for at, result in ready:
                    answers.take(at, result)
                if batch := answers.batch():
                    yield batch
    except Exception as error:
        failure = error
    if rest := answers.rest():
        yield rest
    if failure is not None:
        raise failure


class _Running:
    """The calls under way, at most `width` at a time."""

    def __init__(self, plan: Plan, control: Control) -> None:
        self._plan, self._control, self._signal = plan, control, control.signal
        self._tasks: dict[asyncio.Task[Outcome], int] = {}

    async def results(
        self, calls: Sequence[Ready | Refused], width: int
    ) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        refused: list[tuple[int, Outcome]] = [
            (at, _refusal(call)) for at, call in enumerate(calls) if isinstance(call, Refused)
        ]
        if refused:
            self._report_refused(calls)
            yield refused
        waiting = [(at, call) for at, call in enumerate(calls) if isinstance(call, Ready)]
        try:
            while waiting or self._tasks:
                while waiting and len(self._tasks) < width and self._signal.reason is None:
                    at, call = waiting.pop(0)
                    self._control.has_acted = True  # before it can have begun, whoever looks meanwhile
                    self._tasks[asyncio.create_task(self._execute(call))] = at
                yield await self._next()
        finally:
            await self._stop()
            self._control.running.clear()  # those left behind work for nobody

    async def _next(self) -> list[tuple[int, Outcome]]:
        """Those that are done; at least one. When told to stop, what is done by then still counts."""
        try:
            await self._signal.race(lambda: asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))
        except Exception:
            await self._stop()
            if done := self._collect():
                return done  # the reason is raised at the next wait
            raise
        return self._collect()

    def _collect(self) -> list[tuple[int, Outcome]]:
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [(self._tasks.pop(task), task.result()) for task in done]

    async def _stop(self) -> None:
        late = await stop(self._tasks, self._plan.settings.tool_grace)
        for task in late:
            _log.warning("a tool did not stop when told to; it is left behind")
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)
        self._tasks = {task: at for task, at in self._tasks.items() if task.done() and not task.cancelled()}

    async def _execute(self, ready: Ready) -> Outcome:
        """Exactly one result, and those who count are told how it came about."""
        began = perf_counter()
        failures: list[Failure] = []
        executor = find_executor(ready.definition, ready.toolbox.executors)
        end: CallEnd = "cancelled"
        self._control.running.add(ready.call.call_id)
        try:
            outcome = await self._attempt(ready.call, ready.definition, executor, failures.append)
            end = _end(outcome, failures)
        finally:
            self._control.running.discard(ready.call.call_id)
            is_local = executor is not None and executor.kind is ToolKind.LOCAL
            self._report(ready.call, ready.definition, end, perf_counter() - began, is_local=is_local)
        return outcome

    def _report_refused(self, calls: Sequence[Ready | Refused]) -> None:
        for each in calls:
            if isinstance(each, Refused):
                self._report(each.call, None, "refused", 0.0, is_local=False)

    def _report(
        self, call: OpenCall, definition: ToolDefinition | None, end: CallEnd, seconds: float, *, is_local: bool
    ) -> None:
        if not self._control.on_call:
            return
        called = Called(
            response_id=self._plan.response.id,
            call_id=call.call_id,
            tool=call.name if definition is None else definition.own_name,
            label=call.item.server_label if isinstance(call.item, McpCall) else None,
            is_local=is_local,
            end=end,
            seconds=seconds,
        )
        for tell in self._control.on_call:
            tell(called)

    async def _attempt(
        self,
        call: OpenCall,
        definition: ToolDefinition,
        executor: ToolExecutor | None,
        failed: Callable[[Failure], None],
    ) -> Outcome:
        """Exactly one result, whatever the executor does, unless it hands the call on."""
        if executor is None:
            return ToolResult(call.call_id, f"The tool {call.name!r} is not available any more.", is_error=True)
        asked = ToolCall(id=call.call_id, name=call.name, arguments=call.arguments or "{}", definition=definition)
        try:
            result = await executor.execute(asked, self._context(call, failed))
        except (asyncio.CancelledError, Exception) as exc:
            if isinstance(exc, asyncio.CancelledError) and _is_told_to_stop():
                raise
            if isinstance(exc, ClientsTurn) and isinstance(call.item, FunctionCall):
                return Handed()
            _tools_log.warning("the tool %s failed", call.name, exc_info=True)
            return ToolResult(call.call_id, str(exc) or type(exc).__name__, is_error=True)
        return ToolResult(call.call_id, result.output, is_error=result.is_error)

    def _context(self, call: OpenCall, failed: Callable[[Failure], None]) -> ToolContext:
        return ToolContext(
            response_id=self._plan.response.id,
            idempotency_key=call.call_id,
            identity=self._plan.identity,
            deadline=self._control.deadline,
            cancelled=self._signal.fired,
            progress=partial(self._note_progress, call.call_id),
            failed=failed,
        )

    def _note_progress(self, call_id: str, _: str) -> None:
        """A sign of life: whoever waits for the response learns that it goes on. What the tool says is content."""
        _log.debug("a tool of %s reports progress", self._plan.response.id)
        self._control.on_progress(call_id)


def _is_told_to_stop() -> bool:
    """Whether a cancellation is meant for this task; a tool can raise one of its own making."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _end(outcome: Outcome, failures: Sequence[Failure]) -> CallEnd:
    if isinstance(outcome, Handed):
        return "handed"
    if failures:
        return failures[0]
    return "error" if outcome.is_error else "ok"


def _refusal(refused: Refused) -> ToolResult:
    return ToolResult(refused.call.call_id, refused.message, is_error=True)
