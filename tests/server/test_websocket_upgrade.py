"""Who is let in on a WebSocket, and how others are turned away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from antwort.engine.engine import Engine
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.auth import HostCheck, Keyring
from antwort.server.cors import Cors
from antwort.server.exchange import Message, Scope
from antwort.server.http import Transport
from antwort.server.websocket import SocketLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from key_kit import SECRET, a_key, bearing
from raw_http import connected as raw_connected
from serving import RESPONSES, Serving, serving
from socket_kit import UPGRADE, connected


def scripted() -> Engine:
    return Engine(ScriptedProvider(answer(say("Hello")), answer(say("Hello"))), store=MemoryStore())


def behind(app: Transport, engine: Engine) -> AbstractAsyncContextManager[Serving]:
    return serving(engine, app)


async def refused(
    server: Serving, path: str = RESPONSES, headers: Mapping[str, str] | None = None, **options: Any
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """The status, the error and the headers that a connection is turned away with."""
    with pytest.raises(InvalidStatus) as caught:
        async with connected(server.port, path, headers, **options):
            pass
    reply = caught.value.response
    assert reply.headers["content-type"] == "application/json"
    assert reply.body is not None
    body = json.loads(reply.body)
    assert {*body["error"]} == {"message", "type", "param", "code"}
    return reply.status_code, body["error"], reply.headers


# ---- keys ----


async def test_without_a_key_there_is_no_connection() -> None:
    engine = scripted()
    async with behind(Transport(engine, identify=Keyring([a_key()]).identify), engine) as server:
        status, error, headers = await refused(server)
        assert (status, error["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
        status, error, _ = await refused(server, headers=bearing("sk-wrong"))
        assert (status, error["code"]) == (401, "invalid_api_key")
        async with connected(server.port, headers=bearing(SECRET)) as socket:
            assert (await socket.ask()).status == "completed"


async def test_strangers_do_not_learn_what_is_there() -> None:
    engine = scripted()
    app = Transport(engine, identify=Keyring([a_key()]).identify, websocket=SocketLimits(enabled=False))
    async with behind(app, engine) as server:
        assert [(await refused(server, path))[0] for path in (RESPONSES, "/v1/nothing")] == [401, 401]
        assert (await refused(server, headers=bearing(SECRET)))[0] == 426


async def test_a_page_brings_its_key_as_a_protocol_that_is_not_repeated() -> None:
    engine = scripted()
    app = Transport(engine, identify=Keyring([a_key()]).identify, cors=Cors(["*"]))
    async with behind(app, engine) as server:
        offered = ["realtime", f"openai-insecure-api-key.{SECRET}"]
        async with connected(server.port, subprotocols=offered, origin="https://page.example") as socket:
            assert socket.wire.subprotocol == "realtime"
            assert (await socket.ask()).status == "completed"
        wrong = ["openai-insecure-api-key.sk-wrong"]
        assert (await refused(server, subprotocols=wrong))[0] == 401
        assert (await refused(server, headers=bearing("sk-wrong"), subprotocols=offered))[0] == 401
        async with connected(server.port, headers=bearing(SECRET), subprotocols=wrong):
            pass


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        (["responses"], "responses"),
        (["mqtt", "realtime", "responses"], "realtime"),
        (["openai-beta.realtime-v1", "responses"], "responses"),
    ],
)
async def test_the_first_protocol_that_is_known_is_chosen_beside_a_key(others: list[str], chosen: str) -> None:
    engine = scripted()
    async with behind(Transport(engine, identify=Keyring([a_key()]).identify), engine) as server:
        for offered in ([*others, f"openai-insecure-api-key.{SECRET}"], [f"openai-insecure-api-key.{SECRET}", *others]):
            async with connected(server.port, subprotocols=offered) as socket:
                assert socket.wire.subprotocol == chosen


@pytest.mark.parametrize("others", [[], ["mqtt"]])
async def test_a_key_without_a_protocol_beside_it_is_refused_since_browsers_would_give_up(others: list[str]) -> None:
    engine = scripted()
    async with behind(Transport(engine, identify=Keyring([a_key()]).identify), engine) as server:
        status, error, _ = await refused(server, subprotocols=[*others, f"openai-insecure-api-key.{SECRET}"])
        assert (status, error["code"]) == (400, "invalid_upgrade")
        assert "'responses'" in error["message"]
        assert SECRET not in error["message"]


async def test_a_page_that_needs_no_key_may_offer_the_protocol_alone() -> None:
    engine = scripted()
    offered = ["responses"]
    async with behind(Transport(engine), engine) as server, connected(server.port, subprotocols=offered) as socket:
        assert socket.wire.subprotocol == "responses"


async def test_no_protocol_is_spoken_that_is_not_known() -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server, connected(server.port, subprotocols=["mqtt"]) as socket:
        assert socket.wire.subprotocol is None


async def test_who_identifies_by_other_means_is_asked_with_the_scope() -> None:
    engine, seen = scripted(), list[Scope]()

    def identify(scope: Scope) -> Identity:
        seen.append(scope)
        if b"x-who" not in dict(scope["headers"]):
            raise NotAuthenticated("Say who you are.")
        return Identity("acme", "ann")

    async with behind(Transport(engine, identify=identify), engine) as server:
        assert (await refused(server))[1]["message"] == "Say who you are."
        async with connected(server.port, headers={"x-who": "ann"}):
            pass
    assert {scope["type"] for scope in seen} == {"websocket"}


async def test_a_fault_of_who_identifies_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    engine = scripted()

    def identify(_: Scope) -> Identity:
        raise ZeroDivisionError("a secret")

    async with behind(Transport(engine, identify=identify), engine) as server:
        status, error, _ = await refused(server)
    assert (status, "secret" in error["message"]) == (500, False)
    assert any(record.exc_info for record in caplog.records)
    caplog.clear()


# ---- web pages ----


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
async def test_a_page_from_elsewhere_cannot_open_a_connection(origin: str) -> None:
    engine = scripted()
    async with behind(Transport(engine, identify=HostCheck().identify), engine) as server:
        status, error, _ = await refused(server, origin=origin)
        assert (status, error["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"origin", b"null")],
        [(b"host", b"own.example"), (b"origin", b"https://evil.example"), (b"origin", b"http://own.example")],
    ],
)
async def test_an_origin_that_cannot_be_told_is_one_from_elsewhere(headers: list[tuple[bytes, bytes]]) -> None:
    sent: list[dict[str, object]] = []
    scope: dict[str, object] = {
        "type": "websocket",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "query_string": b"",
    }
    scope |= {"headers": headers, "subprotocols": [], "extensions": {"websocket.http.response": {}}}

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await Transport(scripted())(scope, receive, send)  # type: ignore[arg-type] # plain messages of ASGI
    assert sent[0]["status"] == 403


async def test_a_page_of_our_own_can_and_so_can_those_that_may_use_the_api() -> None:
    engine = scripted()
    app = Transport(engine, identify=HostCheck().identify, cors=Cors(["https://app.example"]))
    async with behind(app, engine) as server:
        for origin in (f"http://127.0.0.1:{server.port}", "https://app.example"):
            async with connected(server.port, origin=origin) as socket:
                assert (await socket.ask()).status == "completed"
        assert (await refused(server, origin="https://app.example.evil.example"))[0] == 403


async def test_a_name_that_a_stranger_chose_is_not_answered() -> None:
    engine = scripted()
    async with behind(Transport(engine, identify=HostCheck().identify), engine) as server:
        status, error, _ = await refused(
            server, name="rebound.example", host="127.0.0.1", origin="http://rebound.example"
        )
        assert (status, error["code"]) == (403, "host_not_allowed")


# ---- places and limits ----


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/", "/v1/responses/resp_1", "/", "/healthz"])
async def test_there_is_one_place_for_connections(path: str) -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server:
        status, error, _ = await refused(server, path)
        assert (status, error["code"]) == (404, "unknown_url")


async def test_where_they_are_not_offered_clients_are_told_to_use_http() -> None:
    engine = scripted()
    async with behind(Transport(engine, websocket=SocketLimits(enabled=False)), engine) as server:
        status, error, _ = await refused(server)
        assert (status, error["code"]) == (426, "websocket_not_offered")
        assert (await server.ask("GET", RESPONSES)).json()["object"] == "list"


async def test_no_more_are_open_than_may_be() -> None:
    engine = scripted()
    app = Transport(engine, websocket=SocketLimits(connections=1))
    async with behind(app, engine) as server:
        async with connected(server.port):
            status, error, headers = await refused(server)
            assert (status, error["code"], headers["retry-after"]) == (503, "too_many_websockets", "5")
            assert app.sockets == 1
        async with connected(server.port) as socket:
            assert (await socket.ask()).status == "completed"
    assert app.sockets == 0


async def test_a_request_id_is_taken_up_and_given_back() -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server:
        async with connected(server.port, headers={"x-request-id": "mine-1"}) as socket:
            assert socket.wire.response is not None
            assert socket.wire.response.headers["x-request-id"] == "mine-1"
        async with connected(server.port, headers={"x-request-id": "not mine\u00e9"}) as socket:
            assert socket.wire.response is not None
            assert socket.wire.response.headers["x-request-id"].startswith("req_")
        assert (await refused(server, "/x", {"x-request-id": "mine-2"}))[2]["x-request-id"] == "mine-2"


async def test_connections_are_not_compressed() -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server, connected(server.port, compression="deflate") as socket:
        assert socket.wire.protocol.extensions == []
        assert (await socket.ask()).status == "completed"


async def test_a_head_may_be_as_large_as_that_of_any_request_and_no_larger() -> None:
    engine = scripted()
    async with serving(engine, Transport(engine), head_limit=40_000) as server:
        async with connected(server.port, headers={"x-long": "x" * 30_000, **{f"x-{n}": "y" for n in range(200)}}):
            pass
        assert (await refused(server, headers={"x-long": "x" * 50_000}))[0] == 431


@pytest.mark.parametrize(
    "changed",
    [
        {"upgrade": "h2c"},
        {"connection": "keep-alive"},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_what_only_looks_like_an_upgrade_is_a_request_as_any_other(changed: dict[str, str | None]) -> None:
    engine = scripted()
    headers = {name: value for name, value in {**UPGRADE, **changed}.items() if value is not None}
    async with behind(Transport(engine), engine) as server:
        assert (await server.ask("GET", RESPONSES, headers=headers)).json()["object"] == "list"


async def test_an_address_that_cannot_be_that_of_a_connection_is_an_error() -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server:
        reply = await server.ask("GET", f"{RESPONSES}?\u00e9", headers=UPGRADE)
        assert (reply.status, reply.error["code"]) == (400, "invalid_http")
        async with connected(server.port) as socket:
            assert (await socket.ask()).status == "completed"


async def test_a_connection_is_upgraded_after_requests_on_it() -> None:
    engine = scripted()
    async with behind(Transport(engine), engine) as server, raw_connected(server.port) as wire:
        wire.send("GET", "/healthz")
        assert (await wire.reply()).status == 200
        wire.send("GET", RESPONSES, headers=UPGRADE)
        reply = await wire.head()
        assert (reply.status, reply.headers["Upgrade"]) == (101, "websocket")


async def test_a_connection_is_not_limited_by_the_time_a_request_may_take() -> None:
    engine = scripted()
    async with serving(engine, Transport(engine), request_time=0.05) as server, connected(server.port) as socket:
        async with raw_connected(server.port) as silent:  # which came later, and has as long
            assert await silent.reader.read() == b""
        assert (await socket.ask()).status == "completed"


# ---- servers that cannot say it in words ----


async def test_where_no_words_can_be_carried_a_refusal_is_a_close() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/nowhere", "query_string": b"", "headers": []}
    await Transport(scripted())(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
