"""Calls over streamable HTTP: what is sent, what is understood, and what is never sent twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.testing.mcp import served
from antwort.tools.base import Progress
from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from session_kit import (
    STREAM,
    TEXT,
    TOOL,
    Asked,
    Send,
    cuts,
    event,
    pooled,
    puppet,
    result,
    says,
    sends,
    session_with,
    spec_of,
    streams,
    until,
    whole,
)


async def test_a_call_carries_the_sessions_headers_and_those_of_its_server() -> None:
    async with puppet() as server:
        theirs = {"Authorization": "Bearer t", "x-team": "a", "accept": "text/html", "Content-Length": "1", "Host": "x"}
        spec = replace(server.spec, headers=theirs)
        async with session_with(spec) as session:
            await session.call("do", "{}", key="k")
            headers = (await server.until("tools/call")).headers
            assert headers["mcp-session-id"] == "s1"
            assert headers["mcp-protocol-version"] == "2025-06-18"
            assert headers["accept"] == "application/json, text/event-stream"
            assert headers["content-type"] == "application/json"
            assert (headers["authorization"], headers["x-team"]) == ("Bearer t", "a")
            assert headers["host"] == f"127.0.0.1:{server.port}"
            assert headers["user-agent"].startswith("antwort/")  # and not the SDK's


async def test_a_call_in_the_newest_version_says_by_itself_who_asks() -> None:
    async with served() as at, session_with(spec_of(at)) as session:
        seen = (await session.call("whoami", "{}", key="k")).structured
        assert seen["version"] == "2026-07-28"
        assert seen["headers"]["mcp-method"] == "tools/call"
        assert seen["headers"]["mcp-name"] == "whoami"
        assert seen["headers"]["user-agent"].startswith("antwort/")


async def test_the_newest_version_has_no_session_whatever_the_server_says() -> None:
    async def discovered(asked: Asked, send: Send) -> None:
        about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
        await send(result(asked, about, Mcp_Session_Id="s1"))

    async with puppet() as server, session_with(server.spec) as session:
        server.acts["server/discover"] = discovered
        await session.call("do", "{}", key="k")
        (asked,) = server.seen("tools/call")
        assert "mcp-session-id" not in asked.headers
        assert asked.headers["mcp-protocol-version"] == "2026-07-28"
        assert asked.message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] == "antwort"
    assert server.seen("DELETE") == server.seen("GET") == []


async def test_the_answer_may_come_in_a_stream_behind_other_things() -> None:
    told: list[Progress] = []
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 0.5}}

    async def answer(asked: Asked, send: Send) -> None:
        params = {"progressToken": asked.number, "progress": 0.5, "total": 1, "message": "half"}
        other = {"progressToken": "somebody else's", "progress": 1}
        noise = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        await send(STREAM + b": hello\r\n\r\nid: 1\r\ndata: \r\n\r\n")
        for message in (noise, progress, {**progress, "params": other}, {**progress, "params": params}):
            await send(event(message))
        await send(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))
        await asyncio.Event().wait()  # the stream need not end for the answer to be there

    async with puppet(tools_call=answer) as server, session_with(server.spec) as session:
        outcome = await session.call("do", "{}", key="k", progress=told.append)
        assert outcome.content == ({"type": "text", "text": "done"},)
        assert told == [Progress(message="half", done=0.5, total=1.0)]


@pytest.mark.parametrize(("method", "answered"), [("ping", {"result": {}}), ("sampling/createMessage", None)])
async def test_a_request_of_the_servers_in_the_middle_of_a_call_is_answered(
    method: str, answered: dict[str, Any] | None
) -> None:
    heard = asyncio.Event()

    async def ask_back(asked: Asked, send: Send) -> None:
        await send(STREAM + event({"jsonrpc": "2.0", "id": 7, "method": method, "params": {}}))
        await heard.wait()
        await send(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))

    async def hear(asked: Asked, send: Send) -> None:
        await send(whole(202))
        heard.set()

    async with puppet(tools_call=ask_back, answer=hear) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        message = (await server.until("answer")).message
        assert message["id"] == 7
        assert message.get("error", {}).get("code") == (None if answered else -32601)


async def test_a_redirect_within_the_server_is_followed_once_for_all_calls() -> None:
    async def once(asked: Asked, send: Send) -> None:
        is_first = len(server.seen("tools/call")) == 1
        await send(whole(307, Location="/mcp/") if is_first else result(asked, TEXT))

    async with puppet(tools_call=once) as server, session_with(server.spec) as session:
        for _ in range(2):
            assert not (await session.call("do", "{}", key="k")).is_error
        numbers = [asked.number for asked in server.seen("tools/call")]
        assert numbers[0] == numbers[1] != numbers[2]
        assert all(isinstance(number, str) for number in numbers)


@pytest.mark.parametrize("location", ["/mcp/", "https://elsewhere.example/mcp", "http://127.0.0.1:1/mcp", "http://[x/"])
async def test_a_redirect_without_end_or_to_another_server_is_no_answer(location: str) -> None:
    async with puppet(tools_call=sends(whole(307, Location=location))) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == (4 if location == "/mcp/" else 1)
        server.acts["tools/call"] = says(TEXT)
        assert not (await session.call("do", "{}", key="k")).is_error


async def test_an_operators_server_may_lead_to_another_path_of_its_own() -> None:
    async def moved(asked: Asked, send: Send) -> None:
        server.acts["initialize"] = server.acts["server/discover"] = usual
        await send(whole(308, Location="/other/mcp"))

    async with puppet() as server, session_with(server.spec) as session:
        usual = server.acts["initialize"]
        server.acts["server/discover"] = server.acts["initialize"] = moved
        assert (await session.tools()).tools


async def test_a_session_that_the_server_has_forgotten_is_made_anew_and_the_call_goes_once_more() -> None:
    async def forgotten(asked: Asked, send: Send) -> None:
        known = asked.headers["mcp-session-id"] != "s1"
        await send(result(asked, TEXT) if known else whole(404, b"no such session", "text/plain"))

    async with puppet(tools_call=forgotten) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 2
        assert len(server.seen("tools/call")) == 2


@pytest.mark.parametrize("hint", [None, "readOnlyHint", "idempotentHint"])
async def test_a_bad_request_is_not_made_again_unless_that_does_no_harm(hint: str | None) -> None:
    """Some servers say so of a session that they do not know; others after they have begun."""
    tool = TOOL if hint is None else {**TOOL, "annotations": {hint: True}}

    async def bad_at_first(asked: Asked, send: Send) -> None:
        known = asked.headers["mcp-session-id"] != "s1"
        await send(result(asked, TEXT) if known else whole(400, b"no", "text/plain"))

    listed = says({"tools": [tool]})
    async with puppet(tools_list=listed, tools_call=bad_at_first) as server, session_with(server.spec) as session:
        await session.tools()
        if hint is None:
            with pytest.raises(ServerUnavailable, match="HTTP status 400"):
                await session.call("do", "{}", key="k")
            assert len(server.seen("tools/call")) == 1
        assert not (await session.call("do", "{}", key="k")).is_error  # over a fresh session
        assert (server.sessions, len(server.seen("tools/call"))) == (2, 2)


@pytest.mark.parametrize("status", [400, 404])
async def test_without_a_session_nothing_is_asked_twice(status: int) -> None:
    refused = sends(whole(status, b'{"detail": "no such invoice"}'))
    async with puppet(initialize=_sessionless, tools_call=refused) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match=f"HTTP status {status}"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 1


async def _sessionless(asked: Asked, send: Send) -> None:
    agreed = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    await send(result(asked, agreed))


async def test_a_refusal_that_names_no_call_keeps_its_words() -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad arguments"}}
    refused = sends(whole(400, json.dumps(error).encode()))
    async with puppet(tools_call=refused) as server, session_with(server.spec) as session:
        outcome = await session.call("do", "{}", key="k")
        assert (outcome.is_error, outcome.content[0]["text"]) == (True, "bad arguments")
        assert (server.sessions, len(server.seen("tools/call"))) == (1, 1)


async def test_a_call_that_is_not_found_over_a_fresh_session_either_is_told_the_status() -> None:
    async with puppet(tools_call=sends(whole(404))) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="HTTP status 404"):
            await session.call("do", "{}", key="k")
        assert server.sessions == 2


async def test_calls_that_are_not_found_keep_nobody_from_the_server() -> None:
    async def find(asked: Asked, send: Send) -> None:
        await send(result(asked, TEXT) if asked.message["params"]["name"] == "do" else whole(404))

    async with puppet(tools_call=find) as server, session_with(server.spec) as session:
        for _ in range(5):
            with pytest.raises(ServerUnavailable, match="HTTP status 404"):
                await session.call("gone", "{}", key="k")
        assert not (await session.call("do", "{}", key="k")).is_error


async def test_an_answer_that_says_that_it_is_not_packed_is_read_however_it_says_so() -> None:
    async def plainly(asked: Asked, send: Send) -> None:
        await send(result(asked, TEXT, Content_Encoding="Identity"))

    async with puppet(tools_call=plainly) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error


async def test_an_error_of_the_call_itself_is_no_forgotten_session() -> None:
    async def refuse(asked: Asked, send: Send) -> None:
        error = {"code": -32602, "message": "no such tool"}
        await send(whole(400, json.dumps({"jsonrpc": "2.0", "id": asked.number, "error": error}).encode()))

    async with puppet(tools_call=refuse) as server, session_with(server.spec) as session:
        outcome = await session.call("do", "{}", key="k")
        assert outcome.is_error
        assert outcome.content[0]["text"] == "no such tool"
        assert server.sessions == 1


async def test_a_call_that_was_cut_off_is_not_made_again() -> None:
    async with puppet() as server, session_with(server.spec) as session:
        await session.call("do", "{}", key="k")  # leaves a connection that the next one takes
        server.acts["tools/call"] = cuts
        with pytest.raises(ServerUnavailable, match="whether the tool has run is not known"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 2
        server.acts["tools/call"] = says(TEXT)
        assert not (await session.call("do", "{}", key="k")).is_error


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint"])
async def test_a_call_that_was_cut_off_is_made_again_where_the_tool_says_that_it_may(hint: str) -> None:
    harmless = says({"tools": [{**TOOL, "annotations": {hint: True}}]})
    async with puppet(tools_list=harmless) as server, session_with(server.spec) as session:
        await session.tools()
        await session.call("do", "{}", key="k")

        async def cut_once(asked: Asked, send: Send) -> None:
            server.acts["tools/call"] = says(TEXT)
            raise ConnectionAbortedError

        server.acts["tools/call"] = cut_once
        assert not (await session.call("do", "{}", key="k")).is_error
        assert len({asked.number for asked in server.seen("tools/call")[1:]}) == 1


ODD = {
    "another id": lambda asked: whole(200, json.dumps({"jsonrpc": "2.0", "id": "x", "result": TEXT}).encode()),
    "no result": lambda asked: whole(200, json.dumps({"jsonrpc": "2.0", "id": asked.number}).encode()),
    "a batch": lambda asked: whole(200, json.dumps([{"id": asked.number, "result": TEXT}]).encode()),
    "no JSON": lambda asked: whole(200, b"<html>"),
    "deep JSON": lambda asked: whole(200, b"[" * 100_000),
    "another type": lambda asked: whole(200, b"{}", "text/html"),
    "packed": lambda asked: whole(200, b"\x1f\x8b", Content_Encoding="gzip"),
    "nothing to come": lambda asked: whole(202),
    "an odd error": lambda asked: whole(200, json.dumps({"id": asked.number, "error": "bad"}).encode()),
    "input wanted": lambda asked: result(asked, {"resultType": "input_required", "inputRequests": {}}),
    "no content": lambda asked: result(asked, {"toolResult": 7}),
    "odd content": lambda asked: result(asked, {"content": "text", "structuredContent": {}}),
    "no HTTP": lambda asked: b"220 mail.example.com ESMTP\r\n",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_an_answer_that_is_none_fails_clearly_and_once(odd: Any) -> None:
    async def answer(asked: Asked, send: Send) -> None:
        await send(odd(asked))

    async with puppet(tools_call=answer) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match=r"MCP server|input in the middle"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 1
        server.acts["tools/call"] = says(TEXT)
        assert not (await session.call("do", "{}", key="k")).is_error


async def test_a_stream_that_ends_without_an_answer_is_no_answer() -> None:
    unanswered = streams({"jsonrpc": "2.0", "method": "notifications/message"})
    async with puppet(tools_call=unanswered) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")


@pytest.mark.parametrize("framing", ["json", "stream"])
async def test_fifty_megabytes_are_not_read_to_their_end(framing: str) -> None:
    sent = 0

    async def flood(asked: Asked, send: Send) -> None:
        nonlocal sent
        head = STREAM + b"data: " if framing == "stream" else whole(200).replace(b"Length: 0", b"Length: 50000000")
        await send(head)
        while sent < 50_000_000:
            await send(b"x" * 65536)
            sent += 65536

    async with puppet(tools_call=flood) as server, session_with(replace(server.spec, largest=1_000_000)) as session:
        with pytest.raises(ServerUnavailable, match="too long"):
            await session.call("do", "{}", key="k")
        assert sent < 20_000_000


async def test_other_credentials_are_asked_for_only_once() -> None:
    async with puppet(tools_call=sends(whole(401))) as server, session_with(server.spec) as session:
        with pytest.raises(Unauthorized):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 1


async def test_a_list_that_changes_during_a_call_is_asked_for_again() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with puppet(tools_call=streams(changed, answer=TEXT)) as server, session_with(server.spec) as session:
        await session.tools()
        await session.call("do", "{}", key="k")
        await server.until("tools/list", 2)


async def test_what_is_parted_in_the_head_of_the_newest_version_follows_the_list() -> None:
    from antwort.testing.mcp import TryServer

    server = TryServer()
    schema = server.tools["whoami"].listed.input_schema
    schema["properties"]["city"] = {"type": "string", "x-mcp-header": "City"}
    async with served(server) as at, session_with(spec_of(at)) as session:
        await session.tools()
        seen = (await session.call("whoami", '{"city": "Zürich"}', key="k")).structured
        assert seen["headers"]["mcp-param-city"] == "=?base64?WsO8cmljaA==?="
    schema["properties"].clear()


async def test_a_tool_that_was_never_listed_is_listed_when_the_server_misses_a_header() -> None:
    from antwort.testing.mcp import TryServer

    server = TryServer()
    schema = server.tools["whoami"].listed.input_schema
    schema["properties"]["city"] = {"type": "string", "x-mcp-header": "City"}
    async with served(server) as at, session_with(spec_of(at)) as session:
        assert not (await session.call("whoami", '{"city": "Bern"}', key="k")).is_error
        assert server.record.count("listed") == 1
    schema["properties"].clear()


async def test_a_call_that_is_under_way_is_not_hurt_by_a_session_that_is_made_anew() -> None:
    let_go = asyncio.Event()

    async def act(asked: Asked, send: Send) -> None:
        if asked.message["params"]["name"] == "long":
            await let_go.wait()
            await send(result(asked, TEXT))
        else:
            await send(result(asked, TEXT) if asked.headers["mcp-session-id"] == "s2" else whole(404))

    async with puppet(tools_call=act) as server, pooled() as pool:
        session = pool.get(server.spec)
        long = asyncio.create_task(session.call("long", "{}", key="k"))
        await server.until("tools/call")
        assert not (await session.call("short", "{}", key="k")).is_error
        assert server.seen("DELETE") == []
        let_go.set()
        assert not (await long).is_error
        await until(lambda: [asked.headers["mcp-session-id"] for asked in server.seen("DELETE")] == ["s1"])
