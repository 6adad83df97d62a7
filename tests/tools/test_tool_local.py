"""Functions of this process as tools."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from antwort.api.items import InputImage, InputText, Text
from antwort.testing.executors import call, context
from antwort.tools.base import Output, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.local import LocalExecutor, LocalTool, tool


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def run(function: Callable[..., object], arguments: str = "{}", where: ToolContext | None = None) -> ToolResult:
    local = function if isinstance(function, LocalTool) else tool(function)
    return await LocalExecutor(local).execute(call(local.definition.name, arguments), where or context())


# ---- the decorator ----


def test_a_decorated_function_is_still_the_function_it_was() -> None:
    assert add(2, b=3) == 5
    assert repr(inspect.unwrap(add)).startswith("<function add")
    assert add.__doc__ == "Add two numbers."
    assert list(inspect.signature(add).parameters) == ["a", "b"]


async def test_a_decorated_coroutine_function_is_still_awaited() -> None:
    @tool
    async def double(x: int) -> int:
        return 2 * x

    assert await double(4) == 8


def test_the_definition_says_what_the_function_says() -> None:
    definition = add.definition
    assert (definition.name, definition.kind, definition.description) == ("add", ToolKind.LOCAL, "Add two numbers.")
    assert definition.parameters is not None
    assert definition.parameters["required"] == ["a"]
    assert (definition.read_only, definition.idempotent) == (False, False)


def test_the_decorator_says_what_the_function_does_not() -> None:
    @tool(name="sum-up", description="Sums.", timeout=2.5, read_only=True, idempotent=True)
    def summing(a: int) -> int:
        """Not this."""
        return a

    assert summing.timeout == 2.5
    assert summing.definition == ToolDefinition(
        name="sum-up",
        kind=ToolKind.LOCAL,
        description="Sums.",
        parameters=summing.signature.parameters,
        read_only=True,
        idempotent=True,
    )


def test_attributes_of_the_function_do_not_overwrite_the_tool() -> None:
    def function() -> None: ...

    function.__dict__["timeout"] = "a word"
    assert tool(function).timeout is None


@pytest.mark.parametrize("name", ["<lambda>", "with space", "x" * 65, "größe"])
def test_a_name_that_models_cannot_write_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a tool"):
        tool(name=name)(lambda: None)


def test_a_generator_is_refused() -> None:
    def one() -> Iterator[int]:
        yield 1

    async def two() -> AsyncIterator[int]:
        yield 1

    for function in (one, two):
        with pytest.raises(TypeError, match="is a generator"):
            tool(function)


# ---- the executor ----


@pytest.mark.proves("FR-003")
@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("add", ToolKind.FUNCTION, True),
        ("add", ToolKind.LOCAL, True),
        ("add", ToolKind.MCP, False),
        ("add", ToolKind.SANDBOX, False),
        ("other", ToolKind.FUNCTION, False),
        ("other", ToolKind.LOCAL, False),
    ],
)
def test_it_runs_functions_of_the_request_and_its_own_by_name(name: str, kind: ToolKind, expected: bool) -> None:
    assert LocalExecutor(add).can_execute(ToolDefinition(name=name, kind=kind)) is expected


def test_it_takes_plain_functions_and_methods_too_and_lists_its_definitions() -> None:
    class Counter:
        def count(self, by: int) -> int:
            return by

    def plain(x: str) -> str:
        return x

    executor = LocalExecutor(add, plain, Counter().count)
    assert [definition.name for definition in executor.definitions] == ["add", "plain", "count"]
    assert executor.kind is ToolKind.LOCAL


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools named 'add'"):
        LocalExecutor(add, tool(name="add")(lambda: None))


def test_it_says_which_time_a_tool_asks_for() -> None:
    slow = tool(name="slow", timeout=300)(lambda: None)
    executor = LocalExecutor(add, slow)
    assert executor.timeout_of(slow.definition) == 300
    assert executor.timeout_of(add.definition) is None
    assert executor.timeout_of(ToolDefinition(name="other", kind=ToolKind.LOCAL)) is None


async def test_a_tool_it_does_not_have_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="'other'"):
        await LocalExecutor(add).execute(call("other"), context())
    with pytest.raises(LookupError, match="'add'"):
        await LocalExecutor(add).execute(call("add", kind=ToolKind.MCP), context())


@pytest.mark.proves("FR-001")
async def test_a_sync_function_runs_beside_the_event_loop_and_an_async_one_on_it() -> None:
    def sync() -> str:
        return threading.current_thread().name

    async def on_the_loop() -> str:
        return threading.current_thread().name

    here = threading.current_thread().name
    assert (await run(sync)).output == "antwort-tool-sync"
    assert (await run(on_the_loop)).output == here


async def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    async def answer() -> str:
        return "awaited"

    @functools.wraps(answer)
    def wrapped() -> Awaitable[str]:
        return answer()

    assert (await run(wrapped)).output == "awaited"


async def test_arguments_become_the_types_of_the_function() -> None:
    def where(point: Point, names: set[str]) -> str:
        assert isinstance(point, Point)
        return f"{point.x} {sorted(names)}"

    assert (await run(where, '{"point": {"x": 3}, "names": ["b", "a"]}')).output == "3 ['a', 'b']"


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
async def test_no_arguments_at_all_are_an_empty_object(arguments: str) -> None:
    assert (await run(lambda_named("nothing"), arguments)).output == "done"


def lambda_named(name: str) -> LocalTool[[], str]:
    return tool(name=name)(lambda: "done")


@pytest.mark.proves("EDGE-4")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": "two"}', "do not fit: Expected `int`, got `str` - at `$.a`"),
        ("{}", "missing required field `a`"),
        ('{"a": 1, "c": 1}', "unknown field `c`"),
        ('{"a": 1', "not valid JSON"),
        ('{"a": ' + "[" * 5000, "not valid JSON"),
        ('{"a": "\ud800"}', "not valid JSON"),
    ],
)
async def test_wrong_arguments_are_an_error_result_that_names_the_place(arguments: str, words: str) -> None:
    result = await run(add, arguments)
    assert result.is_error
    assert words in result.output


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text as it is", "text as it is"),
        (None, ""),
        (3, "3"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(1), '{"x":1,"y":0}'),
        ([], "[]"),
        ((), "[]"),
        ([1, InputText(text="x")], '[1,{"type":"input_text","text":"x"}]'),
        (InputText(text="x"), (InputText(text="x"),)),
        ((InputImage(image_url="data:"), Text(text="x")), (InputImage(image_url="data:"), Text(text="x"))),
        ([Text(text="x")], (Text(text="x"),)),
    ],
)
async def test_what_a_function_returns_becomes_the_output(value: object, output: Output) -> None:
    def function() -> object:
        return value

    assert await run(function) == ToolResult("call_test", output)


async def test_a_result_that_a_function_makes_itself_is_passed_on_under_the_calls_own_id() -> None:
    async def function() -> ToolResult:
        return ToolResult("whatever", "went wrong", is_error=True)

    assert await run(function) == ToolResult("call_test", "went wrong", is_error=True)


async def test_a_value_without_a_json_form_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        await run(tool(name="opaque")(lambda: object()))


async def test_exceptions_are_let_through() -> None:
    def sync() -> None:
        raise ValueError("in a thread")

    async def on_the_loop() -> None:
        raise ValueError("on the loop")

    for function, words in ((sync, "in a thread"), (on_the_loop, "on the loop")):
        with pytest.raises(ValueError, match=words):
            await run(function)


@pytest.mark.proves("MISTAKE-22")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_function_that_tries_to_end_the_process_only_fails(error: BaseException) -> None:
    def sync() -> None:
        raise error

    async def on_the_loop() -> None:
        raise error

    for function in (sync, on_the_loop):
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await asyncio.create_task(run(function))


async def test_context_variables_reach_into_the_thread() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("req_1")

    def function() -> str:
        return request.get()

    assert (await run(function)).output == "req_1"


@pytest.mark.proves("FR-001")
async def test_the_context_is_given_to_the_parameter_that_asks_for_it() -> None:
    async def on_the_loop(key: ToolContext) -> str:
        return key.idempotency_key

    def sync(key: ToolContext) -> str:
        return key.idempotency_key

    for function in (on_the_loop, sync):
        assert (await run(function, where=context(idempotency_key="once"))).output == "once"


async def test_progress_from_a_thread_arrives_on_the_event_loop() -> None:
    arrived: asyncio.Queue[tuple[object, str]] = asyncio.Queue()

    def listen(text: object) -> None:
        arrived.put_nowait((text, threading.current_thread().name))

    def function(context: ToolContext) -> None:
        context.progress("half way")

    await run(function, where=context(progress=listen))
    assert await arrived.get() == ("half way", threading.current_thread().name)


async def test_a_thread_sees_that_its_run_is_cancelled() -> None:
    cancelled, started = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def function(context: ToolContext) -> str:
        assert not context.cancelled.is_set()
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled.is_set():
            threading.Event().wait(0.001)
        return "saw it"

    task = asyncio.create_task(run(function, where=context(cancelled=cancelled)))
    await started.wait()
    cancelled.set()
    assert (await task).output == "saw it"


async def test_an_abandoned_thread_is_told_and_holds_up_nobody() -> None:
    started, told = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def function(context: ToolContext) -> None:
        assert threading.current_thread().daemon
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled.is_set():
            threading.Event().wait(0.001)
        told.set()

    task = asyncio.create_task(run(function))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(told.wait, 5)


async def test_functions_that_hang_leave_room_for_others() -> None:
    release = threading.Event()
    begun = threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        release.wait(30)

    hung = [asyncio.create_task(run(hang)) for _ in range(64)]
    for _ in hung:
        assert await asyncio.to_thread(begun.acquire, timeout=5), "a function did not start"
    assert (await run(add, '{"a": 1}')).output == "2"
    for task in hung:
        task.cancel()
    await asyncio.sleep(0)
    assert not any(task.done() for task in hung), "its end is known when its thread has ended"
    for task in hung[:32]:
        task.cancel()
    await asyncio.wait(hung[:32], timeout=5)
    assert [task.cancelled() for task in hung] == [True] * 32 + [False] * 32, "told again, it leaves the thread"
    release.set()
    assert [(await task).output for task in hung[32:]] == [""] * 32, "a thread that ends has its result"


async def test_behind_a_plain_wrapper_a_coroutine_is_told_to_stop_only_when_it_is() -> None:
    """As an ordinary decorator makes it: a function that is not async, and returns what is to be awaited."""

    async def work(where: ToolContext) -> str:
        await asyncio.sleep(0)
        return f"told to stop: {where.cancelled.is_set()}"

    @functools.wraps(work)
    def wrapper(where: ToolContext) -> Awaitable[str]:
        return work(where)

    assert (await run(wrapper)).output == "told to stop: False"


@pytest.mark.parametrize("seconds", [0, -3, float("nan"), float("inf"), 86401], ids=str)
def test_a_time_that_no_call_can_have_is_refused_where_it_is_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 and at most 86400 seconds"):
        tool(timeout=seconds)(quick)


@pytest.mark.parametrize("seconds", ["5s", True, [1]], ids=str)
def test_a_time_that_is_no_number_is_refused_where_it_is_written(seconds: Any) -> None:
    with pytest.raises(TypeError, match="a number of seconds, not"):
        tool(timeout=seconds)(quick)


def quick() -> None: ...
