"""Servers that talk without end, end at once, or break in the background: they cost little, and nobody's call."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from msgspec.structs import replace

from antwort.net.reach import Reach
from antwort.tools.mcp import declining
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.owner import _Sdk
from antwort.tools.mcp.pauses import Pace
from antwort.tools.mcp.streams import Hearing, Incoming
from antwort.tools.mcp.watching import Watch, Watched
from session_kit import (
    PATIENCE,
    STREAM,
    TEXT,
    TOOL,
    Act,
    Asked,
    Send,
    cuts,
    event,
    hangs,
    pooled,
    puppet,
    result,
    says,
    session_with,
    until,
    whole,
)

NEAR = Reach(loopback=True)


def floods(*methods: str) -> Act:
    """A stream of what the server says by itself, with one request after the other."""

    async def act(asked: Asked, send: Send) -> None:
        requests = [{"jsonrpc": "2.0", "id": i, "method": method} for i, method in enumerate(methods)]
        await send(STREAM + b"".join(map(event, requests)))
        await asyncio.Event().wait()

    return act


async def test_a_server_that_takes_no_answers_to_what_it_asks_loses_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declining, "_PATIENCE", 0.05)
    async with puppet(GET=floods(*["ping"] * 1000), answer=hangs) as server, pooled() as pool:
        await pool.get(server.spec).tools()
        await until(lambda: pool.open_sessions == 0)
        assert len(server.seen("answer")) <= 1


async def test_a_server_that_asks_for_much_at_once_is_answered_all_of_it() -> None:
    async with puppet(GET=floods(*["ping"] * 100)) as server, session_with(server.spec) as session:
        await session.tools()
        await server.until("answer", 100)
        assert [asked.number for asked in server.seen("answer")] == list(range(100))
        assert server.sessions == 1


async def test_an_answer_whose_trailer_has_no_end_is_given_up() -> None:
    async def act(asked: Asked, send: Send) -> None:
        await send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        await send(b"2\r\n{}\r\n0\r\nX: " + b"x" * 500_000)
        await asyncio.Event().wait()

    async with puppet(tools_list=act) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="answer is too long"):
            await session.tools()


async def test_what_a_server_asks_for_by_itself_is_answered() -> None:
    async with puppet(GET=floods("ping", "roots/list")) as server, session_with(server.spec) as session:
        await session.tools()
        await server.until("answer", 2)
        ping, roots = (asked.message for asked in server.seen("answer"))
        assert (ping["id"], ping["result"]) == (0, {})
        assert (roots["id"], roots["error"]["code"]) == (1, -32601)
        assert server.seen("answer")[0].headers["mcp-session-id"] == "s1"


async def test_an_answer_to_the_server_that_does_not_get_through_hurts_no_call() -> None:
    let_go = asyncio.Event()

    async def slow(asked: Asked, send: Send) -> None:
        await let_go.wait()
        await send(result(asked, TEXT))

    async with puppet(GET=floods("ping"), answer=cuts, tools_call=slow) as server, session_with(server.spec) as session:
        calling = asyncio.create_task(session.call("do", "{}", key="k"))
        await server.until("tools/call")
        await server.until("answer")
        let_go.set()
        assert not (await calling).is_error
        assert server.sessions == 1


@pytest.mark.parametrize("way", ["cut", "too long"])
async def test_a_list_that_fails_in_the_background_hurts_no_call(way: str) -> None:
    let_go = asyncio.Event()

    async def slow(asked: Asked, send: Send) -> None:
        await let_go.wait()
        await send(result(asked, TEXT))

    async def too_long(asked: Asked, send: Send) -> None:
        await send(whole(200, b"x" * 20_000_000))

    async with puppet(tools_call=slow) as server, session_with(replace(server.spec, list_age=1e-9)) as session:
        await session.tools()
        calling = asyncio.create_task(session.call("do", "{}", key="k"))
        await server.until("tools/call")
        server.acts["tools/list"] = cuts if way == "cut" else too_long
        await session.tools()
        await server.until("tools/list", 2)
        let_go.set()
        assert not (await calling).is_error
        assert server.sessions == 1


async def test_a_list_of_nothings_is_refused_before_it_is_held() -> None:
    async def nothings(asked: Asked, send: Send) -> None:
        body = b'{"jsonrpc":"2.0","id":"%s","result":{"tools":[' % asked.number.encode()
        await send(whole(200, body + b"{}," * 1_000_000 + b"{}]}}"))

    async with puppet(tools_list=nothings) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="too long"):
            await session.tools()


async def test_a_page_of_a_strangers_list_may_be_much_smaller_than_a_result() -> None:
    padded = {**TOOL, "description": "x" * 5_000_000}
    async with puppet(tools_list=says({"tools": [padded]})) as server, pooled(reach=NEAR) as pool:
        with pytest.raises(ServerUnavailable, match="too long"):
            await pool.get(replace(server.spec, is_strangers=True)).tools()


async def test_a_page_of_an_operators_list_may_be_as_long_as_a_result() -> None:
    padded = {**TOOL, "description": "x" * 5_000_000}
    async with puppet(tools_list=says({"tools": [padded]})) as server, session_with(server.spec) as session:
        assert len((await session.tools()).tools) == 1


async def test_what_is_left_out_of_lists_is_told_once_however_often_they_come(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antwort.tools.mcp")
    odd = says({"tools": [{"nope": 1}], "nextCursor": "again"})
    async with puppet(tools_list=odd) as server, session_with(replace(server.spec, list_age=1e-9)) as session:
        while len(server.seen("tools/list")) < 6:
            await session.tools()
            await asyncio.sleep(0)
    told = [record.message for record in caplog.records if "list of tools" in record.message]
    assert told == ["An MCP server's list of tools is not taken whole: 2 in it are no tools and it is too long."]


async def test_a_method_that_is_forbidden_alone_is_taken_for_unknown() -> None:
    async with puppet() as server, session_with(server.spec) as session:
        server.acts["server/discover"] = lambda asked, send: send(whole(403, b"{}"))
        assert len((await session.tools()).tools) == 1


# ---- streams one after the other ----


class Streams(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, request=request)


async def test_streams_that_end_at_once_are_not_asked_for_at_once() -> None:
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    transport = Watched(Streams(), Watch(), pause)
    get = httpx2.Request("GET", "http://x/", headers={"Accept": "text/event-stream"})
    for _ in range(3):
        await transport.handle_async_request(get)
        await transport.handle_async_request(httpx2.Request("POST", "http://x/", json={}))
    assert len(waited) == 2
    assert all(0.5 < seconds <= 1.0 for seconds in waited)


def test_what_a_server_says_by_itself_is_heard_at_a_pace() -> None:
    pace = Pace(at_once=10, in_a_second=5)
    assert [pace.wait(100.0) for _ in range(10)] == [pytest.approx(0.0)] * 10
    assert pace.wait(100.0) == pytest.approx(0.2)
    assert pace.wait(100.0) == pytest.approx(0.4)
    assert pace.wait(200.0) == 0.0


class Said:
    def __init__(self, *items: Incoming) -> None:
        self._items = list(items)

    async def receive(self) -> Incoming:
        return await self.__anext__()

    async def aclose(self) -> None:
        self._items.clear()

    async def __anext__(self) -> Incoming:
        if not self._items:
            raise StopAsyncIteration
        return self._items.pop(0)


def noted(method: str, params: dict[str, Any] | None = None) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))


ANSWER = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))


async def refuses(request: JSONRPCRequest) -> bool:
    return False


async def test_what_a_server_logs_is_passed_over_and_answers_are_not() -> None:
    log = noted("notifications/message")
    over = asyncio.Event()
    hearing = Hearing(Said(log, ANSWER, log), over, refuses, lambda params: None)
    assert [item async for item in hearing] == [ANSWER]
    assert over.is_set()


@pytest.mark.parametrize("method", ["message", "cancelled", "progress"])
async def test_nobody_waits_behind_what_makes_no_work(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, told = await heard(noted(f"notifications/{method}", {"progress": 1}), monkeypatch)
    assert waited == []
    assert told == ([{"progress": 1}] * 5_000 if method == "progress" else [])


async def test_what_makes_work_is_heard_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, _ = await heard(noted("notifications/tools/list_changed"), monkeypatch)
    assert len(waited) > 1_000


async def heard(said: Incoming, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[object]]:
    """How long it was waited, and what was told of progress, until the answer behind many of those had come."""
    waited, told = list[float](), list[object]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    hearing = Hearing(Said(*[said] * 5_000, ANSWER), asyncio.Event(), refuses, told.append)
    assert [item async for item in hearing][-1] is ANSWER
    monkeypatch.undo()
    return waited, told


# ---- beginning and ending ----

ENDS = """
import json, sys
open(sys.argv[1], "a").write("x")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "server/discover":
        said = {"error": {"code": -32601, "message": "?"}}
    elif asked["method"] == "initialize":
        server = {"name": "x", "version": "1"}
        said = {"result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": server}}
    elif asked["method"] == "tools/list":
        sys.exit(1)
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


