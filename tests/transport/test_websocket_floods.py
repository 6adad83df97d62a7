"""Clients that send far too many frames: others have their turn, and there is an end to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode

from antwort.engine.engine import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from antwort.transport.floods import CONTROLS, FRAGMENTS, SMALL, Floods
from antwort.transport.upgraded import Upgraded
from serving import serving, until, until_quiet
from socket_kit import Socket, connected


@asynccontextmanager
async def both_sides() -> AsyncIterator[tuple[Socket, Upgraded]]:
    engine = Engine(ScriptedProvider(), store=MemoryStore())
    async with serving(engine) as server, connected(server.port) as socket:
        [line] = server.server.server_state.connections
        assert isinstance(line, Upgraded)
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


async def test_no_more_than_a_few_hundred_frames_are_handled_before_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with both_sides() as (_, line):
        seen: list[Frame] = []
        receive = line.conn.receive_data

        def noted(data: bytes) -> None:
            receive(data)
            seen.extend(each for each in line.conn.events if isinstance(each, Frame) and each.opcode is Opcode.CONT)

        monkeypatch.setattr(line.conn, "receive_data", noted)
        many = [frame(Opcode.CONT, last=False) for _ in range(FRAGMENTS - 1)]
        line.data_received(b"".join([frame(Opcode.TEXT, b"{", last=False), *many]))
        goes = [len(seen)]
        while len(seen) < len(many):
            await asyncio.sleep(0)  # what any other task gets
            goes.append(len(seen))
        shares = [later - sooner for sooner, later in zip([0, *goes], goes, strict=False)]
        assert max(shares) < 450
        assert await until_quiet(lambda: len(seen)) == len(many)


async def test_what_is_behind_a_message_waits_until_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_sides() as (_, line):
        taken: list[object] = []
        monkeypatch.setattr(line.queue, "put_nowait", taken.append)  # and so nobody takes it
        line.data_received(b"".join([frame(Opcode.TEXT, b"x" * 3000) for _ in range(40)]))
        assert await until_quiet(lambda: len(taken)) == 1
        line.read_paused = False
        line._read_on()
        assert await until_quiet(lambda: len(taken)) == 2
        line.abort()


async def test_all_that_comes_in_one_read_is_heard_in_its_order() -> None:
    async with both_sides() as (socket, _):
        socket.wire.transport.write(b"".join([frame(Opcode.TEXT, b'{"type": "t%d"}' % each) for each in range(1000)]))
        for each in range(1000):
            assert f"'t{each}'" in (await socket.error())["message"]


# ---- the end of it ----


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG], ids=str)
async def test_who_sends_nothing_but_signs_of_life_is_hung_up_on(kind: Opcode) -> None:
    async with both_sides() as (socket, _):
        socket.wire.transport.write(frame(kind) * (2 * CONTROLS))
        assert await closed(socket) == CloseCode.POLICY_VIOLATION


async def test_who_crumbles_a_message_is_hung_up_on() -> None:
    async with both_sides() as (socket, _):
        crumbs = frame(Opcode.CONT, last=False) * FRAGMENTS
        socket.wire.transport.write(frame(Opcode.TEXT, b"{", last=False) + crumbs)
        assert await closed(socket) == CloseCode.POLICY_VIOLATION


async def test_who_is_told_goodbye_is_not_listened_to_however_much_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_sides() as (socket, line):
        line.data_received(frame(Opcode.PING) * (CONTROLS + 100) + frame(Opcode.TEXT, b"{}"))
        await until(lambda: line.is_deaf)
        parsed: list[bytes] = []
        monkeypatch.setattr(line.conn, "receive_data", parsed.append)
        line.data_received(frame(Opcode.TEXT, b"{}"))
        assert await closed(socket) == CloseCode.POLICY_VIOLATION
        assert parsed == []


# ---- how much is too much ----


def test_control_frames_may_come_at_once_and_then_evenly() -> None:
    now = 0.0
    floods = Floods(lambda: now)
    assert floods.seen([Frame(Opcode.PING, b"")] * CONTROLS) == ""
    now += 60 / CONTROLS
    assert floods.seen([Frame(Opcode.PONG, b"")]) == ""
    assert floods.seen([Frame(Opcode.PONG, b"")]) == "too many control frames"


def test_an_answer_to_our_own_ping_does_not_count() -> None:
    floods = Floods(lambda: 0.0)
    for _ in range(2 * CONTROLS):
        assert floods.seen([Frame(Opcode.PONG, b"mine")], b"mine") == ""
    assert floods.seen([Frame(Opcode.PONG, b"else")] * (CONTROLS + 1), b"mine") == "too many control frames"


def test_a_large_message_may_come_in_as_many_pieces_as_it_needs() -> None:
    floods = Floods(lambda: 0.0)
    assert floods.seen([Frame(Opcode.TEXT, b"x" * SMALL, fin=False)]) == ""
    assert floods.seen([Frame(Opcode.CONT, b"x" * SMALL, fin=False)] * 20 * FRAGMENTS) == ""


def test_the_pieces_of_each_message_are_counted_for_themselves() -> None:
    floods = Floods(lambda: 0.0)
    message = [Frame(Opcode.TEXT, b"", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * (FRAGMENTS - 1)]
    for _ in range(3):
        assert floods.seen(message) == ""
    assert floods.seen([Frame(Opcode.CONT, b"", fin=True)]) == "too many fragments"


# ---- answers to pings ----


async def test_a_client_that_is_behind_has_only_its_latest_ping_answered_and_later() -> None:
    async with both_sides() as (socket, line):
        line.pause_writing()
        answers = [asyncio.ensure_future(await socket.wire.ping(name)) for name in ("a", "b", "c")]
        await until(lambda: line._pong.endswith(b"c"))
        assert line.transport.get_write_buffer_size() == 0
        assert not any(answer.done() for answer in answers)
        line.resume_writing()
        await answers[-1]
        assert line._pong == b""


async def test_a_client_that_keeps_up_has_every_ping_answered() -> None:
    async with both_sides() as (socket, _):
        for name in ("a", "b"):
            await (await socket.wire.ping(name))
