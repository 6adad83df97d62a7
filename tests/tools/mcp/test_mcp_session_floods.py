"""Servers that talk without end, end at once, or break in the background: they cost little, and nobody's call."""

from __future__ import annotations

import asyncio
import logging
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from jumping_time import jumping_time
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
    streams,
    until,
    whole,
)

NEAR = AddressPolicy(loopback=True)


def floods(*methods: str) -> Act:
    """A stream of what the server says by itself, with one request after the other."""

    async def act(asked: Asked, send: Send) -> None:
        requests = [{"jsonrpc": "2.0", "id": i, "method": method} for i, method in enumerate(methods)]
        await send(STREAM + b"".join(map(event, requests)))
        await asyncio.Event().wait()

    return act


@jumping_time
async def test_a_server_that_takes_no_answers_to_what_it_asks_loses_its_session() -> None:
    async with puppet(GET=floods(*["ping"] * 1000), answer=hangs) as server, pooled() as pool:
        await pool.get(server.spec).tools()
        await asyncio.sleep(5)
        assert pool.open_sessions == 0
        assert len(server.seen("answer")) <= 1


async def test_a_server_that_asks_for_much_at_once_is_answered_all_of_it() -> None:
    async with puppet(GET=floods(*["ping"] * 100)) as server, session_with(server.spec) as session:
        await session.tools()
        await server.until("answer", 100)
        assert [asked.number for asked in server.seen("answer")] == list(range(100))
        assert server.sessions == 1


@jumping_time
async def test_what_a_server_asks_in_one_call_is_not_held_against_other_calls() -> None:
    asks = streams({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"}, answer=TEXT)
    async with puppet(tools_call=asks, answer=hangs) as server, session_with(server.spec) as session:
        results = await asyncio.gather(*[session.call("do", "{}", key=str(n)) for n in range(60)])
    assert [each.content for each in results] == [results[0].content] * 60


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
            await pool.get(replace(server.spec, is_untrusted=True)).tools()


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


@jumping_time
async def test_streams_that_end_at_once_are_not_asked_for_at_once() -> None:
    asked_at = list[float]()

    async def ends(asked: Asked, send: Send) -> None:
        asked_at.append(asyncio.get_running_loop().time())
        await send(STREAM + b"retry: 0\n\n")
        raise ConnectionAbortedError

    async with puppet(GET=ends) as server, session_with(server.spec) as session:
        await session.tools()
        await asyncio.sleep(3.5)
        assert len(asked_at) in (3, 4)
        assert all(later - earlier >= 1.0 for earlier, later in pairwise(asked_at))


# ---- what nobody has asked for ----

UNASKED: dict[str, bytes] = {
    "logs": event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}),
    "progress of nothing": event(
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "none", "progress": 1}}
    ),
    "news of another kind": event({"jsonrpc": "2.0", "method": "notifications/whatever"}),
    "requests": event({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
    "answers": event({"jsonrpc": "2.0", "id": 1_000_000, "result": {}}),
    "comments": b": still here\n\n",
    "events without data": b"data:\n\n",
    "no messages": b"data: what is this?\n\n",
}
ENDLESS = b": still here\n" * 2_000
CLOSED = "A stream of an MCP server is closed: it sends too much that nobody asked for."
LITTLE = 2_000
"""Bytes of an allowance that a few messages use up."""


def without_end(said: bytes, begun: bytes = STREAM) -> Act:
    async def act(asked: Asked, send: Send) -> None:
        await send(begun + said * 1_000)
        await asyncio.Event().wait()

    return act


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.message == CLOSED for record in caplog.records)


@pytest.mark.parametrize("said", [*UNASKED.values(), ENDLESS], ids=[*UNASKED, "an event without end"])
async def test_a_stream_of_what_nobody_asked_for_is_closed_and_calls_go_on(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="antwort.tools.mcp")
    async with puppet(GET=without_end(said)) as server, pooled(reach=NEAR) as pool:
        session = pool.get(replace(server.spec, is_untrusted=True, unsolicited=LITTLE))
        await session.tools()
        await until(lambda: told(caplog) == 1)
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 1
        assert len(server.seen("GET")) == 1  # the next one comes after a pause
        assert len(server.seen("answer")) <= 1


