"""The shipped contract, on the executors of the house; and that it finds fault with one that breaks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.testing.executors import ClaimContract, ExecutorContract, call, context
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult
from antwort.tools.limits import Limited
from antwort.tools.local import LocalExecutor
from engine_kit import FunctionExecutor


def echo(text: str) -> str:
    return text


async def echo_async(text: str) -> str:
    return text


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def wait_in_a_thread(context: ToolContext) -> None:
    while not context.cancelled.is_set():
        threading.Event().wait(0.001)


def fail() -> None:
    raise ValueError("as it should")


def locals_() -> LocalExecutor:
    return LocalExecutor(echo, echo_async, wait_for_ever, wait_in_a_thread, fail)


@pytest.mark.proves("FR-001", "FR-002", "FR-003")
class TestFunctionExecutor(ClaimContract):
    def executor(self) -> ToolExecutor:
        return FunctionExecutor()

    def own(self) -> ToolDefinition:
        return ToolDefinition(name="weather", kind=ToolKind.FUNCTION)

    def test_it_runs_nothing_and_says_that_the_call_is_the_clients(self) -> None:
        asked = call("weather", kind=ToolKind.FUNCTION)
        with pytest.raises(ClientsTurn, match="'weather'") as raised:
            asyncio.run(FunctionExecutor().execute(asked, context()))
        assert raised.value.call is asked
        assert not FunctionExecutor().can_execute(asked.definition)


@pytest.mark.proves("FR-001", "FR-002", "FR-003")
class TestLocalExecutor(ExecutorContract):
    def executor(self) -> ToolExecutor:
        return locals_()

    def runnable(self) -> ToolCall:
        return call("echo", '{"text": "hello"}')

    def endless(self) -> ToolCall:
        return call("wait_in_a_thread")

    def failing(self) -> ToolCall:
        return call("fail")


@pytest.mark.proves("FR-001", "FR-002", "FR-003")
class TestLimitedLocalExecutor(ExecutorContract):
    def executor(self) -> ToolExecutor:
        return Limited(locals_())

    def runnable(self) -> ToolCall:
        return call("echo_async", '{"text": "hello"}', kind=ToolKind.FUNCTION)

    def endless(self) -> ToolCall:
        return call("wait_for_ever")

    def failing(self) -> ToolCall:
        return call("fail")


class Faulty(LocalExecutor):
    """Breaks the contract in one way."""

    def __init__(self, fault: str) -> None:
        super().__init__(echo, fail)
        self._fault = fault
        self._asked = 0

    def can_execute(self, tool: ToolDefinition) -> bool:
        self._asked += 1
        match self._fault:
            case "greedy":
                return True
            case "shy":
                return False
            case "moody":
                return self._asked % 3 == 0
            case _:
                return super().can_execute(tool)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        match self._fault:
            case "one id":
                return ToolResult("call_test", "hello")
            case "no result":
                return cast("ToolResult", None)
            case "hides failures":
                return ToolResult(call.id, "fine")
            case "breaks":
                raise ValueError("broken")
            case "cancels":
                raise asyncio.CancelledError
            case "ignores stopping":
                while True:
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        if self._asked:
                            raise
                        self._asked = 1
            case _:
                return await super().execute(call, context)


class ByName(Faulty):
    """A tool server that claims a function of the request by its name."""

    kind = ToolKind.MCP

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        raise AssertionError("it is asked what it claims")


class ByKind(LocalExecutor):
    """Claims definitions of its own kind, which no request makes."""

    kind = ToolKind.SANDBOX

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind is not ToolKind.FUNCTION and super().can_execute(tool)


class Client(LocalExecutor):
    """Says that its calls are the client's, and would run them."""

    kind = ToolKind.FUNCTION


Check = Callable[[ExecutorContract], None]


@pytest.mark.parametrize(
    ("executor", "check"),
    [
        (object(), ExecutorContract.test_it_has_the_shape_of_an_executor_and_a_kind),
        (Faulty("greedy"), ExecutorContract.test_it_does_not_claim_a_tool_of_somebody_else),
        (Faulty("shy"), ExecutorContract.test_it_claims_the_tool_that_it_runs),
        (Faulty("moody"), ExecutorContract.test_a_claim_is_the_same_however_often_it_is_asked_for),
        (ByName("none"), ExecutorContract.test_a_tool_server_does_not_claim_a_function_that_the_request_declares),
        (ByKind(echo), ExecutorContract.test_requests_can_reach_the_tool_that_it_runs),
        (Client(echo), ExecutorContract.test_requests_can_reach_the_tool_that_it_runs),
        (Faulty("one id"), ExecutorContract.test_calls_side_by_side_keep_their_ids),
        (Faulty("no result"), ExecutorContract.test_a_call_ends_in_a_result_with_its_own_id),
        (Faulty("breaks"), ExecutorContract.test_a_call_ends_in_a_result_with_its_own_id),
        (Faulty("cancels"), ExecutorContract.test_a_call_ends_in_a_result_with_its_own_id),
        (Faulty("no result"), ExecutorContract.test_a_call_of_a_run_that_is_stopped_already_ends_within_a_second),
        (Faulty("hides failures"), ExecutorContract.test_arguments_that_are_no_json_are_a_failure),
        (Faulty("hides failures"), ExecutorContract.test_a_failure_is_raised_or_answered),
        (Faulty("hides failures"), ExecutorContract.test_a_call_that_is_cancelled_stops_within_a_second),
        (Faulty("ignores stopping"), ExecutorContract.test_a_call_that_is_cancelled_stops_within_a_second),
    ],
)
def test_the_contract_finds_the_fault(executor: ToolExecutor, check: Check) -> None:
    class Contract(TestLocalExecutor):
        def executor(self) -> ToolExecutor:
            return executor

    with pytest.raises(AssertionError):
        check(Contract())


def test_what_an_executor_cannot_show_is_skipped() -> None:
    class Plain(ExecutorContract):
        def executor(self) -> ToolExecutor:
            return LocalExecutor(echo)

    for check in (
        Plain.test_a_failure_is_raised_or_answered,
        Plain.test_a_call_that_is_cancelled_stops_within_a_second,
    ):
        with pytest.raises(BaseException, match="no tool that") as skipped:
            check(Plain())
        assert type(skipped.value).__name__ == "SkipTest"
