"""WebSockets of `antwort serve` as a process of its own, with OpenAI's client and without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from chat_backend import ChatBackend, Says
from live_server import launched
from socket_kit import Socket, connected

MODEL = "test-model"


async def begun(socket: Socket) -> None:
    await socket.create(model=MODEL)
    await socket.until("response.output_text.delta")


async def close_code(socket: Socket) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await socket.hear()
    return socket.wire.close_code


async def test_openai_s_client_has_a_conversation_that_nobody_stores(tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(["Hello", " there"])) as backend,
        launched("--backend", backend.url, "--data", str(tmp_path)) as server,
        AsyncOpenAI(base_url=server.url, api_key="none") as client,
        client.responses.connect() as wire,
    ):
        previous: str | None = None
        for text in ("One", "Two"):
            await wire.response.create(model=MODEL, input=text, store=False, previous_response_id=previous)
            async for event in wire:
                assert event.type != "error", event
                if event.type == "response.completed":
                    previous = event.response.id
                    break
        await wire.response.create(model=MODEL, input="Three", previous_response_id="resp_unknown")
        event = await wire.recv()
        assert event.type == "error"
        assert (event.status, event.error.code) == (404, "previous_response_not_found")
    [*_, last] = backend.requests
    assert [message["content"] for message in last["messages"]] == ["One", "Hello there", "Two"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_closes_what_is_idle_and_ends_what_is_under_way(how: signal.Signals, tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with ChatBackend(Says(hold=hold)) as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path), "--drain", "20")
        async with launched(*flags) as server, connected(server.port) as idle, connected(server.port) as busy:
            await begun(busy)
            stopping = asyncio.create_task(server.stop(how))
            assert await close_code(idle) == CloseCode.SERVICE_RESTART
            hold.set()
            assert (await busy.until("response.completed"))["response"]["status"] == "completed"
            assert await close_code(busy) == CloseCode.SERVICE_RESTART
            status, log = await stopping
    assert status == 0
    assert "Traceback" not in log


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    async with ChatBackend(Says(hold=asyncio.Event())) as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path), "--drain", "60")
        async with launched(*flags) as server, connected(server.port) as idle, connected(server.port) as busy:
            await begun(busy)
            server.process.send_signal(signal.SIGTERM)
            assert await close_code(idle) == CloseCode.SERVICE_RESTART
            status, log = await server.stop()
    assert status == 1
    assert "Traceback" not in log


async def test_a_client_that_is_killed_leaves_a_record_that_is_true(tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(hold=asyncio.Event())) as backend,
        launched("--backend", backend.url, "--data", str(tmp_path)) as server,
        AsyncOpenAI(base_url=server.url, api_key="none") as client,
        asyncio.timeout(20),
    ):
        async with connected(server.port) as socket:
            await begun(socket)
            response_id = socket.heard[0]["response"]["id"]
            socket.wire.transport.abort()
            await backend.until(lambda: backend.open_requests == 0)
        while (kept := await client.responses.retrieve(response_id)).status == "in_progress":
            pass
    assert kept.status == "cancelled"


async def test_the_settings_hold(tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    async with ChatBackend(Says()) as backend:
        settings = {
            "backends": [{"name": "b0", "url": backend.url}],
            "memory": True,
            "auth": {"keys": [{"name": "ann", "key": "sk-ann-0123456789"}]},
            "server": {"body_limit": 2000, "websocket": {"connections": 1, "lifetime": 3600}},
        }
        file.write_text(json.dumps(settings))
        async with launched("--config", str(file)) as server:
            with pytest.raises(InvalidStatus) as caught:
                async with connected(server.port):
                    pass
            assert caught.value.response.status_code == 401
            mine = {"authorization": "Bearer sk-ann-0123456789"}
            async with connected(server.port, headers=mine) as socket:
                with pytest.raises(InvalidStatus) as caught:
                    async with connected(server.port, headers=mine):
                        pass
                assert caught.value.response.status_code == 503
                assert (await socket.ask(model=MODEL)).status == "completed"
                await socket.create(model=MODEL, input="x" * 2000)
                assert await close_code(socket) == CloseCode.MESSAGE_TOO_BIG
            _, log = await server.stop()
    assert "sk-ann" not in log
