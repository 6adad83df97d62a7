"""A server that stops, and clients that go: nothing is left behind, and what is under way gets its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NoReturn

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.server.server import Ping
from antwort.server.websocket import SocketLimits
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, say
from serving import RESPONSES, Serving, serving, until
from socket_kit import Socket, connected


def scripted(*answers: Answer) -> tuple[Engine, ScriptedProvider, Transport]:
    provider = ScriptedProvider(*answers)
    engine = Engine(provider, store=MemoryStore())
    return engine, provider, Transport(engine, websocket=SocketLimits(queue=2))


async def closed(wire: ClientConnection) -> int | None:
    """The code that the connection is closed with, by the other side."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await wire.recv()
    return wire.close_code


def stopped(server: Serving) -> asyncio.Task[None]:
    return asyncio.create_task(server.server.shutdown([server.listening]))


# ---- the server stops ----


async def test_an_idle_connection_is_closed_at_once() -> None:
    engine, _, app = scripted()
    async with serving(engine, app, drain=60) as server, connected(server.port) as socket:
        stopping = stopped(server)
        assert await closed(socket.wire) == CloseCode.SERVICE_RESTART
        await stopping
    assert app.sockets == 0


async def test_a_response_under_way_has_the_drain_time_and_no_other_is_begun() -> None:
    go = asyncio.Event()
    engine, provider, app = scripted(answer(say("Hello"), go, say("there")))
    async with serving(engine, app, drain=60) as server, connected(server.port) as socket:
        await socket.create()
        await socket.create(input="never")
        await socket.until("response.output_text.delta")
        stopping = stopped(server)
        await until(lambda: engine.is_draining)
        await socket.create(input="too late")
        go.set()
        assert (await socket.until("response.completed"))["response"]["status"] == "completed"
        assert await closed(socket.wire) == CloseCode.SERVICE_RESTART
        await stopping
    assert [message["type"] for message in socket.heard].count("response.created") == 1
    assert len(provider.requests) == 1


async def test_a_response_that_takes_longer_is_ended_with_an_event() -> None:
    engine, _, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app, drain=0.05) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        stopping = stopped(server)
        failed = (await socket.until("response.failed"))["response"]
        assert failed["error"]["code"] == "server_shutting_down"
        assert await closed(socket.wire) == CloseCode.SERVICE_RESTART
        await stopping


async def test_who_comes_while_the_server_stops_is_refused() -> None:
    engine, _, app = scripted()
    async with serving(engine, app) as server:
        await engine.drain(0)
        with pytest.raises(InvalidStatus) as caught:
            async with connected(server.port):
                pass
        assert caught.value.response.status_code == 503


async def test_a_client_that_does_not_answer_the_close_does_not_hold_the_server() -> None:
    engine, _, app = scripted()
    async with serving(engine, app, drain=60) as server, connected(server.port) as socket:
        socket.wire.transport.pause_reading()
        async with asyncio.timeout(10):  # the drain alone would take a minute
            await stopped(server)
        socket.wire.transport.abort()


async def test_a_second_signal_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app, drain=60) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        server.server.force_exit = True
        async with asyncio.timeout(10):
            await stopped(server)
            await engine.close()
        assert (await socket.until("response.failed"))["response"]["error"]["code"] == "server_shutting_down"
        await until(lambda: app.sockets == 0)
    assert provider.under_way == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_connection_that_is_broken_off_ends_its_run(caplog: pytest.LogCaptureFixture) -> None:
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.create()
        created = await socket.until("response.created")
        await socket.until("response.output_text.delta")
        for task in list(server.server.server_state.tasks):
            task.cancel()
        await until(lambda: app.sockets == 0)
        assert await closed(socket.wire) == CloseCode.ABNORMAL_CLOSURE
        await until(lambda: engine.live == 0 and provider.under_way == 0)
        kept = (await server.ask("GET", f"{RESPONSES}/{created['response']['id']}")).json()
    assert (kept["status"], kept["error"]["code"]) == ("failed", "request_cancelled")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


# ---- the client goes ----


async def begun(server: Serving, socket: Socket) -> str:
    await socket.create()
    created = await socket.until("response.created")
    await socket.until("response.output_text.delta")
    return str(created["response"]["id"])


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_goes_leaves_nothing_behind(how: str) -> None:
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app) as server:
        before = asyncio.all_tasks()
        async with connected(server.port) as socket:
            response_id = await begun(server, socket)
            if how == "close":
                await socket.wire.close()
            else:
                socket.wire.transport.abort()
            await until(lambda: app.sockets == 0)
        await until(lambda: engine.live == 0 and provider.under_way == 0 and app.streams == 0)
        await until(lambda: asyncio.all_tasks() <= before)
        assert (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()["status"] == "cancelled"


async def test_a_client_that_goes_while_messages_wait_has_none_of_them_answered() -> None:
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()), answer(say("never")))
    async with serving(engine, app) as server:
        async with connected(server.port) as socket:
            await begun(server, socket)
            await socket.create(input="never")
            await socket.wire.close()
        await until(lambda: engine.live == 0 and app.sockets == 0)
    assert len(provider.requests) == 1


async def test_a_client_that_goes_while_it_is_not_read_from_is_noticed() -> None:
    """While more messages wait than may: then only writing shows it."""
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app, ping=Ping(interval=0.02, timeout=0.02)) as server, connected(server.port) as socket:
        await begun(server, socket)
        for _ in range(5):
            await socket.create(input="y" * 100_000)
        socket.wire.transport.abort()
        await until(lambda: engine.live == 0 and app.sockets == 0)
    assert len(provider.requests) == 1


class Undecided(MemoryStore):
    """Never says what a conversation holds, so that no plan of a turn in it comes to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def said(self, *_: object) -> NoReturn:
        self.is_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is broken off")


async def test_a_client_that_goes_before_its_response_begins_has_its_plan_broken_off() -> None:
    provider, store = ScriptedProvider(), Undecided()
    engine = Engine(provider, store=store)
    app = Transport(engine)
    async with serving(engine, app) as server:
        async with connected(server.port) as socket:
            await socket.create(conversation="conv_" + "0" * 32)
            async with asyncio.timeout(5):
                await store.is_asked.wait()
        await until(lambda: app.sockets == 0 and app.requests == 0)
    assert provider.requests == []


class SlowToBegin(MemoryStore):
    """Begins a row, and says so when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def begin(self, new: NewResponse) -> None:
        await super().begin(new)
        self.begun.set()
        await self.go.wait()


async def test_a_client_that_goes_while_its_response_is_put_on_record_ends_its_run() -> None:
    provider, store = ScriptedProvider(answer(say("Hello"), asyncio.Event())), SlowToBegin()
    engine = Engine(provider, store=store)
    app = Transport(engine)
    async with serving(engine, app) as server:
        async with connected(server.port) as socket:
            await socket.create()
            await store.begun.wait()
        store.go.set()
        await until(lambda: engine.live == 0 and app.sockets == 0)
    assert provider.under_way == 0
