"""The models that a key may use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from key_kit import SECRET, a_key, bearing
from serving import RESPONSES, Serving, serving

ANN = bearing(SECRET)


@asynccontextmanager
async def behind(*models: str, default: str | None = None) -> AsyncIterator[tuple[Serving, ScriptedProvider]]:
    """A server with four models and a key that may use those named."""
    ring = Keyring([a_key(identity=Identity("acme", "ann", models, "ann"))])
    provider = ScriptedProvider(answer(say("Hello")), models=("small", "large", "org/one", "org/two"))
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(default_model=default))
    async with serving(engine, Transport(engine, identify=ring.identify)) as server:
        yield server, provider


@pytest.mark.parametrize("model", ["small", "org/one", "org/unlisted"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_allowed_by_name_or_beginning_answers(model: str, stream: bool) -> None:
    async with behind("small", "org/*") as (server, _):
        reply = await server.ask("POST", RESPONSES, {"model": model, "input": "Hi", "stream": stream}, ANN)
    assert reply.status == 200


@pytest.mark.proves("RULING-12")
@pytest.mark.parametrize("asked", [{"model": "large"}, {"model": "Small"}, {"model": "small2"}, {"model": "org"}, {}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_not_is_a_403_before_any_work(asked: dict[str, str], stream: bool) -> None:
    async with behind("small", "org/*", default="large") as (server, provider):
        reply = await server.ask("POST", RESPONSES, {**asked, "input": "Hi", "stream": stream}, ANN)
        assert (reply.status, reply.error["type"]) == (403, "permission_error")
        assert (reply.error["code"], reply.error["param"]) == ("model_not_allowed", "model")
        assert (await server.ask("GET", RESPONSES, None, ANN)).json()["data"] == []
    assert provider.requests == []


async def test_only_the_models_that_may_be_used_are_shown() -> None:
    async with behind("small", "org/*") as (server, _):
        listed = (await server.ask("GET", "/v1/models", None, ANN)).json()["data"]
        assert [model["id"] for model in listed] == ["small", "org/one", "org/two"]
        assert (await server.ask("GET", "/v1/models/org%2Ftwo", None, ANN)).status == 200
        hidden = await server.ask("GET", "/v1/models/large", None, ANN)
        assert (hidden.status, hidden.error["code"]) == (404, "model_not_found")


async def test_the_only_model_that_a_key_may_use_need_not_be_named() -> None:
    async with behind("org/two") as (server, _):
        reply = await server.ask("POST", RESPONSES, {"input": "Hi"}, ANN)
        assert (reply.status, reply.json()["model"]) == (200, "org/two")


async def test_a_key_that_may_use_no_model_uses_none() -> None:
    async with behind() as (server, _):
        assert (await server.ask("GET", "/v1/models", None, ANN)).json()["data"] == []
        assert (await server.ask("POST", RESPONSES, {"model": "small", "input": "Hi"}, ANN)).status == 403
        assert (await server.ask("POST", RESPONSES, {"input": "Hi"}, ANN)).status == 400
