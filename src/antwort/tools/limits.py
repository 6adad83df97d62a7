"""executor -> executor: time, concurrency and output within limits, arguments checked, every failure a result."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.schema.validate import find_problem, find_problem_bounded, has_references
from antwort.tools.base import (
    Closing,
    Describing,
    Instructing,
    NoteWritingTools,
    Opening,
    Refreshing,
    Remembering,
    Standing,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
    ToolServer,
    given_arguments,
)
from antwort.tools.bounds import Bounded, Prompt, Timed, ToolBounds, ToolLimits, holds_to_its_word
from antwort.tools.local import LocalExecutor, LocalTool
from antwort.tools.outcomes import Late, Raised, caught_here, conclude, is_plain
from antwort.tools.output import cap
from antwort.tools.places import Crowded, Place, Places, Seats, seats_of, server_of
from antwort.tools.threads import run_in_thread
from antwort.tools.turnstile import Passage, StillAtWork, turnstile_of

__all__ = [
    "Bounded",
    "Limited",
    "LimitedServer",
    "Runs",
    "Timed",
    "ToolBounds",
    "ToolLimits",
    "all_limited",
    "limited",
    "offers",
]

_log = logging.getLogger("antwort.tools")

_MOST_KEPT = 8
"""Executors whose terms are kept with a tool: a program may make many, and have the same tools for all of them."""

P = TypeVar("P")


class _Terms(NamedTuple):
    """What holds for calls of a tool."""

    limits: ToolLimits
    seats: Seats
    seconds: float
    arguments_bytes: int
    output_bytes: int
    is_serial: bool
    schema: dict[str, Any] | None
    """What the arguments are held against; None where they need only be an object."""
    is_foreign: bool


class Limited:
    """An executor that always answers: `execute` raises only when it is cancelled itself."""

    def __init__(self, executor: ToolExecutor, limits: ToolLimits | None = None) -> None:
        self._executor = executor
        self.kind: ToolKind = executor.kind
        # To hold something against a protocol takes long, and none of them changes.
        self._describing = executor if isinstance(executor, Describing) else None
        self._bounded_by = executor if isinstance(executor, Bounded) else None
        self._timed_by = executor if isinstance(executor, Timed) else None
        self._run = self._at_once if isinstance(executor, Prompt) else self._apart
        self.holds_to_its_word = holds_to_its_word(executor)
        asked = (self._describing, self._bounded_by, self._timed_by)
        self._keeps_terms = self.holds_to_its_word or all(each is None for each in asked)
        self.offered: dict[Callable[..., object], bool] = {Describing: self._describing is not None}
        """What was found so far of what it `offers`."""
        self._limits = limits or ToolLimits()
        self._places = Places()
        self._left_behind: set[asyncio.Task[object]] = set()

    def can_execute(self, tool: ToolDefinition) -> bool:
        return self._executor.can_execute(tool)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if (arguments := given_arguments(call.arguments)) is not call.arguments:
            call = replace(call, arguments=arguments)
        terms: _Terms | None = call.definition.memo.get(self)
        if terms is None:
            try:
                terms = self._terms_of(call.definition)
            except BaseException as error:  # the executor's own, as all that it is asked
                return conclude(Raised(error), call, context)
        if len(call.arguments) * 4 > terms.arguments_bytes and (problem := _too_long(call, terms.arguments_bytes)):
            context.failed("arguments")
            return ToolResult(call.id, problem, is_error=True)
        outcome = await (self._in_turn if terms.is_serial else self._run)(call, context, terms)
        if is_plain(outcome, call.id, terms.output_bytes):
            return outcome
        result = conclude(outcome, call, context)
        output = cap(result.output, terms.output_bytes, terms.limits.media_bytes)
        return result if output is result.output else replace(result, output=output)

    def offers(self, protocol: Callable[..., object]) -> bool:
        """Whether it is what the protocol says."""
        known = self.offered.get(protocol)
        if known is None:
            known = self.offered[protocol] = isinstance(self, cast("type", protocol))
        return known

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        return None if self._describing is None else self._describing.describe(tool)

    async def open(self) -> None:
        if isinstance(self._executor, Opening):
            await self._executor.open()

    async def close(self) -> None:
        if isinstance(self._executor, Closing):
            await self._executor.close()

    def grace_of(self, tool: ToolDefinition) -> float:
        """Seconds that a call which is told to stop may take, before it is left behind; an executor that cannot say so
        may take any time.
        """
        terms: _Terms | None = tool.memo.get(self)
        try:
            return self._limits_of(tool).grace if terms is None else terms.limits.grace
        except Exception:  # the call hears of it, and of what it asks besides
            return math.inf

    def _limits_of(self, tool: ToolDefinition) -> ToolLimits:
        own = None if self._bounded_by is None else self._bounded_by.limits_of(tool)
        return own or self._limits

    def _terms_of(self, tool: ToolDefinition) -> _Terms:
        """Asked for each tool that is called, and not again for the same one where the answer would be the same."""
        limits, name = self._limits_of(tool), tool.own_name
        wish = None if self._timed_by is None else self._timed_by.timeout_of(tool)
        terms = _Terms(
            limits,
            seats_of(tool, limits),
            _as_seconds(limits.timeout_of(name, wish)),
            limits.arguments_bytes_of(name),
            limits.output_bytes_of(name),
            self._is_serial(tool, limits),
            tool.parameters if limits.check_arguments else None,
            self._is_foreign(tool),
        )
        if self._keeps_terms:
            if len(tool.memo) >= _MOST_KEPT:
                tool.memo.clear()
            tool.memo[self] = terms
        return terms

    def _is_serial(self, tool: ToolDefinition, limits: ToolLimits) -> bool:
        """A function that a request declares is as serial as the one that runs for it."""
        if tool.is_serial or not limits.may_overlap(tool.own_name):
            return True
        own = None if self._describing is None else self._describing.describe(tool)
        return own is not None and own.is_serial

    def _is_foreign(self, tool: ToolDefinition) -> bool:
        """Whether a stranger wrote what it takes: a server, or a request that declares a function in its own words."""
        if tool.declared is not None or tool.kind is not ToolKind.FUNCTION:
            return tool.declared is not None
        own = self.describe(tool)
        return own is None or own.parameters != tool.parameters

    async def _in_turn(self, call: ToolCall, context: ToolContext, terms: _Terms) -> object:
        """What came of it, when those before it have ended."""
        tool = call.definition
        try:
            passage = await turnstile_of((server_of(tool), tool.own_name)).enter()
        except StillAtWork:
            return ToolResult(call.id, _BUSY.format(call.name), is_error=True)
        try:
            return await self._run(call, context, terms, passage)
        finally:
            passage.leave()

    async def _at_once(self, call: ToolCall, context: ToolContext, terms: _Terms, _: Passage | None = None) -> object:
        """Right here: what is told to stop ends, and a task for each call would cost more than most of them."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "tools are run in tasks"
        seats, identity = terms.seats, context.identity
        try:
            taken = self._places.take_now(seats, identity) or await self._places.take(seats, identity)
        except Crowded as crowd:
            return _crowded(call, crowd)
        outcome: object
        rung: list[bool] = []
        told, ends = task.cancelling(), loop.time() + terms.seconds
        alarm = loop.call_at(ends, _ring, task, rung)
        try:
            outcome = await self._work(call, context, terms, ends)
        except BaseException as error:
            outcome = caught_here(error)
        alarm.cancel()
        if rung:
            task.uncancel()  # it is as if it had not been told
            outcome = Late(terms.seconds)
        of_tool, of_server = taken
        of_server.leave()
        of_tool.leave()
        if task.cancelling() > told and isinstance(outcome, Raised | Late):
            raise asyncio.CancelledError  # it was not the time alone
        return outcome

    async def _apart(
        self, call: ToolCall, context: ToolContext, terms: _Terms, passage: Passage | None = None
    ) -> object:
        """In a task of its own, so that a tool that will not be stopped holds up nobody."""
        try:
            place = Place(*await self._places.take(terms.seats, context.identity))
        except Crowded as crowd:
            return _crowded(call, crowd)
        try:
            return await self._in_task(call, context, terms, place, passage)
        finally:
            place.leave()

    async def _in_task(
        self, call: ToolCall, context: ToolContext, terms: _Terms, place: Place, passage: Passage | None
    ) -> object:
        ends = asyncio.get_running_loop().time() + terms.seconds
        task = asyncio.create_task(self._attempt(call, context, terms, ends))
        try:
            await _ended(task, terms.seconds)
        except asyncio.CancelledError:
            await self._leave(task, call, terms, place, passage)
            if task.done() and isinstance(result := task.result(), ToolResult):
                return result  # it has run to its end meanwhile: that counts, also where the run stops
            raise
        if task.done():
            return task.result()
        await self._leave(task, call, terms, place, passage)
        return Late(terms.seconds)

    async def _leave(
        self, task: asyncio.Task[object], call: ToolCall, terms: _Terms, place: Place, passage: Passage | None
    ) -> None:
        """Tell the tool to stop. One that does not is left behind, and holds its place until it ends."""
        if not await self._stop(task, terms.limits.grace):
            _log.warning("The tool %r does not stop when told to and is left behind (call %s)", call.name, call.id)
            place.leave_behind(task)
            if passage is not None:
                passage.leave_behind(task)

    async def _attempt(self, call: ToolCall, context: ToolContext, terms: _Terms, ends: float) -> object:
        """Whatever is raised is returned: a task that ended in SystemExit would take the event loop with it."""
        try:
            return await self._work(call, context, terms, ends)
        except BaseException as error:
            return Raised(error)

    def _work(
        self, call: ToolCall, context: ToolContext, terms: _Terms, ends: float
    ) -> Coroutine[Any, Any, ToolResult]:
        """The tool at work, if the arguments are what it takes. It is told when its time `ends`."""
        if context.deadline is None or ends < context.deadline:
            context = replace(context, deadline=ends)
        if terms.schema is not None and not terms.is_foreign:
            return self._checked(call, context, terms.schema)
        if (problem := find_problem_bounded(call.arguments, terms.schema)) is not None:
            return _refused(call, context, problem)
        context.began()
        return self._executor.execute(call, context)

    async def _checked(self, call: ToolCall, context: ToolContext, schema: dict[str, Any]) -> ToolResult:
        """Validate against the operator's own schema, then run the tool.

        References can make the work grow, so it is done in a thread. Other tasks run beside it, but not while the
        schema is compiled, nor within one step of the validation: so this is for the operator's own schemas alone.
        """
        find = partial(find_problem, call.arguments, schema)
        problem = await run_in_thread(find, "antwort-arguments") if has_references(schema) else find()
        if problem is not None:
            return await _refused(call, context, problem)
        context.began()
        return await self._executor.execute(call, context)

    async def _stop(self, task: asyncio.Task[object], grace: float) -> bool:
        """Says whether it has ended."""
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        done, _ = await asyncio.wait({task}, timeout=grace)
        return bool(done)


