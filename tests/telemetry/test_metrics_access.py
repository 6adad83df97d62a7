"""Who may read the metrics, by table and over a real server; and a port of their own."""

from __future__ import annotations

from itertools import product

import pytest

from antwort.server.exchange import Scope
from antwort.telemetry.endpoint import Guard, MetricsEndpoint, MetricsPort, Verdict, verdict
from antwort.telemetry.metrics import Metrics
from antwort.testing import ScriptedProvider
from raw_http import ask
from serving import serving
from telemetry_kit import Wired, samples_of, value

KEY = {"authorization": "Bearer own-key"}
READER = {"authorization": "Bearer reader-key"}
WRONG = {"authorization": "Bearer no-key"}


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize(
    ("is_public", "has_key", "is_key", "has_readers", "is_reader", "expected"),
    [
        # on this machine only, and no key set: open
        (False, False, False, False, False, "open"),
        (False, False, False, True, False, "open"),
        # a key that is set is always asked for
        (False, True, False, False, False, "locked"),
        (False, True, True, False, False, "open"),
        (False, True, False, True, True, "open"),
        # public: never without a key, and not there at all where none could open it
        (True, False, False, False, False, "hidden"),
        (True, True, False, False, False, "locked"),
        (True, True, True, False, False, "open"),
        (True, False, False, True, False, "locked"),
        (True, False, False, True, True, "open"),
        (True, True, False, True, False, "locked"),
        (True, True, False, True, True, "open"),
    ],
)
def test_the_rule(
    *, is_public: bool, has_key: bool, is_key: bool, has_readers: bool, is_reader: bool, expected: Verdict
) -> None:
    found = verdict(is_public=is_public, has_key=has_key, is_key=is_key, has_readers=has_readers, is_reader=is_reader)
    assert found == expected


@pytest.mark.proves("MISTAKE-27")
def test_the_public_gets_in_by_a_key_only() -> None:
    for has_key, has_readers in product([False, True], repeat=2):
        assert (
            verdict(is_public=True, has_key=has_key, is_key=False, has_readers=has_readers, is_reader=False) != "open"
        )


def reads(scope: Scope) -> bool:
    return dict(scope["headers"]).get(b"authorization") == b"Bearer reader-key"


@pytest.mark.parametrize(
    ("guard", "headers", "status"),
    [
        (Guard(is_public=False), {}, 200),
        (Guard(is_public=False, key="own-key"), {}, 401),
        (Guard(is_public=False, key="own-key"), KEY, 200),
        (Guard(is_public=False, key="own-key"), {"authorization": "bearer  own-key"}, 200),
        (Guard(is_public=False, key="own-key"), {"authorization": "Basic own-key"}, 401),
        (Guard(is_public=False, key="own-key"), {"authorization": "Bearer "}, 401),
        (Guard(is_public=True), {}, 404),
        (Guard(is_public=True), WRONG, 404),
        (Guard(is_public=True, key="own-key"), WRONG, 401),
        (Guard(is_public=True, key="own-key"), KEY, 200),
        (Guard(is_public=True, readers=reads), WRONG, 401),
        (Guard(is_public=True, readers=reads), READER, 200),
        (Guard(is_public=True, key="own-key", readers=reads), READER, 200),
    ],
)
async def test_the_endpoint_keeps_to_it(guard: Guard, headers: dict[str, str], status: int) -> None:
    wired = Wired(ScriptedProvider(), guard=guard)
    async with serving(wired.engine, wired.app) as server:
        reply = await server.ask("GET", "/metrics", headers=headers)
        assert (await server.ask("HEAD", "/metrics", headers=headers)).status == status
        assert (await server.ask("POST", "/metrics", b"{}", headers)).status == 405
    assert reply.status == status
    assert (b"antwort_build_info" in reply.body) is (status == 200)
    assert b"own-key" not in reply.body
    if status == 401:
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_guard_does_not_show_its_key() -> None:
    guard = Guard(is_public=True, key="own-key")
    assert "own-key" not in repr(vars(guard))


# ---- a port of its own ----


async def test_a_port_of_its_own_has_the_metrics_and_nothing_else() -> None:
    port = MetricsPort(MetricsEndpoint(Metrics(), Guard(is_public=False)), "127.0.0.1", 0)
    await port.start()
    number = port.port
    try:
        reply = await ask(port.port, "GET", "/metrics")
        assert value(samples_of(reply.body.decode()), "antwort_runs_live") == 0
        assert (await ask(port.port, "GET", "/healthz")).json() == {"status": "ok"}
        assert (await ask(port.port, "POST", "/v1/responses", {"input": "Hello"})).error["code"] == "unknown_url"
        assert (await ask(port.port, "POST", "/metrics", b"{}")).status == 405
    finally:
        await port.stop()
    await port.stop()
    with pytest.raises(ConnectionError):
        await ask(number, "GET", "/metrics")


async def test_a_key_is_asked_for_on_a_port_of_its_own_too() -> None:
    port = MetricsPort(MetricsEndpoint(Metrics(), Guard(is_public=False, key="own-key")), "127.0.0.1", 0)
    await port.start()
    try:
        assert (await ask(port.port, "GET", "/metrics")).status == 401
        assert (await ask(port.port, "GET", "/metrics", headers=KEY)).status == 200
    finally:
        await port.stop()


async def test_a_port_that_was_never_started_can_be_stopped_and_is_free_again() -> None:
    port = MetricsPort(MetricsEndpoint(Metrics(), Guard(is_public=False)), "127.0.0.1", 0)
    number = port.port
    await port.stop()
    again = MetricsPort(MetricsEndpoint(Metrics(), Guard(is_public=False)), "127.0.0.1", number)
    assert again.port == number
    await again.stop()


async def test_a_port_that_is_taken_is_known_at_once() -> None:
    endpoint = MetricsEndpoint(Metrics(), Guard(is_public=False))
    port = MetricsPort(endpoint, "127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        MetricsPort(endpoint, "127.0.0.1", port.port)
    await port.stop()


class Broken(Metrics):
    async def text(self, accept: str = "") -> tuple[bytes, str]:
        raise ZeroDivisionError("a defect of ours, at /secret/place")


async def test_a_defect_is_a_clean_500(caplog: pytest.LogCaptureFixture) -> None:
    port = MetricsPort(MetricsEndpoint(Broken(), Guard(is_public=False)), "127.0.0.1", 0)
    await port.start()
    try:
        reply = await ask(port.port, "GET", "/metrics")
    finally:
        await port.stop()
    assert (reply.status, reply.error["code"]) == (500, "server_error")
    assert b"secret" not in reply.body
    assert [record.message for record in caplog.records if record.exc_info] == ["the metrics could not be read"]
