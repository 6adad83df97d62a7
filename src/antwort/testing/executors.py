"""What any executor must do, as tests to inherit. pytest collects a subclass; nothing else is needed.

class TestMyExecutor(ExecutorContract):
    def executor(self) -> ToolExecutor:
        return MyExecutor()

    def runnable(self) -> ToolCall:
        return call("search", '{"query": "cats"}', kind=ToolKind.FUNCTION)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from unittest import SkipTest

from msgspec.structs import replace

from antwort.identity import ANONYMOUS, Identity
from antwort.tools.base import (
    Progress,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
    is_tool_server,
)

_SIDE_BY_SIDE = 25
_SOON = 1.0


def context(
    *,
    response_id: str = "resp_test",
    idempotency_key: str = "call_test",
    identity: Identity = ANONYMOUS,
    deadline: float | None = None,
    cancelled: asyncio.Event | None = None,
    progress: Callable[[str | Progress], None] = lambda _: None,
) -> ToolContext:
    """A context for a call in a test."""
    return ToolContext(
        response_id=response_id,
        idempotency_key=idempotency_key,
        identity=identity,
        deadline=deadline,
        cancelled=cancelled or asyncio.Event(),
        progress=progress,
    )


def call(
    name: str,
    arguments: str = "{}",
    *,
    id: str = "call_test",  # noqa: A002 - as in ToolCall
    kind: ToolKind = ToolKind.LOCAL,
    parameters: dict[str, Any] | None = None,
) -> ToolCall:
    """A call of a tool for a test."""
    definition = ToolDefinition(name=name, kind=kind, parameters=parameters)
    return ToolCall(id=id, name=name, arguments=arguments, definition=definition)


class ClaimContract:
    """What holds for every executor, also for one that runs nothing."""

    def executor(self) -> ToolExecutor:
        raise NotImplementedError

    def foreign(self) -> ToolDefinition:
        """A tool that this executor does not run."""
        return ToolDefinition(name="a_tool_of_somebody_else", kind=ToolKind.MCP, server_label="somebody_else")

    def own(self) -> ToolDefinition:
        """A tool that this executor might be thought to run."""
        return self.foreign()

    def running(self) -> AbstractAsyncContextManager[ToolExecutor]:
        """The executor, ready to run calls. Override where it must be started and stopped."""
        return _as_it_is(self.executor())

    def test_it_has_the_shape_of_an_executor_and_a_kind(self) -> None:
        executor = self.executor()
        assert isinstance(executor, ToolExecutor), f"{executor!r} lacks kind, can_execute or execute"
        assert isinstance(executor.kind, ToolKind), f"{executor.kind!r} is not a ToolKind"

    def test_it_does_not_claim_a_tool_of_somebody_else(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            assert executor.can_execute(self.foreign()) is False, "it claims a foreign tool"

        self._with_executor(check)

    def test_a_claim_is_the_same_however_often_it_is_asked_for(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            first = [executor.can_execute(tool) for tool in (self.own(), self.foreign())]
            again = [executor.can_execute(tool) for tool in (self.foreign(), self.own())]
            assert first == again[::-1], "asking changed the answer"

        self._with_executor(check)

    def test_a_tool_server_does_not_claim_a_function_that_the_request_declares(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            if is_tool_server(executor):
                assert not executor.can_execute(self._as_declared()), "it claims by name what the request declares"

        self._with_executor(check)

    def _as_declared(self) -> ToolDefinition:
        """The executor's own tool, as a function that a request declares."""
        return replace(self.own(), kind=ToolKind.FUNCTION, server_label=None, server_tool=None)

    def _with_executor(self, check: Callable[[ToolExecutor], Awaitable[None]]) -> None:
        async def run() -> None:
            async with self.running() as executor:
                await check(executor)

        asyncio.run(run())


