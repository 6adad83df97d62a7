"""Calls over a session, by every way there is to a server."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import textwrap
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from antwort.testing.mcp import served
from antwort.tools.base import Progress
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import HEADER_MISMATCH
from session_kit import (
    PATIENCE,
    WAYS,
    Act,
    Asked,
    Send,
    puppet,
    sends,
    session_by,
    session_with,
    spec_of,
    until,
    whole,
)


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_is_answered(way: str) -> None:
    async with session_by(way) as (session, _):
        outcome = await session.call("add", '{"a": 1, "b": 2}', key="k")
        assert outcome.structured == {"sum": 3}
        assert [part["type"] for part in outcome.content] == ["text"]
        image = await session.call("image", "{}", key="k")
        assert [part["type"] for part in image.content] == ["text", "image"]
        assert image.content[1]["mimeType"] == "image/png"


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"], ids=["LF", "CR", "CRLF"])
@pytest.mark.parametrize("way", WAYS)
async def test_arguments_may_be_written_on_several_lines(way: str, line_break: str) -> None:
    arguments = line_break.join(["{", '  "a": 1,', '  "b": 2', "}"])
    async with session_by(way) as (session, _):
        assert (await session.call("add", arguments, key="k")).structured == {"sum": 3}


@pytest.mark.parametrize("way", WAYS)
async def test_a_failure_of_the_tool_and_a_refusal_of_the_server_are_outcomes_alike(way: str) -> None:
    async with session_by(way) as (session, _):
        for name, words in (("fail", "It did not work"), ("raise", "the tool broke"), ("nothing", "Unknown tool")):
            outcome = await session.call(name, "{}", key="k")
            assert outcome.is_error
            assert words in outcome.content[0]["text"]


@pytest.mark.parametrize("way", WAYS)
async def test_progress_is_told_when_somebody_wants_to_hear_it(way: str) -> None:
    told: list[Progress] = []
    async with session_by(way) as (session, _):
        outcome = await session.call("progress", '{"steps": 3}', key="k", progress=told.append)
        assert not outcome.is_error
        if way != "older, in JSON":  # there is no room for it in such an answer
            await until(lambda: len(told) == 3)
            assert told[-1] == Progress(message="step 3", done=3.0, total=3.0)


@pytest.mark.parametrize("way", ["sse", "stdio"])
async def test_who_fails_at_hearing_of_progress_ends_no_session(way: str) -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError("no room for it")

    async with session_by(way) as (session, _):
        assert not (await session.call("progress", '{"steps": 3}', key="k", progress=fail)).is_error


@pytest.mark.parametrize("way", [way for way in WAYS if way != "stdio"])
async def test_a_cancelled_call_is_cancelled_at_the_server(way: str) -> None:
    async with session_by(way) as (session, server):
        assert server is not None
        calling = asyncio.create_task(session.call("wait", "{}", key="k"))
        await server.record.until_seen("called", "wait")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(1.0):
            await server.record.until_seen("cancelled", "wait")
        assert not (await session.call("echo", '{"text": "on we go"}', key="k")).is_error


PROGRAM = """
    import json, sys
    for line in sys.stdin:
        asked = json.loads(line)
        method, number = asked.get("method"), asked.get("id")
        if method == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        elif method == "notifications/cancelled":
            open(sys.argv[1], "w").write(json.dumps(asked["params"]))
            continue
        elif method == "server/discover":
            print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}}), flush=True)
            continue
        elif method == "tools/call":
            open(sys.argv[1] + ".called", "w").write(str(number))
            continue
        else:
            continue
        print("not a message")
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""


async def test_a_program_hears_of_a_cancelled_call(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    command = (sys.executable, "-c", textwrap.dedent(PROGRAM), str(heard))
    async with session_with(ServerSpec(label="x", transport="stdio", command=command, connect=PATIENCE)) as session:
        calling = asyncio.create_task(session.call("do", "{}", key="k"))
        called = heard.with_name("heard.called")
        await until(lambda: called.exists() and bool(called.read_text()))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: heard.exists() and called.read_text() in heard.read_text())


async def test_whoever_is_cancelled_does_not_wait_for_a_server_that_hangs() -> None:
    async def hang(asked: object, send: object) -> None:
        await asyncio.Event().wait()

    async with puppet(tools_call=hang, notifications_cancelled=hang) as server, session_with(server.spec) as session:
        calling = asyncio.create_task(session.call("do", "{}", key="k"))
        asked = await server.until("tools/call")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        told = await server.until("notifications/cancelled")
        assert told.message["params"]["requestId"] == asked.number
        assert told.headers["mcp-session-id"] == "s1"


async def test_calls_run_side_by_side() -> None:
    async with served() as at, session_with(spec_of(at)) as session:
        calls = [session.call("meet", '{"name": "x", "party": 20}', key=str(i)) for i in range(20)]
        outcomes = await asyncio.gather(*calls)
        assert not any(outcome.is_error for outcome in outcomes)


@pytest.mark.parametrize("way", ["newest", "older", "older, in JSON", "sse"])
async def test_an_answer_that_is_too_long_is_refused(way: str) -> None:
    from msgspec.structs import replace

    from antwort.testing.mcp import Faults, TryServer

    server = TryServer(faults=Faults(oldest="2025-06-18" if way.startswith("older") else None))
    async with served(server, json_answers=way.endswith("JSON")) as at:
        spec = replace(spec_of(at, way), largest=200_000)
        async with session_with(spec) as session:
            with pytest.raises(ServerUnavailable):
                await session.call("big", '{"bytes": 5000000}', key="k")
            assert not (await session.call("echo", '{"text": "still there"}', key="k")).is_error


async def test_what_is_asked_goes_with_the_idempotency_key_and_without_a_token_for_progress() -> None:
    async with puppet() as server, session_with(server.spec) as session:
        await session.call("do", '{"big": 12345678901234567890123}', key="call_1")
        asked = await server.until("tools/call")
        params: dict[str, Any] = asked.message["params"]
        assert params["_meta"] == {"antwort/idempotency-key": "call_1"}
        assert params["arguments"] == {"big": 12345678901234567890123}
        await session.call("do", "{}", key="call_2", progress=lambda _: None)
        again = await server.until("tools/call", 2)
        assert again.message["params"]["_meta"]["progressToken"] == again.number
        assert isinstance(again.number, str)


def refuses(code: int) -> Act:
    async def act(asked: Asked, send: Send) -> None:
        error = {"code": code, "message": "no"}
        await send(whole(200, json.dumps({"jsonrpc": "2.0", "id": asked.number, "error": error}).encode()))

    return act


class Listener:
    def __call__(self, progress: Progress) -> None:
        pass


@pytest.mark.parametrize(
    "act", [refuses(-32602), refuses(HEADER_MISMATCH), sends(whole(307, Location="/mcp2"))], ids=range(3)
)
async def test_nothing_of_the_run_is_held_on_to_by_how_a_call_was_refused(act: Act) -> None:
    async with puppet(tools_call=act) as server, session_with(server.spec) as session:
        listener = Listener()
        heard = weakref.ref(listener)
        gc.disable()  # it would go through all that lives to find out
        try:
            with suppress(ServerUnavailable):
                await session.call("do", "{}", key="k", progress=listener)
            del listener
            await until(lambda: heard() is None)
        finally:
            gc.enable()
