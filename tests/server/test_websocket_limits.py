"""What one connection may take: of memory, of time, and of others' patience."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from collections.abc import AsyncGenerator

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import ConnectionTooOld
from antwort.providers.base import ChatRequest, Delta, TextDelta
from antwort.server.auth import Keyring
from antwort.server.exchange import Message
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.server.server import Ping
from antwort.server.websocket import ReceiveQueue, SocketLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, say
from engine_kit import text_of
from key_kit import SECRET, a_key, bearing
from raw_http import connected as raw_connected
from serving import RESPONSES, serving, until, until_quiet
from socket_kit import CREATE, UPGRADE, connected


def scripted(*answers: Answer) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    return Engine(provider, store=MemoryStore()), provider


async def closed(wire: ClientConnection) -> int:
    """The code that the connection is closed with."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await wire.recv()
    assert wire.close_code is not None
    return wire.close_code


# ---- size ----


async def test_a_message_that_is_too_large_ends_the_connection() -> None:
    engine, _ = scripted(answer(say("Hello")))
    app = Transport(engine)
    async with serving(engine, app, message_limit=5000) as server, connected(server.port) as socket:
        await socket.ask(input="x" * 4000)
        await socket.say(" " * 5001)
        assert await closed(socket.wire) == CloseCode.MESSAGE_TOO_BIG
        await until(lambda: app.sockets == 0)


