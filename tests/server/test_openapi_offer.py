"""What the document says of one server and not of another: what it asks for, remembers, counts and shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.app import build
from antwort.config import Secret, Settings
from antwort.config.settings import AuthSettings, KeySettings, MetricsSettings
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.exchange import Scope
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from key_kit import a_key, bearing
from openapi_kit import Json
from serving import HELLO, STREAMED, serving
from settings_kit import in_front_of


def make_engine(**settings: Any) -> Engine:
    return Engine(ScriptedProvider(), store=MemoryStore(), settings=EngineSettings(**settings))


def keyed(engine: Engine, ring: Keyring) -> Transport:
    return Transport(engine, identify=ring.identify, quotas=ring.quotas, credentials="key")


async def asked(app: Transport) -> Json:
    async with serving(app._engine, app) as server:
        plain: Json = (await server.ask("GET", "/openapi.json")).json()
    return plain


class Stranger(Exception):
    """What a program of somebody's own may raise."""


async def test_a_program_that_identifies_requests_itself_is_not_asked_for_the_document_and_promises_no_keys() -> None:
    def identify(scope: Scope) -> Identity:
        raise Stranger

    app = Transport(make_engine(), identify=identify)
    plain = await asked(app)
    assert "securitySchemes" not in plain["components"]
    assert not [row for methods in plain["paths"].values() for row in methods.values() if "security" in row]
    assert "credentials of its own" in plain["info"]["description"]
    app = Transport(make_engine(), identify=identify)
    async with serving(app._engine, app) as server:
        page, ready = await server.ask("GET", "/docs"), await server.ask("GET", "/readyz")
    assert (page.status, ready.status, ready.json()) == (200, 200, {"status": "ok"})


@pytest.mark.parametrize(("seconds", "is_offered"), [(0, False), (60, True)])
async def test_an_idempotency_key_is_described_only_where_it_is_remembered(seconds: float, is_offered: bool) -> None:
    plain = await asked(Transport(make_engine(idempotency=seconds)))
    assert ("Idempotency-Key" in plain["components"]["parameters"]) is is_offered
    assert ("Idempotent-Replayed" in plain["components"]["headers"]) is is_offered
    assert ("Idempotency-Key" in json.dumps(plain)) is is_offered


@pytest.mark.parametrize("setting", ["status", "event", "completed"])
async def test_the_events_that_end_a_stream_are_those_of_the_setting(setting: str) -> None:
    plain = await asked(Transport(make_engine(requires_action=setting)))
    about = plain["paths"]["/v1/responses"]["post"]["responses"]["200"]["description"]
    assert "`response.completed`" in about
    assert ("`response.requires_action`" in about) is (setting == "event")
    assert ("`requires_action`" in about) is (setting == "status")


@pytest.mark.parametrize("enabled", [True, False])
async def test_background_is_described_where_it_is_offered_and_elsewhere_it_can_only_be_false(enabled: bool) -> None:
    plain = await asked(Transport(make_engine(background=BackgroundSettings(enabled=enabled))))
    allowed = plain["components"]["schemas"]["CreateResponse"]["properties"]["background"]["anyOf"]
    assert ({"const": False} in allowed) is not enabled
    assert ("`queued`" in plain["paths"]["/v1/responses"]["post"]["description"]) is enabled


OF_HTTP = {"content-type", "content-length", "transfer-encoding", "date"}


@pytest.mark.parametrize("limits", [KeyLimits(), KeyLimits(concurrent=1), KeyLimits(requests_per_minute=60)])
async def test_the_headers_of_an_answer_are_described(limits: KeyLimits) -> None:
    """Also those that only keys with limits see."""
    engine = Engine(ScriptedProvider(answer(say("Hi")), answer(say("Hi"))), store=MemoryStore())
    app = keyed(engine, Keyring([a_key("sk-ann", "ann", limits=limits)]))
    async with serving(engine, app) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
        for path, body in (("/v1/responses", HELLO), ("/v1/responses", STREAMED), ("/docs", None)):
            method = "GET" if body is None else "POST"
            reply = await server.ask(method, path, body, bearing("sk-ann"))
            described = plain["paths"][path][method.lower()]["responses"]["200"]["headers"]
            told = {name.lower() for name in described} | {
                "content-type",
                "content-length",
                "transfer-encoding",
                "date",
            }
            assert reply.status == 200
            assert {*reply.headers} - told == set()
    assert any("ratelimit" in name.lower() for name in plain["components"]["headers"]) is bool(
        limits.requests_per_minute
    )
    limited = plain["components"]["responses"]["RateLimited"]["headers"]
    assert ("X-RateLimit-Remaining-Requests" in limited) is bool(limits.requests_per_minute)


SECRET = Secret("sk-antwort-0123456789")
ANN = KeySettings(name="ann", key=SECRET)
PLAIN = replace(in_front_of("http://127.0.0.1:9/v1"), memory=True)


@pytest.mark.parametrize(
    ("settings", "security"),
    [
        (PLAIN, "open"),
        (replace(PLAIN, metrics=MetricsSettings(key=SECRET)), "locked"),
        (replace(PLAIN, auth=AuthSettings(keys=(replace(ANN, metrics=True),))), "locked"),
        (replace(PLAIN, auth=AuthSettings(keys=(ANN,))), "hidden"),
    ],
)
async def test_the_metrics_are_described_as_strangers_find_them(settings: Settings, security: str) -> None:
    app = await build(settings)
    async with serving(app.engine, app.asgi) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
        assert (await server.ask("GET", "/metrics")).status == {"open": 200, "locked": 401, "hidden": 404}[security]
    assert ("/metrics" in plain["paths"]) is (security != "hidden")
    if security != "hidden":
        locks = plain["paths"]["/metrics"]["get"].get("security")
        assert locks == ([{"metrics": []}] if security == "locked" else None)
    assert ("metrics" in plain["components"].get("securitySchemes", {})) is (security == "locked")
