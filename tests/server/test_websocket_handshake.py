"""Requests that want another protocol: those that may not have it, what comes before them, and what comes too early."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.storage.memory import MemoryStore
from antwort.telemetry.logging import JsonFormatter
from antwort.testing import Answer, ScriptedProvider, answer, demo_provider, say
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, serving, until
from socket_kit import CREATE, UPGRADE
from telemetry_kit import Wired, of


def scripted(*answers: Answer) -> tuple[Engine, ScriptedProvider, Transport]:
    provider = ScriptedProvider(*answers)
    engine = Engine(provider, store=MemoryStore())
    return engine, provider, Transport(engine)


def head(method: str = "GET", version: str = "1.1", **changed: str | None) -> bytes:
    """Of a request for a WebSocket, with some headers changed, left out, or there twice."""
    fields = {**UPGRADE, "host": "test", **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = [f"{name}: {part}" for name, value in fields.items() if value is not None for part in value.split("|")]
    return "\r\n".join([f"{method} {RESPONSES} HTTP/{version}", *lines, "", ""]).encode()


def request(body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps(body).encode()
    fields = {"host": "test", "content-type": "application/json", "content-length": str(len(data)), **headers}
    said = "\r\n".join([f"POST {RESPONSES} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""])
    return said.encode() + data


def frame(message: dict[str, Any]) -> bytes:
    """A text frame with a mask that changes nothing, as a client sends it."""
    text = json.dumps(message).encode()
    assert len(text) < 126
    return b"\x81%c\0\0\0\0%b" % (0x80 | len(text), text)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    plain = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    return [line for line in plain if line.get("event") == "request"]


# ---- those that are refused ----

KEY = UPGRADE["sec-websocket-key"]
REFUSED = {
    "another version": (head(sec_websocket_version="8"), 426, "websocket_version_not_supported"),
    "no version": (head(sec_websocket_version=None), 426, "websocket_version_not_supported"),
    "two versions": (head(sec_websocket_version="13|8"), 426, "websocket_version_not_supported"),
    "no key": (head(sec_websocket_key=None), 400, "invalid_upgrade"),
    "a key that is none": (head(sec_websocket_key="abc"), 400, "invalid_upgrade"),
    "two keys": (head(sec_websocket_key=f"{KEY}|{KEY}"), 400, "invalid_upgrade"),
    "an older HTTP": (head(version="1.0"), 400, "invalid_upgrade"),
    "a protocol that is none": (head(sec_websocket_protocol="a b"), 400, "invalid_upgrade"),
    "a protocol that is not ASCII": (head(sec_websocket_protocol="\u00e9"), 400, "invalid_upgrade"),
    "a body": (head(content_length="5") + b"hello", 400, "invalid_upgrade"),
    "a body to come": (head(content_length="5"), 400, "invalid_upgrade"),
    "a body in chunks": (head(transfer_encoding="chunked") + b"0\r\n\r\n", 400, "invalid_upgrade"),
    "far too much at once": (head() + b"\x81\xff" + bytes(100_000), 400, "invalid_upgrade"),
}


@pytest.mark.parametrize(("data", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_request_for_a_connection_that_is_not_right_is_refused_like_any_other(
    data: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wired = Wired(demo_provider())
    async with serving(wired.engine, wired.app) as server, connected(server.port) as wire:
        wire.writer.write(data)
        reply = await wire.reply()
        assert await wire.reader.read() == b""
    assert (reply.status, reply.error["code"], reply.headers["connection"]) == (status, code, "close")
    assert reply.headers.get("sec-websocket-version") == ("13" if status == 426 else None)
    [line] = lines(caplog)
    assert (line["request_id"], line["status"], line["error"]) == (reply.headers["x-request-id"], status, code)
    assert (line["method"], line["path"]) == ("GET", RESPONSES)
    counted = of(wired.samples(), "http_server_request_duration_seconds_count")
    assert counted == {("GET", str(status), RESPONSES): 1}


async def test_a_refusal_does_not_repeat_a_key() -> None:
    engine, _, app = scripted()
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(head(sec_websocket_protocol="realtime openai-insecure-api-key.sk-secret"))
        assert "sk-secret" not in (await wire.reply()).error["message"]


# ---- those that stay with HTTP ----


@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "websocket"])
async def test_a_request_that_could_as_well_have_another_protocol_is_answered_with_its_body(upgrade: str) -> None:
    """As clients send it that would rather speak HTTP/2, and say so with their first request."""
    engine, provider, app = scripted(*(answer(say("Hello")) for _ in range(3)))
    offered = {"connection": "keep-alive, Upgrade, HTTP2-Settings", "upgrade": upgrade, "http2-settings": "AAEAAEAA"}
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(request({**HELLO, "input": "One"}, **offered) + request({**HELLO, "input": "Two"}, **offered))
        assert [(await wire.reply()).json()["status"] for _ in range(2)] == ["completed"] * 2
        whole = request({**HELLO, "input": "Three"}, **offered)
        wire.writer.write(whole[:-3])
        await wire.writer.drain()
        await until(lambda: app.requests == 1)
        wire.writer.write(whole[-3:])
        assert (await wire.reply()).json()["status"] == "completed"
    assert [asked.messages[-1].content for asked in provider.requests] == ["One", "Two", "Three"]


async def test_many_requests_at_once_that_could_have_another_protocol_are_all_answered() -> None:
    engine, _, app = scripted()
    one = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(one * 2000)
        assert {(await wire.reply()).status for _ in range(2000)} == {200}


# ---- what comes before them ----


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_connection_behind_a_request_begins_when_that_is_answered(body: dict[str, Any]) -> None:
    go = asyncio.Event()
    engine, provider, app = scripted(answer(say("Hello"), go), answer(say("there")))
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(request(body) + head() + frame({"type": "x"}))
        await until(lambda: provider.under_way == 1)
        wire.writer.write(frame({"type": "y"}))
        await wire.writer.drain()
        go.set()
        reply = await wire.reply()
        assert (reply.status, b"Hello" in reply.body) == (200, True)
        assert (await wire.head()).status == 101
        await until(lambda: app.sockets == 1)
        for kind in ("x", "y"):
            opening = await wire.reader.readexactly(4)
            said = json.loads(await wire.reader.readexactly(int.from_bytes(opening[2:], "big")))
            assert f"'{kind}'" in said["error"]["message"]


async def test_several_requests_before_a_connection_are_all_answered_first() -> None:
    engine, _, app = scripted()
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n" * 3 + head())
        assert [(await wire.reply()).status for _ in range(3)] == [200] * 3
        assert (await wire.head()).status == 101


async def test_a_connection_that_is_not_right_behind_a_request_is_refused_when_that_is_answered() -> None:
    engine, _, app = scripted()
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n" + head(sec_websocket_version="8"))
        assert [(await wire.reply()).status for _ in range(2)] == [200, 426]


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_goes_before_its_connection_begins_leaves_nothing_behind(body: dict[str, Any]) -> None:
    engine, provider, app = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine, app) as server:
        async with connected(server.port) as wire:
            wire.writer.write(request(body) + head())
            await until(lambda: provider.under_way == 1)
            wire.vanish()
        await until(lambda: engine.live == 0 and provider.under_way == 0 and app.requests == 0)
        assert app.sockets == 0


# ---- what comes too early ----


async def test_what_is_said_with_the_request_for_a_connection_is_heard() -> None:
    engine, provider, app = scripted(answer(say("Hello")))
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(head() + frame(CREATE))
        assert (await wire.head()).status == 101
        assert b"response.completed" in await wire.reader.readuntil(b'"response.completed"')
    assert len(provider.requests) == 1


async def test_what_is_said_to_a_connection_that_is_refused_is_not_heard() -> None:
    engine, provider, app = scripted(answer(say("Hello")))
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.writer.write(head(origin="http://evil.example") + frame(CREATE))
        assert (await wire.head()).status == 403
        assert b"origin_not_allowed" in await wire.reader.read()
    assert provider.requests == []
