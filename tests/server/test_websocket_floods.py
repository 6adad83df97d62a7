"""Clients that send far too many frames: others have their turn, and there is an end to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.server.websocket_protocol import CONTROL_FRAMES, FRAGMENTS, SMALL_FRAGMENT, FrameLimiter, WebSocketProtocol
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from serving import serving, until, until_quiet
from socket_kit import Socket, connected


@asynccontextmanager
async def both_sides() -> AsyncIterator[tuple[Socket, WebSocketProtocol]]:
    engine = Engine(ScriptedProvider(), store=MemoryStore())
    async with serving(engine) as server, connected(server.port) as socket:
        [line] = server.server.server_state.connections
        assert isinstance(line, WebSocketProtocol)
        yield socket, line


def frame(kind: Opcode, data: bytes = b"", *, last: bool = True) -> bytes:
    """As a client sends it."""
    return Frame(kind, data, fin=last).serialize(mask=True)


async def closed(socket: Socket) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await socket.wire.recv()
    return socket.wire.close_code


# ---- in turn with others ----


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Opcode]:
    """The kinds of the frames that the server's parser has found."""
    found: list[Opcode] = []
    receive = ServerProtocol.receive_data

    def noted(protocol: ServerProtocol, data: bytes) -> None:
        receive(protocol, data)
        found.extend(each.opcode for each in protocol.events if isinstance(each, Frame))

    monkeypatch.setattr(ServerProtocol, "receive_data", noted)
    return found


async def test_no_more_than_a_few_hundred_frames_are_handled_before_others_have_their_turn(
    parsed: list[Opcode],
) -> None:
    async with both_sides() as (_, line):
        many = [frame(Opcode.CONT, last=False) for _ in range(FRAGMENTS - 1)]
        line.data_received(b"".join([frame(Opcode.TEXT, b"{", last=False), *many]))
        goes = [len(parsed)]
        while len(parsed) < 1 + len(many):
            await asyncio.sleep(0)  # what any other task gets
            goes.append(len(parsed))
        shares = [later - sooner for sooner, later in zip([0, *goes], goes, strict=False)]
        assert max(shares) < 450
        assert await until_quiet(lambda: len(parsed)) == 1 + len(many)


class Taker(Transport):
    """Lets every WebSocket in, and takes a message whenever it may."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.may_take = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        message = None
        while message != "websocket.disconnect":
            await self.may_take.acquire()
            message = (await receive())["type"]


async def test_what_is_behind_a_message_waits_until_that_is_taken(parsed: list[Opcode]) -> None:
    app = Taker(engine := Engine(ScriptedProvider(), store=MemoryStore()))
    async with serving(engine, app) as server, connected(server.port) as socket:
        socket.wire.transport.write(b"".join([frame(Opcode.TEXT, b"x" * 3000) for _ in range(40)]))
        for taken in range(1, 4):
            await until(lambda: bool(parsed))
            assert await until_quiet(lambda: len(parsed)) == taken
            app.may_take.release()
        for _ in range(100):
            app.may_take.release()
        assert await until_quiet(lambda: len(parsed)) == 40


async def test_all_that_comes_in_one_read_is_heard_in_its_order() -> None:
    async with both_sides() as (socket, _):
        socket.wire.transport.write(b"".join([frame(Opcode.TEXT, b'{"type": "t%d"}' % each) for each in range(1000)]))
        for each in range(1000):
            assert f"'t{each}'" in (await socket.error())["message"]


# ---- the end of it ----


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG], ids=str)
async def test_who_sends_nothing_but_signs_of_life_is_hung_up_on(kind: Opcode) -> None:
    async with both_sides() as (socket, _):
        socket.wire.transport.write(frame(kind) * (2 * CONTROL_FRAMES))
        assert await closed(socket) == CloseCode.POLICY_VIOLATION


async def test_who_crumbles_a_message_is_hung_up_on() -> None:
    async with both_sides() as (socket, _):
        crumbs = frame(Opcode.CONT, last=False) * FRAGMENTS
        socket.wire.transport.write(frame(Opcode.TEXT, b"{", last=False) + crumbs)
        assert await closed(socket) == CloseCode.POLICY_VIOLATION


async def test_who_is_told_goodbye_is_not_listened_to_however_much_it_sends(parsed: list[Opcode]) -> None:
    async with both_sides() as (socket, line):
        line.data_received(frame(Opcode.PING) * (CONTROL_FRAMES + 100) + frame(Opcode.TEXT, b"{}"))
        await until(lambda: line.is_closed_for_reading)
        before = len(parsed)
        line.data_received(frame(Opcode.TEXT, b"{}"))
        assert await closed(socket) == CloseCode.POLICY_VIOLATION
        assert len(parsed) == before
        assert Opcode.TEXT not in parsed


# ---- how much is too much ----


def test_control_frames_may_come_at_once_and_then_evenly() -> None:
    now = 0.0
    floods = FrameLimiter(lambda: now)
    assert floods.excess([Frame(Opcode.PING, b"")] * CONTROL_FRAMES) == ""
    now += 60 / CONTROL_FRAMES
    assert floods.excess([Frame(Opcode.PONG, b"")]) == ""
    assert floods.excess([Frame(Opcode.PONG, b"")]) == "too many control frames"


def test_an_answer_to_our_own_ping_does_not_count() -> None:
    floods = FrameLimiter(lambda: 0.0)
    for _ in range(2 * CONTROL_FRAMES):
        assert floods.excess([Frame(Opcode.PONG, b"mine")], b"mine") == ""
    assert floods.excess([Frame(Opcode.PONG, b"else")] * (CONTROL_FRAMES + 1), b"mine") == "too many control frames"


def test_a_large_message_may_come_in_as_many_pieces_as_it_needs() -> None:
    floods = FrameLimiter(lambda: 0.0)
    assert floods.excess([Frame(Opcode.TEXT, b"x" * SMALL_FRAGMENT, fin=False)]) == ""
    assert floods.excess([Frame(Opcode.CONT, b"x" * SMALL_FRAGMENT, fin=False)] * 20 * FRAGMENTS) == ""


def test_the_pieces_of_each_message_are_counted_for_themselves() -> None:
    floods = FrameLimiter(lambda: 0.0)
    message = [Frame(Opcode.TEXT, b"", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * (FRAGMENTS - 1)]
    for _ in range(3):
        assert floods.excess(message) == ""
    assert floods.excess([Frame(Opcode.CONT, b"", fin=True)]) == "too many fragments"


# ---- answers to pings ----


async def test_a_client_that_is_behind_has_only_its_latest_ping_answered_and_later() -> None:
    async with both_sides() as (socket, line):
        line.pause_writing()
        answers = [asyncio.ensure_future(await socket.wire.ping(name)) for name in ("a", "b", "c")]
        await until(lambda: line.unsent_pong.endswith(b"c"))
        assert line.transport.get_write_buffer_size() == 0
        assert not any(answer.done() for answer in answers)
        line.resume_writing()
        await answers[-1]
        assert line.unsent_pong == b""


async def test_a_client_that_keeps_up_has_every_ping_answered() -> None:
    async with both_sides() as (socket, _):
        for name in ("a", "b"):
            await (await socket.wire.ping(name))
