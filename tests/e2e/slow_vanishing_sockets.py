"""Clients on WebSockets that are killed, that stop, or that never come all the way in leave nothing behind: counted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antwort.app import build
from antwort.engine.history.recent_responses import RecentResponses
from antwort.server.server import Ping
from antwort.server.websocket import WebSocketSession
from chat_backend import ChatBackend, Says
from live_server import LiveServer, launched
from raw_http import Wire, ask, connected
from serving import RESPONSES, Serving, serving, until
from settings_kit import in_front_of
from socket_crowd import Crowd, crowd

PROCESSES, EACH = 4, 25
VISITORS = 200
UPGRADE = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}
UNDER_WAY = ("antwort_runs_live", "antwort_websockets_open")
QUICK = Ping(interval=0.1, timeout=1.0)


@pytest.fixture
async def backend() -> AsyncIterator[ChatBackend]:
    async with ChatBackend(Says(["Hello", " there"], hold=asyncio.Event())) as running:
        yield running


async def nothing_is_left(server: Serving, backend: ChatBackend, before: set[asyncio.Task[object]]) -> None:
    """No request to the backend, no run, no connection, no task, and nothing that a connection remembered."""
    async with asyncio.timeout(20):
        await backend.until(lambda: backend.open_requests == 0)
    await until(lambda: server.engine.live == 0, within=20)
    await until(lambda: not server.server.server_state.connections, within=20)
    await until(lambda: asyncio.all_tasks() - backend.tasks <= before, within=20)
    await until(lambda: not server.server.server_state.tasks)
    gc.collect()
    assert [each for each in gc.get_objects() if type(each) in (RecentResponses, WebSocketSession)] == []


async def still_works(server: Serving, backend: ChatBackend) -> None:
    backend.answers = [Says()]
    async with crowd(server.port, 1, "idle"):
        pass


async def record_is_true(server: Serving, gone: Crowd, status: str) -> None:
    """What was to be stored has come to its end; what was not to be is unknown."""
    for made in gone.stored:
        reply = await server.ask("GET", f"{RESPONSES}/{made}")
        assert reply.json()["status"] == status
    for made in gone.unstored:
        assert (await server.ask("GET", f"{RESPONSES}/{made}")).status == 404


async def test_clients_that_are_killed_in_the_middle_of_a_turn_leave_nothing(
    backend: ChatBackend, tmp_path: Path
) -> None:
    app = await build(in_front_of(backend.url, data=tmp_path, connect=30))
    async with serving(app.engine, app.asgi) as server:
        before = asyncio.all_tasks()
        async with AsyncExitStack() as stack:
            crowds = await asyncio.gather(
                *(stack.enter_async_context(crowd(server.port, EACH, "talking")) for _ in range(PROCESSES))
            )
            assert len(backend.requests) == backend.open_requests == PROCESSES * EACH
            assert app.asgi.sockets == PROCESSES * EACH
            for each in crowds:
                each.kill()
        await nothing_is_left(server, backend, before)
        assert app.asgi.sockets == 0
        for each in crowds:
            await record_is_true(server, each, "cancelled")
        await still_works(server, backend)


async def gauges(server: LiveServer) -> dict[str, float]:
    """What a server says is under way, but for this question."""
    reply = await ask(server.port, "GET", "/metrics")
    found = dict(line.split(" ") for line in reply.body.decode().splitlines() if line.startswith(UNDER_WAY))
    return {name: float(value) for name, value in found.items()}


async def test_a_server_of_its_own_tells_that_nothing_is_under_way_when_its_clients_were_killed(
    backend: ChatBackend, tmp_path: Path
) -> None:
    async with launched("--backend", backend.url, "--data", str(tmp_path)) as server:
        async with crowd(server.port, EACH, "talking") as clients:
            assert await gauges(server) == dict.fromkeys(UNDER_WAY, EACH)
            clients.kill()
        async with asyncio.timeout(20):
            await backend.until(lambda: backend.open_requests == 0)
            while any((await gauges(server)).values()):
                pass
        for made in clients.stored:
            assert (await ask(server.port, "GET", f"{RESPONSES}/{made}")).json()["status"] == "cancelled"


async def test_idle_clients_that_are_killed_leave_nothing(backend: ChatBackend, tmp_path: Path) -> None:
    backend.answers = [Says()]
    app = await build(in_front_of(backend.url, data=tmp_path, connect=30))
    async with serving(app.engine, app.asgi) as server:
        before = asyncio.all_tasks()
        async with crowd(server.port, EACH, "idle") as clients:
            assert app.asgi.sockets == EACH
            clients.kill()
        await nothing_is_left(server, backend, before)
        await record_is_true(server, clients, "completed")
        await still_works(server, backend)


@pytest.mark.parametrize("kind", ["talking", "idle"])
async def test_clients_that_no_longer_answer_are_noticed_though_their_connections_stay_open(
    backend: ChatBackend, tmp_path: Path, kind: str
) -> None:
    backend.answers = backend.answers if kind == "talking" else [Says()]
    app = await build(in_front_of(backend.url, data=tmp_path, connect=30))
    async with serving(app.engine, app.asgi, ping=QUICK) as server:
        before = asyncio.all_tasks()
        async with crowd(server.port, EACH, kind) as clients:
            clients.freeze()
            await nothing_is_left(server, backend, before)
        await record_is_true(server, clients, "cancelled" if kind == "talking" else "completed")
        await still_works(server, backend)


async def visit(port: int, number: int) -> None:
    """Begin to open a connection, and go: before a word, in the middle of one, before the answer, or after it."""
    async with connected(port) as wire:
        match number % 4:
            case 1:
                wire.writer.write(b"GET /v1/responses HTTP/1.1\r\nupgrade: websoc")
                await wire.writer.drain()
            case 2:
                wire.send("GET", RESPONSES, headers=UPGRADE)
                await wire.writer.drain()
            case 3:
                wire.send("GET", RESPONSES, headers=UPGRADE)
                assert (await wire.head()).status == 101
                wire.writer.write(b"\x81")  # half a frame
        leave(wire, with_goodbye=number % 8 < 4)


def leave(wire: Wire, *, with_goodbye: bool) -> None:
    if with_goodbye:
        wire.writer.close()
    else:
        wire.vanish()


async def test_two_hundred_clients_that_vanish_in_the_handshake_leave_nothing(
    backend: ChatBackend, tmp_path: Path
) -> None:
    app = await build(in_front_of(backend.url, data=tmp_path, connect=30))
    async with serving(app.engine, app.asgi) as server:
        before = asyncio.all_tasks()
        await asyncio.gather(*(visit(server.port, number) for number in range(VISITORS)))
        await nothing_is_left(server, backend, before)
        assert backend.requests == []
        await still_works(server, backend)
