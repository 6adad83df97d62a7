"""Run the tool calls of a response, side by side. Each ends in exactly one result."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from antwort.api.items import FunctionCall, McpCall
from antwort.concurrency import stop
from antwort.engine.loop.early import may_be_early
from antwort.engine.loop.result_events import Handed, Outcome
from antwort.engine.loop.steps import Ready, Refused
from antwort.engine.plan import OpenCall
from antwort.tools.base import (
    ClientsTurn,
    Failure,
    Progress,
    ToolCall,
    ToolContext,
    ToolExecutor,
    ToolKind,
    ToolResult,
)
from antwort.tools.limits import Limited
from antwort.tools.routing import find_executor

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

T = TypeVar("T")

_log = logging.getLogger("antwort.engine")
_tools_log = logging.getLogger("antwort.tools")  # what a tool says in an exception is not for the log
_abandoned: set[asyncio.Task[Any]] = set()
"""Tools that would not stop in time. Held until they end, so that they end as tasks and not as garbage."""


CallEnd: TypeAlias = Literal["ok", "error", "arguments", "timeout", "refused", "handed", "cancelled"]
"""`arguments`: they did not fit, and the tool was not run; `handed`: to the client; `cancelled`: with the run."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What logs and metrics are told of a call that was answered. Neither arguments nor output."""

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


class _Begun(msgspec.Struct, frozen=True):
    task: asyncio.Task[Outcome]
    arguments: str


