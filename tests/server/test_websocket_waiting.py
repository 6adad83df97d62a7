"""Turns that wait on a WebSocket when no more are begun, and those that cannot be tried again as they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from antwort.engine.engine import Engine
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.server.websocket import SocketLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, say
from key_kit import SECRET, a_key, bearing
from serving import serving, until
from socket_kit import Socket, connected


def scripted(*answers: Answer, **limits: Any) -> tuple[Engine, ScriptedProvider, Transport]:
    provider = ScriptedProvider(*answers)
    engine = Engine(provider, store=MemoryStore())
    return engine, provider, Transport(engine, websocket=SocketLimits(**limits))


async def rest(socket: Socket) -> list[dict[str, Any]]:
    """All that still comes, up to the close."""
    heard = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            heard.append(await socket.hear())
    return heard


def told(messages: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """The code of each error, and the stream it belongs to."""
    return [(each["error"]["code"], each.get("stream_id")) for each in messages]


# ---- no more are begun ----


async def test_turns_that_wait_when_a_server_stops_are_told_that_they_were_not_begun(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    go = asyncio.Event()
    engine, provider, app = scripted(answer(say("Hello"), go))
    async with serving(engine, app, drain=60) as server, connected(server.port) as socket:
        await socket.create()
        await socket.create(input="One", stream_id="s1")
        await socket.until("response.output_text.delta")
        stopping = asyncio.create_task(server.server.shutdown([server.listening]))
        await until(lambda: engine.is_draining)
        await socket.create(input="Two")
        await (await socket.wire.ping())  # it has come in
        go.set()
        assert (await socket.until("response.completed"))["response"]["status"] == "completed"
        assert told(heard := await rest(socket)) == [("server_shutting_down", "s1"), ("server_shutting_down", None)]
        assert [each["status"] for each in heard] == [503, 503]
        assert socket.wire.close_code == CloseCode.SERVICE_RESTART
        await stopping
    assert len(provider.requests) == 1
    lines: list[Any] = [record.__dict__.get("said", {}) for record in caplog.records]
    assert [line["status"] for line in lines if line.get("event") == "request"] == [200, 503, 503]


async def test_turns_that_wait_when_a_connection_is_too_old_are_each_told_so() -> None:
    go = asyncio.Event()
    engine, provider, app = scripted(answer(say("Hello"), go), lifetime=0.05)
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        for name in ("s1", "s2"):
            await socket.create(input="never", stream_id=name)
        async with connected(server.port) as later:  # which is as old when it is told
            assert (await later.error())["code"] == "websocket_connection_limit_reached"
        go.set()
        await socket.until("response.completed")
        limit = "websocket_connection_limit_reached"
        assert told(await rest(socket)) == [(limit, "s1"), (limit, "s2")]
        assert socket.wire.close_code == CloseCode.GOING_AWAY
    assert len(provider.requests) == 1


async def test_what_waits_and_is_no_turn_has_its_own_answer() -> None:
    go = asyncio.Event()
    engine, _, app = scripted(answer(say("Hello"), go), lifetime=0.05)
    async with serving(engine, app) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        await socket.say({"type": "response.steer", "previous_response_id": "resp_1", "input": "more"})
        await socket.say("nonsense")
        async with connected(server.port) as later:
            await later.error()
        go.set()
        await socket.until("response.completed")
        [steer, *errors] = await rest(socket)
    assert steer["type"] == "response.steer.failed"
    assert [code for code, _ in told(errors)] == ["invalid_json", "websocket_connection_limit_reached"]


# ---- what cannot be tried again ----


def with_one_request(engine: Engine) -> Transport:
    ring = Keyring([a_key(limits=KeyLimits(requests_per_minute=1))], clock=lambda: 0.0)
    return Transport(engine, identify=ring.identify, quotas=ring.quotas)


async def test_a_continuation_that_is_forgotten_is_not_to_be_sent_again_as_it_is() -> None:
    engine, _, _ = scripted(answer(say("Hello")))
    app = with_one_request(engine)
    async with serving(engine, app) as server, connected(server.port, headers=bearing(SECRET)) as socket:
        first = await socket.ask(store=False)
        await socket.create(store=False, previous_response_id=first.id)
        hints = (await socket.hear())["headers"]
        assert (hints["x-should-retry"], int(hints["retry-after"]) > 0) == ("false", True)
        await socket.create(store=False)
        assert (await socket.hear())["headers"]["x-should-retry"] == "true"


async def test_a_continuation_of_what_is_stored_may_be_sent_again() -> None:
    engine, _, _ = scripted(answer(say("Hello")))
    app = with_one_request(engine)
    async with serving(engine, app) as server, connected(server.port, headers=bearing(SECRET)) as socket:
        first = await socket.ask()
        await socket.create(previous_response_id=first.id)
        assert (await socket.hear())["headers"]["x-should-retry"] == "true"