async def test_a_client_that_writes_far_too_much_still_hears_why() -> None:
    engine, _ = scripted()
    async with serving(engine, message_limit=5000) as server, raw_connected(server.port) as wire:
        wire.send("GET", RESPONSES, headers=UPGRADE)
        assert (await wire.head()).status == 101
        size = 20_000_000
        wire.writer.write(b"\x81\xff" + size.to_bytes(8, "big") + bytes(4))
        for _ in range(20):
            wire.writer.write(bytes(size // 20))
            await wire.writer.drain()
        closing = await wire.reader.read()
        assert closing[:1] == b"\x88"
        assert int.from_bytes(closing[2:4], "big") == CloseCode.MESSAGE_TOO_BIG


async def test_under_a_server_with_other_limits_ours_holds() -> None:
    engine, _ = scripted(answer(say("Hello")))
    app = Transport(engine, body_limit=5000)
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.ask(input="x" * 4000)
        await socket.say(" " * 5001)
        assert await closed(socket.wire) == CloseCode.MESSAGE_TOO_BIG


async def test_the_size_of_a_message_is_counted_in_bytes() -> None:
    engine, _ = scripted(answer(say("Hello")))
    app = Transport(engine, body_limit=5000)
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.ask(input="x" * 4000)
        await socket.say("ü" * 2600)
        assert await closed(socket.wire) == CloseCode.MESSAGE_TOO_BIG


async def test_text_that_is_no_text_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = scripted()
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.wire.send(b"\xff\xfe", text=True)
        assert await closed(socket.wire) == CloseCode.INVALID_DATA
    caplog.clear()


# ---- age ----


async def test_an_old_connection_is_told_so_and_closed() -> None:
    engine, _ = scripted()
    app = Transport(engine, websocket=SocketLimits(lifetime=0.01))
    async with serving(engine, app) as server, connected(server.port) as socket:
        error = await socket.error()
        assert (error["status"], error["code"]) == (400, "websocket_connection_limit_reached")
        assert await closed(socket.wire) == CloseCode.GOING_AWAY
    assert app.sockets == 0


async def test_a_response_under_way_is_made_to_its_end_and_is_the_last() -> None:
    go = asyncio.Event()
    engine, provider = scripted(answer(say("Hello"), go, say("there")))
    app = Transport(engine, websocket=SocketLimits(lifetime=0.05))
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.create()
        await socket.create(input="never")
        await socket.until("response.output_text.delta")
        async with connected(server.port) as later:  # which is as old when it is told
            assert (await later.error())["code"] == "websocket_connection_limit_reached"
        go.set()
        assert (await socket.until("response.completed"))["response"]["status"] == "completed"
        assert (await socket.error())["code"] == "websocket_connection_limit_reached"
        assert await closed(socket.wire) == CloseCode.GOING_AWAY
    assert len(provider.requests) == 1


# ---- messages that wait ----


class Sender:
    """The client's side of an inbox: what is read of it, and when."""

    def __init__(self) -> None:
        self.read = 0
        self.queue: asyncio.Queue[Message] = asyncio.Queue()

    async def __call__(self) -> Message:
        message = await self.queue.get()
        self.read += 1
        return message

    def say(self, *texts: str) -> None:
        for text in texts:
            self.queue.put_nowait({"type": "websocket.receive", "text": text})


async def test_no_more_messages_are_read_than_may_wait() -> None:
    sender = Sender()
    inbox = ReceiveQueue(sender, max_messages=3)
    sender.say(*"abcdefgh")
    assert await until_quiet(lambda: sender.read) == 3
    assert [await inbox.next() for _ in range(2)] == ["a", "b"]
    assert await until_quiet(lambda: sender.read) == 5
    assert [await inbox.next() for _ in range(6)] == [*"cdefgh"]
    await inbox.close()


@pytest.mark.parametrize("text", ["x" * 600_000, "ü" * 300_000], ids=["ascii", "two bytes each"])
async def test_no_more_is_read_than_a_little_ahead(text: str) -> None:
    sender = Sender()
    inbox = ReceiveQueue(sender, max_messages=100)
    sender.say(*[text] * 10)
    assert await until_quiet(lambda: sender.read) == 2
    await inbox.next()
    assert await until_quiet(lambda: sender.read) == 3
    await inbox.close()


async def test_who_waits_for_a_message_hears_of_the_end() -> None:
    inbox = ReceiveQueue(Sender(), max_messages=1)
    waiting = asyncio.create_task(inbox.next())
    await until(lambda: bool(waiting.get_loop()) and inbox.ending is None)
    inbox.end(ConnectionTooOld(1))
    inbox.end(ConnectionTooOld(2))
    assert await waiting is None
    assert inbox.ending is not None
    assert "1 seconds" in inbox.ending.message
    await inbox.close()


async def test_a_client_that_sends_more_than_may_wait_is_answered_all_the_same() -> None:
    engine, _ = scripted(*[answer(say(str(number))) for number in range(20)])
    app = Transport(engine, websocket=SocketLimits(queue=1))
    async with serving(engine, app) as server, connected(server.port) as socket:
        for _ in range(20):
            await socket.create(input="x" * 50_000)
        assert [text_of(await socket.turn()) for _ in range(20)] == [str(number) for number in range(20)]


# ---- a client that reads slowly, or not at all ----


class Torrent(ScriptedProvider):
    """Says more than any buffer holds, and counts."""

    said = 0
    pieces, size = 3000, 4000

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        yield []
        for _ in range(self.pieces):
            self.said += 1
            yield [TextDelta("x" * self.size)]


async def test_a_slow_reader_holds_its_run_back() -> None:
    provider = Torrent()
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(buffer_events=8))
    async with serving(engine) as server, connected(server.port, max_queue=1) as socket:
        await socket.create()
        held = await until_quiet(lambda: provider.said)
        assert held < provider.pieces
        response = await socket.turn()
        assert len(text_of(response)) == 4000 * provider.pieces


async def test_a_slow_reader_of_large_events_holds_its_run_back_and_gets_them_whole() -> None:
    """Long before there are as many events as are kept for it. A large event is one message in several frames."""
    provider = Torrent()
    provider.pieces, provider.size = 40, 300_000
    engine = Engine(provider, store=MemoryStore())
    async with serving(engine) as server, connected(server.port, max_queue=1) as socket:
        await socket.create()
        held = await until_quiet(lambda: provider.said)
        assert held < provider.pieces / 2
        response = await socket.turn()
        assert text_of(response) == "x" * provider.size * provider.pieces


async def test_a_reader_that_has_stopped_is_hung_up_on_when_its_run_has_ended() -> None:
    provider = Torrent()
    provider.pieces = 400
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(buffer_events=10_000, buffer_bytes=2**30))
    app = Transport(engine, linger=0.05)
    async with serving(engine, app) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.setblocking(False)
        async with connected(server.port, sock=raw, max_queue=1) as socket:
            await socket.create()
            await until(lambda: provider.said == provider.pieces)
            await until(lambda: app.sockets == 0)
            socket.wire.transport.abort()
    assert (app.streams, engine.live) == (0, 0)


