"""Limits on what a client may send, on how long it may take, and on how long it is waited for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import TextDelta
from antwort.server.http import Transport
from antwort.server.protocol import HEAD_LIMIT, HttpProtocol
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, say
from jumping_time import jumping_time
from raw_http import Reply, Wire, connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until, until_quiet


def scripted(*answers: Answer) -> Engine:
    return Engine(ScriptedProvider(*answers), store=MemoryStore())


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(scripted(*[answer(say("Hello"))] * 3)) as running:
        yield running


# ---- heads ----


async def refused(wire: Wire) -> Reply:
    reply = await wire.reply()
    assert (reply.status, reply.error["code"]) == (431, "request_head_too_large")
    assert (reply.headers["connection"], reply.headers["x-should-retry"]) == ("close", "false")
    assert await wire.reader.read() == b""
    return reply


@pytest.mark.proves("TR-JSON")
@pytest.mark.parametrize(
    "lines",
    [b"x: " + b"y" * 2**20, b"\r\n".join([b"a: b"] * 50_000), b"x: " + b"y" * HEAD_LIMIT],
    ids=["one large header", "many small headers", "just over the limit"],
)
async def test_a_head_too_large_is_a_431(server: Serving, lines: bytes) -> None:
    async with connected(server.port) as wire:
        wire.writer.write(b"GET /healthz HTTP/1.1\r\n" + lines + b"\r\n\r\n")
        await refused(wire)


async def test_an_address_too_large_is_a_431(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("GET", "/" + "x" * HEAD_LIMIT)
        await refused(wire)


async def test_a_head_without_end_is_not_read_to_its_end(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.writer.write(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 2 * HEAD_LIMIT)
        await refused(wire)


async def test_the_limit_of_a_head_can_be_set() -> None:
    async with serving(scripted(), head_limit=2000) as server:
        async with connected(server.port) as wire:
            wire.send("GET", "/healthz", None, {"x": "y" * 1900})
            assert (await wire.reply()).status == 200
        async with connected(server.port) as wire:
            wire.send("GET", "/healthz", None, {"x": "y" * 2000})
            assert "2000 bytes" in (await refused(wire)).error["message"]


async def test_a_head_is_counted_for_each_request_and_without_its_body(server: Serving) -> None:
    big = "x" * (HEAD_LIMIT - 1000)
    async with connected(server.port) as wire:
        for _ in range(3):
            wire.send("POST", RESPONSES, {**HELLO, "input": big}, {"x": big})
            assert (await wire.reply()).status == 200


# ---- the time a request takes to come in ----


IMPATIENCE = 0.1


@pytest.fixture
async def impatient() -> AsyncIterator[Serving]:
    async with serving(scripted(answer(say("Hello"))), request_time=IMPATIENCE) as running:
        yield running


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /healthz HT"], ids=["nothing", "an empty line", "half a head"])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
async def test_a_connection_on_which_no_request_comes_is_closed(impatient: Serving, sent: bytes, used: bool) -> None:
    async with connected(impatient.port) as wire:
        if used:
            wire.send("GET", "/healthz")
            await wire.reply()
            sent = sent or b"G"  # a connection that was used may be idle for longer
        wire.writer.write(sent)
        async with asyncio.timeout(5):
            assert await wire.reader.read() == b""


@pytest.mark.proves("TR-JSON")
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
async def test_a_body_that_does_not_come_in_time_is_a_408(impatient: Serving, used: bool) -> None:
    async with connected(impatient.port) as wire:
        if used:
            wire.send("POST", RESPONSES, HELLO)
            await wire.reply()
        wire.send("POST", RESPONSES, b"{", {"content-length": "100", "x-request-id": "r1"})
        async with asyncio.timeout(5):
            reply = await wire.reply()
            assert (reply.status, reply.error["code"]) == (408, "request_timeout")
            assert (reply.headers["x-request-id"], reply.headers["connection"]) == ("r1", "close")
            assert await wire.reader.read() == b""


async def test_an_answer_may_take_longer_than_its_request() -> None:
    go = asyncio.Event()
    engine = scripted(answer(say("Hello"), go))
    async with serving(engine, request_time=IMPATIENCE) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, HELLO)
        asyncio.get_running_loop().call_later(3 * IMPATIENCE, go.set)
        assert (await wire.reply()).json()["status"] == "completed"
        wire.send("GET", "/healthz")
        assert (await wire.reply()).status == 200


async def test_an_answer_may_take_longer_though_what_came_with_its_request_is_refused() -> None:
    go = asyncio.Event()
    engine = scripted(answer(say("Hello"), go))
    async with serving(engine, request_time=IMPATIENCE) as server, connected(server.port) as wire:
        body = json.dumps(HELLO).encode()
        wire.send("POST", RESPONSES, body + b"hello\r\n\r\n", {"content-length": str(len(body))})
        asyncio.get_running_loop().call_later(3 * IMPATIENCE, go.set)
        assert (await wire.reply()).json()["status"] == "completed"
        assert await wire.reader.read() == b""


# ---- clients that do not read ----

MUCH = answer([TextDelta("x" * 10_000)] * 1000)


@pytest.mark.parametrize("keep", ["keep-alive", "close"])
@pytest.mark.parametrize(
    ("body", "settings"),
    [
        (HELLO, EngineSettings()),
        (STREAMED, EngineSettings(buffer_events=100_000, buffer_bytes=2**30)),
        (STREAMED, EngineSettings(buffer_events=16, deadline=0.5)),
    ],
    ids=["whole", "streamed", "held back until the deadline"],
)
async def test_a_client_that_never_reads_is_hung_up_on_when_its_run_has_ended(
    body: dict[str, object], settings: EngineSettings, keep: str
) -> None:
    engine = Engine(ScriptedProvider(MUCH), store=MemoryStore(), settings=settings)
    async with (
        serving(engine, Transport(engine, linger=0.05)) as server,
        connected(server.port, buffer=65536) as wire,
    ):
        wire.send("POST", RESPONSES, {**body, "store": False}, {"connection": keep})
        await until(lambda: bool(server.server.server_state.tasks))
        await until(lambda: not server.server.server_state.connections)
        await until(lambda: not server.server.server_state.tasks)
        assert not engine.live


async def test_a_client_that_asks_again_and_never_reads_is_hung_up_on() -> None:
    engine = scripted(MUCH)
    async with (
        serving(engine, Transport(engine, linger=0.05)) as server,
        connected(server.port, buffer=65536) as wire,
    ):
        wire.send("POST", RESPONSES, {**HELLO, "store": False})
        wire.send("GET", "/healthz")
        await until(lambda: bool(connections(server)))
        await until(lambda: not connections(server))


@jumping_time
async def test_a_client_that_never_reads_a_small_answer_is_hung_up_on_when_it_is_idle() -> None:
    async with serving(scripted(answer([TextDelta("x" * 60_000)]))) as server:
        server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts has it too
        async with connected(server.port, buffer=4096) as wire:
            wire.send("POST", RESPONSES, HELLO)
            await until(lambda: any(left(connection) for connection in connections(server)))
            assert not any(connection.is_behind for connection in connections(server))
            await asyncio.sleep(74)
            assert connections(server)
            await asyncio.sleep(2)
            assert not connections(server)


async def test_a_slow_reader_has_all_the_time_that_its_run_takes() -> None:
    settings = EngineSettings(buffer_events=16, keepalive_interval=0.01)
    engine = Engine(ScriptedProvider(MUCH), store=MemoryStore(), settings=settings)
    async with (
        serving(engine, Transport(engine, linger=0.001)) as server,
        connected(server.port, buffer=65536) as wire,
    ):
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        await until(lambda: any(connection.is_behind for connection in connections(server)))
        await until_quiet(lambda: len(connections(server)))
        assert engine.live == 1
        assert len(connections(server)) == 1


async def test_a_slow_reader_that_goes_on_reading_gets_all_of_an_answer_that_has_ended() -> None:
    engine = Engine(
        ScriptedProvider(MUCH), store=MemoryStore(), settings=EngineSettings(buffer_events=100_000, buffer_bytes=2**30)
    )
    async with (
        serving(engine, Transport(engine, linger=0.2)) as server,
        connected(server.port, buffer=65536) as wire,
    ):
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        await until(lambda: any(connection.is_behind for connection in connections(server)))
        await until(lambda: not engine.live)
        [connection] = connections(server)
        got = bytearray()
        for _ in range(2):
            got += await wire.reader.readexactly(3 * 2**20)
            await looked_at(connection)
        while b"data: [DONE]" not in got[-100:]:
            piece = await wire.reader.read(65536)
            assert piece, "hung up on"
            got += piece
        assert b"event: response.completed" in got


async def looked_at(connection: HttpProtocol) -> None:
    """The time to take something has run out once."""
    deadline = connection.next_check
    await until(lambda: connection.next_check != deadline)


def left(connection: HttpProtocol) -> int:
    """Bytes that are written and not yet sent."""
    return connection.transport.get_write_buffer_size()


def connections(server: Serving) -> list[HttpProtocol]:
    return [one for one in server.server.server_state.connections if isinstance(one, HttpProtocol)]
