"""An executor within limits always answers, with exactly one result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antwort.api.items import InputImage, InputText, Text
from antwort.api.tools import McpTool
from antwort.identity import ANONYMOUS, Identity
from antwort.testing.executors import call, context
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import Limited, ToolBounds, ToolLimits, all_limited, limited
from antwort.tools.local import LocalExecutor, tool
from antwort.tools.toolset import Toolset
from engine_kit import FunctionExecutor

Run = Callable[[ToolCall, ToolContext], Awaitable[Any]]


class Scripted:
    """Runs calls as it is told to, and keeps them."""

    kind = ToolKind.SANDBOX

    def __init__(self, run: Run) -> None:
        self._run = run
        self.calls: list[ToolCall] = []

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name == "scripted"

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        result: ToolResult = await self._run(call, context)
        return result


def answering(value: object) -> Scripted:
    async def run(asked: ToolCall, where: ToolContext) -> object:
        return value

    return Scripted(run)


def raising(error: BaseException) -> Scripted:
    async def run(asked: ToolCall, where: ToolContext) -> object:
        raise error

    return Scripted(run)


async def forever(asked: ToolCall, where: ToolContext) -> object:
    return await asyncio.Event().wait()


OK = ToolResult("call_test", "fine")
FIVE: Any = 5  # no output at all
ASKED = call("scripted")


# ---- what it is ----


def test_it_has_the_kind_and_the_tools_of_what_it_wraps() -> None:
    wrapper = Limited(answering(OK))
    assert wrapper.kind is ToolKind.SANDBOX
    assert wrapper.can_execute(ASKED.definition)
    assert not wrapper.can_execute(call("other").definition)


@pytest.mark.proves("FR-002")
async def test_a_good_result_passes_unchanged() -> None:
    assert await Limited(answering(OK)).execute(ASKED, context()) == OK


async def test_an_executor_with_limits_of_its_own_keeps_them() -> None:
    own = Limited(answering(OK), ToolLimits(timeout=1))
    assert limited(own, ToolLimits()) is own
    assert await limited(answering(OK)).execute(ASKED, context()) == OK


class Server(Scripted):
    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        return [ASKED.definition] if declared.server_label == "mine" else None


async def test_what_can_be_discovered_stays_discoverable() -> None:
    server = limited(Server(forever))
    assert server.is_server
    assert await server.discover(McpTool(server_label="mine"), ANONYMOUS) == [ASKED.definition]
    assert await server.discover(McpTool(server_label="other"), ANONYMOUS) is None
    assert not limited(answering(OK)).is_server
    assert await limited(answering(OK)).discover(McpTool(server_label="mine"), ANONYMOUS) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"total": 0},
        {"arguments_bytes": 0},
        {"timeout": 0.0},
        {"timeouts": {"x": -1.0}},
        {"grace": 0.0},
    ],
    ids=str,
)
def test_limits_that_let_nothing_through_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        ToolLimits(**wrong)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"output_bytes": 0}, {"timeout": 0.0}], ids=str)
def test_bounds_of_a_tool_that_let_nothing_through_are_refused_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        ToolBounds(**wrong)


# ---- time ----


@pytest.mark.proves("MISTAKE-21", "FR-029")
async def test_a_tool_that_does_not_answer_in_time_is_an_error_result() -> None:
    result = await Limited(Scripted(forever), ToolLimits(timeout=0.01)).execute(ASKED, context())
    assert result == ToolResult("call_test", "The tool 'scripted' did not answer within 0.01 s.", is_error=True)


async def test_a_tool_that_is_out_of_time_is_cancelled() -> None:
    ended = asyncio.Event()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        try:
            return await forever(asked, where)
        finally:
            ended.set()

    await Limited(Scripted(run), ToolLimits(timeout=0.01)).execute(ASKED, context())
    assert ended.is_set()


async def test_a_tool_that_will_not_be_stopped_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return OK

    executor = Limited(Scripted(run), ToolLimits(timeout=0.01, grace=0.01, concurrency=2))
    for _ in range(2):
        assert "did not answer" in (await executor.execute(ASKED, context())).output
    assert "is left behind" in caplog.text
    assert len(executor._left_behind) == 2
    refused = await executor.execute(ASKED, context())  # as long as they work, they keep their places
    assert (refused.output, refused.is_error) == (still_run(2), True)
    release.set()
    await asyncio.wait(executor._left_behind)
    assert not executor._left_behind
    assert await executor.execute(ASKED, context()) == OK


def still_run(number: int, name: str = "scripted") -> str:
    return (
        f"{number} earlier calls still run, though they were told to stop, and no more may run at once. The tool "
        f"{name!r} was not run. Try again later."
    )


@pytest.mark.parametrize("most", [ToolLimits(concurrency=1), ToolLimits(total=1)])
async def test_threads_that_hang_keep_their_places_so_that_they_do_not_pile_up(most: ToolLimits) -> None:
    release, ended = threading.Event(), threading.Event()
    at_once: list[int] = []

    def hang() -> str:
        at_once.append(1)
        release.wait(30)
        ended.set()
        return "done"

    executor = Limited(LocalExecutor(hang), replace(most, timeout=0.2, grace=0.01))
    first = asyncio.create_task(executor.execute(call("hang"), context()))
    waits = asyncio.create_task(executor.execute(call("hang"), context()))  # for a place that will not be free
    assert "did not answer within 0.2 s" in (await first).output
    assert (await waits).output == still_run(1, "hang")
    assert (await executor.execute(call("hang"), context())).output == still_run(1, "hang")
    assert len(at_once) == 1
    release.set()
    await asyncio.wait(executor._left_behind)
    assert ended.is_set()
    assert (await executor.execute(call("hang"), context())).output == "done"


@pytest.mark.proves("MISTAKE-21")
async def test_a_thread_that_hangs_is_left_behind() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(30)

    executor = Limited(LocalExecutor(hang), ToolLimits(timeout=0.01))
    assert "did not answer within 0.01 s" in (await executor.execute(call("hang"), context())).output
    release.set()


@pytest.mark.parametrize(
    ("limits", "own", "expected"),
    [
        (ToolLimits(timeout=0.02), None, "0.02 s"),
        (ToolLimits(), 0.03, "0.03 s"),
        (ToolLimits(timeout=0.02), 0.03, "0.03 s"),
        (ToolLimits(timeouts={"hang": 0.01}), 0.03, "0.01 s"),
        (ToolLimits(timeout=0.02, timeouts={"other": 0.01}), None, "0.02 s"),
        (ToolLimits(timeouts={"hang": 0.01}, tools={"hang": ToolBounds(timeout=0.04)}), 0.03, "0.04 s"),
        (ToolLimits(timeouts={"hang": 0.01}, tools={"hang": ToolBounds(concurrency=1)}), 0.03, "0.01 s"),
    ],
)
async def test_the_operators_word_on_a_tool_goes_before_the_tools_own_and_that_before_the_default(
    limits: ToolLimits, own: float | None, expected: str
) -> None:
    @tool(timeout=own)
    async def hang() -> None:
        await asyncio.Event().wait()

    assert expected in (await Limited(LocalExecutor(hang), limits).execute(call("hang"), context())).output


@pytest.mark.parametrize(("deadline_in", "expected"), [(None, 60), (1000, 60), (5, 5)])
async def test_the_tool_is_told_the_sooner_of_its_own_and_the_responses_deadline(
    deadline_in: float | None, expected: float
) -> None:
    now = asyncio.get_running_loop().time()
    told: list[float | None] = []

    async def run(asked: ToolCall, where: ToolContext) -> object:
        told.append(where.deadline)
        return OK

    deadline = None if deadline_in is None else now + deadline_in
    await Limited(Scripted(run)).execute(ASKED, context(deadline=deadline))
    assert told == [pytest.approx(now + expected, abs=2)]


# ---- concurrency ----


@pytest.mark.proves("MISTAKE-21")
async def test_no_more_calls_run_at_once_than_the_limit_says() -> None:
    running = most = 0
    turn = asyncio.Condition()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with turn:
            turn.notify_all()
            await turn.wait_for(lambda: running == 3 or most == 3)
        running -= 1
        return ToolResult(asked.id, "fine")

    executor = Limited(Scripted(run), ToolLimits(concurrency=3))
    calls = [call("scripted", id=f"call_{n}") for n in range(12)]
    results = await asyncio.gather(*(executor.execute(asked, context()) for asked in calls))
    assert [result.call_id for result in results] == [asked.id for asked in calls]
    assert most == 3


@pytest.mark.proves("MISTAKE-21")
async def test_a_tool_that_takes_all_of_its_places_takes_none_of_anothers() -> None:
    async def quick() -> str:
        return "at once"

    executor = Limited(LocalExecutor(stuck, quick), ToolLimits(concurrency=1))
    hung = [asyncio.create_task(executor.execute(call("stuck", id=str(n)), context())) for n in range(3)]
    async with asyncio.timeout(5):
        assert (await executor.execute(call("quick"), context())).output == "at once"
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)


async def test_the_slots_of_tools_that_nobody_calls_are_forgotten() -> None:
    """What a tool is called can come from a request, and there is no end of names."""
    executor = Limited(Scripted(fine))
    for number in range(3000):
        await executor.execute(call(f"tool_{number}"), context())
    assert len(executor._limiters) <= 1024


async def test_a_call_that_is_about_to_take_a_slot_keeps_its_limit() -> None:
    """The limiter of its server may be the one too many, and what is dropped then must not be that of its tool."""
    running, most = 0, 0

    async def run(asked: ToolCall, where: ToolContext) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ToolResult(asked.id, "fine")

    executor = Limited(Scripted(run), ToolLimits(concurrency=1))
    for number in range(1022):  # with that of their common server, 1023 of 1024 limiters
        await executor.execute(call(f"tool_{number}"), context())
    asked = call("scripted")
    asked = replace(asked, definition=replace(asked.definition, server_label="another"))
    await asyncio.gather(*(executor.execute(asked, context()) for _ in range(2)))
    assert most == 1


async def stuck() -> None:
    await asyncio.Event().wait()


async def fine(asked: ToolCall, where: ToolContext) -> object:
    return ToolResult(asked.id, "fine")


async def test_waiting_for_a_place_does_not_use_up_a_calls_time() -> None:
    first_runs, go_on = asyncio.Event(), asyncio.Event()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        if asked.id == "first":
            first_runs.set()
            await go_on.wait()
        return ToolResult(asked.id, "fine")

    executor = Limited(Scripted(run), ToolLimits(concurrency=1, timeouts={"scripted": 30}))
    first = asyncio.create_task(executor.execute(call("scripted", id="first"), context()))
    await first_runs.wait()
    second = asyncio.create_task(executor.execute(call("scripted", id="second"), context()))
    done, _ = await asyncio.wait({second}, timeout=0.01)
    assert not done
    go_on.set()
    assert [result.output for result in await asyncio.gather(first, second)] == ["fine", "fine"]


# ---- output ----


@pytest.mark.proves("MISTAKE-21")
async def test_output_over_the_limit_is_cut_with_a_mark() -> None:
    executor = Limited(answering(ToolResult("call_test", "x" * 1_048_576)))
    result = await executor.execute(ASKED, context())
    assert isinstance(result.output, str)
    assert result.output.endswith("x\n[output cut: 1048576 bytes, 262144 kept]")
    assert not result.is_error


async def test_a_failures_message_is_cut_too() -> None:
    result = await Limited(raising(ValueError("x" * 100)), ToolLimits(output_bytes=10)).execute(ASKED, context())
    assert result.output == "x" * 10 + "\n[output cut: 100 bytes, 10 kept]"


async def test_parts_are_kept_within_both_limits() -> None:
    parts = (Text(text="x" * 20), InputImage(image_url="x" * 50))
    limits = ToolLimits(output_bytes=10, media_bytes=10)
    result = await Limited(answering(ToolResult("call_test", parts)), limits).execute(ASKED, context())
    assert isinstance(result.output, tuple)
    text, image = result.output
    assert isinstance(text, Text)
    assert text.text.endswith("[output cut: 20 bytes, 10 kept]")
    assert isinstance(image, InputText)
    assert image.text.startswith("[image left out")


# ---- arguments ----

NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.proves("EDGE-4")
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("arguments", "words"), [('{"x": ', "The arguments are not valid JSON: "), ("[1]", "must be a JSON object")]
)
async def test_arguments_that_are_no_json_object_never_reach_the_tool(arguments: str, words: str, check: bool) -> None:
    executor = answering(OK)
    result = await Limited(executor, ToolLimits(check_arguments=check)).execute(call("scripted", arguments), context())
    assert result.is_error
    assert words in result.output
    assert executor.calls == []


async def test_arguments_that_do_not_fit_the_definition_never_reach_the_tool() -> None:
    executor = answering(OK)
    result = await Limited(executor).execute(call("scripted", '{"x": "y"}', parameters=NUMBER), context())
    assert result == ToolResult("call_test", 'The arguments do not fit: x: "y" is not of type "integer"', is_error=True)
    assert executor.calls == []


async def test_without_the_check_the_schema_is_not_looked_at() -> None:
    asked = call("scripted", '{"x": "y"}', parameters=NUMBER)
    assert await Limited(answering(OK), ToolLimits(check_arguments=False)).execute(asked, context()) == OK


@pytest.mark.parametrize("blank", ["", " \n"])
async def test_blank_arguments_are_an_empty_object(blank: str) -> None:
    executor = answering(OK)
    assert await Limited(executor).execute(call("scripted", blank), context()) == OK
    assert executor.calls[0].arguments == "{}"


async def test_a_function_of_the_request_is_checked_by_its_own_declaration() -> None:
    def number(x: int) -> int:
        return x

    strict = {"type": "object", "properties": {"x": {"maximum": 5}}}
    executor = Limited(LocalExecutor(number))
    asked = call("number", '{"x": 6}', kind=ToolKind.FUNCTION, parameters=strict)
    assert (await executor.execute(asked, context())).is_error


# ---- failures ----


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.proves("FR-029", "FR-031", "MISTAKE-22")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such city"), "no such city"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable"),
        (RecursionError("too deep"), "too deep"),
        (MemoryError(), "MemoryError"),
        (ExceptionGroup("both", [ValueError("one"), KeyError()]), "both (2 sub-exceptions): one; KeyError"),
        (BaseExceptionGroup("all", [SystemExit("bye")]), "all (1 sub-exception): bye"),
        (SystemExit(1), "1"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopAsyncIteration("over"), "over"),
        (asyncio.CancelledError(), "CancelledError"),
        (TimeoutError("its own"), "its own"),
    ],
    ids=repr,
)
async def test_whatever_a_tool_raises_is_an_error_result_with_the_message(error: BaseException, message: str) -> None:
    assert await Limited(raising(error)).execute(ASKED, context()) == ToolResult("call_test", message, is_error=True)


@pytest.mark.proves("MISTAKE-22")
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
async def test_a_local_function_that_tries_to_end_the_process_is_an_error_result(error: BaseException) -> None:
    def sync() -> None:
        raise error

    async def on_the_loop() -> None:
        raise error

    executor = Limited(LocalExecutor(sync, on_the_loop))
    results = await asyncio.gather(*(executor.execute(call(name), context()) for name in ("sync", "on_the_loop")))
    assert all(result.is_error for result in results)


async def test_a_tool_that_cancels_its_own_task_is_an_error_result() -> None:
    async def run(asked: ToolCall, where: ToolContext) -> object:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await forever(asked, where)

    assert (await Limited(Scripted(run)).execute(ASKED, context())).is_error


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        ToolResult("call_of_another", "fine"),
        ToolResult("call_test", FIVE),
        ToolResult("call_test", (FIVE,)),
    ],
    ids=repr,
)
async def test_what_is_no_result_of_the_call_is_an_error_result(value: object) -> None:
    result = await Limited(answering(value)).execute(ASKED, context())
    assert result == ToolResult(
        "call_test", "The tool 'scripted' did not answer with a result of this call.", is_error=True
    )


async def test_an_error_result_of_the_tools_own_passes_with_its_parts() -> None:
    own = ToolResult("call_test", (Text(text="no"), InputImage(image_url="data:")), is_error=True)
    assert await Limited(answering(own)).execute(ASKED, context()) == own


async def test_that_a_call_is_the_clients_is_not_a_failure() -> None:
    with pytest.raises(ClientsTurn):
        await Limited(FunctionExecutor()).execute(ASKED, context())


@pytest.mark.proves("FR-031")
@pytest.mark.parametrize(
    ("executor", "words"),
    [
        (raising(ValueError("no such city")), "it raised"),
        (Scripted(forever), "no answer within 0.01 s"),
        (answering(None), "it answered with a NoneType"),
        (answering(ToolResult("call_test", "secret output", is_error=True)), "it answered with an error"),
    ],
    ids=["raised", "late", "no result", "error"],
)
async def test_a_failure_is_logged_without_arguments_or_output(
    executor: Scripted, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = call("scripted", '{"password": "secret"}')
    await Limited(executor, ToolLimits(timeout=0.01)).execute(asked, context(response_id="resp_1"))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("antwort.tools", logging.WARNING)
    assert words in caplog.text
    assert "(call call_test of resp_1)" in caplog.text
    assert "secret" not in caplog.text
    assert ("Traceback" in caplog.text) == (words == "it raised")


async def test_a_good_call_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await Limited(answering(OK)).execute(ASKED, context())
    assert caplog.records == []


# ---- cancellation from outside ----


async def test_cancelling_the_call_stops_the_tool_and_is_passed_on() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        started.set()
        try:
            return await forever(asked, where)
        finally:
            ended.set()

    executor = Limited(Scripted(run), ToolLimits(concurrency=1))
    for _ in range(2):  # the second finds the place of the first free again
        started.clear()
        ended.clear()
        task = asyncio.create_task(executor.execute(ASKED, context()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_a_call_that_waits_for_its_place_can_be_cancelled() -> None:
    started = asyncio.Event()

    async def run(asked: ToolCall, where: ToolContext) -> object:
        started.set()
        return await forever(asked, where)

    executor = Limited(Scripted(run), ToolLimits(concurrency=1))
    first = asyncio.create_task(executor.execute(ASKED, context()))
    await started.wait()
    second = asyncio.create_task(executor.execute(ASKED, context()))
    done, _ = await asyncio.wait({second}, timeout=0.01)
    assert not done
    for task in (first, second):
        task.cancel()
    ends = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


# ---- what a program gives ----


def test_functions_that_are_given_as_they_are_become_an_executor() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    def sub(a: int, b: int) -> int:
        return a - b

    server, own = all_limited([add, Toolset("calc"), tool(sub)])
    assert server.is_server
    assert [own.can_execute(ToolDefinition(name=name, kind=ToolKind.FUNCTION)) for name in ("add", "sub")] == [True] * 2
    with pytest.raises(ValueError, match="two tools named 'add'"):
        all_limited([add, add])


def plain(a: int) -> int:
    return a


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([plain], "'plain' is not an executor: make it a @tool, or put it into a LocalExecutor or a Toolset."),
        ([Toolset], "'Toolset' is not an executor: make it a @tool, or put it into a LocalExecutor or a Toolset."),
        (["calc"], "A str is not an executor: it has no kind, can_execute and execute."),
        (Toolset("calc"), "The executors are given as a list, also when there is only one."),
    ],
    ids=["a function", "a class", "a text", "no list"],
)
def test_what_cannot_run_a_call_is_refused_at_once(given: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        all_limited(given)
    assert str(caught.value) == said


def test_within_limits_a_function_still_describes_itself_and_others_say_nothing() -> None:
    asked = ToolDefinition(name="plain", kind=ToolKind.FUNCTION)
    described = limited(LocalExecutor(plain)).describe(asked)
    assert described is not None
    assert described.parameters is not None
    assert described.parameters["required"] == ["a"]
    assert limited(LocalExecutor(plain)).describe(ToolDefinition(name="other", kind=ToolKind.FUNCTION)) is None
    assert limited(Scripted(fine)).describe(asked) is None


class Clamping:
    """An executor of a program that changes the arguments before another one runs the call."""

    kind = ToolKind.LOCAL

    def __init__(self, inner: LocalExecutor) -> None:
        self._inner = inner

    def can_execute(self, tool: ToolDefinition) -> bool:
        return self._inner.can_execute(tool)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return await self._inner.execute(replace(call, arguments='{"a": 9}'), context)


async def test_arguments_that_an_executor_changes_are_those_that_count() -> None:
    limiting = limited(Clamping(LocalExecutor(plain)))
    assert (await limiting.execute(call("plain", '{"a": 1}'), context())).output == "9"


class Labelled(LocalExecutor):
    def __init__(self) -> None:
        super().__init__(plain)
        self.labels = ("shop",)


def test_a_local_executor_may_be_given_labels() -> None:
    assert limited(Labelled()).labels == ("shop",)


def digits(amount: Decimal, raw: msgspec.Raw) -> str:
    return f"{amount} {bytes(raw).decode()}"


async def test_a_decimal_and_a_raw_argument_are_read_as_they_were_written() -> None:
    asked = call("digits", '{"amount": 0.10000000000000000001, "raw": {"b":  1.0}}')
    answered = await limited(LocalExecutor(digits)).execute(asked, context())
    assert answered.output == '0.10000000000000000001 {"b":  1.0}'