async def test_a_program_that_ends_after_each_handshake_is_not_started_over_and_over(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = (sys.executable, "-c", ENDS, str(started))
    async with session_with(ServerSpec(label="x", transport="stdio", command=command, connect=PATIENCE)) as session:
        for _ in range(20):
            with pytest.raises(ServerUnavailable) as caught:
                await session.tools()
        assert "before it has answered anything. The next attempt is made in" in str(caught.value)
        assert len(started.read_text()) <= 5


async def test_a_session_that_is_left_unused_counts_against_nobody() -> None:
    async with puppet(tools_list=hangs) as server, pooled() as pool:
        for _ in range(5):
            asking = asyncio.create_task(pool.get(server.spec).tools())
            await server.until("tools/list", server.sessions or 1)
            asking.cancel()
            await asyncio.wait([asking])
            pool._idle = 0.0
            pool._look_at_the_clock()
            await until(lambda: pool.open_sessions == 0)
        server.acts["tools/list"] = says({"tools": [TOOL]})
        assert len((await pool.get(server.spec).tools()).tools) == 1


async def test_connecting_ends_when_its_task_is_cancelled_and_is_not_tried_in_another_way() -> None:
    async with puppet() as server, pooled() as pool:
        server.acts["server/discover"] = hangs
        asking = asyncio.create_task(pool.get(server.spec).tools())
        await server.until("server/discover")
        (connecting,) = (task for task in asyncio.all_tasks() if task.get_name() == "mcp session")
        connecting.cancel()  # as `asyncio.run` does at its end
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        with pytest.raises(ServerUnavailable):
            await asking
        assert server.seen("initialize") == []


async def test_the_sdk_is_imported_once_and_all_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    imports, done = 0, threading.Event()

    def slow(name: str) -> None:
        nonlocal imports
        imports += 1
        done.wait(PATIENCE)

    monkeypatch.setattr(importlib, "import_module", slow)
    sdk = _Sdk()
    leaving, *waiting = [asyncio.create_task(sdk.load()) for _ in range(3)]
    await until(lambda: imports == 1)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not any(task.done() for task in waiting)
    done.set()
    await asyncio.gather(*waiting, sdk.load())
    assert imports == 1


async def test_an_import_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    sdk = _Sdk()
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", fail)
        with pytest.raises(ImportError):
            await sdk.load()
    await sdk.load()
