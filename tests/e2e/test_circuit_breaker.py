"""Two tenants and a backend that misbehaves for one of them, behind everything that stands between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.app import build
from antwort.config import Settings
from antwort.config.secrets import Secret
from antwort.config.settings import (
    AuthSettings,
    BackendSettings,
    BreakerSettings,
    KeySettings,
    RetrySettings,
    RoutingSettings,
    TimeoutSettings,
)
from chat_backend import Answer, Breaks, ChatBackend, Refuses, Says, Stalls
from key_kit import bearing
from raw_http import Reply, connected
from serving import RESPONSES, Serving, serving, until

ADA, BOB = bearing("sk-ada-very-secret"), bearing("sk-bob-very-secret")
KEYS = AuthSettings(
    keys=(
        KeySettings(name="ada", key=Secret("sk-ada-very-secret"), tenant="ada"),
        KeySettings(name="bob", key=Secret("sk-bob-very-secret"), tenant="bob"),
    )
)
HELLO = {"model": "test-model", "input": "Hello"}
POISON = {"model": "test-model", "input": "Poison"}


class Moody(ChatBackend):
    """Answers what is poison, and all that asks for the model `broken`, as its mood is. Hung, it answers nobody."""

    def __init__(self, mood: Answer = Says()) -> None:  # noqa: B008 - nobody changes it
        super().__init__(models=("test-model", "broken"))
        self.mood = mood
        self.is_hung = False

    def answer(self, request: dict[str, Any]) -> Answer:
        is_poison = request["model"] == "broken" or request["messages"][-1]["content"] == "Poison"
        return self.mood if is_poison else Says()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.is_hung:
            await asyncio.Event().wait()
        return await super()._exchange(reader, writer)

    @property
    def checks(self) -> int:
        return self.paths.count("/v1/models")


@asynccontextmanager
async def in_front_of(*backends: ChatBackend, first_byte: float = 300.0, failures: int = 1) -> AsyncIterator[Serving]:
    settings = Settings(
        backends=tuple(
            BackendSettings(
                name=f"b{at}",
                url=backend.url,
                breaker=BreakerSettings(failures=failures, open=3600),
                timeouts=TimeoutSettings(first_byte=first_byte),
            )
            for at, backend in enumerate(backends)
        ),
        routing=RoutingSettings(health=0.01, retry=RetrySettings(attempts=1)),
        auth=KEYS,
        memory=True,
    )
    app = await build(settings)
    async with serving(app.engine, app.asgi) as server:
        yield server


async def ask(server: Serving, who: dict[str, str], body: dict[str, Any] = HELLO) -> Reply:
    return await server.ask("POST", RESPONSES, body, who)


async def leaves(server: Serving, backend: ChatBackend) -> None:
    """ada asks for a stream, and goes before anything has come."""
    asked = len(backend.requests)
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, {**POISON, "stream": True}, ADA)
        await until(lambda: len(backend.requests) > asked)
    await until(lambda: not backend.open_requests)


# ---- what one tenant's requests cannot do ----


@pytest.mark.proves("RULING-19")
@pytest.mark.parametrize(
    ("mood", "poison"),
    [
        (Refuses(500), POISON),
        (Refuses(504), {**POISON, "stream": True}),
        (Breaks(), POISON),
        (Breaks(), {**POISON, "stream": True}),
        (Refuses(500), {**HELLO, "model": "broken"}),
    ],
    ids=["500", "504", "closed", "broken stream", "broken model"],
)
async def test_one_tenants_failing_requests_close_the_backend_to_nobody(mood: Answer, poison: dict[str, Any]) -> None:
    async with Moody(mood) as backend, in_front_of(backend) as server:
        for _ in range(2):
            failed = await asyncio.gather(*(ask(server, ADA, poison) for _ in range(6)))
            assert not any(b"backend_circuit_open" in reply.body for reply in failed)
            assert (await ask(server, BOB)).json()["status"] == "completed"
        assert (await ask(server, ADA)).json()["status"] == "completed"
        assert (await server.ask("GET", "/readyz")).status == 200


@pytest.mark.proves("RULING-19")
async def test_clients_that_leave_close_the_backend_to_nobody() -> None:
    async with Moody(Stalls(asyncio.Event())) as backend, in_front_of(backend) as server:
        await asyncio.gather(*(leaves(server, backend) for _ in range(6)))
        assert backend.checks == 0
        assert (await ask(server, BOB)).json()["status"] == "completed"


@pytest.mark.proves("RULING-19")
async def test_one_tenants_broken_streams_start_one_health_check() -> None:
    async with Moody(Breaks()) as backend, in_front_of(backend) as server:
        for _ in range(9):
            await ask(server, ADA, {**POISON, "stream": True})
        await until(lambda: backend.checks == 1)
        await ask(server, BOB, {**POISON, "stream": True})
        await until(lambda: backend.checks == 2)
        assert (await ask(server, BOB)).json()["status"] == "completed"
        assert backend.checks == 2


@pytest.mark.proves("RULING-19")
@pytest.mark.parametrize("status", [403, 500])
async def test_a_health_check_that_is_answered_with_an_error_closes_the_backend_to_nobody(status: int) -> None:
    async with Moody(Breaks()) as backend, in_front_of(backend) as server:
        backend.models_status = status
        await ask(server, ADA, {**POISON, "stream": True})
        await until(lambda: backend.checks > 1)  # it is looked after from the first on
        assert (await ask(server, BOB)).json()["status"] == "completed"


# ---- what opens it, and what closes it again ----


@pytest.mark.proves("RULING-19")
async def test_a_refused_connection_opens_it_for_all_and_it_closes_when_the_backend_is_back() -> None:
    backend = Moody()
    async with backend:
        pass  # it has a port now, and nothing listens there
    async with in_front_of(backend) as server:
        refused, others = await ask(server, ADA), await ask(server, BOB)
        assert (refused.status, refused.error["code"]) == (503, "backend_unavailable")
        assert (others.status, others.error["code"]) == (503, "backend_circuit_open")
        assert 0 < int(others.headers["retry-after"]) <= 3600
        assert (await server.ask("GET", "/readyz")).status == 503
        async with backend, asyncio.timeout(10):
            while (reply := await ask(server, BOB)).status != 200:
                assert reply.error["code"] == "backend_circuit_open"
            assert (await ask(server, ADA)).status == 200


@pytest.mark.proves("RULING-19")
async def test_a_hung_backend_opens_it_once_its_health_check_fails_and_it_closes_when_one_passes() -> None:
    async with Moody() as backend, in_front_of(backend, first_byte=0.05) as server:
        backend.is_hung = True
        assert (await ask(server, ADA)).error["code"] == "backend_timeout"
        async with asyncio.timeout(10):
            while (code := (await ask(server, BOB)).error["code"]) != "backend_circuit_open":
                assert code == "backend_timeout"
            assert (await ask(server, ADA)).error["code"] == "backend_circuit_open"
            backend.is_hung = False
            while (await ask(server, BOB)).status != 200:
                pass


async def test_names_of_models_that_are_as_long_as_a_body_are_not_remembered() -> None:
    backend = Moody()
    async with backend:
        pass  # it has a port now, and nothing listens there
    async with in_front_of(backend) as server:
        for _ in range(2):
            assert (await ask(server, ADA, {**HELLO, "model": 1000 * "m"})).error["code"] == "backend_unavailable"
        assert (await ask(server, ADA)).error["code"] == "backend_unavailable"
        assert (await ask(server, ADA)).error["code"] == "backend_circuit_open"


# ---- several backends ----


@pytest.mark.proves("RULING-19")
async def test_of_two_backends_the_one_that_answers_with_errors_is_tried_last() -> None:
    async with ChatBackend(Refuses(500)) as failing, ChatBackend() as other, in_front_of(failing, other) as server:
        for who in (ADA, BOB, ADA, BOB):
            assert (await ask(server, who)).json()["status"] == "completed"
        assert (len(failing.requests), len(other.requests)) == (1, 4)
        other.answers = [Refuses(500)]
        failing.answers = [Says()]
        assert (await ask(server, BOB)).json()["status"] == "completed"
        assert len(failing.requests) == 2