async def test_a_client_that_gives_no_sign_of_life_is_hung_up_on() -> None:
    engine, provider = scripted(answer(say("Hello"), asyncio.Event()))
    app = Transport(engine)
    async with (
        serving(engine, app, ping=Ping(interval=0.02, timeout=0.05)) as server,
        connected(server.port) as alive,
        connected(server.port) as socket,
    ):
        await socket.create()
        await socket.until("response.output_text.delta")
        socket.wire.transport.pause_reading()
        await until(lambda: app.sockets == 1)
        await until(lambda: provider.under_way == 0)
        assert alive.wire.close_code is None
        socket.wire.transport.abort()


async def test_a_client_that_is_not_listened_to_is_not_taken_for_gone() -> None:
    go = asyncio.Event()
    engine, _ = scripted(answer(say("one"), go), *[answer(say("more"))] * 3)
    app = Transport(engine, websocket=SocketLimits(queue=1))
    async with (
        serving(engine, app, ping=Ping(interval=0.01, timeout=0.01)) as server,
        connected(server.port) as socket,
        connected(server.port) as other,
    ):
        for _ in range(4):
            await socket.create()
        await socket.until("response.output_text.delta")
        other.wire.transport.pause_reading()
        await until(lambda: app.sockets == 1)  # the other has had its time, and more
        other.wire.transport.abort()
        go.set()
        for _ in range(4):
            await socket.until("response.completed")


# ---- what is remembered ----


async def test_connections_that_have_been_idle_for_longest_forget_where_memory_does_not_suffice() -> None:
    engine, _ = scripted(*[answer(say(str(number))) for number in range(5)])
    app = Transport(engine, websocket=SocketLimits(total_memory=20_000))
    async with serving(engine, app) as server, connected(server.port) as one:
        first = await one.ask(input="x" * 10_000, store=False)
        async with connected(server.port) as other:
            latest = await other.ask(input="x" * 10_000, store=False)
            await one.create(previous_response_id=first.id, store=False)
            assert (await one.error())["code"] == "previous_response_not_found"
            await other.ask(previous_response_id=latest.id, store=False)
        await until(lambda: app.sockets == 1)
        first = await one.ask(input="x" * 10_000, store=False)  # there is room again
        assert (await one.ask(previous_response_id=first.id, store=False)).status == "completed"


# ---- quotas ----


async def test_each_response_counts_as_a_request_and_not_the_connection() -> None:
    engine, _ = scripted(answer(say("one")), answer(say("two")))
    ring = Keyring([a_key(limits=KeyLimits(requests_per_minute=2))], clock=lambda: 0.0)
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    async with serving(engine, app) as server:
        for _ in range(3):
            async with connected(server.port, headers=bearing(SECRET)):
                pass
        async with connected(server.port, headers=bearing(SECRET)) as socket:
            for _ in range(2):
                await socket.ask()
            await socket.create()
            error = await socket.error()
            assert (error["status"], error["code"]) == (429, "rate_limit_exceeded")
            headers = socket.heard[-1]["headers"]
            assert (headers["retry-after"], headers["x-ratelimit-remaining-requests"]) == ("30", "0")


async def test_the_place_of_a_response_is_given_back_when_it_ends() -> None:
    engine, _ = scripted(answer(say("one"), asyncio.Event()), answer(say("two")), answer(say("three")))
    ring = Keyring([a_key(limits=KeyLimits(concurrent=1))])
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    async with serving(engine, app) as server, connected(server.port, headers=bearing(SECRET)) as other:
        async with connected(server.port, headers=bearing(SECRET)) as socket:
            await socket.create()
            await socket.until("response.created")
            await other.create()
            assert (await other.error())["code"] == "rate_limit_exceeded"
        await until(lambda: ring.quotas.of("ann").under_way == 0)
        for _ in range(2):
            assert (await other.ask()).status == "completed"


async def test_what_is_wrong_with_a_body_is_found_within_its_place() -> None:
    engine, _ = scripted()
    ring = Keyring([a_key(limits=KeyLimits(requests_per_minute=1))], clock=lambda: 0.0)
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    async with serving(engine, app) as server, connected(server.port, headers=bearing(SECRET)) as socket:
        await socket.say({**CREATE, "temperature": 9})
        assert (await socket.error())["param"] == "temperature"
        await socket.create()
        assert (await socket.error())["code"] == "rate_limit_exceeded"
