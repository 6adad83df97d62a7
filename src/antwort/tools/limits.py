"""executor -> executor: time, concurrency and output within limits, arguments checked, every failure a result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from antwort.api.items import ResultPart
from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.tools.arguments import find_problem
from antwort.tools.base import (
    Closing,
    Describing,
    Instructing,
    Opening,
    Standing,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
    ToolServer,
)
from antwort.tools.function import ClientsTurn
from antwort.tools.local import LONGEST_TIME, LocalExecutor, LocalTool
from antwort.tools.output import cap

_log = logging.getLogger("antwort.tools")

_MOST_CAUSES = 3

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=LONGEST_TIME)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of a tool may take. Times are in seconds."""

    timeout: _Seconds = 60.0
    """How long a call may take, from the moment it has its place among the `concurrency`."""
    timeouts: Mapping[str, _Seconds] = {}
    """For single tools, by their own name; it goes before the tool's own wish, and that before `timeout`."""
    concurrency: _Count = 16
    """How many calls of the same tool run at once; the next one waits, and other tools do not wait for it."""
    output_bytes: _Count = 256 * 1024
    """How much text of a result is kept; what is beyond is cut off."""
    media_bytes: _Count = 10 * 1024 * 1024
    """How much a result may hold of images, files and videos."""
    check_arguments: bool = True
    """Hold the arguments against the tool's schema before it is run."""
    grace: _Seconds = 0.5
    """How long a call that is told to stop may take to tidy up before it is left behind."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if min(self.timeout, *self.timeouts.values(), self.grace) <= 0:
            raise ValueError("a time limit must be more than 0 seconds")


@runtime_checkable
class Timed(Protocol):
    """An executor whose tools may ask for a time limit of their own."""

    def timeout_of(self, tool: ToolDefinition) -> float | None: ...


class _Raised(msgspec.Struct, frozen=True):
    error: BaseException


class _Late(msgspec.Struct, frozen=True):
    seconds: float


class Limited:
    """An executor that always answers: `execute` raises only when it is cancelled itself."""

    def __init__(self, executor: ToolExecutor, limits: ToolLimits | None = None) -> None:
        self._executor = executor
        self._limits = limits or ToolLimits()
        self._places: WeakValueDictionary[tuple[str | None, str], asyncio.Semaphore] = WeakValueDictionary()
        """Of each tool that is being called: one that hangs takes no place of another's."""
        self._left_behind: set[asyncio.Task[object]] = set()

    @property
    def kind(self) -> ToolKind:
        return self._executor.kind

    def can_execute(self, tool: ToolDefinition) -> bool:
        return self._executor.can_execute(tool)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if not call.arguments.strip():
            call = replace(call, arguments="{}")  # how some models write "no arguments"
        async with self._places_of(call.definition):
            outcome = await self._bounded(call, context)
        result = _conclude(outcome, call, context)
        return replace(result, output=cap(result.output, self._limits.output_bytes, self._limits.media_bytes))

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        return self._executor.describe(tool) if isinstance(self._executor, Describing) else None

    async def open(self) -> None:
        if isinstance(self._executor, Opening):
            await self._executor.open()

    async def close(self) -> None:
        if isinstance(self._executor, Closing):
            await self._executor.close()

    def _places_of(self, tool: ToolDefinition) -> asyncio.Semaphore:
        """Kept as long as somebody uses them: what tools are called may come from anywhere."""
        return self._places.setdefault((tool.server_label, tool.own_name), asyncio.Semaphore(self._limits.concurrency))

    async def _bounded(self, call: ToolCall, context: ToolContext) -> object:
        """In a task of its own, so that a tool that will not be stopped holds up nobody."""
        seconds = self._seconds(call.definition)
        ends = asyncio.get_running_loop().time() + seconds
        deadline = ends if context.deadline is None else min(ends, context.deadline)
        task = asyncio.create_task(self._attempt(call, replace(context, deadline=deadline)))
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
            return task.result() if done else _Late(seconds)
        finally:
            await self._stop(task, call)

    def _seconds(self, tool: ToolDefinition) -> float:
        wish = self._executor.timeout_of(tool) if isinstance(self._executor, Timed) else None
        return self._limits.timeouts.get(tool.own_name, self._limits.timeout if wish is None else wish)

    async def _attempt(self, call: ToolCall, context: ToolContext) -> object:
        """Whatever is raised is returned: a task that ended in SystemExit would take the event loop with it."""
        try:
            schema = call.definition.parameters if self._limits.check_arguments else None
            if problem := await find_problem(call.arguments, schema):
                context.failed("arguments")
                return ToolResult(call.id, problem, is_error=True)
            return await self._executor.execute(call, context)
        except BaseException as error:
            return _Raised(error)

    async def _stop(self, task: asyncio.Task[object], call: ToolCall) -> None:
        if task.done():
            return
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        done, _ = await asyncio.wait({task}, timeout=self._limits.grace)
        if not done:
            _log.warning("The tool %r does not stop when told to and is left behind (call %s)", call.name, call.id)