class LimitedServer(Limited):
    """The same around an executor that a request reaches by a label."""

    def __init__(self, server: ToolServer, limits: ToolLimits | None = None) -> None:
        super().__init__(server, limits)
        self._server = server
        self._instructing = server if isinstance(server, Instructing) else None
        self._standing = server if isinstance(server, Standing) else None

    def discover(self, declared: McpTool, identity: Identity) -> Coroutine[Any, Any, Sequence[ToolDefinition] | None]:
        return self._server.discover(declared, identity)

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        return None if self._instructing is None else await self._instructing.instruct(declared, identity)

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        if isinstance(self._server, Refreshing):
            await self._server.refresh(declared, identity)

    def remember_with(self, note: NoteWritingTools) -> None:
        if isinstance(self._server, Remembering):
            self._server.remember_with(note)

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return () if self._standing is None else self._standing.standing(model, identity)


def limited(executor: ToolExecutor, limits: ToolLimits | None = None) -> Limited:
    """The executor within limits: one that has its own keeps them, and what can be discovered stays discoverable."""
    if isinstance(executor, Limited):
        return executor
    return LimitedServer(executor, limits) if isinstance(executor, ToolServer) else Limited(executor, limits)


def offers(executor: object, protocol: Callable[..., P]) -> TypeGuard[P]:
    """The same as `isinstance`, for what is asked with each request: of executors within limits it is remembered."""
    if isinstance(executor, Limited):
        return executor.offered.get(protocol) or executor.offers(protocol)
    return isinstance(executor, cast("type", protocol))


