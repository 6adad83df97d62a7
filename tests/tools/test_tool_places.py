"""How many calls run at once: of a tool, of a server, and of tools whose calls must not overlap."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec.structs import replace

from antwort.api.items import Text
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.identity import Identity
from antwort.testing.executors import call, context
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import Limited, ToolBounds, ToolLimits
from antwort.tools.local import LocalExecutor, tool
from antwort.tools.toolset import Toolset

ADA, BOB = Identity("acme", "ada"), Identity("acme", "bob")


class House:
    """An executor of several servers. Its calls run until they are let go, and it knows the most there were at once."""

    kind = ToolKind.MCP

    def __init__(self, **limits: ToolLimits) -> None:
        self._limits = limits
        self.running: list[str] = []
        self.began: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        return self._limits.get(tool.server_label or "")

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.running.append(call.id)
        self.began.append(call.id)
        await self._gates.setdefault(call.id, asyncio.Event()).wait()
        self.running.remove(call.id)
        return ToolResult(call.id, call.id)

    def let_go(self, call_id: str) -> None:
        self._gates.setdefault(call_id, asyncio.Event()).set()


def asked(call_id: str, name: str = "stock", label: str = "depot", url: str | None = None) -> ToolCall:
    plain = call(name, id=call_id, kind=ToolKind.MCP)
    declared = McpTool(server_label=label, server_url=UNSET if url is None else url)
    return replace(plain, definition=replace(plain.definition, server_label=label, declared=declared))


class Crowd:
    """Calls that are made at once, by their ids."""

    def __init__(self, executor: House, limits: ToolLimits | None = None) -> None:
        self.house, self._limited = executor, Limited(executor, limits)
        self.tasks: dict[str, asyncio.Task[ToolResult]] = {}

    async def make(self, *calls: ToolCall, identity: Identity = ADA) -> None:
        for each in calls:
            self.tasks[each.id] = asyncio.create_task(self._limited.execute(each, context(identity=identity)))
        for _ in range(10):  # all of them run up to where they wait
            await asyncio.sleep(0)

    async def end(self) -> None:
        for call_id, task in self.tasks.items():
            self.house.let_go(call_id)
            task.cancel()
        await asyncio.wait(self.tasks.values())


# ---- of a tool and of a server ----


async def test_all_tools_of_a_server_share_its_places() -> None:
    crowd = Crowd(House(), ToolLimits(total=2))
    await crowd.make(asked("a", "stock"), asked("b", "price"), asked("c", "order"))
    assert crowd.house.running == ["a", "b"]
    crowd.house.let_go("a")
    assert (await crowd.tasks["a"]).output == "a"
    await crowd.make()
    assert crowd.house.running == ["b", "c"]
    await crowd.end()


async def test_a_server_that_hangs_takes_no_place_of_another_one() -> None:
    crowd = Crowd(House(), ToolLimits(total=1))
    await crowd.make(asked("a"), asked("b"), asked("c", label="shop"))
    assert crowd.house.running == ["a", "c"]
    await crowd.end()


async def test_who_waits_for_a_tool_that_hangs_takes_no_place_of_its_neighbours() -> None:
    crowd = Crowd(House(), ToolLimits(concurrency=1, total=2))
    await crowd.make(asked("a"), asked("b"), asked("c"), asked("d", "price"))
    assert crowd.house.running == ["a", "d"]
    await crowd.end()


async def test_each_server_has_the_limits_that_the_executor_knows_for_it() -> None:
    limits = {"depot": ToolLimits(total=1), "shop": ToolLimits(tools={"stock": ToolBounds(concurrency=2)})}
    crowd = Crowd(House(**limits), ToolLimits(concurrency=3))
    for label in ("depot", "shop", "other"):
        await crowd.make(*(asked(f"{label} {n}", label=label) for n in range(4)))
    began = crowd.house.running
    assert [sum(each.startswith(label) for each in began) for label in ("depot", "shop", "other")] == [1, 2, 3]
    await crowd.end()


async def test_a_label_with_an_address_of_the_requests_shares_nothing_with_the_operators() -> None:
    crowd = Crowd(House(), ToolLimits(total=1))
    await crowd.make(asked("own"), asked("strange", url="https://a.example/mcp"))
    await crowd.make(asked("another label", label="b", url="https://a.example/mcp"))
    await crowd.make(asked("another client", url="https://a.example/mcp"), identity=BOB)
    assert crowd.house.running == ["own", "strange", "another client"]
    await crowd.end()


class SteadyHouse(House):
    is_steady = True


async def test_clients_that_call_the_same_definition_have_slots_of_their_own() -> None:
    crowd, shared = Crowd(SteadyHouse(), ToolLimits(total=1)), asked("", url="https://a.example/mcp").definition
    for name, identity in (("ada", ADA), ("bob", BOB), ("ada again", ADA), ("bob again", BOB)):
        await crowd.make(replace(asked(name), definition=shared), identity=identity)
    assert crowd.house.running == ["ada", "bob"]
    await crowd.end()


@pytest.mark.parametrize("waits_for", ["a place of the tool", "a place of the server", "its turn"])
async def test_a_call_that_waits_ends_at_once_when_it_is_cancelled(waits_for: str) -> None:
    kinds: dict[str, ToolLimits] = {
        "a place of the tool": ToolLimits(concurrency=1),
        "a place of the server": ToolLimits(total=1),
        "its turn": ToolLimits(tools={"stock": ToolBounds(parallel=False)}),
    }
    crowd = Crowd(House(), kinds[waits_for])
    await crowd.make(asked("a"), asked("b"), asked("c"))
    crowd.tasks["b"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await crowd.tasks["b"]
    crowd.house.let_go("a")
    await crowd.tasks["a"]
    await crowd.make()
    assert crowd.house.began == ["a", "c"]  # the next one has the place
    await crowd.end()


# ---- calls that must not overlap ----


async def test_calls_of_a_serial_tool_never_overlap_whichever_executor_runs_them() -> None:
    running = most = 0

    @tool(parallel=False)
    async def press() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return most

    here, there = Limited(LocalExecutor(press)), Limited(LocalExecutor(press))
    by_request = call("press", kind=ToolKind.FUNCTION)  # which does not say that it is serial
    results = await asyncio.gather(*(each.execute(by_request, context()) for each in (here, there, here, there)))
    assert [result.is_error for result in results] == [False] * 4
    assert most == 1


async def test_a_tool_of_a_toolset_says_itself_that_it_is_serial() -> None:
    toolset = Toolset("press")

    @toolset.tool(parallel=False)
    def once() -> None: ...

    @toolset.tool
    def often() -> None: ...

    found = await toolset.discover(McpTool(server_label="press"), ADA)
    assert found is not None
    assert {each.name: each.is_serial for each in found} == {"once": True, "often": False}


async def test_a_serial_tool_holds_up_no_other_tool() -> None:
    crowd = Crowd(House(), ToolLimits(tools={"stock": ToolBounds(parallel=False)}))
    await crowd.make(asked("a"), asked("b"), asked("c", "price"), asked("d", "price"))
    assert crowd.house.running == ["a", "c", "d"]
    await crowd.end()


async def test_behind_a_serial_call_that_will_not_stop_the_next_ones_are_told_so() -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @tool(parallel=False)
    async def press() -> str:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "pressed"

    executor = Limited(LocalExecutor(press), ToolLimits(timeout=0.01, grace=0.01))
    first = asyncio.create_task(executor.execute(call("press"), context()))
    await began.wait()
    second = await executor.execute(call("press"), context())
    third = await executor.execute(call("press"), context())
    assert "did not answer within 0.01 s" in (await first).output
    assert (
        second.output
        == third.output
        == ("An earlier call of the tool 'press' is still at work, and its calls must not overlap. Try again later.")
    )
    release.set()
    await asyncio.wait(executor._left_behind)
    assert (await executor.execute(call("press"), context())).output == "pressed"


async def test_a_serial_function_in_a_thread_is_at_work_until_its_thread_has_ended() -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(parallel=False)
    def press() -> str:
        release.wait(30)
        ended.set()
        return "pressed"

    executor = Limited(LocalExecutor(press), ToolLimits(timeout=0.5, grace=0.01))
    assert "did not answer" in (await executor.execute(call("press"), context())).output
    assert "still at work" in (await executor.execute(call("press"), context())).output
    release.set()
    await asyncio.wait(executor._left_behind)
    assert ended.is_set()
    assert (await executor.execute(call("press"), context())).output == "pressed"


async def test_a_serial_function_in_a_thread_is_told_to_stop_when_its_time_is_over() -> None:
    @tool(parallel=False)
    def press(context: ToolContext) -> str:
        while not context.cancelled.is_set():
            threading.Event().wait(0.001)
        return "stopped"

    executor = Limited(LocalExecutor(press), ToolLimits(timeout=0.01, grace=5))
    assert "did not answer" in (await executor.execute(call("press"), context())).output
    assert not executor._left_behind


# ---- how much goes in and comes out ----


@pytest.mark.parametrize(
    ("arguments", "limits", "problem"),
    [
        ('{"x": "1234"}', ToolLimits(arguments_bytes=13), None),
        (
            '{"x": "12345"}',
            ToolLimits(arguments_bytes=13),
            "The arguments have 14 bytes, and the tool 'stock' takes 13",
        ),
        ('{"x": "ä"}', ToolLimits(arguments_bytes=10), "The arguments have 11 bytes"),
        ('{"x": "12345"}', ToolLimits(arguments_bytes=13, tools={"stock": ToolBounds(arguments_bytes=14)}), None),
        ('{"x": "12345"}', ToolLimits(tools={"stock": ToolBounds(arguments_bytes=13)}), "takes 13 at most."),
        ('{"x": "' + "1" * (256 * 1024) + '"}', ToolLimits(), "takes 262144 at most."),
    ],
)
async def test_arguments_that_are_too_long_are_told_so_and_never_reach_the_tool(
    arguments: str, limits: ToolLimits, problem: str | None
) -> None:
    house, failures = House(), list[str]()
    house.let_go("a")
    made = replace(asked("a"), arguments=arguments)
    result = await Limited(house, limits).execute(made, replace(context(), failed=failures.append))
    assert result.is_error == bool(problem)
    assert failures == (["arguments"] if problem else [])
    assert house.began == ([] if problem else ["a"])
    assert (problem or "a") in result.output


async def test_a_single_tool_may_say_more_or_less_than_the_others() -> None:
    async def long() -> str:
        return "x" * 50

    async def short() -> tuple[Text, ...]:
        return (Text(text="x" * 50),)

    limits = ToolLimits(
        output_bytes=40, tools={"long": ToolBounds(output_bytes=100), "short": ToolBounds(output_bytes=5)}
    )
    executor = Limited(LocalExecutor(long, short), limits)
    assert (await executor.execute(call("long"), context())).output == "x" * 50
    cut = (await executor.execute(call("short"), context())).output
    assert cut == (Text(text="xxxxx\n[output cut: 50 bytes, 5 kept]"),)
