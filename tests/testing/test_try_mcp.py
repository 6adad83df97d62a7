"""The MCP server to try things on, held against the SDK's own client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from antwort.testing.mcp import Faults, Served, TryServer, served
from antwort.testing.mcp.faults import Garbage, garbage_for
from antwort.testing.mcp.record import read_record
from mcp_kit import STDIO, mcp_process

EVERY_WAY = ("newest", "handshake", "sse")


@pytest.fixture
async def running() -> AsyncIterator[Served]:
    async with served() as server:
        yield server


@asynccontextmanager
async def client_of(server: Served, way: str = "newest", **more: Any) -> AsyncIterator[Client]:
    target: Any = sse_client(server.sse_url) if way == "sse" else server.url
    mode: Literal["auto", "legacy"] = "auto" if way == "newest" else "legacy"
    async with Client(target, mode=mode, **more) as client:
        yield client


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_it_answers_each_way_of_asking(running: Served, way: str) -> None:
    async with client_of(running, way) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"echo", "add", "image", "whoami"} <= names
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"sum": 3}
        assert [part.type for part in (await client.call_tool("image", {})).content] == ["text", "image"]
        assert [part.type for part in (await client.call_tool("resource", {})).content] == ["resource", "resource_link"]
        assert (await client.call_tool("fail", {})).is_error
        with pytest.raises(MCPError, match="the tool broke"):
            await client.call_tool("raise", {})


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_it_writes_down_that_a_call_was_cancelled(running: Served, way: str) -> None:
    async with client_of(running, way) as client:
        asking = asyncio.create_task(client.call_tool("wait", {}))
        await running.server.record.until_seen("called", "wait")
        asking.cancel()
        await running.server.record.until_seen("cancelled", "wait")
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert running.server.record.count("answered") == 0


async def test_calls_that_meet_wait_for_each_other(running: Served) -> None:
    async with client_of(running) as client:
        asking = [client.call_tool("meet", {"name": "noon", "party": 3, "who": who}) for who in "abc"]
        met = await asyncio.gather(*asking)
    assert [part.text for result in met for part in result.content if part.type == "text"] == [
        "a met 2 others.",
        "b met 2 others.",
        "c met 2 others.",
    ]


async def test_progress_comes_before_the_result(running: Served) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with client_of(running) as client:
        await client.call_tool("progress", {"steps": 2}, progress_callback=note)
    assert seen == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_a_changed_list_is_told(running: Served) -> None:
    told = asyncio.Event()

    async def listen(message: object) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told.set()

    async with client_of(running, "handshake", message_handler=listen) as client:
        await client.list_tools()
        await client.call_tool("change", {"name": "new"})
        await told.wait()
        assert "new" in {tool.name for tool in (await client.list_tools()).tools}


async def test_many_tools_come_in_pages() -> None:
    async with served(TryServer(many=1200)) as server, client_of(server) as client:
        cursor, names = None, list[str]()
        while not names or cursor:
            page = await client.list_tools(cursor=cursor)
            names, cursor = [*names, *(tool.name for tool in page.tools)], page.next_cursor
    assert names.count("tool_1199") == 1
    assert len(names) == len(set(names)) > 1200


async def test_each_session_counts_for_itself(running: Served) -> None:
    async with client_of(running, "handshake") as one, client_of(running, "handshake") as other:
        counts = [await client.call_tool("counter", {}) for client in (one, one, other)]
    assert [part.text for each in counts for part in each.content if part.type == "text"] == ["1", "2", "1"]


async def test_a_server_that_keeps_no_sessions_answers_with_json() -> None:
    async with served(json_answers=True, is_stateless=True) as server, client_of(server, "handshake") as client:
        seen = (await client.call_tool("whoami", {})).structured_content
    assert seen["session"] is None


async def test_an_old_server_speaks_its_own_version_only() -> None:
    async with served(TryServer(faults=Faults(oldest="2025-06-18"))) as server, client_of(server) as client:
        assert client.protocol_version == "2025-06-18"
        assert not (await client.call_tool("echo", {"text": "old"})).is_error


@pytest.mark.parametrize("faults", [Faults(status=503), Faults(token="right"), Faults(garbage=("initialize",))])
async def test_a_server_that_refuses_or_babbles_cannot_be_opened(faults: Faults) -> None:
    with pytest.RaisesGroup(MCPError, flatten_subgroups=True, allow_unwrapped=True):
        async with served(TryServer(faults=faults)) as server, client_of(server, "handshake"):
            raise AssertionError("it opened")


@pytest.mark.parametrize("kind", ["text", "json", "shape"])
def test_garbage_is_never_an_answer(kind: Garbage) -> None:
    assert b'"content":[' not in garbage_for(kind, 7)


async def test_over_standard_output_it_babbles_too(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    command, *arguments = (*STDIO, "--garbage", "call", "--record", str(record))
    faults: list[object] = []
    heard = asyncio.Event()

    async def listen(message: object) -> None:
        faults.append(message)
        heard.set()

    async with Client(
        stdio_client(StdioServerParameters(command=command, args=arguments)), message_handler=listen
    ) as client:
        asking = asyncio.create_task(client.call_tool("echo", {"text": "hello"}))
        await heard.wait()
        asking.cancel()
    assert isinstance(faults[0], Exception)
    assert [entry.what for entry in read_record(record)] == ["opened"]


async def test_a_killed_server_comes_back_on_its_port(tmp_path: Path) -> None:
    async with mcp_process(tmp_path) as server:
        await server.kill()
        port = server.port
        await server.start()
        assert server.port == port
        async with Client(server.url) as client:
            await client.call_tool("echo", {"text": "again"})
        assert server.count("answered", "echo") == 1


def test_without_the_sdk_it_is_told_what_brings_it() -> None:
    hidden = "import importlib.util as util; util.find_spec = lambda name: None; import antwort.testing.mcp"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs the MCP SDK: pip install 'antwort[testing]'" in done.stderr
