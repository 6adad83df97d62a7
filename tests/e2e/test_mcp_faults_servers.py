"""MCP servers that are away, die, hang or talk nonsense: the response goes on, and so does everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.config.settings import McpServerSettings, McpSettings, Secret
from antwort.testing.mcp import Faults, Served, TryServer, served
from antwort.testing.mcp.faults import Garbage
from mcp_house import House, called, house, listed, nothing_left_behind, spoke
from mcp_kit import STDIO, mcp_process, nobody_there, until_true

ECHO = ("echo", {"text": "hello"})


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    """After each fault: no task and no process is left."""
    async with nothing_left_behind():
        yield


def at(url: str, label: str = "try", **more: Any) -> McpServerSettings:
    return McpServerSettings(label=label, url=url, **more)


@asynccontextmanager
async def beside(faults: Faults, **more: Any) -> AsyncIterator[tuple[House, Served]]:
    """A server with these faults as `try`, and one without any as `sound`."""
    async with (
        served(TryServer(faults=faults)) as faulty,
        served() as sound,
        house(at(faulty.url, **more), at(sound.url, "sound")) as ours,
    ):
        yield ours, faulty


async def is_well(ours: House) -> bool:
    """Whether another server answers."""
    (call,) = called(await ours.ask("sound", ECHO))
    return bool(call["output"] == "hello")


@pytest.mark.proves("MISTAKE-24")
async def test_a_server_that_is_down_at_the_start_stops_neither_the_start_nor_others() -> None:
    async with served() as sound, house(at(f"http://127.0.0.1:{nobody_there()}/mcp"), at(sound.url, "sound")) as ours:
        response = await ours.ask("try")
        assert listed(response)["error"]
        assert not listed(response)["tools"]
        assert spoke(response)
        assert await is_well(ours)


@pytest.mark.proves("MISTAKE-24", "FR-029")
async def test_a_server_that_dies_in_mid_call_and_comes_back_is_used_again(tmp_path: Path) -> None:
    async with mcp_process(tmp_path) as server, house(at(server.url)) as ours:
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
        response = await ours.ask("try", ("die", {}))
        (call,) = called(response)
        assert call["status"] == "failed"
        assert call["error"]
        assert spoke(response)
        await server.ended()
        await server.start()
        again = await ours.ask("try", ECHO)
        assert called(again)[0]["output"] == "hello"


async def test_a_server_that_is_killed_in_mid_call_fails_that_call_alone(tmp_path: Path) -> None:
    async with (
        served() as sound,
        mcp_process(tmp_path) as server,
        house(at(server.url), at(sound.url, "sound")) as ours,
    ):
        asking = asyncio.create_task(ours.ask("try", ("wait", {})))
        await server.until_seen("called", "wait")
        assert await is_well(ours)
        assert not asking.done()
        await server.kill()
        response = await asking
        assert called(response)[0]["error"]
        assert spoke(response)


@pytest.mark.proves("FR-029", "FR-031")
async def test_a_call_that_hangs_is_given_up_and_the_loop_goes_on() -> None:
    async with beside(Faults(), timeout=0.2) as (ours, server):
        response = await ours.ask("try", ("wait", {}), ECHO)
        hung, echoed = called(response)
        assert hung["error"]
        assert echoed["output"] == "hello"
        assert spoke(response)
        await server.server.record.until_seen("cancelled", "wait")


@pytest.mark.parametrize("step", ["initialize", "list"])
async def test_a_server_that_never_says_what_it_offers_keeps_nobody_else(step: Any) -> None:
    async with beside(Faults(hang=(step,)), connect=0.3) as (ours, server):
        asking = asyncio.create_task(ours.ask("try"))
        if step == "initialize":
            await server.server.record.until_seen("opened")
        assert await is_well(ours)
        response = await asking
        assert listed(response)["error"]
        assert spoke(response)


@pytest.mark.parametrize("step", ["initialize", "list"])
async def test_a_server_that_is_slow_to_say_what_it_offers_is_waited_for_by_its_own_requests_alone(step: Any) -> None:
    async with beside(Faults(slow=(step,)), connect=60) as (ours, server):
        asking = asyncio.create_task(ours.ask("try", ECHO))
        await server.server.record.until_seen("opened")
        assert await is_well(ours)
        assert not asking.done()
        server.server.latch("slow").set()
        assert called(await asking)[0]["output"] == "hello"


async def test_a_hung_call_of_a_broken_server_does_not_keep_its_other_calls() -> None:
    async with beside(Faults()) as (ours, server):
        asking = asyncio.create_task(ours.ask("try", ("hold", {"name": "it"})))
        await server.server.record.until_seen("called", "hold")
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
        assert not asking.done()
        server.server.latch("it").set()
        assert called(await asking)[0]["output"] == "it was released."


async def _fifty_megabytes(settings: McpServerSettings) -> None:
    async with house(settings) as ours:
        response = await ours.ask("try", ("big", {"bytes": 50 * 2**20}))
        assert called(response)[0]["error"]
        assert len(str(response)) < 100_000
        assert spoke(response)
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"


async def test_fifty_megabytes_are_not_taken(tmp_path: Path) -> None:
    async with mcp_process(tmp_path) as server:
        await _fifty_megabytes(at(server.url))


async def test_fifty_megabytes_of_a_program_are_not_taken() -> None:
    await _fifty_megabytes(McpServerSettings(label="try", command=STDIO, connect=60))


@pytest.mark.parametrize("kind", ["text", "json", "shape"])
async def test_garbage_in_the_place_of_a_result_fails_the_call(kind: Garbage) -> None:
    async with beside(Faults(garbage=("call",), garbage_as=kind), timeout=2) as (ours, server):
        response = await ours.ask("try", ECHO)
        assert called(response)[0]["error"]
        assert "It works!" not in str(response)
        assert spoke(response)
        server.server.faults = Faults()
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"


@pytest.mark.parametrize("step", ["initialize", "list"])
@pytest.mark.parametrize("kind", ["text", "json", "shape"])
async def test_garbage_in_the_place_of_a_list_is_a_list_that_could_not_be_had(kind: Garbage, step: Any) -> None:
    async with beside(Faults(garbage=(step,), garbage_as=kind), connect=2) as (ours, _):
        response = await ours.ask("try")
        assert listed(response)["error"]
        assert spoke(response)
        assert await is_well(ours)


async def test_garbage_over_standard_output_fails_the_call_too() -> None:
    command = (*STDIO, "--garbage", "call")
    async with house(McpServerSettings(label="try", command=command, connect=60, timeout=1)) as ours:
        response = await ours.ask("try", ECHO)
        assert called(response)[0]["error"]
        assert spoke(response)


async def test_a_server_that_wants_other_credentials_is_said_to_do_so() -> None:
    async with beside(Faults(token="right"), token=Secret("wrong")) as (ours, _):
        response = await ours.ask("try")
        assert listed(response)["error"]
        assert "wrong" not in str(response)
        assert spoke(response)
        assert await is_well(ours)


async def test_a_server_that_takes_the_credentials_back_fails_the_next_call() -> None:
    async with beside(Faults(token="right"), token=Secret("right")) as (ours, server):
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
        server.server.faults = Faults(token="another")
        response = await ours.ask("try", ECHO)
        assert called(response)[0]["error"]
        assert "right" not in str(response)
        assert spoke(response)


async def test_two_thousand_tools_are_a_list_like_any_other() -> None:
    async with served(TryServer(many=2000)) as server, house(at(server.url)) as ours:
        one = {"server_label": "try", "allowed_tools": ["tool_1999"]}
        response = await ours.ask(one, ("tool_1999", {}))
        assert called(response)[0]["output"] == "This is tool_1999."
        assert ours.backend.offered == ["tool_1999"]
        everything = await ours.ask("try")
        assert len(listed(everything)["tools"]) > 2000
        assert len(ours.backend.offered) <= 64
        assert spoke(everything)
        assert server.server.record.count("listed") == 1


async def test_a_changed_list_is_seen_by_later_requests() -> None:
    async with served() as server, house(at(server.url)) as ours:
        await ours.ask("try")
        assert "new" not in ours.backend.offered
        await ours.ask("try", ("change", {"name": "new"}))
        async with asyncio.timeout(10):
            while "new" not in ours.backend.offered:  # the old list serves until the new one has come
                await ours.ask("try")
        response = await ours.ask("try", ("new", {}))
        assert called(response)[0]["output"] == "This is new."
        assert server.server.record.count("listed") == 2


async def test_the_list_is_not_asked_for_again_in_each_turn_or_request() -> None:
    async with served() as server, house(at(server.url)) as ours:
        for _ in range(3):
            await ours.ask("try", ECHO)
        assert server.server.record.count("listed") == 1
        assert server.server.record.count("opened") <= 2  # the newest way of opening is tried first


async def test_a_request_may_not_name_a_server_by_address_where_that_is_off() -> None:
    async with served() as server, house(mcp=McpSettings(declared=False)) as ours:
        reply = await ours.reply({"server_label": "mine", "server_url": server.url})
        assert reply.status == 400
        assert reply.error["param"] == "tools[0].server_url"
        assert not server.server.record.entries


async def test_a_command_that_is_not_there_is_a_server_that_is_down() -> None:
    async with house(McpServerSettings(label="try", command=("/nowhere/at-all",))) as ours:
        response = await ours.ask("try")
        assert listed(response)["error"]
        assert "/nowhere" not in str(response)
        assert spoke(response)


async def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    command = (*STDIO, "--record", str(record))
    async with house(McpServerSettings(label="try", command=command, connect=60)) as ours:
        dead = await ours.ask("try", ("die", {}))
        assert called(dead)[0]["error"]
        assert spoke(dead)
        await until_true(lambda: record.exists())
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
