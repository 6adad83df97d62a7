"""Run the calls of an executor within limits: time, slots, sizes and arguments. Every failure becomes a result."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from antwort.api.items import ResultPart
from antwort.api.wire import UNSET
from antwort.identity import Identity
from antwort.limiter import Limiter, SlotsStuck
from antwort.schema.validate import decode_object, find_problem, find_problem_bounded, has_references
from antwort.tools.base import (
    BaseExecutor,
    ClientsTurn,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
    given_arguments,
    is_steady,
    is_tool_server,
    labels_of,
)
from antwort.tools.local import LONGEST_TIME, LocalExecutor, LocalTool
from antwort.tools.output import cut_output
from antwort.tools.threads import run_in_thread

_log = logging.getLogger("antwort.tools")

_MAX_LIMITERS = 1024
"""Beyond, those that no call uses are dropped: requests can name any number of tools and servers."""
_MAX_CAUSES = 3

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=LONGEST_TIME)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]


class ToolBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a single tool, where it is otherwise than for all."""

    timeout: _Seconds | None = None
    """How long a call may take; unset, as for all."""
    concurrency: _Count | None = None
    """How many calls of it run at once; unset, as for all."""
    output_bytes: _Count | None = None
    """How much text of a result is kept; unset, as for all."""
    arguments_bytes: _Count | None = None
    """How long its arguments may be; unset, as for all."""
    parallel: bool = True
    """Off, its calls never overlap, whoever makes them."""

    def __post_init__(self) -> None:
        _check_counts(self.concurrency, self.output_bytes, self.arguments_bytes)
        _check_times(self.timeout)


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of a tool may take. Times are in seconds."""

    timeout: _Seconds = 60.0
    """How long a call may take, from the moment it has its place among the `concurrency`."""
    timeouts: Mapping[str, _Seconds] = {}
    """For single tools, by their own name; it goes before the tool's own wish, and that before `timeout`."""
    concurrency: _Count = 16
    """How many calls of the same tool run at once; the next one waits, and other tools do not wait for it."""
    total: _Count = 64
    """How many calls of one toolset, one server or one executor run at once, of all its tools."""
    output_bytes: _Count = 256 * 1024
    """How much text of a result is kept; what is beyond is cut off."""
    media_bytes: _Count = 10 * 1024 * 1024
    """How much a result may hold of images, files and videos."""
    arguments_bytes: _Count = 256 * 1024
    """How long the arguments of a call may be; one with longer ones is answered with an error."""
    check_arguments: bool = True
    """Hold the arguments against the tool's schema before it is run."""
    grace: _Seconds = 0.5
    """How long a call that is told to stop may take to tidy up before it is left behind."""
    tools: Mapping[str, ToolBounds] = {}
    """Single tools, by their own name, otherwise than the rest."""

    def __post_init__(self) -> None:
        _check_counts(self.concurrency, self.total, self.output_bytes, self.media_bytes, self.arguments_bytes)
        _check_times(self.timeout, *self.timeouts.values(), self.grace)


def _check_counts(*counts: int | None) -> None:
    if any(count is not None and count < 1 for count in counts):
        raise ValueError("concurrency and sizes must be at least 1")


def _check_times(*times: float | None) -> None:
    if any(seconds is not None and not seconds > 0 for seconds in times):
        raise ValueError("a time limit must be more than 0 seconds")


_NO_BOUNDS = ToolBounds()


class CallLimits(msgspec.Struct, frozen=True):
    """The limits of one call."""

    limits: ToolLimits
    seconds: float
    arguments_bytes: int
    output_bytes: int
    serial: Limiter | None
    """Its slot is taken first, where calls of the tool must not overlap."""
    limiters: Sequence[tuple[Hashable, ...]]
    """The keys of the others, in the order in which a slot of each is taken: of the tool, and of its server."""
    is_untrusted: bool
    """Whether a server or a request wrote the schema."""


