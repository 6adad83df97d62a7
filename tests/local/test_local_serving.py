"""A server whose model is not loaded yet, or no longer: what requests and probes are told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antwort import backends
from antwort.app import App, build
from antwort.config import Settings
from antwort.config.settings import LocalSettings
from antwort.local import provider as provider_module
from chat_backend import ChatBackend, Says
from live_server import PATIENCE
from local_kit import SLOW, Lives, gguf_file
from raw_http import ask
from serving import Serving, serving

ASKED = {"model": "m", "input": "Hello"}


@asynccontextmanager
async def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *scripts: Sequence[str]
) -> AsyncIterator[tuple[Serving, App, Lives]]:
    """The whole server; the model's processes take these steps."""
    settings = Settings(memory=True, local=LocalSettings(model=str(gguf_file(tmp_path / "m.gguf"))))
    app, lives = await build(settings), Lives(*scripts)
    assert app.local is not None
    monkeypatch.setattr(app.local._keeper, "_begin", lives)
    async with asyncio.timeout(PATIENCE), serving(app.engine, app.asgi) as server:
        yield server, app, lives
    assert all(each.has_ended for each in lives.begun)


def ready_at(backend: ChatBackend) -> Sequence[str]:
    return (f"ready={backend.url.removesuffix('/v1')}", "wait")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "PATIENCE", 0.05)
    monkeypatch.setattr(provider_module, "CHECK_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_loading_is_known_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with served(tmp_path, monkeypatch, SLOW) as (server, app, _):
        models = await ask(server.port, "GET", "/v1/models")
        replies = [await ask(server.port, "POST", "/v1/responses", {**ASKED, "stream": stream}) for _ in range(8)]
        ready = await ask(server.port, "GET", "/readyz")
        [status] = await app.survey()
    assert [model["id"] for model in models.json()["data"]] == ["m"]
    assert {(each.status, each.error["code"]) for each in replies} == {(503, "backend_unavailable")}
    assert {each.error["message"] for each in replies} == {
        "The model is still being loaded; try again in a few seconds."
    }
    assert {each.headers["retry-after"] for each in replies} == {"2"}
    assert (ready.status, status.state) == (503, "unreachable")
    assert status.problem == "The model is still being loaded; try again in a few seconds."
    assert not [each for each in caplog.messages if "backend" in each and "is out of reach" in each]


async def test_a_request_that_comes_while_it_loads_is_answered_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ChatBackend(Says(["Hello"])) as backend,
        served(tmp_path, monkeypatch, ready_at(backend)) as (server, app, _),
    ):
        reply = await ask(server.port, "POST", "/v1/responses", ASKED)
        assert (await ask(server.port, "GET", "/readyz")).status == 200
        [status] = await app.survey()
    assert reply.json()["output"][0]["content"][0]["text"] == "Hello"
    assert (status.state, status.problem) == ("ok", None)


async def test_a_model_that_has_died_is_not_ready_and_says_of_what_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ChatBackend(Says(["Hello"])) as backend,
        served(tmp_path, monkeypatch, ready_at(backend), SLOW) as (server, app, lives),
    ):
        assert app.local is not None
        await app.local.ready()
        monkeypatch.setattr(app.local, "_patience", 0.05)
        monkeypatch.setattr(provider_module, "CHECK_SECONDS", 0.05)
        os.kill(lives.begun[0].pid, signal.SIGKILL)
        await lives.begun[0].ended()
        reply = await ask(server.port, "POST", "/v1/responses", ASKED)
        ready = await ask(server.port, "GET", "/readyz")
    assert (reply.status, ready.status) == (503, 503)
    assert "(its process was ended by SIGKILL)" in reply.error["message"]