def _as_seconds(time: float) -> float:
    """Executors come from anywhere. Raises `ValueError` or `TypeError` for what no clock can be set to."""
    if math.isnan(seconds := float(time)):
        raise ValueError("a time limit must be a number of seconds")
    return seconds


async def _refused(call: ToolCall, context: ToolContext, problem: str) -> ToolResult:
    context.failed("arguments")
    return ToolResult(call.id, problem, is_error=True)


def _crowded(call: ToolCall, crowd: Crowded) -> ToolResult:
    return ToolResult(call.id, _CROWDED.format(crowd.number, call.name), is_error=True)


def _ring(task: asyncio.Task[Any], rung: list[bool]) -> None:
    """Tells a task to stop whose time is over, and says that this was so."""
    rung.append(True)
    task.cancel()


async def _ended(task: asyncio.Task[object], seconds: float) -> None:
    """Waits until the task has ended, or for so long. Whoever waits may be cancelled; the task is not."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _wake, waiter)
    task.add_done_callback(partial(_wake, waiter))
    try:
        await waiter
    except asyncio.CancelledError:
        if not task.done():
            raise  # else the result is there, and whoever waits for it ends with it
    finally:
        timer.cancel()


def _wake(waiter: asyncio.Future[None], _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


Runs: TypeAlias = ToolExecutor | LocalTool[..., Any]
"""What a program can give an engine to run tools with."""


def all_limited(given: Sequence[Runs], limits: ToolLimits | None = None) -> tuple[Limited, ...]:
    """All of them as executors within limits. Functions that are given as they are become one executor, the last.

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

_BUSY = "An earlier call of the tool {!r} is still at work, and its calls must not overlap. Try again later."

_CROWDED = (
    "{} earlier calls still run, though they were told to stop, and no more may run at once. The tool {!r} was not "
    "run. Try again later."
)


def _too_long(call: ToolCall, most: int) -> str | None:
    """To be asked of arguments that may be: characters have four bytes at most, so that mostly nobody has to count."""
    size = len(call.arguments.encode(errors="surrogatepass"))
    return (
        None if size <= most else f"The arguments have {size} bytes, and the tool {call.name!r} takes {most} at most."
    )
