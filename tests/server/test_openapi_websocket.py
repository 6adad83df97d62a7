"""WebSocket in the server's own description: as the standard's document has it, and where there is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.server.websocket import SocketLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from openapi_kit import described, faults
from serving import serving
from socket_kit import CREATE, connected


def scripted() -> Engine:
    return Engine(ScriptedProvider(answer(say("Hello"))), store=MemoryStore())


def test_what_is_sent_and_what_can_go_wrong_are_referred_to_where_the_standard_does() -> None:
    told = described()["paths"]["/v1/responses"]["x-openresponses-websocket"]
    assert told["clientMessage"] == {"$ref": "#/components/schemas/WebSocketResponseCreateEvent"}
    assert told["errorMessage"] == {"$ref": "#/components/schemas/WebSocketErrorEvent"}
    assert "The same path speaks WebSocket" in described()["paths"]["/v1/responses"]["post"]["description"]


async def test_what_is_said_and_heard_fits() -> None:
    async with serving(scripted()) as server, connected(server.port) as socket:
        await socket.ask(stream_id="left")
        for event in socket.heard:
            assert faults("StreamEvent", event) == []
        await socket.create(stream_id="left", temperature=9)
        assert faults("WebSocketErrorEvent", await socket.hear()) == []
    assert faults("WebSocketResponseCreateEvent", {**CREATE, "stream_id": "left"}) == []


@pytest.mark.parametrize(
    "wrong", [{"type": "response.steer"}, {"stream": False}, {"background": True}, {"stream_id": ""}, {"input": 7}]
)
async def test_what_is_refused_is_not_described(wrong: dict[str, Any]) -> None:
    assert faults("WebSocketResponseCreateEvent", {**CREATE, **wrong})
    async with serving(scripted()) as server, connected(server.port) as socket:
        await socket.say({**CREATE, **wrong})
        assert (await socket.error())["status"] == 400


async def test_a_server_without_websockets_describes_none() -> None:
    app = Transport(scripted(), websocket=SocketLimits(enabled=False))
    async with serving(app._engine, app) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
    assert "x-openresponses-websocket" not in plain["paths"]["/v1/responses"]
    assert "WebSocketResponseCreateEvent" not in json.dumps(plain)
