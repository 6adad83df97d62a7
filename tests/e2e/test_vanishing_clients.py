"""Two hundred clients that vanish in mid-stream leave nothing behind: counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antwort.app import build
from chat_backend import ChatBackend, Says
from raw_http import connected
from serving import RESPONSES, Serving, serving, until
from settings_kit import in_front_of

CLIENTS = 200


async def vanish(server: Serving, number: int) -> None:
    """Read the first words of a stream and go: every other client with a proper goodbye."""
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, {"model": "test-model", "input": "Hello", "stream": True, "store": number % 4 < 2})
        assert (await wire.head()).status == 200
        while b"output_text.delta" not in await wire.chunk():
            pass
        if number % 2:
            wire.vanish()
        else:
            await wire.close()


@pytest.mark.proves("TR-021", "MISTAKE-17")
async def test_two_hundred_clients_that_vanish_leave_no_task_no_connection_and_no_backend_request(
    tmp_path: Path,
) -> None:
    async with ChatBackend(Says(["Hello", " there"], hold=asyncio.Event())) as backend:
        app = await build(in_front_of(backend.url, data=tmp_path, connect=30))
        async with serving(app.engine, app.asgi) as server:
            before = asyncio.all_tasks()
            await asyncio.gather(*(vanish(server, number) for number in range(CLIENTS)))
            assert len(backend.requests) == CLIENTS
            async with asyncio.timeout(10):
                await backend.until(lambda: backend.open_requests == 0)
                await backend.until(lambda: backend.connections == 0)
            await until(lambda: server.engine.live == 0)
            await until(lambda: not server.server.server_state.connections)
            await until(lambda: asyncio.all_tasks() <= before)
            await until(lambda: not server.server.server_state.tasks)
            # And it still works.
            backend.answers = [Says()]
            reply = await server.ask("POST", RESPONSES, {"model": "test-model", "input": "Hello"})
            assert reply.json()["status"] == "completed"
