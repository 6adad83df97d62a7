"""The backends that the settings name become one provider."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from antwort.api.wire import replace
from antwort.backends import make_fleet
from antwort.config import CannotStart, Secret, Settings
from antwort.config.settings import (
    BackendSettings,
    BreakerSettings,
    CapabilitySettings,
    RetrySettings,
    RouteSettings,
    RouteTarget,
    RoutingSettings,
    TimeoutSettings,
)
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import AntwortError, BackendUnavailable
from antwort.identity import Identity
from antwort.net.connection import Timeouts
from antwort.providers.base import InferenceRecord
from antwort.providers.chat import ChatProvider
from antwort.providers.failover import CONNECT_SECONDS
from antwort.providers.fleet import Fleet
from antwort.providers.responses import ResponsesProvider
from chat_backend import ChatBackend, Refuses, Says
from fleet_kit import asking, said
from replay_backend import serve, whole

TLS = Path(__file__).parent / "net" / "tls"
ONCE = RetrySettings(attempts=1)
MODELS = whole(b'{"data": [{"id": "m"}]}')


def settings_for(*backends: dict[str, Any], **routing: Any) -> Settings:
    named = tuple(BackendSettings(**{"name": f"b{at}", **fields}) for at, fields in enumerate(backends))
    return Settings(backends=named, routing=RoutingSettings(**routing))


async def failure(fleet: Fleet, model: str = "m") -> AntwortError:
    with pytest.raises(AntwortError) as caught:
        await said(fleet, model)
    return caught.value


async def test_without_backends_a_stand_in_answers_by_any_name() -> None:
    fleet = make_fleet(Settings(scripted=True))
    assert [each.kind for each in fleet.status()] == ["scripted"]
    assert [model.id for model in await fleet.models()] == ["scripted"]
    assert await said(fleet, "whatever") == "You said: Hi"
    await fleet.close()


async def test_every_rule_of_the_routing_holds() -> None:
    async with ChatBackend(Says(["a"]), models=["one"]) as a, ChatBackend(Says(["b"]), models=["two"]) as b:
        route = RouteSettings(model="best", to=(RouteTarget(backend="b1", model="two"), RouteTarget(backend="b0")))
        fleet = make_fleet(
            settings_for({"url": a.url}, {"url": b.url, "prefix": "far/"}, aliases={"nick": "one"}, routes=(route,))
        )
        assert [model.id for model in await fleet.models()] == ["one", "far/two", "best", "nick"]
        asked = ["one", "far/two", "best", "nick"]
        assert [await said(fleet, model) for model in asked] == ["a", "b", "b", "a"]
        assert [request["model"] for request in (*a.requests, *b.requests)] == ["one", "one", "two", "two"]
        await fleet.close()


async def test_weights_are_shares() -> None:
    async with ChatBackend(Says(["a"])) as a, ChatBackend(Says(["b"])) as b:
        shared = ["test-model"]
        fleet = make_fleet(
            settings_for(
                {"url": a.url, "weight": 1000, "models": shared},
                {"url": b.url, "weight": 1, "models": shared},
                policy="weighted",
            )
        )
        assert [await said(fleet, "test-model") for _ in range(20)].count("a") >= 18
        await fleet.close()


async def test_a_backend_gets_its_key_and_headers_and_no_word_of_them_is_shown() -> None:
    async with serve(MODELS) as backend:
        fields = {"api_key": Secret("sk-hush"), "headers": {"X-Team": Secret("hush-hush")}, "url": backend.url}
        fleet = make_fleet(settings_for(fields))
        await fleet.models()
        [seen] = backend.requests
        assert (seen.headers["authorization"], seen.headers["x-team"]) == ("Bearer sk-hush", "hush-hush")
        assert "hush" not in repr(fleet.status())
        await fleet.close()


@pytest.mark.parametrize(("kind", "path"), [("chat", "/v1/chat/completions"), ("responses", "/v1/responses")])
async def test_the_kind_says_which_api_is_spoken(kind: Any, path: str) -> None:
    async with serve(whole(b"{}")) as backend:
        fleet = make_fleet(settings_for({"url": backend.url, "kind": kind}))
        assert fleet.status()[0].kind == kind
        await failure(fleet)
        assert backend.requests[0].path == path
        await fleet.close()


@pytest.mark.parametrize(
    ("kind", "given", "changed"),
    [
        ("chat", {}, {"allowed_tools": True, "folds": True}),
        ("responses", {}, {}),
        ("chat", {"files": True}, {"files": True, "allowed_tools": True, "folds": True}),
        ("responses", {"vision": False}, {"vision": False}),
        ("responses", {"developer_role": False}, {"developer_role": False}),
        ("responses", {"reasoning_field": None}, {"reasoning_field": None}),
        ("responses", {"context_length": 4096}, {"context_length": 4096}),
    ],
)
def test_capabilities_are_those_of_the_kind_but_for_those_that_are_set(
    kind: str, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    fields = {"url": "http://host/v1", "kind": kind, "capabilities": CapabilitySettings(**given)}
    usual = ChatProvider.default_capabilities if kind == "chat" else ResponsesProvider.default_capabilities
    assert make_fleet(settings_for(fields)).capabilities("m") == replace(usual, **changed)


async def test_each_request_to_a_backend_is_reported() -> None:
    records: list[InferenceRecord] = []
    async with ChatBackend(Refuses(500)) as a, ChatBackend() as b:
        fleet = make_fleet(settings_for({"url": a.url}, {"url": b.url}), on_inference=records.append)
        assert await said(fleet, "test-model") == "Hello there"
        await fleet.close()
    assert [(record.backend, record.error) for record in records] == [("b0", "backend_error"), ("b1", "")]


async def test_the_circuit_breaker_is_as_the_settings_say() -> None:
    async with ChatBackend() as backend:
        url = backend.url
    fleet = make_fleet(settings_for({"url": url, "breaker": BreakerSettings(failures=1, open=60)}, retry=ONCE))
    errors = [await failure(fleet) for _ in range(2)]
    assert [error.code for error in errors] == ["backend_unavailable", "backend_circuit_open"]
    assert errors[1].retry_after == pytest.approx(60, abs=30)
    await fleet.close()


async def test_no_more_inferences_are_under_way_than_the_backend_takes() -> None:
    hold = asyncio.Event()
    async with ChatBackend(Says(["a", "b"], hold=hold)) as backend:
        fleet = make_fleet(settings_for({"url": backend.url, "max_exchanges": 2}))
        answers = [asyncio.create_task(said(fleet)) for _ in range(5)]
        await backend.until(lambda: len(backend.requests) == 2)
        hold.set()
        assert await asyncio.gather(*answers) == ["ab"] * 5
        await fleet.close()


async def test_certificates_of_a_file_are_trusted_and_those_alone() -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    async with serve(MODELS, tls=server) as backend:
        trusting = make_fleet(settings_for({"url": backend.url, "ca_file": str(TLS / "cert.pem")}))
        assert [model.id for model in await trusting.models()] == ["m"]
        await trusting.close()
        doubting = make_fleet(settings_for({"url": backend.url}))
        with pytest.raises(BackendUnavailable):
            await doubting.check()
        await doubting.close()


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file or directory"), ("nothing", "it holds no certificate")]
)
def test_certificates_that_cannot_be_read_are_one_sentence(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    path = str(tmp_path / "ca.pem")
    with pytest.raises(CannotStart) as caught:
        make_fleet(settings_for({"url": "https://host/v1", "ca_file": path}))
    assert (
        str(caught.value) == f"The backend 'b0' cannot be used: the certificates in {path!r} cannot be read: {problem}."
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (settings_for({"url": "http://h/v1", "api_key": Secret("hush\nhush")}), "only printable ASCII"),
        (settings_for({"url": "http://user:hush@host/v1"}), "must not carry a name or password"),
        (settings_for({"url": "host"}), "is not a URL"),
        (
            settings_for({"url": "http://h", "name": "x"}, {"url": "http://h", "name": "x"}),
            "two backends have the same",
        ),
        (
            settings_for({"url": "http://h"}, routes=(RouteSettings(model="m", to=(RouteTarget(backend="y"),)),)),
            "the route of 'm' leads to 'y', which is no backend",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(settings: Settings, problem: str) -> None:
    with pytest.raises(CannotStart, match=problem) as caught:
        make_fleet(settings)
    assert str(caught.value).endswith(".")
    assert "hush" not in str(caught.value)


async def test_retries_are_those_of_the_settings() -> None:
    async with ChatBackend(Refuses(503)) as backend:
        routing = RoutingSettings(retry=RetrySettings(attempts=4, base=0.001, cap=0.001))
        fleet = make_fleet(replace(settings_for({"url": backend.url}), routing=routing))
        with pytest.raises(BackendUnavailable):
            _ = [batch async for batch in fleet.infer(asking())]
        assert len(backend.requests) == 4
        await fleet.close()


def test_connecting_is_given_up_while_the_client_can_still_be_told_by_the_status() -> None:
    times = TimeoutSettings()
    assert Timeouts(connect=times.connect, first_byte=times.first_byte, idle=times.idle) == Timeouts()
    assert times.connect < EngineSettings().hold_back
    assert EngineSettings().hold_back > CONNECT_SECONDS


def test_a_backend_that_hangs_is_noticed_before_the_response_is_over() -> None:
    assert TimeoutSettings().first_byte < EngineSettings().deadline


async def test_looking_after_a_backend_waits_for_no_inference() -> None:
    hold = asyncio.Event()
    async with ChatBackend(Says(["a", "b"], hold=hold)) as backend:
        fleet = make_fleet(settings_for({"url": backend.url, "max_exchanges": 1}))
        answer = asyncio.create_task(said(fleet))
        await backend.until(lambda: len(backend.requests) == 1)
        await fleet.check()
        assert await fleet.models()
        hold.set()
        assert await answer == "ab"
        await fleet.close()


@pytest.mark.proves("RULING-4")
async def test_another_name_of_the_only_model_is_no_second_model() -> None:
    route = RouteSettings(model="house", to=(RouteTarget(backend="b0", model="m"),))
    async with ChatBackend(models=["m"]) as backend:
        fleet = make_fleet(settings_for({"url": backend.url}, aliases={"nick": "m"}, routes=(route,)))
        async with Engine(fleet) as engine:
            assert [model.id for model in await engine.models()] == ["m", "house", "nick"]
            assert (await engine.create(input="Hi")).model == "m"
            assert (await engine.create({"input": "Hi"}, Identity(models=("nick",)))).model == "nick"
