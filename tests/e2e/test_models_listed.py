"""What `GET /v1/models` tells of contexts, by all names that a model goes by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.backends import make_fleet
from antwort.config import Settings
from antwort.config.settings import BackendSettings, CapabilitySettings, RoutingSettings
from antwort.engine.engine import Engine
from replay_backend import serve, whole
from serving import serving

LISTED = whole(json.dumps({"data": [{"id": "big", "max_model_len": 32768}, {"id": "odd"}]}).encode())


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({}, {"big": 32768, "odd": None, "fast": 32768}),
        ({"context_length": 4096}, {"big": 4096, "odd": 4096, "fast": 4096}),
    ],
)
async def test_the_length_of_the_context_is_told_where_it_is_known(given: Any, lengths: dict[str, int | None]) -> None:
    async with serve(LISTED) as backend:
        settings = Settings(
            backends=(BackendSettings(name="b", url=backend.url, capabilities=CapabilitySettings(**given)),),
            routing=RoutingSettings(aliases={"fast": "big"}),
        )
        async with serving(Engine(make_fleet(settings))) as server:
            listed = (await server.ask("GET", "/v1/models")).json()["data"]
            one = (await server.ask("GET", "/v1/models/fast")).json()
    assert {model["id"]: model.get("context_length") for model in listed} == lengths
    assert one in listed
