"""A store that fails under a running server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antwort.app import build
from antwort.config import Settings
from antwort.testing import check_frames
from chat_backend import ChatBackend, Says
from raw_http import connected
from serving import RESPONSES, serving

BODY = {"model": "test-model", "input": "Hello"}


def remove_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.proves("MISTAKE-02", "TR-016")
async def test_a_response_whose_record_cannot_be_written_is_failed_and_never_completed(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with ChatBackend(Says(hold=go)) as backend:
        app = await build(Settings(backend=backend.url, data=str(tmp_path)))
        async with serving(app.engine, app.asgi) as server:
            async with connected(server.port) as wire:
                wire.send("POST", RESPONSES, {**BODY, "stream": True})
                await wire.head()
                chunks = [await wire.chunk()]
                remove_all(tmp_path)
                go.set()
                while chunk := await wire.chunk():
                    chunks.append(chunk)
            response = check_frames(b"".join(chunks))
            assert response.status == "failed"
            assert response.error is not None
            assert response.error.code == "storage_error"
            # Later requests fail clearly too, before any work; what needs no record is still answered.
            requests = len(backend.requests)
            reply = await server.ask("POST", RESPONSES, BODY)
            assert (reply.status, reply.error["code"]) == (500, "storage_error")
            assert len(backend.requests) == requests
            assert (await server.ask("POST", RESPONSES, {**BODY, "store": False})).json()["status"] == "completed"
            ready = await server.ask("GET", "/readyz")
            assert (ready.status, ready.json()["backend"]) == (503, "ok")
            assert ready.json()["store"] != "ok"