class Limited(BaseExecutor):
    """An executor within limits. `execute` raises only when it is cancelled, or hands the call to the client.

    It adapts any class with the three members of `ToolExecutor`: it has the other members that the executor has, and
    the defaults of `BaseExecutor` for the rest.
    """

    def __init__(self, executor: ToolExecutor, limits: ToolLimits | None = None) -> None:
        self._executor = executor
        self.kind = executor.kind
        self.is_server = is_tool_server(executor)
        self.describes_functions = bool(getattr(executor, "describes_functions", hasattr(executor, "describe")))
        self.is_steady = is_steady(executor)
        self.labels = labels_of(executor)
        for name in _MEMBERS:
            setattr(self, name, getattr(executor, name, getattr(self, name)))
        self._limits = limits or ToolLimits()
        self._limiters: dict[tuple[Hashable, ...], Limiter] = {}
        self._left_behind: set[asyncio.Task[object]] = set()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if (arguments := given_arguments(call.arguments)) is not call.arguments:
            call = replace(call, arguments=arguments)
        try:
            allowed = self._limits_for(call.definition, context.identity)
        except BaseException as error:  # the executor's own
            return _failure(call, context, error)
        most = allowed.arguments_bytes
        if len(arguments) * 4 > most and (size := len(arguments.encode(errors="surrogatepass"))) > most:
            return _refused(call, context, _TOO_LONG.format(size, call.name, most))
        taken: list[Limiter] = []
        try:
            if allowed.serial is not None:
                await allowed.serial.acquire()
                taken.append(allowed.serial)
            for key in allowed.limiters:
                # Looked up only now: one without a slot taken may be dropped while the call waits for another.
                limiter = self._limiters.get(key) or self._new_limiter(key)
                if not limiter.take():
                    await limiter.acquire()
                taken.append(limiter)
            result = await self._run(call, context, allowed, taken)
        except SlotsStuck as stuck:
            problem = _BUSY if stuck.limiter is allowed.serial else _STUCK
            return ToolResult(call.id, problem.format(call.name, stuck.limiter.limit), is_error=True)
        finally:
            for limiter in taken:
                limiter.release()
        output = cut_output(result.output, allowed.output_bytes, allowed.limits.media_bytes)
        return result if output is result.output else replace(result, output=output)

    def _limits_for(self, tool: ToolDefinition, identity: Identity) -> CallLimits:
        limits, name = self.limits_of(tool) or self._limits, tool.own_name
        bounds = limits.tools.get(name, _NO_BOUNDS)
        is_serial, declared = tool.is_serial or not bounds.parallel, tool.declared
        is_untrusted = declared is not None
        if tool.kind is not ToolKind.MCP:
            own = self.describe(tool)  # a function that a request declares is as serial as the one that runs for it
            is_serial = is_serial or (own is not None and own.is_serial)
            if tool.kind is ToolKind.FUNCTION:
                is_untrusted = own is None or own.parameters != tool.parameters
        server: Hashable = tool.server_label
        serial_key: Hashable = (server, name)
        if declared is not None and declared.server_url is not UNSET:
            # A label with an address of the request's is not the operator's, and each client has slots of its own.
            server = (declared.server_url, identity.tenant, identity.owner)
            serial_key = (declared.server_url, name)
        seconds = bounds.timeout or limits.timeouts.get(name)
        if seconds is None:
            wish = self.timeout_of(tool)
            seconds = limits.timeout if wish is None else float(wish)
            if math.isnan(seconds):
                raise ValueError("a time limit must be a number of seconds")
        return CallLimits(
            limits,
            seconds,
            bounds.arguments_bytes or limits.arguments_bytes,
            bounds.output_bytes or limits.output_bytes,
            _serial_limiter(serial_key) if is_serial else None,
            ((server, name, bounds.concurrency or limits.concurrency), (server, limits.total)),
            is_untrusted,
        )

    def _new_limiter(self, key: tuple[Hashable, ...]) -> Limiter:
        if len(self._limiters) >= _MAX_LIMITERS:
            self._limiters = {each: limiter for each, limiter in self._limiters.items() if limiter.taken}
        limit = key[-1]
        assert isinstance(limit, int)
        limiter = self._limiters[key] = Limiter(limit)
        return limiter

    async def _run(self, call: ToolCall, context: ToolContext, allowed: CallLimits, taken: list[Limiter]) -> ToolResult:
        """Run the tool for its time at most. Slots of a tool that is left behind are removed from `taken`."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "tools run in tasks"
        cancelling = task.cancelling()
        timeout = asyncio.timeout_at(loop.time() + allowed.seconds)
        try:
            async with timeout:
                if self.ends_when_told:
                    outcome: object = await self._work(call, context, allowed, timeout)
                else:
                    outcome = await self._run_in_task(call, context, allowed, taken, timeout)
        except BaseException as error:
            if task.cancelling() > cancelling:
                raise asyncio.CancelledError from None
            if not timeout.expired():
                return _failure(call, context, error)
        if timeout.expired():
            context.failed("timeout")
            _report(call, context, f"no answer within {allowed.seconds:g} s")
            return ToolResult(call.id, _LATE.format(call.name, allowed.seconds), is_error=True)
        if isinstance(outcome, BaseException):
            return _failure(call, context, outcome)
        # Executors may return anything, and what is no result would fail much later.
        is_text = isinstance(outcome, ToolResult) and isinstance(outcome.output, str)
        if isinstance(outcome, ToolResult) and outcome.call_id == call.id and (is_text or _are_parts(outcome.output)):
            if outcome.is_error:
                _report(call, context, "it answered with an error")
            return outcome
        _report(call, context, f"it answered with a {type(outcome).__name__} that is no result of this call")
        return ToolResult(call.id, f"The tool {call.name!r} did not answer with a result of this call.", is_error=True)

    async def _run_in_task(
        self, call: ToolCall, context: ToolContext, allowed: CallLimits, taken: list[Limiter], timeout: asyncio.Timeout
    ) -> object:
        """Run a tool that may ignore that it is cancelled. One that does is left behind, with its slots.

        Return what it returns or raises: a task that raises `SystemExit` would end the event loop.
        """

        async def attempt() -> object:
            try:
                return await self._work(call, context, allowed, timeout)
            except BaseException as error:
                return error

        task = asyncio.create_task(attempt())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            grace = allowed.limits.grace if timeout.expired() else min(allowed.limits.grace, context.grace)
            task.cancel()
            try:
                await asyncio.wait({task}, timeout=grace)
            finally:
                if not task.done():
                    self._leave_behind(task, call, taken)
            if task.done() and isinstance(result := task.result(), ToolResult):
                return result  # it has run to its end meanwhile: that counts, also where the run stops
            raise

    def _leave_behind(self, task: asyncio.Task[object], call: ToolCall, taken: list[Limiter]) -> None:
        _log.warning("The tool %r does not stop when told to and is left behind (call %s)", call.name, call.id)
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        while taken:
            taken.pop().abandon(task)

    async def _work(
        self, call: ToolCall, context: ToolContext, allowed: CallLimits, timeout: asyncio.Timeout
    ) -> object:
        """Decode and check the arguments, and run the tool.

        The operator's own schemas are checked whole. With references that can take long, so a thread does it.
        """
        value = decode_object(call.arguments)
        if isinstance(value, str):
            return _refused(call, context, value)
        schema = call.definition.parameters if allowed.limits.check_arguments else None
        if not schema:
            problem = None
        elif allowed.is_untrusted:
            problem = find_problem_bounded(value, schema, call.arguments)
        elif has_references(schema):
            problem = await run_in_thread(partial(find_problem, value, schema), "antwort-arguments")
        else:
            problem = find_problem(value, schema)
        if problem is not None:
            return _refused(call, context, problem)
        context.began()
        deadline = timeout.when()
        if deadline is None or (context.deadline is not None and context.deadline < deadline):
            deadline = context.deadline
        return await self._executor.execute(call, replace(context, deadline=deadline, decoded=(call.arguments, value)))


_MEMBERS = (
    *("can_execute", "describe", "discover", "instruct", "refresh", "standing", "remember_with", "open", "close"),
    *("limits_of", "timeout_of", "ends_when_told"),
)

_serial_limiters: WeakValueDictionary[Hashable, Limiter] = WeakValueDictionary()
_serial_lock = threading.Lock()


def _serial_limiter(key: Hashable) -> Limiter:
    """Return the limiter of a tool whose calls must not overlap, the same in the whole process while it is in use."""
    with _serial_lock:
        return _serial_limiters.setdefault(key, Limiter(1))


# ---- executors ----

Runs: TypeAlias = ToolExecutor | LocalTool[..., Any]
"""What a program can give an engine to run tools with."""


def limited(executor: ToolExecutor, limits: ToolLimits | None = None) -> Limited:
    """Return the executor within limits; one that is has its own."""
    return executor if isinstance(executor, Limited) else Limited(executor, limits)


def all_limited(given: Sequence[Runs], limits: ToolLimits | None = None) -> tuple[Limited, ...]:
    """Return all of them as executors within limits. Functions become one executor, the last.

    Raises `TypeError` for anything else, and for an executor that could never be asked.
    """
    if isinstance(given, ToolExecutor):
        raise TypeError("The executors are given as a list, also when there is only one.")
    functions = [each for each in given if isinstance(each, LocalTool)]
    executors = [each for each in given if not isinstance(each, LocalTool)]
    for each in executors:
        if isinstance(each, type) or not isinstance(each, ToolExecutor):
            raise TypeError(_no_executor(each))
        kind: object = each.kind
        if not isinstance(kind, ToolKind) or kind is ToolKind.CUSTOM:
            raise TypeError(_WRONG_KIND.format(type(each).__name__, kind))
        if inspect.iscoroutinefunction(each.can_execute):
            raise TypeError(f"The can_execute of a {type(each).__name__} is async; it must return True or False.")
    own = [LocalExecutor(*functions)] if functions else []
    return tuple(limited(each, limits) for each in (*executors, *own))


def _no_executor(given: object) -> str:
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return f"{name!r} is not an executor: make it a @tool, or put it into a LocalExecutor or a Toolset."
    return f"A {type(given).__name__} is not an executor: it has no kind, can_execute and execute."


_WRONG_KIND = "The kind of a {} is {!r}; it must be ToolKind.LOCAL, ToolKind.MCP or ToolKind.SANDBOX."


# ---- results ----

_TOO_LONG = "The arguments have {} bytes, and the tool {!r} takes {} at most."
_LATE = "The tool {!r} did not answer within {:g} s."
_BUSY = "An earlier call of the tool {0!r} is still at work, and its calls must not overlap. Try again later."
_STUCK = (
    "{1} earlier calls still run, though they were told to stop, and no more may run at once. The tool {0!r} was not "
    "run. Try again later."
)


def _are_parts(output: object) -> bool:
    return isinstance(output, tuple) and all(isinstance(part, ResultPart) for part in output)


def _failure(call: ToolCall, context: ToolContext, error: BaseException) -> ToolResult:
    """Return the result of a call that raised. Raises the error that hands the call to the client."""
    if isinstance(error, ClientsTurn):
        raise error
    _report(call, context, "it raised", error)
    return ToolResult(call.id, _message(error), is_error=True)


def _refused(call: ToolCall, context: ToolContext, problem: str) -> ToolResult:
    context.failed("arguments")
    return ToolResult(call.id, problem, is_error=True)


def _report(call: ToolCall, context: ToolContext, what: str, error: BaseException | None = None) -> None:
    """Log neither arguments nor output: they are the client's."""
    where = (call.id, context.response_id)
    _log.warning("The tool %r failed: %s (call %s of %s)", call.name, what, *where, exc_info=error)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_message(cause) for cause in error.exceptions[:_MAX_CAUSES])}"
    return text or type(error).__name__
