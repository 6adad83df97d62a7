"""Run functions of this process as tools.

@tool
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b

executor = LocalExecutor(add)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec
from msgspec.structs import replace

from antwort.api.items import ResultPart
from antwort.api.wire import encode
from antwort.tools.base import BaseExecutor, Output, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.schema import read_signature
from antwort.tools.threads import post, start_thread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Function names that all backends take."""
LONGEST_TIME = 86400
"""Seconds: the longest timeout of a call."""


class LocalTool(Generic[P, R]):
    """A function that a model can call. Python calls it like the function itself."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        parallel: bool = True,
        require_approval: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.signature = read_signature(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator; a tool returns one value")
        self._function: Callable[..., Any] = function
        self.timeout = _checked_timeout(timeout)
        self.is_bare = True
        """Whether no `Toolset` of the program contains it."""
        self.definition = ToolDefinition(
            name=_checked_name(name or function.__name__),
            kind=ToolKind.LOCAL,
            description=description or self.signature.description,
            parameters=self.signature.parameters,
            read_only=read_only,
            idempotent=idempotent,
            is_serial=not parallel,
            needs_approval=require_approval,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._function(*args, **kwargs)
        return result

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run the function. Arguments that do not fit are an error result; exceptions of the function are raised."""
        value = context.arguments_of(call)
        if isinstance(value, str):
            return ToolResult(call.id, value, is_error=True)
        try:
            arguments = self.signature.read(value, call.arguments.strip() or "{}")
        except msgspec.ValidationError as error:
            return ToolResult(call.id, f"The arguments do not fit: {error}", is_error=True)
        try:
            return _result(call.id, await self._run(arguments, context))
        except (SystemExit, KeyboardInterrupt) as error:  # either would end the event loop, and all other runs with it
            raise RuntimeError(f"The function raised {error!r}.") from error

    async def _run(self, arguments: dict[str, object], context: ToolContext) -> object:
        """Call the function: a coroutine function here, any other in a thread."""
        is_async = inspect.iscoroutinefunction(self._function)
        stop = _Stop(context.cancelled)
        if self.signature.context_parameter is not None:
            arguments[self.signature.context_parameter] = context if is_async else _for_thread(context, stop)
        call = partial(self._function, **arguments)
        if is_async:
            return await call()
        try:
            thread = start_thread(call, f"antwort-tool-{self.definition.name}")
            value = await _outlasted(thread, stop, can_stop=self.signature.context_parameter is not None)
            return await value if inspect.isawaitable(value) else value
        finally:
            stop.set()  # an abandoned thread can still see it


@overload
def tool(function: Callable[P, R], /) -> LocalTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    parallel: bool = True,
    require_approval: bool = False,
) -> Callable[[Callable[P, R]], LocalTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function, with options for what its signature and docstring do not say.

    `timeout` is in seconds and holds instead of the executor's. A tool that is `read_only` or `idempotent` may be
    run again when it is not known whether it ran. Without `parallel`, its calls never overlap, whoever makes them.
    With `require_approval`, no call is run that the client has not approved, whatever a request says.
    """
    return LocalTool(function, **options) if function is not None else partial(LocalTool, **options)


class LocalExecutor(BaseExecutor):
    """Runs functions of this process, also where a request declares a function of the same name."""

    kind = ToolKind.LOCAL
    is_steady = True

    def __init__(self, *tools: LocalTool[..., Any] | Callable[..., Any]) -> None:
        self._tools: dict[str, LocalTool[..., Any]] = {}
        for each in tools:
            self.add(each if isinstance(each, LocalTool) else LocalTool(each))

    def add(self, local: LocalTool[..., Any]) -> None:
        """Raises `ValueError` when there is one of that name already."""
        if local.definition.name in self._tools:
            raise ValueError(f"There are two tools named {local.definition.name!r}.")
        self._tools[local.definition.name] = local

    @property
    def tools(self) -> tuple[LocalTool[..., Any], ...]:
        return tuple(self._tools.values())

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(local.definition for local in self._tools.values())

    def find(self, name: str) -> LocalTool[..., Any] | None:
        return self._tools.get(name)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind in (ToolKind.FUNCTION, ToolKind.LOCAL) and tool.name in self._tools

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        """Return the definition of the function of that name."""
        return self._tools[tool.name].definition if self.can_execute(tool) else None

    def timeout_of(self, tool: ToolDefinition) -> float | None:
        """Return the timeout that the tool sets for itself."""
        return self._tools[tool.name].timeout if self.can_execute(tool) else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if not self.can_execute(call.definition):
            raise LookupError(f"There is no function named {call.name!r} here.")
        return await self._tools[call.definition.name].execute(call, context)


class _Stop(asyncio.Event):
    """Set when its thread is abandoned, or when the run stops."""

    def __init__(self, run: asyncio.Event) -> None:
        super().__init__()
        self._run = run

    def is_set(self) -> bool:
        return super().is_set() or self._run.is_set()


async def _outlasted(outcome: asyncio.Future[T], stop: _Stop, *, can_stop: bool) -> T:
    """Wait for a thread. When cancelled, signal it to stop and wait for its end; when cancelled again, abandon it.

    A function that `can_stop` sees the signal, and may have ended early because of it. Any other has run to its end, so
    its value counts.
    """
    outcome.add_done_callback(
        lambda ended: ended.cancelled() or ended.exception()
    )  # retrieved, also where the thread is abandoned
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({outcome})
        if can_stop or outcome.exception() is not None or inspect.isawaitable(value := outcome.result()):
            raise
        return value


def _for_thread(context: ToolContext, stop: _Stop) -> ToolContext:
    """Return a context that is safe to use in another thread."""
    return replace(context, cancelled=stop, progress=partial(post, asyncio.get_running_loop(), context.progress))


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a tool: 1 to 64 letters, digits, '_' or '-'.")
    return name


def _checked_timeout(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"The timeout of a tool is a number of seconds, not {seconds!r}.")
    if not 0 < seconds <= LONGEST_TIME:
        raise ValueError(f"The timeout of a tool is more than 0 and at most {LONGEST_TIME} seconds, not {seconds!r}.")
    return seconds


def _result(call_id: str, value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        return replace(value, call_id=call_id)
    return ToolResult(call_id, _output(value))


def _output(value: Any) -> Output:
    match value:
        case str():
            return value
        case None:
            return ""
        case tuple() | list() if value and all(isinstance(part, ResultPart) for part in value):
            return tuple(value)
        case _ if isinstance(value, ResultPart):
            return (value,)
        case _:
            return encode(value).decode()
