"""Clients that take nothing of what they are told: how long they are waited for, and what they cost meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from websockets.frames import Frame, Opcode

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.server.websocket import SocketLimits
from antwort.server.websocket_protocol import WebSocketProtocol
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from raw_http import Wire
from raw_http import connected as raw_connected
from serving import RESPONSES, Serving, serving, until, until_quiet
from socket_kit import CREATE, UPGRADE, Socket, connected


@asynccontextmanager
async def deaf_client(app: Transport, engine: Engine) -> AsyncIterator[tuple[Wire, Serving]]:
    """A client that reads nothing beyond the head."""
    async with serving(engine, app) as server, raw_connected(server.port, buffer=4096) as wire:
        wire.send("GET", RESPONSES, headers=UPGRADE)
        assert (await wire.head()).status == 101
        cast("asyncio.Transport", wire.writer.transport).pause_reading()
        yield wire, server


def engine_and_app(linger: float, lifetime: float = 3600.0) -> tuple[Engine, Transport]:
    engine = Engine(ScriptedProvider(), store=MemoryStore())
    return engine, Transport(engine, linger=linger, websocket=SocketLimits(lifetime=lifetime))


def framed(message: object) -> bytes:
    return Frame(Opcode.TEXT, json.dumps(message).encode()).serialize(mask=True)


STEERS = framed({"type": "response.steer", "previous_response_id": "resp_1", "input": "x" * 500_000}) * 30
REFUSED = framed({"type": "x"}) * 40_000
"""Both are answered with more than any buffer takes."""


def only_line(server: Serving) -> WebSocketProtocol:
    [line] = server.server.server_state.connections
    assert isinstance(line, WebSocketProtocol)
    return line


@pytest.mark.parametrize("messages", [STEERS, REFUSED], ids=["steers", "errors"])
async def test_who_takes_no_answers_is_hung_up_on(messages: bytes) -> None:
    engine, app = engine_and_app(linger=0.05)
    async with deaf_client(app, engine) as (wire, _):
        wire.writer.write(messages)
        await until(lambda: app.sockets == 0)


async def test_who_says_goodbye_and_takes_nothing_is_hung_up_on() -> None:
    engine, app = engine_and_app(linger=0.05)
    async with deaf_client(app, engine) as (wire, server):
        line = only_line(server)
        await line.write_texts([b"x" * 20_000_000])
        wire.writer.write(Frame(Opcode.CLOSE, b"").serialize(mask=True))
        await until(lambda: line.is_disconnected)


async def test_who_gives_no_sign_of_life_is_hung_up_on_whatever_is_left_for_it() -> None:
    engine, app = engine_and_app(linger=60)
    async with deaf_client(app, engine) as (_, server):
        line = only_line(server)
        await line.write_texts([b"x" * 20_000_000])
        line.resume_writing()  # as if only a little were left
        line.pong_missing()
        await until(lambda: line.is_disconnected)


# ---- the end of a lifetime ----


async def test_an_old_connection_whose_client_takes_nothing_ends_all_the_same() -> None:
    engine, app = engine_and_app(linger=0.05, lifetime=0.05)
    async with deaf_client(app, engine) as (_, server):
        line = only_line(server)
        await line.write_texts([b"x" * 20_000_000])
        await until(lambda: line.is_disconnected)


async def test_a_response_under_way_is_waited_for() -> None:
    go = asyncio.Event()
    engine = Engine(ScriptedProvider(answer(say("Hello"), go)), store=MemoryStore())
    app = Transport(engine, linger=0.01, websocket=SocketLimits(lifetime=0.01))
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        for _ in range(3):  # each of them is open for as long as a connection may be, and closed
            async with connected(server.port) as later:
                await later.error()
                await later.wire.wait_closed()
        go.set()
        assert (await socket.until("response.completed"))["response"]["status"] == "completed"


# ---- what an idle connection holds ----

LARGE = 8_000_000


@pytest.mark.parametrize(
    "message",
    [
        json.dumps({**CREATE, "input": "x" * LARGE, "temperature": "hot"}),
        json.dumps({**CREATE, "input": "ü" * LARGE, "previous_response_id": "resp_unknown"}),
        "x" * LARGE,
        b"x" * LARGE,
    ],
    ids=["refused", "refused later", "no JSON", "binary"],
)
async def test_nothing_of_a_message_is_held_when_it_was_answered(message: str | bytes) -> None:
    engine, app = engine_and_app(linger=60)
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.say('{"type": "of no use"}')
        await socket.error()
        held = [await held_after(socket, app, message) for _ in range(3)]
    assert min(held) < LARGE / 10, "threads of other tests may allocate something meanwhile, but not each time"


async def held_after(socket: Socket, app: Transport, message: str | bytes) -> int:
    tracemalloc.start()
    try:
        await socket.say(message)
        await socket.error()
        await until_quiet(lambda: app.requests, turns=100)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