class LimitedServer(Limited):
    """The same around an executor that a request reaches by a label."""

    def __init__(self, server: ToolServer, limits: ToolLimits | None = None) -> None:
        super().__init__(server, limits)
        self._server = server

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        return await self._server.discover(declared, identity)

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        return await self._server.instruct(declared, identity) if isinstance(self._server, Instructing) else None

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return self._server.standing(model, identity) if isinstance(self._server, Standing) else ()


def limited(executor: ToolExecutor, limits: ToolLimits | None = None) -> Limited:
    """The executor within limits: one that has its own keeps them, and what can be discovered stays discoverable."""
    if isinstance(executor, Limited):
        return executor
    return LimitedServer(executor, limits) if isinstance(executor, ToolServer) else Limited(executor, limits)


Runs: TypeAlias = ToolExecutor | LocalTool[..., Any]
"""What a program can give an engine to run tools with."""


def all_limited(given: Sequence[Runs], limits: ToolLimits | None = None) -> tuple[Limited, ...]:
    """All of them as executors within limits. Functions that are given as they are become one executor, the last.

    Raises `TypeError` for anything else.
    """
    if isinstance(given, ToolExecutor):
        raise TypeError("The executors are given as a list, also when there is only one.")
    functions = [each for each in given if isinstance(each, LocalTool)]
    executors = [each for each in given if not isinstance(each, LocalTool)]
    for each in executors:
        if isinstance(each, type) or not isinstance(each, ToolExecutor):
            raise TypeError(_no_executor(each))
    own = [LocalExecutor(*functions)] if functions else []
    return tuple(limited(each, limits) for each in (*executors, *own))


def _no_executor(given: object) -> str:
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return f"{name!r} is not an executor: make it a @tool, or put it into a LocalExecutor or a Toolset."
    return f"A {type(given).__name__} is not an executor: it has no kind, can_execute and execute."


def _conclude(outcome: object, call: ToolCall, context: ToolContext) -> ToolResult:
    """The one result of a call, whatever came of it."""
    match outcome:
        case ToolResult(call_id=call.id) if _is_output(outcome.output):
            if outcome.is_error:
                _report(call, context, "it answered with an error")
            return outcome
        case _Raised(error=ClientsTurn() as turn):
            raise turn  # not a failure: it says whose the call is
        case _Raised(error=error):
            _report(call, context, "it raised", error)
            problem = _message(error)
        case _Late(seconds=seconds):
            context.failed("timeout")
            _report(call, context, f"no answer within {seconds:g} s")
            problem = f"The tool {call.name!r} did not answer within {seconds:g} s."
        case _:
            _report(call, context, f"it answered with a {type(outcome).__name__} that is no result of this call")
            problem = f"The tool {call.name!r} did not answer with a result of this call."
    return ToolResult(call.id, problem, is_error=True)


def _is_output(output: object) -> bool:
    """Executors come from anywhere; what is no output would fail much later, and take the response with it."""
    if isinstance(output, tuple):
        return all(isinstance(part, ResultPart) for part in output)
    return isinstance(output, str)


def _report(call: ToolCall, context: ToolContext, what: str, error: BaseException | None = None) -> None:
    """Neither arguments nor output: they are the client's."""
    where = (call.id, context.response_id)
    _log.warning("The tool %r failed: %s (call %s of %s)", call.name, what, *where, exc_info=error)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_message(cause) for cause in error.exceptions[:_MOST_CAUSES])}"
    return text or type(error).__name__
