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

from antwort import Engine, LocalProvider
from antwort.backends import make_fleet
from antwort.config import Settings
from antwort.config.settings import LocalSettings
from antwort.providers.fleet import Fleet
from chat_backend import ChatBackend, Says
from live_server import PATIENCE
from local_kit import SLOW, Lives, gguf_file
from raw_http import ask
from serving import Serving, serving

ASKED = {"model": "m", "input": "Hello"}


@asynccontextmanager
async def served(
    tmp_path: Path, *scripts: Sequence[str], patience: float | None = None
) -> AsyncIterator[tuple[Serving, Fleet, LocalProvider, Lives]]:
    """A server in front of a local model; the model's processes take these steps."""
    lives, file = Lives(*scripts), gguf_file(tmp_path / "m.gguf")
    local = LocalProvider(file, patience=patience, start_process=lives)
    fleet = make_fleet(Settings(local=LocalSettings(model=str(file))), local=local)
    async with asyncio.timeout(PATIENCE), serving(Engine(fleet)) as server:
        yield server, fleet, local, lives
    assert all(each.has_ended for each in lives.begun)


def ready_at(backend: ChatBackend) -> Sequence[str]:
    return (f"ready={backend.url.removesuffix('/v1')}", "wait")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_loading_is_known_and_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with served(tmp_path, SLOW, patience=0.05) as (server, fleet, _, _):
        models = await ask(server.port, "GET", "/v1/models")
        replies = [await ask(server.port, "POST", "/v1/responses", {**ASKED, "stream": stream}) for _ in range(8)]
        ready = await ask(server.port, "GET", "/readyz")
        [status] = fleet.status()
    assert [model["id"] for model in models.json()["data"]] == ["m"]
    assert {(each.status, each.error["code"]) for each in replies} == {(503, "backend_unavailable")}
    assert {each.error["message"] for each in replies} == {
        "The model is still being loaded; try again in a few seconds."
    }
    assert {each.headers["retry-after"] for each in replies} == {"2"}
    assert (ready.status, status.state) == (503, "unreachable")
    assert status.problem == "The model is still being loaded; try again in a few seconds."
    assert not [each for each in caplog.messages if "backend" in each and "is out of reach" in each]


async def test_a_request_that_comes_while_it_loads_is_answered_when_it_is_there(tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(["Hello"])) as backend,
        served(tmp_path, ready_at(backend)) as (server, fleet, _, _),
    ):
        reply = await ask(server.port, "POST", "/v1/responses", ASKED)
        assert (await ask(server.port, "GET", "/readyz")).status == 200
        [status] = fleet.status()
    assert reply.json()["output"][0]["content"][0]["text"] == "Hello"
    assert (status.state, status.problem) == ("ok", None)


async def test_a_model_that_has_died_is_not_ready_and_says_of_what_it_died(tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(["Hello"])) as backend,
        served(tmp_path, ready_at(backend), SLOW, patience=0.05) as (server, _, local, lives),
    ):
        await local.ready()
        os.kill(lives.begun[0].pid, signal.SIGKILL)
        await lives.begun[0].ended()
        reply = await ask(server.port, "POST", "/v1/responses", ASKED)
        ready = await ask(server.port, "GET", "/readyz")
    assert (reply.status, ready.status) == (503, 503)
    assert "(its process was ended by SIGKILL)" in reply.error["message"]
