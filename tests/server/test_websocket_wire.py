"""The server's side of one WebSocket: frames, and signs of life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antwort.engine.engine import Engine
from antwort.server.websocket_protocol import ClientDisconnected, WebSocketProtocol
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from serving import serving, until
from socket_kit import Socket, connected


@asynccontextmanager
async def both_sides() -> AsyncIterator[tuple[Socket, WebSocketProtocol]]:
    engine = Engine(ScriptedProvider(), store=MemoryStore())
    async with serving(engine) as server, connected(server.port) as socket:
        [line] = server.server.server_state.connections
        assert isinstance(line, WebSocketProtocol)
        yield socket, line


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 1_000_000])
async def test_texts_of_any_size_arrive_as_they_are(size: int) -> None:
    texts = [b"a" * size, "ü".encode() * (size // 2), b"z"]
    async with both_sides() as (socket, line):
        await line.write_texts(texts)
        assert [await socket.wire.recv(decode=False) for _ in texts] == texts


async def test_a_client_that_is_not_read_from_is_asked_for_no_answer() -> None:
    async with both_sides() as (_, line):
        line.read_paused = True
        line.ping()
        assert not line.awaits_pong
        line.read_paused = False
        line.ping()
        assert line.awaits_pong


async def test_a_client_whose_answer_was_not_read_is_not_hung_up_on() -> None:
    async with both_sides() as (_, line):
        line.ping()
        line.read_paused = True
        line.pong_missing()
        assert not line.close_sent
        assert not line.awaits_pong
        line.read_paused = False
        line.ping()
        line.pong_missing()
        assert line.close_sent


async def test_a_client_that_is_behind_is_not_asked() -> None:
    async with both_sides() as (_, line):
        line.pause_writing()
        line.ping()
        assert not line.awaits_pong
        line.pong_missing()
        assert not line.close_sent
        line.resume_writing()


async def test_nothing_is_written_to_a_client_that_has_said_goodbye() -> None:
    async with both_sides() as (socket, line):
        await socket.wire.close()
        await until(lambda: line.is_disconnected)
        with pytest.raises(ClientDisconnected):
            await line.write_texts([b"too late"])


async def test_who_says_much_before_it_was_answered_is_hung_up_on() -> None:
    async with both_sides() as (_, line):
        line.is_accepted = False
        line.data_received(bytes(2**17))
        assert not line.transport.is_closing()
        line.data_received(b"\0")
        await until(lambda: line.is_disconnected)
