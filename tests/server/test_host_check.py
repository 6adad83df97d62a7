"""Who comes in where no key is asked for: by table, and over a real server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from antwort.app import build
from antwort.config import Settings
from antwort.config.settings import AuthSettings, MetricsSettings, ServerSettings
from antwort.errors import NotAuthenticated, NotPermitted
from antwort.identity import ANONYMOUS
from antwort.server.auth import HostCheck
from antwort.server.exchange import Message, Scope
from raw_http import Reply, ask
from serving import HELLO, RESPONSES, serving


def coming(host: str | None = None, server: object = ("127.0.0.1", 8080)) -> Scope:
    return {"headers": [] if host is None else [(b"host", host.encode())], "server": server}


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "EVIL.example", "evil.example.", "127.0.0.1.evil.example", "a.b:x"),
        *("localhost.evil.example", "evillocal.com", "1.2.3.4.5", "xn--lcalhost-u2a.com:80"),
    ],
)
def test_a_name_that_a_stranger_could_choose_is_not_answered_under(host: str) -> None:
    with pytest.raises(NotPermitted, match=r"list it under server\.hosts\.$") as caught:
        HostCheck(["mine.example"]).identify(coming(host))
    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]", "[::1]:8080", "[fe80::1%25eth0]:80", "0.0.0.0:1"),
        *("localhost", "LocalHost:8080", "localhost.", "app.localhost:80", "box.local", "host.docker.internal:8080"),
        *("nas.lan", "printer.home.arpa", "antwort.prod.svc:8080"),
        *("antwort:8080", "mine.example", "Mine.Example.:8443", "", None),
    ],
)
def test_addresses_names_of_the_local_network_and_those_that_are_listed_are_answered(host: str | None) -> None:
    assert HostCheck(["mine.EXAMPLE"]).identify(coming(host)) is ANONYMOUS


def test_a_star_stands_for_all_names() -> None:
    assert HostCheck(["*"]).identify(coming("evil.example")) is ANONYMOUS


def test_of_several_names_each_must_be_known() -> None:
    scope: Scope = {"headers": [(b"host", b"localhost"), (b"host", b"evil.example")]}
    with pytest.raises(NotPermitted):
        HostCheck().identify(scope)


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.5", "0.0.0.0", "::", "fe80::1%eth0", "2001:db8::1"])
def test_who_comes_from_another_machine_needs_a_key_unless_somebody_said_otherwise(address: str) -> None:
    scope = coming("localhost", (address, 8080))
    with pytest.raises(NotAuthenticated, match=r"auth\.keys.*auth\.required: never\.$"):
        HostCheck().identify(scope)
    HostCheck(only_near=False).identify(scope)


@pytest.mark.parametrize(
    "server",
    [("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), ("testserver", 80), None, ("", 0)],
)
def test_who_comes_from_this_machine_or_from_nobody_knows_where_comes_in(server: object) -> None:
    HostCheck().identify(coming("localhost", server))


# ---- over a server ----


def settings(**fields: Any) -> Settings:
    return Settings(**{"scripted": True, "memory": True, **fields})


async def asked(made: Settings, path: str, host: str) -> Reply:
    app = await build(made)
    async with serving(app.engine, app.asgi) as server:
        body = HELLO if path == RESPONSES else None
        return await server.ask("POST" if body else "GET", path, body, {"host": host})


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize("path", [RESPONSES, "/v1/models", "/v1/nothing", "/metrics"])
async def test_a_page_that_has_its_name_lead_here_gets_nothing(path: str) -> None:
    reply = await asked(settings(), path, "evil.example:8080")
    assert (reply.status, reply.error["type"], reply.error["code"]) == (403, "permission_error", "host_not_allowed")
    assert (await asked(settings(), path, "127.0.0.1:8080")).status == (404 if path == "/v1/nothing" else 200)


async def test_a_name_that_is_listed_is_answered_and_so_is_the_machines_own() -> None:
    listed = settings(server=ServerSettings(hosts=("ai.example.com",)))
    assert (await asked(listed, "/v1/models", "ai.example.com")).status == 200
    assert (await asked(settings(), "/v1/models", socket.gethostname())).status == 200


async def test_health_is_told_under_any_name_and_its_reasons_are_not() -> None:
    assert (await asked(settings(), "/healthz", "evil.example")).status == 200
    assert (await asked(settings(), "/readyz", "evil.example")).json() == {"status": "ok"}
    assert "store" in (await asked(settings(), "/readyz", "localhost")).json()


async def test_metrics_with_a_key_of_their_own_are_read_under_any_name() -> None:
    from antwort.config import Secret

    app = await build(settings(metrics=MetricsSettings(key=Secret("sk-metrics-0123456789"))))
    async with serving(app.engine, app.asgi) as server:
        headers = {"host": "evil.example", "authorization": "Bearer sk-metrics-0123456789"}
        assert (await server.ask("GET", "/metrics", headers=headers)).status == 200


async def test_a_port_of_their_own_on_this_machine_keeps_to_the_same_names() -> None:
    app = await build(settings(metrics=MetricsSettings(port=0)))
    await app.start()
    try:
        assert app.metrics_port is not None
        port = app.metrics_port.port
        assert (await ask(port, "GET", "/metrics", headers={"host": "evil.example"})).status == 403
        assert (await ask(port, "GET", "/metrics", headers={"host": "localhost"})).status == 200
    finally:
        await app.close()


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
async def test_an_application_that_another_server_shows_to_others_asks_for_keys(path: str) -> None:
    """Its settings say loopback, and whoever runs it listens elsewhere."""
    assert await status(settings(), path, "10.0.0.1") == 401
    assert await status(settings(), path, "127.0.0.1") == 200
    never = settings(auth=AuthSettings(required="never"))
    assert await status(never, path, "10.0.0.1") == 200


async def status(made: Settings, path: str, server: str) -> int:
    app = await build(made)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "server": (server, 80)}
    await app.asgi(scope, receive, send)
    await app.close()
    found: int = sent[0]["status"]
    return found


def test_what_one_doorway_knows_another_does_not_and_a_name_is_refused_each_time() -> None:
    listed, other = HostCheck(["example.org"]), HostCheck()
    scope = {"server": ("127.0.0.1", 80), "headers": [(b"host", b"example.org")]}
    for _ in range(2):
        listed.identify(scope)
        with pytest.raises(NotPermitted):
            other.identify(scope)


def test_names_are_remembered_up_to_a_number() -> None:
    door = HostCheck()
    for number in range(1000):
        door.identify({"server": None, "headers": [(b"host", b"h%d" % number), (b"host", b"x" * 2000)]})
    assert len(door._accepted) <= 256
    assert max(map(len, door._accepted)) <= 100
