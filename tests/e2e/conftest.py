"""A backend over HTTP and a server in front of it, in this process and as a process of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

from antwort.app import build
from antwort.asgi import create_app
from chat_backend import ChatBackend
from live_server import launched
from mounted import in_fastapi, in_starlette, run_by_uvicorn
from serving import serving
from settings_kit import in_front_of


@pytest.fixture
async def backend() -> AsyncIterator[ChatBackend]:
    async with ChatBackend() as running:
        yield running


WAYS = ("in process", "own process", "mounted in FastAPI", "mounted in Starlette")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs in two of the ways to run a server, and each way has its share of them; with `EVERY_WAY` (`make
    test-ways`) each runs in all.
    """
    if "base_url" in metafunc.fixturenames:
        first = crc32(metafunc.function.__name__.encode()) % len(WAYS)
        some = (WAYS[first], WAYS[(first + 1) % len(WAYS)])
        metafunc.parametrize("base_url", WAYS if os.environ.get("EVERY_WAY") else some, indirect=True)


@pytest.fixture
async def base_url(request: pytest.FixtureRequest, backend: ChatBackend, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "own process":
        async with launched("--backend", backend.url, "--data", str(tmp_path)) as process:
            yield process.url
    elif request.param == "mounted in FastAPI":
        ai = create_app(in_front_of(backend.url, data=tmp_path))
        async with run_by_uvicorn(in_fastapi(ai), loop="uvloop") as port:
            yield f"http://127.0.0.1:{port}/ai/v1"
    elif request.param == "mounted in Starlette":
        ai = create_app(in_front_of(backend.url, data=tmp_path))
        async with run_by_uvicorn(in_starlette(ai, "/deep/down"), loop="asyncio") as port:
            yield f"http://127.0.0.1:{port}/deep/down/v1"
    else:
        app = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(app.engine, app.asgi) as server:
            yield server.url
