"""Keys as the settings have them, in front of one file, from one start of the server to the next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.app import build
from antwort.config.secrets import Secret
from antwort.config.settings import AuthSettings, CorsSettings, KeyLimits, KeySettings, Settings
from key_kit import bearing
from raw_http import Reply
from serving import HELLO, RESPONSES, Serving, serving

ANN = KeySettings(name="ann", key=Secret("sk-ann-very-secret"), tenant="acme")
NEW_ANN = KeySettings(name="ann-2027", key=Secret("sk-ann-of-2027-secret"), tenant="acme", subject="ann")
BOB = KeySettings(name="bob", key=Secret("sk-bob-very-secret"), tenant="acme")
NOBODY: dict[str, str] = {}


@asynccontextmanager
async def started(data: Path, *keys: KeySettings, **fields: Any) -> AsyncIterator[Serving]:
    settings = Settings(scripted=True, data=str(data), auth=AuthSettings(keys=keys), **fields)
    app = await build(settings)
    async with serving(app.engine, app.asgi) as server:
        yield server


async def ids(server: Serving, headers: dict[str, str]) -> list[str]:
    reply: Reply = await server.ask("GET", RESPONSES, None, headers)
    assert reply.status == 200
    return [response["id"] for response in reply.json()["data"]]


@pytest.mark.proves("MISTAKE-27", "MISTAKE-29")
async def test_what_a_key_has_stored_stays_its_subjects_from_start_to_start(tmp_path: Path) -> None:
    async with started(tmp_path) as server:
        nobodys = (await server.ask("POST", RESPONSES, HELLO)).json()["id"]
    async with started(tmp_path, ANN, BOB) as server:
        anns = (await server.ask("POST", RESPONSES, HELLO, bearing("sk-ann-very-secret"))).json()["id"]
        assert (await server.ask("GET", RESPONSES)).status == 401
        assert await ids(server, bearing("sk-bob-very-secret")) == []
    async with started(tmp_path, NEW_ANN, BOB) as server:
        assert await ids(server, bearing("sk-ann-of-2027-secret")) == [anns]
        assert await ids(server, bearing("sk-bob-very-secret")) == []
        assert (await server.ask("GET", RESPONSES, None, bearing("sk-ann-very-secret"))).status == 401
    async with started(tmp_path) as server:
        assert await ids(server, NOBODY) == [nobodys]
        assert (await server.ask("GET", f"{RESPONSES}/{anns}")).status == 404


async def test_limits_and_pages_are_as_the_settings_say(tmp_path: Path) -> None:
    limited = KeySettings(name="ann", key=Secret("sk-ann-very-secret"), limits=KeyLimits(tokens_per_minute=1))
    page = {"origin": "https://app.example.com"}
    async with started(tmp_path, limited, cors=CorsSettings(origins=(page["origin"],))) as server:
        statuses = [
            (await server.ask("POST", RESPONSES, HELLO, bearing("sk-ann-very-secret") | page)).status for _ in range(2)
        ]
        assert statuses == [200, 429]
        refused = await server.ask("GET", RESPONSES, None, page)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, page["origin"])
