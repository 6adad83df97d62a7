"""The list of tools: asked for once, kept, and asked for again when it is old or has changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.testing.mcp import Faults, TryServer, served
from antwort.tools.mcp import session as sessions
from antwort.tools.mcp.base import NotReached, ServerTools, ServerUnavailable
from jumping_time import jumping_time
from session_kit import (
    TEXT,
    TOOL,
    WAYS,
    Asked,
    KitPool,
    Send,
    Session,
    hangs,
    puppet,
    result,
    says,
    sends,
    session_by,
    session_with,
    spec_of,
    streams,
    until,
)
from session_kit import whole as whole_answer


def names(listed: ServerTools) -> list[str]:
    return [tool.name for tool in listed.tools]


async def until_listed(session: Session, name: str) -> ServerTools:
    async with asyncio.timeout(10):
        while name not in names(listed := await session.tools()):  # noqa: ASYNC110 - see below
            await asyncio.sleep(0.005)  # what another process tells, or another task, has no event here
    return listed


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_is_asked_once_and_the_list_stays_the_same_object(way: str) -> None:
    async with session_by(way) as (session, server):
        first, *others = await asyncio.gather(*(session.tools() for _ in range(5)))
        assert all(other is first for other in others)
        assert {"echo", "add", "wait"} <= set(names(first))
        assert first.instructions == "These tools are for trying things out."
        await session.call("echo", '{"text": "hi"}', key="k")
        assert await session.tools() is first
        if server is not None:
            assert server.record.count("listed") == 1


@pytest.mark.parametrize("way", ["newest", "older", "sse", "stdio"])
async def test_a_change_that_the_server_tells_of_is_seen(way: str) -> None:
    async with session_by(way) as (session, _):
        before = await session.tools()
        assert "fresh" not in names(before)
        await session.call("change", '{"name": "fresh"}', key="k")
        after = await until_listed(session, "fresh")
        assert await session.tools() is after


async def test_a_session_that_is_left_while_it_lists_hears_of_changes_when_it_is_back() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with puppet() as server:
        session = sessions.McpSession(replace(server.spec, list_age=1e-9))
        await session.tools()
        server.acts["tools/list"] = hangs
        await session.tools()  # begins to ask again
        await server.until("tools/list", 2)
        await session.close()
        session.spec = server.spec
        server.acts["tools/list"] = says({"tools": [{**TOOL, "name": "fresh"}]})
        server.acts["tools/call"] = streams(changed, answer=TEXT)
        await session.call("do", "{}", key="k")
        await server.until("tools/list", 3)  # though nobody asks for it
        await session.close()


async def test_a_server_that_always_says_it_has_changed_is_not_asked_each_time() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with puppet() as server, session_with(server.spec) as session:
        server.acts["tools/call"] = streams(*[changed] * 100, answer=TEXT)
        await session.tools()
        await session.call("do", "{}", key="k")
        assert len(server.seen("tools/list")) == 1


async def test_while_an_old_list_is_asked_for_again_it_serves() -> None:
    let_go = asyncio.Event()

    async def later(asked: Asked, send: Send) -> None:
        await let_go.wait()
        await send(result(asked, {"tools": [TOOL, {**TOOL, "name": "fresh"}]}))

    async with puppet() as server, session_with(replace(server.spec, list_age=1e-9)) as session:
        first = await session.tools()
        server.acts["tools/list"] = later
        assert await session.tools() is first
        await server.until("tools/list", 2)
        assert await session.tools() is first
        let_go.set()
        assert names(await until_listed(session, "fresh")) == ["do", "fresh"]


async def test_a_list_that_says_the_same_again_is_the_same_object() -> None:
    async with puppet() as server, session_with(replace(server.spec, list_age=1e-9)) as session:
        first = await session.tools()
        while len(server.seen("tools/list")) < 4:
            assert await session.tools() is first
            await asyncio.sleep(0)


async def test_an_old_list_serves_when_a_new_one_cannot_be_had() -> None:
    async with puppet() as server, session_with(replace(server.spec, list_age=1e-9)) as session:
        first = await session.tools()
        server.acts["tools/list"] = sends(whole_answer(500, b"{}"))
        for _ in range(3):
            assert await session.tools() is first
        await server.until("tools/list", 2)
        assert await session.tools() is first


async def test_two_thousand_tools_are_listed_page_by_page() -> None:
    async with served(TryServer(many=2000)) as at, session_with(spec_of(at)) as session:
        listed = await session.tools()
        assert {f"tool_{i}" for i in range(2000)} <= set(names(listed))
        assert (await session.call("tool_1999", "{}", key="k")).content[0]["text"] == "This is tool_1999."


async def test_what_is_no_tool_is_left_out() -> None:
    odd: list[Any] = [None, 7, {}, {"name": 7}, {"name": ""}, {"name": "x", "inputSchema": []}, TOOL, TOOL]
    async with puppet(tools_list=says({"tools": odd})) as server, session_with(server.spec) as session:
        assert names(await session.tools()) == ["do"]


@pytest.mark.parametrize("garbage", [None, 7, [], {}, {"tools": "none"}, {"tools": {"a": 1}}])
async def test_a_list_that_is_none_is_a_server_that_cannot_be_used(garbage: object) -> None:
    async with puppet(tools_list=says(garbage)) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await session.tools()


@pytest.mark.parametrize("kind", ["text", "json", "shape"])
@pytest.mark.parametrize("oldest", [None, "2025-06-18"])
async def test_garbage_in_the_place_of_a_list_is_told_and_the_next_list_is_taken(kind: Any, oldest: str | None) -> None:
    server = TryServer(faults=Faults(garbage=("list",), garbage_as=kind, oldest=oldest))
    async with served(server) as at, session_with(replace(spec_of(at), connect=5.0)) as session:
        with pytest.raises(ServerUnavailable):
            await session.tools()
        server.faults = Faults(oldest=oldest)
        assert "echo" in names(await session.tools())


async def test_a_server_without_tools_has_an_empty_list() -> None:
    async def unknown(asked: Asked, send: Send) -> None:
        error = {"jsonrpc": "2.0", "id": asked.number, "error": {"code": -32601, "message": "?"}}
        await send(whole_answer(200, json.dumps(error).encode()))

    async with puppet(tools_list=unknown) as server, session_with(server.spec) as session:
        assert await session.tools() == ServerTools()


async def test_a_list_that_goes_round_in_circles_ends() -> None:
    endless = says({"tools": [TOOL], "nextCursor": "again"})
    async with puppet(tools_list=endless) as server, session_with(server.spec) as session:
        assert names(await session.tools()) == ["do"]
        assert len(server.seen("tools/list")) == 2


async def test_a_slow_list_is_not_waited_for_for_ever_and_serves_those_who_come_later() -> None:
    let_go = asyncio.Event()

    async def slow(asked: Asked, send: Send) -> None:
        await let_go.wait()
        await send(result(asked, {"tools": [TOOL]}))

    async with puppet(tools_list=slow) as server, session_with(replace(server.spec, connect=0.5)) as session:
        with pytest.raises(NotReached, match="too long to list"):
            await session.tools()
        assert not (await session.call("do", "{}", key="k")).is_error
        let_go.set()
        assert names(await session.tools()) == ["do"]
        assert len(server.seen("tools/list")) == 1


async def test_whoever_stops_waiting_for_a_list_disturbs_nobody() -> None:
    let_go = asyncio.Event()

    async def slow(asked: Asked, send: Send) -> None:
        await let_go.wait()
        await send(result(asked, {"tools": [TOOL]}))

    async with puppet(tools_list=slow) as server, session_with(server.spec) as session:
        leaving, staying = (asyncio.create_task(session.tools()) for _ in range(2))
        await server.until("tools/list")
        leaving.cancel()
        let_go.set()
        assert names(await staying) == ["do"]
        assert leaving.cancelled()
        await until(lambda: leaving.done())


# ---- changes, in the newest version ----

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
ACKNOWLEDGED = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}


@jumping_time
async def test_a_stream_of_changes_that_ends_is_asked_for_again_and_what_was_missed_is_a_change() -> None:
    listen = streams(ACKNOWLEDGED, CHANGED)
    async with puppet(server_discover=says(DISCOVERED), subscriptions_listen=listen) as server:
        pool = KitPool()
        await pool.get(server.spec).tools()
        await asyncio.sleep(45)
        assert len(server.seen("subscriptions/listen")) == 2
        assert len(server.seen("tools/list")) >= 3
        assert server.seen("GET") == []
        await pool.close()


@jumping_time
async def test_a_server_that_tells_of_no_changes_after_all_is_not_asked_again() -> None:
    listen = sends(whole_answer(404))
    async with puppet(server_discover=says(DISCOVERED), subscriptions_listen=listen) as server:
        pool = KitPool()
        await pool.get(server.spec).tools()
        await asyncio.sleep(100)
        assert len(server.seen("subscriptions/listen")) == 1
        assert len(server.seen("tools/list")) == 1
        await pool.close()