class ExecutorContract(ClaimContract):
    """What holds for every executor that runs calls."""

    def runnable(self) -> ToolCall:
        """A call that ends well, and soon."""
        raise NotImplementedError

    def endless(self) -> ToolCall | None:
        """A call that runs until it is stopped; None where there is no such tool."""
        return None

    def failing(self) -> ToolCall | None:
        """A call that goes wrong; None where there is no such tool."""
        return None

    def own(self) -> ToolDefinition:
        return self.runnable().definition

    def test_it_claims_the_tool_that_it_runs(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            assert executor.can_execute(self.own()) is True, "it does not claim its own tool"

        self._with_executor(check)

    def test_requests_can_reach_the_tool_that_it_runs(self) -> None:
        """As a function that they declare, or, at a tool server, by its label."""

        async def check(executor: ToolExecutor) -> None:
            assert executor.kind in (ToolKind.LOCAL, ToolKind.MCP, ToolKind.SANDBOX), "no call is run by this kind"
            if not is_tool_server(executor):
                claimed = executor.can_execute(self._as_declared())
                assert claimed, "without `discover` it is asked about declared functions only, and claims none"

        self._with_executor(check)

    def test_a_call_ends_in_a_result_with_its_own_id(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            asked = self.runnable()
            result = await _outcome(executor, asked, context())
            assert not isinstance(result, Exception), f"the call failed: {result!r}"
            assert not _checked(result, asked).is_error, f"the call failed: {result!r}"

        self._with_executor(check)

    def test_calls_side_by_side_keep_their_ids(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            calls = [replace(self.runnable(), id=f"call_{n}") for n in range(_SIDE_BY_SIDE)]
            results = await asyncio.gather(
                *(executor.execute(asked, context(idempotency_key=asked.id)) for asked in calls)
            )
            for asked, result in zip(calls, results, strict=True):
                _checked(result, asked)

        self._with_executor(check)

    def test_arguments_that_are_no_json_are_a_failure(self) -> None:
        self._check_failure(replace(self.runnable(), arguments='{"cut off'))

    def test_a_failure_is_raised_or_answered(self) -> None:
        if (asked := self.failing()) is None:
            raise SkipTest("no tool that fails")
        self._check_failure(asked)

    def test_a_call_that_is_cancelled_stops_within_a_second(self) -> None:
        if (asked := self.endless()) is None:
            raise SkipTest("no tool that runs until it is stopped")

        async def check(executor: ToolExecutor) -> None:
            stop = asyncio.Event()
            task = asyncio.ensure_future(executor.execute(asked, context(cancelled=stop)))
            done, _ = await asyncio.wait({task}, timeout=0.05)
            assert not done, "the call that should run until it is stopped has ended"
            stop.set()
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=_SOON)
            assert done, "the call went on after it was cancelled"

        self._with_executor(check)

    def test_a_call_of_a_run_that_is_stopped_already_ends_within_a_second(self) -> None:
        async def check(executor: ToolExecutor) -> None:
            stop = asyncio.Event()
            stop.set()
            asked = self.runnable()
            result = await _outcome(executor, asked, context(cancelled=stop), within=_SOON)
            if not isinstance(result, Exception):
                _checked(result, asked)

        self._with_executor(check)

    def _check_failure(self, asked: ToolCall) -> None:
        async def check(executor: ToolExecutor) -> None:
            result = await _outcome(executor, asked, context())
            if not isinstance(result, Exception):  # of an exception, whoever dispatches makes a result
                assert _checked(result, asked).is_error, "the call went wrong and its result does not say so"

        self._with_executor(check)


async def _outcome(
    executor: ToolExecutor, asked: ToolCall, around: ToolContext, *, within: float = 10 * _SOON
) -> object:
    """What the call ended in: its answer, or the exception that it raised."""
    task = asyncio.ensure_future(executor.execute(asked, around))
    done, _ = await asyncio.wait({task}, timeout=within)
    task.cancel()
    assert done, f"the call did not end within {within:g} s"
    assert not task.cancelled(), "the call raised CancelledError though nobody cancelled it"
    return task.exception() or task.result()


def _checked(result: object, asked: ToolCall) -> ToolResult:
    assert isinstance(result, ToolResult), f"{result!r} is not a ToolResult"
    assert result.call_id == asked.id, f"the result of {result.call_id!r} answers {asked.id!r}"
    assert isinstance(result.output, str | tuple), f"{result.output!r} is neither text nor parts"
    return result


@asynccontextmanager
async def _as_it_is(executor: ToolExecutor) -> AsyncGenerator[ToolExecutor, None]:
    yield executor
