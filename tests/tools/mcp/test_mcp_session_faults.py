"""Servers that are down, hang, die, come back or talk nonsense: those who ask hear it soon, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from antwort.net.ssrf import AddressPolicy
from antwort.testing.mcp import Faults, TryServer, served
from antwort.testing.mcp.faults import Garbage
from antwort.tools.mcp.base import ClientCredentials, NotReached, ServerSpec, ServerUnavailable, Unauthorized
from jumping_time import jumping_time
from mcp_kit import STDIO, mcp_process
from session_kit import (
    PATIENCE,
    Asked,
    Send,
    Session,
    cuts,
    hangs,
    pooled,
    puppet,
    sends,
    session_with,
    spec_of,
    until,
    whole,
)


async def refused(session: Session) -> ServerUnavailable:
    """What the session says. No cancellation that nobody asked for comes through, nor any group of exceptions."""
    with pytest.raises(ServerUnavailable) as caught:
        await session.call("do", "{}", key="k")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    return caught.value


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_is_down_is_told_without_its_address_and_left_alone_for_growing_pauses(
    transport: str,
) -> None:
    async with puppet() as server:
        pass
    spec = replace(server.spec, transport=transport)
    async with session_with(spec) as session:
        first, second = await refused(session), await refused(session)
        assert isinstance(first, NotReached)
        assert str(first) == str(second) == "The MCP server cannot be reached."
        third = await refused(session)
        assert isinstance(third, NotReached)
        assert "The next attempt is made in 1 s." in str(third)
        assert str(server.port) not in str(third)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_header_that_cannot_be_sent_is_a_server_that_cannot_be_used(transport: str) -> None:
    async with puppet() as server:
        spec = replace(server.spec, transport=transport, headers={"X-Key": "schl\u00fcssel\u2026"})
        async with session_with(spec) as session:
            assert "schl" not in str(await refused(session))
            assert server.asked == []


async def test_a_server_that_was_down_is_used_when_it_is_back() -> None:
    async with puppet() as server:
        pass
    async with session_with(server.spec) as session:
        await refused(session)
        await server.start()
        assert not (await session.call("do", "{}", key="k")).is_error
        await server.stop()


async def test_a_server_that_hangs_in_the_handshake_delays_nobody_for_longer_than_it_may() -> None:
    async with puppet(initialize=hangs) as server, puppet() as other, pooled() as pool:
        hung = pool.get(replace(server.spec, connect=1.0))
        asking = [asyncio.create_task(refused(hung)) for _ in range(3)]
        await pool.get(other.spec).tools()
        assert not any(task.done() for task in asking)
        said = {str(fault) for fault in await asyncio.gather(*asking)}
        assert said == {"The MCP server takes too long to connect to."}


async def test_a_server_that_breaks_off_at_the_end_of_the_handshake_is_not_waited_for() -> None:
    async with puppet() as server, session_with(replace(server.spec, connect=3 * PATIENCE)) as session:
        server.acts["notifications/initialized"] = cuts
        await refused(session)
        assert server.seen("tools/call") == []


@pytest.mark.parametrize("status", [302, 401, 403, 500])
async def test_whether_the_end_of_the_handshake_is_taken_does_not_matter(status: int) -> None:
    async with puppet() as server, session_with(server.spec) as session:
        server.acts["notifications/initialized"] = sends(whole(status, Location="https://elsewhere.example/"))
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 1


@jumping_time
async def test_the_end_of_the_handshake_may_take_its_share_of_the_time_for_connecting() -> None:
    async def slow(asked: Asked, send: Send) -> None:
        await asyncio.sleep(7.0)
        await send(whole(202))

    async with puppet() as server, session_with(replace(server.spec, connect=30.0)) as session:
        server.acts["notifications/initialized"] = slow
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 1


async def test_a_server_that_does_not_answer_what_it_does_not_know_is_asked_in_the_older_way() -> None:
    async with puppet() as server, session_with(replace(server.spec, connect=2.0)) as session:
        server.acts["server/discover"] = hangs
        assert len((await session.tools()).tools) == 1


async def test_a_server_that_breaks_off_at_what_it_does_not_know_is_asked_in_the_older_way() -> None:
    async with puppet() as server, session_with(server.spec) as session:
        server.acts["server/discover"] = cuts
        assert len((await session.tools()).tools) == 1


@pytest.mark.parametrize("oldest", [None, "2025-06-18"])
async def test_a_server_that_wants_other_credentials_is_told_apart(oldest: str | None) -> None:
    server = TryServer(faults=Faults(token="right", oldest=oldest))
    async with served(server) as at, pooled() as pool:
        spec = spec_of(at)
        assert isinstance(await refused(pool.get(spec)), Unauthorized)
        let_in = pool.get(replace(spec, headers={"Authorization": "Bearer right"}))
        assert not (await let_in.call("echo", '{"text": "hi"}', key="k")).is_error
        server.faults = Faults(token="another", oldest=oldest)
        assert isinstance(await refused(let_in), Unauthorized)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("refused_at", ["initialize", "tools/list", "tools/call"])
async def test_a_token_that_is_not_taken_any_more_is_renewed_once(status: int, refused_at: str) -> None:
    """One that ends in the middle of a session is refused in either way."""
    tokens = 0

    async def give_out(asked: Asked, send: Send) -> None:
        nonlocal tokens
        tokens += 1
        await send(whole(200, json.dumps({"access_token": f"token-{tokens}", "token_type": "Bearer"}).encode()))

    async with puppet(form=give_out) as server:
        answer = server.acts[refused_at]

        async def refuse_first(asked: Asked, send: Send) -> None:
            is_first = asked.headers["authorization"] == "Bearer token-1"
            await (send(whole(status)) if is_first else answer(asked, send))

        server.acts[refused_at] = refuse_first
        token_url = f"http://127.0.0.1:{server.port}/token"
        oauth = ClientCredentials(client_id="a", client_secret="b", token_url=token_url)
        async with session_with(replace(server.spec, oauth=oauth)) as session:
            await session.tools()
            assert not (await session.call("do", "{}", key="k")).is_error
            assert (tokens, len(server.seen(refused_at))) == (2, 2)
            server.acts["tools/call"] = sends(whole(status))
            assert isinstance(await refused(session), Unauthorized)
            assert tokens == 3


async def test_the_older_transport_tells_other_credentials_apart_as_well() -> None:
    server = TryServer(faults=Faults(token="right"))
    async with served(server) as at, session_with(spec_of(at, "sse")) as session:
        assert isinstance(await refused(session), Unauthorized)


@pytest.mark.parametrize("kind", ["text", "json", "shape"])
@pytest.mark.parametrize("oldest", [None, "2025-06-18"])
async def test_garbage_in_the_place_of_an_answer_is_a_server_that_cannot_be_used(
    kind: Garbage, oldest: str | None
) -> None:
    server = TryServer(faults=Faults(garbage=("call",), garbage_as=kind, oldest=oldest))
    async with served(server) as at, session_with(spec_of(at)) as session:
        assert "did not answer as one" in str(await refused(session))
        server.faults = Faults(oldest=oldest)
        assert not (await session.call("echo", '{"text": "hi"}', key="k")).is_error


@pytest.mark.parametrize("kind", ["text", "json", "shape"])
async def test_garbage_in_the_handshake_is_a_server_that_cannot_be_used(kind: Garbage) -> None:
    server = TryServer(faults=Faults(garbage=("initialize",), garbage_as=kind))
    async with served(server) as at, session_with(spec_of(at)) as session:
        await refused(session)


@pytest.mark.parametrize("path", ["mcp", "sse"])
async def test_a_server_that_is_killed_in_the_middle_of_a_call_and_comes_back(tmp_path: Path, path: str) -> None:
    async with mcp_process(tmp_path, path=path) as server, pooled() as pool:
        session = pool.get(ServerSpec(label="x", url=server.url, transport="sse" if path == "sse" else "http"))
        calling = asyncio.create_task(session.call("wait", "{}", key="k"))
        await until(lambda: server.count("called", "wait") == 1)
        await server.kill()
        with pytest.raises(ServerUnavailable):
            await calling
        await server.start()
        assert not (await session.call("echo", '{"text": "back"}', key="k")).is_error
        assert server.count("called", "wait") == 1


async def test_a_restarted_server_that_does_not_know_the_session_gets_a_fresh_one(tmp_path: Path) -> None:
    async with mcp_process(tmp_path, "--oldest", "2025-06-18") as server, pooled() as pool:
        session = pool.get(ServerSpec(label="x", url=server.url))
        assert not (await session.call("echo", '{"text": "hi"}', key="k")).is_error
        await server.kill()
        await server.start()
        outcomes = await asyncio.gather(*(session.call("echo", '{"text": "hi"}', key="k") for _ in range(5)))
        assert not any(outcome.is_error for outcome in outcomes)


async def test_a_program_that_dies_is_started_again() -> None:
    spec = ServerSpec(label="x", transport="stdio", command=STDIO, connect=PATIENCE)
    async with session_with(spec) as session:
        assert "ended before the answer" in str(await _died(session))
        assert not (await session.call("echo", '{"text": "again"}', key="k")).is_error


async def _died(session: Session) -> ServerUnavailable:
    with pytest.raises(ServerUnavailable) as caught:
        await session.call("die", "{}", key="k")
    return caught.value


async def test_a_program_that_cannot_be_started_is_told_without_its_name() -> None:
    spec = ServerSpec(label="x", transport="stdio", command=("/nowhere/to-be-found",))
    async with session_with(spec) as session:
        assert str(await refused(session)) == "The program of the MCP server cannot be started."


async def test_a_program_that_ends_at_once_is_not_started_over_and_over(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"open({str(started)!r}, 'a').write('x')"
    spec = ServerSpec(label="x", transport="stdio", command=(sys.executable, "-c", script), connect=PATIENCE)
    async with session_with(spec) as session:
        for _ in range(10):
            await refused(session)
        assert len(started.read_text()) <= 6


async def test_an_address_out_of_reach_is_never_asked() -> None:
    async with puppet() as server, pooled(reach=AddressPolicy()) as pool:
        fault = await refused(pool.get(replace(server.spec, is_untrusted=True)))
        assert isinstance(fault, NotReached)
        assert server.asked == []


async def test_a_hung_call_ends_with_whoever_waits_for_it_and_the_next_one_works() -> None:
    server = TryServer(faults=Faults(hang=("call",)))
    async with served(server) as at, session_with(spec_of(at)) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.call("echo", '{"text": "hi"}', key="k")
        server.faults = Faults()
        assert not (await session.call("echo", '{"text": "hi"}', key="k")).is_error


@pytest.mark.parametrize("status", [403, 405, 418, 429, 500, 503])
async def test_a_status_that_is_no_answer_is_a_server_that_cannot_be_used(status: int) -> None:
    async def answer(asked: Asked, send: Send) -> None:
        await send(whole(status, b"secrets of the server"))

    async with puppet(tools_call=answer) as server, session_with(server.spec) as session:
        fault = await refused(session)
        assert "secrets" not in str(fault)
        assert isinstance(fault, Unauthorized) == (status == 403)
        assert len(server.seen("tools/call")) == 1


async def test_the_words_of_a_failed_handshake_are_not_repeated() -> None:
    broken = sends(whole(500, b"secrets of the server"))
    async with puppet(initialize=broken) as server, session_with(server.spec) as session:
        assert "secrets" not in str(await refused(session))