@pytest.mark.parametrize("said", [said for name, said in UNASKED.items() if name not in ("answers", "no messages")])
async def test_a_call_whose_stream_is_full_of_what_nobody_asked_for_fails(said: bytes) -> None:
    async with puppet(tools_call=without_end(said)) as server, pooled(reach=NEAR) as pool:
        session = pool.get(replace(server.spec, is_untrusted=True, unsolicited=LITTLE))
        with pytest.raises(ServerUnavailable, match="sends too much that nobody asked for"):
            await session.call("do", "{}", key="k")
        server.acts["tools/call"] = says(TEXT)
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 1


@pytest.mark.parametrize(
    "said",
    [*UNASKED.values(), ENDLESS, b"event: endpoint\ndata: /other\n\n"],
    ids=[*UNASKED, "an event without end", "addresses for messages"],
)
async def test_a_session_of_the_older_kind_that_sends_what_nobody_asked_for_ends_and_is_not_had_again_at_once(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="antwort.tools.mcp")
    listed = asyncio.Event()

    async def stream(asked: Asked, send: Send) -> None:
        answers.append(send)
        await send(STREAM + b"event: endpoint\ndata: /post\n\n")
        await listed.wait()
        await without_end(said, b"")(asked, send)

    def by_stream(value: object) -> Act:
        async def act(asked: Asked, send: Send) -> None:
            await send(whole(202))
            await answers[-1](event({"jsonrpc": "2.0", "id": asked.number, "result": value}))

        return act

    answers = list[Send]()
    agreed = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    acts = {"initialize": by_stream(agreed), "tools_list": by_stream({"tools": [TOOL]})}
    async with puppet(GET=stream, **acts) as server, pooled(reach=NEAR) as pool:
        session = pool.get(replace(server.spec, transport="sse", is_untrusted=True, unsolicited=LITTLE))
        await session.tools()
        listed.set()
        await until(lambda: pool.open_sessions == 0)
        assert told(caplog) == 1
        with pytest.raises(ServerUnavailable, match=r"nobody asked for\. The next attempt is made in \d+ s"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("GET")) == 1


async def test_a_server_that_logs_much_and_tells_how_far_it_has_come_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = list[float | None]()

    async def busy(asked: Asked, send: Send) -> None:
        token = asked.message["params"]["_meta"]["progressToken"]
        await send(STREAM + UNASKED["logs"] * 200 + b": still here\n\n" * 200)
        for done in range(500):
            params = {"progressToken": token, "progress": done}
            await send(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
        await send(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))

    async with puppet(GET=floods(*["ping"] * 50), tools_call=busy) as server, pooled(reach=NEAR) as pool:
        session = pool.get(replace(server.spec, is_untrusted=True))
        outcome = await session.call("do", "{}", key="k", progress=lambda progress: heard.append(progress.done))
        assert not outcome.is_error
        assert heard == list(range(500))
        assert told(caplog) == 0


@jumping_time
async def test_progress_that_a_call_has_asked_for_closes_no_stream() -> None:
    heard = list[float | None]()

    async def busy(asked: Asked, send: Send) -> None:
        params = {"progressToken": asked.message["params"]["_meta"]["progressToken"], "progress": 1}
        await send(STREAM + event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}) * 300)
        await send(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))

    async with puppet(tools_call=busy) as server, pooled() as pool:
        session = pool.get(replace(server.spec, unsolicited=10 * LITTLE))
        outcome = await session.call("do", "{}", key="k", progress=lambda progress: heard.append(progress.done))
        assert not outcome.is_error
        assert len(heard) == 300


@jumping_time
async def test_an_operators_tool_that_logs_without_measure_is_only_read_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="antwort.tools.mcp")

    async def busy(asked: Asked, send: Send) -> None:
        await send(STREAM + UNASKED["logs"] * 100)
        await send(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))

    async with (
        puppet(tools_call=busy) as server,
        session_with(replace(server.spec, unsolicited=20 * LITTLE)) as session,
    ):
        began = asyncio.get_running_loop().time()
        assert not (await session.call("do", "{}", key="k")).is_error
        assert asyncio.get_running_loop().time() - began > 4
    assert told(caplog) == 0


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
    async with puppet(tools_list=hangs) as server, pooled(idle=0.01) as pool:
        for _ in range(5):
            asking = asyncio.create_task(pool.get(server.spec).tools())
            await server.until("tools/list", server.sessions or 1)
            asking.cancel()
            await asyncio.wait([asking])
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
