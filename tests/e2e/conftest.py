"""A backend over HTTP and a server in front of it, in this process and as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antwort.app import build
from chat_backend import ChatBackend
from live_server import launched
from serving import serving
from settings_kit import in_front_of


@pytest.fixture
async def backend() -> AsyncIterator[ChatBackend]:
    async with ChatBackend() as running:
        yield running


@pytest.fixture(params=["in process", "own process"])
async def base_url(request: pytest.FixtureRequest, backend: ChatBackend, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "own process":
        async with launched("--backend", backend.url, "--data", str(tmp_path)) as process:
            yield process.url
    else:
        app = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(app.engine, app.asgi) as server:
            yield server.url
