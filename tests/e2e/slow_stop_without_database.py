"""Being told to stop while the database stands still: streams get their end all the same, and so does the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antwort.testing import check_frames
from chat_backend import ChatBackend, Says
from live_server import LiveServer, launched
from postgres import Postgres
from raw_http import ask, connected

RESPONSES = "/v1/responses"
ASKED = {"model": "test-model", "input": "Hello"}


@asynccontextmanager
async def serving(postgres: Postgres, backend: ChatBackend, data: Path) -> AsyncIterator[LiveServer]:
    flags = ("--backend", backend.url, "--data", str(data), "--drain", "0", "--log-format", "human")
    async with launched(*flags, environment={"ANTWORT_DATABASE": postgres.migrated_database()}) as server:
        yield server


async def test_a_stream_ends_when_the_server_is_told_to_stop_while_the_database_stands_still(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        ChatBackend(Says(hold=asyncio.Event())) as backend,
        serving(own_postgres, backend, tmp_path) as server,
        connected(server.port) as wire,
    ):
        wire.send("POST", RESPONSES, {**ASKED, "stream": True})
        assert (await wire.head()).status == 200
        chunks = [await wire.chunk()]
        own_postgres.pause()
        stopping = asyncio.create_task(server.stop())
        while chunk := await wire.chunk():
            chunks.append(chunk)
        status, _ = await stopping
    response = check_frames(b"".join(chunks))
    assert response.error is not None
    assert (response.status, response.error.code[:8]) == ("failed", "storage_")
    assert status == 0


async def test_a_background_response_does_not_hold_a_server_that_is_told_to_stop_while_the_database_stands_still(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        ChatBackend(Says(hold=asyncio.Event())) as backend,
        serving(own_postgres, backend, tmp_path) as server,
    ):
        queued = (await ask(server.port, "POST", RESPONSES, {**ASKED, "background": True})).json()
        await backend.until(lambda: len(backend.requests) == 1)
        own_postgres.pause()
        status, _ = await server.stop()
    assert (queued["status"], status) == ("queued", 0)