class ToolRunner:
    """Run the calls of a step, and those that begin while their turn is still being written."""

    def __init__(self, live: LiveRun) -> None:
        self._live: LiveRun = weakref.proxy(live)  # so that a run is freed without a garbage collection
        self._plan, self._signal = live.plan, live.signal
        self.has_acted = live.run.calls_run > 0
        """Whether a tool was started: to run the response again could do twice what it did."""
        self.running: set[str] = set()
        """The ids of the calls that tools work on."""
        self._tasks: dict[asyncio.Task[Outcome], int] = {}
        self._early: dict[str, _Begun] = {}
        self._asked: set[str] = set()  # the calls whose tasks have had their first turn of the event loop
        self._begun: set[str] = set()  # those of them that have waited for their slot: a tool may have seen them

    # ---- those that began early ----

    @cached_property
    def may_begin_early(self) -> bool:
        """Whether any call of this response may."""
        return may_be_early(self._plan)

    @property
    def has_early_calls(self) -> bool:
        """Whether calls of the last turn have begun whose results are not taken yet."""
        return bool(self._early)

    def begin(self, calls: Iterable[Ready]) -> None:
        """Start calls whose turn is still being written. The step that asks for them takes them over."""
        for ready in calls:
            if self._signal.reason is None:
                self._early[ready.call.call_id] = _Begun(self._start(ready), ready.call.arguments)

    async def halt(self) -> Mapping[str, ToolResult | None]:
        """Their turn did not come to its end: tell them to stop. Gives what each came to, None where that is nothing.

        One that was handed to the client, or that no tool has seen yet, is as if it had not begun.
        """
        early, self._early = self._early, {}
        if not early:
            return {}
        self._signal.fired.set()  # a thread can only look there
        await self._end([begun.task for begun in early.values()])
        came = {call_id: _came_to(begun.task) for call_id, begun in early.items()}
        return {
            call_id: result
            for call_id, result in came.items()
            if isinstance(result, ToolResult) or (result is None and call_id in self._begun)
        }

    async def _take_over(self, waiting: list[tuple[int, Ready]]) -> list[tuple[int, Ready]]:
        """Those that have begun go on; gives the others. One that has grown since then was never what was asked for."""
        grown: list[asyncio.Task[Outcome]] = []
        left: list[tuple[int, Ready]] = []
        for at, ready in waiting:
            begun = self._early.pop(ready.call.call_id, None)
            if begun is not None and begun.arguments.rstrip() == ready.call.arguments.rstrip():
                self._tasks[begun.task] = at
                if not begun.task.done():
                    self.running.add(ready.call.call_id)
                continue
            left.append((at, ready))
            if begun is not None:
                grown.append(begun.task)
        await self._end(grown)
        return left

    # ---- those of a step ----

    def has_begun(self, call_id: str) -> bool:
        """Whether a tool may have seen the call."""
        return call_id in self._begun

    def is_queued(self, call_id: str) -> bool:
        """Whether the call waits for a slot, or waited for one when it was told to stop."""
        return call_id in self._asked and call_id not in self._begun

    async def results(
        self, calls: Sequence[Ready | Refused], width: int
    ) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        """What the calls come to, as they are ready; at most `width` run at a time."""
        refused = [(at, call) for at, call in enumerate(calls) if isinstance(call, Refused)]
        waiting = [(at, call) for at, call in enumerate(calls) if isinstance(call, Ready)]
        if refused:
            self._report_refused(calls)
            yield [(at, await self._refusal(call)) for at, call in refused]
        try:
            if self._early:
                waiting = await self._take_over(waiting)
            while waiting or self._tasks:
                while waiting and len(self._tasks) < width and self._signal.reason is None:
                    at, call = waiting.pop(0)
                    self.running.add(call.call.call_id)
                    self._tasks[self._start(call)] = at
                yield await self._next()
        finally:
            await self._stop()
            self.running.clear()  # those left behind work for nobody

    def alone(self, calls: Sequence[Ready | Refused]) -> Coroutine[Any, Any, Outcome] | None:
        """The only call, at work. One that nobody runs beside needs no task of its own where what is told to stop here
        stops the tool in time: its executor leaves a tool behind that does not stop, and does not take longer for it
        than a run. Else None.
        """
        if len(calls) != 1 or self._early or not isinstance(ready := calls[0], Ready):
            return None
        executor = ready.executor or find_executor(ready.definition, ready.toolbox.executors)
        if not isinstance(executor, Limited) or executor.grace_of(ready.definition) > self._plan.settings.tool_grace:
            return None
        self.has_acted = True
        if self._signal.reason is None:  # else it will not begin
            self.running.add(ready.call.call_id)
        return self._signal.race(partial(self._execute, ready, executor))

    def _start(self, ready: Ready) -> asyncio.Task[Outcome]:
        self.has_acted = True  # before it can have begun, whoever looks meanwhile
        return asyncio.create_task(self._execute(ready))

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
        await self._end(self._tasks)
        self._tasks = {task: at for task, at in self._tasks.items() if task.done() and not task.cancelled()}

    async def close(self) -> None:
        """Nothing is left running that can be stopped."""
        if self._early or self._tasks:
            await self.halt()
            await self._stop()

    async def _end(self, tasks: Collection[asyncio.Task[Outcome]]) -> None:
        """Within the grace; what does not end is left behind."""
        for task in await stop(tasks, self._plan.settings.tool_grace):
            _log.warning("a tool did not stop when told to; it is left behind")
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # of a call that could not be put on record: whoever asks for its result hears of it

    # ---- one call ----

    async def _execute(self, ready: Ready, executor: ToolExecutor | None = None) -> Outcome:
        """Exactly one result, whatever the executor does, unless it hands the call on; and those who count are told how
        it came about.
        """
        call, definition = ready.call, ready.definition
        call_id = call.call_id
        records = self._plan.call_records if call.at is None else None
        if records is not None:
            settled = await self._put_on_record(call_id, records.claim(call_id, ready.may_be_repeated))
            if settled is not None:
                self.running.discard(call_id)
                return settled
        if self._plan.is_durable and not ready.is_search:
            await self._put_on_record(call_id, self._live.begin_call(call_id))
        self._asked.add(call_id)
        executor = executor or ready.executor or find_executor(definition, ready.toolbox.executors)
        if not isinstance(executor, Limited):
            self._begun.add(call_id)
        began = perf_counter()
        failures: list[Failure] = []
        outcome: Outcome | None = None
        try:
            if executor is None:
                outcome = ToolResult(call_id, f"The tool {call.name!r} is not available any more.", is_error=True)
            else:
                asked = ToolCall(id=call_id, name=call.name, arguments=call.arguments or "{}", definition=definition)
                result = await executor.execute(asked, self._context(call_id, failures.append))
                outcome = result if result.call_id == call_id else replace(result, call_id=call_id)
        except (asyncio.CancelledError, Exception) as exc:
            if records is not None and self.is_queued(call_id):
                await records.release(call_id)
            outcome = _failed(call, exc)
        finally:
            self.running.discard(call_id)
            if self._live.hooks.on_call:
                self._report(call, definition.own_name, _end(outcome, failures), perf_counter() - began, executor)
        if records is not None:
            await (records.finish(outcome) if isinstance(outcome, ToolResult) else records.release(call_id))
        return outcome

    async def _put_on_record(self, call_id: str, writing: Awaitable[T]) -> T:
        """What could not be put there does not begin."""
        try:
            return await writing
        except BaseException:
            self.running.discard(call_id)
            raise

    async def _refusal(self, refused: Refused) -> ToolResult:
        """The answer to a call that is not run here. What an earlier response asked for may be settled already."""
        call_id, records = refused.call.call_id, self._plan.call_records
        if refused.call.at is not None or records is None:
            return ToolResult(call_id, refused.message, is_error=True)
        return await self._signal.race(partial(records.refuse, call_id, refused.message, for_good=refused.is_declined))

    def _report_refused(self, calls: Sequence[Ready | Refused]) -> None:
        for each in calls:
            if isinstance(each, Refused) and self._live.hooks.on_call:
                self._report(each.call, each.call.name, "refused", 0.0)

    def _report(
        self, call: OpenCall, tool: str, end: CallEnd, seconds: float, executor: ToolExecutor | None = None
    ) -> None:
        record = CallRecord(
            response_id=self._plan.response.id,
            call_id=call.call_id,
            tool=tool,
            label=call.item.server_label if isinstance(call.item, McpCall) else None,
            is_local=executor is not None and executor.kind is ToolKind.LOCAL,
            end=end,
            seconds=seconds,
        )
        for notify in self._live.hooks.on_call:
            notify(record)

    def _context(self, call_id: str, failed: Callable[[Failure], None]) -> ToolContext:
        return ToolContext(
            response_id=self._plan.response.id,
            idempotency_key=call_id,
            identity=self._plan.identity,
            deadline=self._live.deadline,
            cancelled=self._signal.fired,
            progress=partial(self._note_progress, call_id),
            failed=failed,
            began=partial(self._begun.add, call_id),
        )

    def _note_progress(self, call_id: str, news: str | Progress) -> None:
        """A sign of life: whoever waits for the response learns that it goes on. What the tool says is content."""
        _log.debug("a tool of %s reports progress", self._plan.response.id)
        self._live.report_progress(call_id, news)


def _is_told_to_stop() -> bool:
    """Whether a cancellation is meant for this task; a tool can raise one of its own making."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _came_to(task: asyncio.Task[Outcome]) -> Outcome | None:
    return task.result() if task.done() and not task.cancelled() else None


def _failed(call: OpenCall, error: BaseException) -> Outcome:
    """What comes of a call that an executor has not answered. Raises what tells this task to stop."""
    if isinstance(error, asyncio.CancelledError) and _is_told_to_stop():
        raise error
    if isinstance(error, ClientsTurn) and isinstance(call.item, FunctionCall):
        return Handed()
    _tools_log.warning("the tool %s failed", call.name, exc_info=True)
    return ToolResult(call.call_id, str(error) or type(error).__name__, is_error=True)


def _end(outcome: Outcome | None, failures: Sequence[Failure]) -> CallEnd:
    if isinstance(outcome, ToolResult):
        return failures[0] if failures else "error" if outcome.is_error else "ok"
    return "cancelled" if outcome is None else "handed"
