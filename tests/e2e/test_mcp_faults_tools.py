"""Tools that raise, block, will not be cancelled, or are left by their client."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort.api.wire import replace
from antwort.config.settings import McpServerSettings
from antwort.testing.mcp import served
from chat_backend import Calls, ChatBackend, Says
from live_server import launched
from mcp_house import House, called, house, nothing_left_behind, request, spoke
from mcp_kit import STDIO, children, mcp_process, nobody_there, until_true
from raw_http import connected
from serving import RESPONSES, until, until_quiet
from settings_kit import in_front_of

ECHO = ("echo", {"text": "hello"})


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    """After each fault: no task and no process is left."""
    async with nothing_left_behind():
        yield


OWN_TOOLS = '''
import asyncio
import threading

from antwort import tool

held = threading.Event()
waiting = asyncio.Event()


@tool
def breaks() -> str:
    """Break."""
    raise RuntimeError("it broke")


@tool
def blocks() -> str:
    """Keep its thread until it is let go."""
    held.wait(30)
    return "Awake again."


@tool
def lets_go() -> str:
    """Let go."""
    held.set()
    return "Let go."


@tool
async def ignores() -> str:
    """Not to be cancelled."""
    while not held.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    return "As if nothing had happened."
'''


def at(url: str, **more: Any) -> McpServerSettings:
    return McpServerSettings(label="try", url=url, **more)


@pytest.mark.proves("FR-016")
async def test_three_calls_run_at_the_same_time_and_come_back_in_the_order_of_the_calls() -> None:
    async with served() as server, house(at(server.url)) as ours:
        parties = [("meet", {"name": "noon", "party": 3, "who": who}) for who in ("Ann", "Bob", "Cem")]
        response = await ours.ask("try", *parties)
        said = ["Ann met 2 others.", "Bob met 2 others.", "Cem met 2 others."]
        assert [call["output"] for call in called(response)] == said
        assert ours.backend.results == said


@pytest.mark.proves("FR-016")
async def test_without_parallel_calls_each_waits_for_the_one_before() -> None:
    async with served() as server, house(at(server.url)) as ours:
        response = await ours.ask("try", ECHO, ("counter", {}), ECHO, parallel_tool_calls=False)
        assert len(called(response)) == 3
        order = [entry.what for entry in server.server.record.entries if entry.tool]
        assert order == ["called", "answered"] * 3


@pytest.mark.proves("FR-029", "FR-031", "MISTAKE-22")
async def test_a_tool_that_raises_or_fails_is_news_for_the_model() -> None:
    async with served() as server, house(at(server.url)) as ours:
        response = await ours.ask("try", ("raise", {}), ("fail", {"message": "No such file."}), ECHO)
        raised, failed, echoed = called(response)
        assert raised["error"]
        assert "No such file." in str(failed["error"])
        assert echoed["output"] == "hello"
        assert spoke(response)
        assert "No such file." in ours.backend.results[1]


async def test_a_server_that_stands_still_keeps_no_other_server(tmp_path: Path) -> None:
    async with served() as sound, mcp_process(tmp_path) as server:
        settings = at(server.url), McpServerSettings(label="sound", url=sound.url)
        async with house(*settings) as ours:
            asking = asyncio.create_task(ours.ask("try", ("block", {"seconds": 30})))
            await server.until_seen("called", "block")
            assert called(await ours.ask("sound", ECHO))[0]["output"] == "hello"
            assert not asking.done()
            await server.kill()
            assert spoke(await asking)


async def test_a_call_that_will_not_be_cancelled_holds_neither_the_run_nor_the_session() -> None:
    async with served() as server, house(at(server.url, timeout=0.2)) as ours:
        response = await ours.ask("try", ("stubborn", {"name": "mule"}))
        assert called(response)[0]["error"]
        assert spoke(response)
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
        server.server.latch("mule").set()
        await server.server.record.until_seen("answered", "stubborn")


@pytest.mark.parametrize("name", ["breaks", "blocks", "ignores"])
async def test_a_tool_of_this_process_that_misbehaves_keeps_nobody(name: str, tmp_path: Path) -> None:
    module = tmp_path / f"own_{name}.py"
    module.write_text(OWN_TOOLS)
    settings = in_front_of()
    limits = replace(settings.tools.limits, timeout=0.2)
    settings = replace(settings, tools=replace(settings.tools, modules=(str(module),), limits=limits))
    async with house(settings=settings) as ours:
        response = await ours.ask(f"own_{name}", (name, {}))
        assert called(response)[0]["error"]
        assert spoke(response)
        assert called(await ours.ask(f"own_{name}", ("lets_go", {})))[0]["output"] == "Let go."


# ---- those who leave ----


async def _leave(ours: House, **more: Any) -> None:
    """Ask for a call that never ends, and hang up once the stream has begun."""
    async with connected(ours.server.port) as wire:
        wire.send("POST", RESPONSES, request("try", ("wait", {}), stream=True, **more))
        assert (await wire.head()).status == 200
        while b"response.mcp_call.in_progress" not in await wire.chunk():
            pass
        wire.vanish()


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("way", ["http", "sse"])
async def test_a_client_that_leaves_is_a_cancellation_for_the_server(way: str) -> None:
    async with served() as server:
        settings = at(server.url) if way == "http" else at(server.sse_url, transport="sse")
        async with house(settings) as ours:
            await _leave(ours)
            await server.server.record.until_seen("cancelled", "wait")
            await until(lambda: ours.server.engine.live == 0)
            assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"


@pytest.mark.proves("TR-021")
async def test_a_client_that_leaves_is_a_cancellation_for_a_process_of_ours(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with house(McpServerSettings(label="try", command=(*STDIO, "--record", str(record)), connect=60)) as ours:
        await _leave(ours)
        await until_true(lambda: record.exists() and '"cancelled"' in record.read_text())
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"


async def test_faults_again_and_again_leave_no_task(tmp_path: Path) -> None:
    async with mcp_process(tmp_path) as server:
        dead = McpServerSettings(label="dead", url=f"http://127.0.0.1:{nobody_there()}/mcp")
        async with house(at(server.url, timeout=0.05), dead) as ours:

            async def troubles() -> None:
                hung = ours.ask("try", ("wait", {}), ("raise", {}), ("fail", {}), ("stubborn", {"name": "never"}))
                await asyncio.gather(hung, ours.ask("dead"), _leave(ours))

            def count() -> int:
                return len(asyncio.all_tasks() - ours.backend.tasks)  # those are as many as there are connections

            await troubles()
            before = await until_quiet(count)
            for _ in range(10):
                await troubles()
            await until(lambda: count() <= before)
            await until(lambda: ours.server.engine.live == 0)
            assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"


@pytest.mark.proves("FR-014")
async def test_a_cancel_is_a_cancellation_for_the_server() -> None:
    async with served() as server, house(at(server.url)) as ours, connected(ours.server.port) as wire:
        wire.send("POST", RESPONSES, request("try", ("wait", {}), stream=True))
        assert (await wire.head()).status == 200
        seen = b""
        while b"response.mcp_call.in_progress" not in seen:
            seen += await wire.chunk()
        response_id = seen.split(b'"id":"')[1].split(b'"')[0].decode()
        await server.server.record.until_seen("called", "wait")
        cancelled = await ours.server.ask("POST", f"{RESPONSES}/{response_id}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        await server.server.record.until_seen("cancelled", "wait")
        while await wire.chunk():
            pass


async def test_a_server_that_is_stopped_takes_its_processes_along(tmp_path: Path) -> None:
    """`antwort serve`, as a process of its own, is told to stop while a call is under way."""
    record = tmp_path / "record.jsonl"
    config = tmp_path / "antwort.yaml"
    async with ChatBackend(Calls([("wait", "{}")]), Says()) as backend:
        config.write_text(
            f"backends: [{{name: b, url: '{backend.url}'}}]\nmemory: true\n"
            f"server: {{drain: 0}}\n"
            f"mcp_servers: [{{label: try, command: {[*STDIO, '--record', str(record)]!r}}}]\n"
        )
        async with launched("--config", str(config)) as process:
            async with connected(process.port) as wire:
                wire.send("POST", RESPONSES, request("try", stream=True))
                assert (await wire.head()).status == 200
                await until_true(lambda: record.exists() and '"called"' in record.read_text())
                (child,) = children(process.process.pid)
                status, _ = await process.stop(signal.SIGTERM)
            assert status == 0
            await until_true(lambda: not Path(f"/proc/{child}").exists())
