"""The published compliance tests: by default, and under the strict setting with a model that reasons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.chat import ChatProvider
from antwort.server.server import listen
from antwort.storage.memory import MemoryStore
from antwort.testing.backend import DemoBackend
from conformance.published import CHECKS, Place
from live_server import launched
from serving import serving
from standard import StandardMismatch

MODEL = "small"


@asynccontextmanager
async def backend(*, reasons: bool) -> AsyncIterator[str]:
    """A Chat Completions backend, and its address."""
    with listen("127.0.0.1", 0) as sock:
        app = DemoBackend([MODEL], reasons=reasons)
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        running = asyncio.create_task(server._serve([sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await running


@asynccontextmanager
async def place(*, strict: bool, reasons: bool) -> AsyncIterator[Place]:
    async with backend(reasons=reasons) as url:
        engine = Engine(ChatProvider(url), store=MemoryStore(), settings=EngineSettings(strict=strict))
        async with serving(engine) as server:
            yield Place(server.port, MODEL, strict=strict)


@pytest.mark.parametrize("name", CHECKS)
async def test_by_default(name: str) -> None:
    async with place(strict=False, reasons=False) as server:
        await CHECKS[name](server)


@pytest.mark.parametrize("name", CHECKS)
async def test_under_the_strict_setting_with_a_model_that_reasons(name: str) -> None:
    async with place(strict=True, reasons=True) as server:
        await CHECKS[name](server)


@pytest.mark.parametrize("name", ["streaming-response", "websocket-response"])
async def test_without_the_setting_reasoning_goes_by_names_that_the_standard_does_not_have(name: str) -> None:
    async with place(strict=False, reasons=True) as server:
        with pytest.raises(StandardMismatch, match=r"no event 'response\.reasoning_text\.delta'"):
            await CHECKS[name](server)


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
async def test_all_at_once_against_a_server_of_its_own(strict: bool) -> None:
    """As they are run there: side by side, against `antwort serve`."""
    async with backend(reasons=strict) as url:
        flags = ["--memory", "--backend", url, *(["--strict"] if strict else [])]
        async with launched(*flags) as server, asyncio.TaskGroup() as together:
            for check in CHECKS.values():
                together.create_task(check(Place(server.port, MODEL, strict=strict)))
