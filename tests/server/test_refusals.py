"""What never becomes a request is answered, logged and counted all the same."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from antwort.server.protocol import HEAD_LIMIT
from antwort.telemetry.logging import JsonFormatter
from antwort.testing import demo_provider
from raw_http import Reply, connected
from serving import RESPONSES, Serving, serving, until
from telemetry_kit import Wired, of

LARGE = b"x: " + b"y" * HEAD_LIMIT
CASES = {
    "no http": (b"hello\r\n\r\n", 400, "invalid_http", "-", "-"),
    "no such method": (b"FOO / HTTP/1.1\r\n\r\n", 400, "invalid_http", "-", "-"),
    "a large header": (b"GET /v1/models?key=PRIVATE HTTP/1.1\r\n" + LARGE + b"\r\n\r\n", 431, "", "GET", "/v1/models"),
    "a large header after an address that is none": (
        b"GET /a\x9bb HTTP/1.1\r\n" + LARGE + b"\r\n\r\n",
        *(400, "invalid_http", "-", "-"),
    ),
    "an address without end": (b"GET /" + b"x" * 2 * HEAD_LIMIT, 431, "", "-", "-"),
}


@pytest.mark.parametrize("case", CASES)
async def test_it_leaves_one_line_with_its_id_and_is_counted(case: str, caplog: pytest.LogCaptureFixture) -> None:
    data, status, code, method, path = CASES[case]
    caplog.set_level(logging.INFO)
    wired = Wired(demo_provider())
    async with serving(wired.engine, wired.app) as server:
        reply = await send(server, data)
    assert reply.status == status
    [line] = lines(caplog)
    assert (line["request_id"], line["status"]) == (reply.headers["x-request-id"], status)
    assert (line["method"], line["path"]) == (method, path)
    assert line["error"] == reply.error["code"] == (code or "request_head_too_large")
    assert 0 <= line["duration_ms"] < 5000
    assert "PRIVATE" not in str(line)
    route = "/v1/models" if path == "/v1/models" else "other"
    counted = of(wired.samples(), "http_server_request_duration_seconds_count")
    assert counted == {(method if method == "GET" else "other", str(status), route): 1}
    assert of(wired.samples(), "antwort_request_errors_total") == {(line["error"],): 1}


@pytest.mark.parametrize(("upgrade", "status"), [("websocket", 426), ("h2c", 200)])
async def test_an_upgrade_that_is_not_offered_is_answered_without_a_warning(
    upgrade: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    wired = Wired(demo_provider())
    asked = f"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: {upgrade}\r\n\r\n"
    async with serving(wired.engine, wired.app) as server:
        assert (await send(server, asked.encode())).status == status
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


CHUNKED = {"content-length": "", "transfer-encoding": "chunked", "x-request-id": "r1"}


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_that_cannot_be_read_is_refused_by_its_own_request(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wired = Wired(demo_provider())
    async with serving(wired.engine, wired.app) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", CHUNKED)
        if not at_once:
            await until(lambda: wired.app.requests == 1)
        wire.writer.write(b"1\r\n{\r\nzz\r\n")
        reply = await wire.reply()
        assert await wire.reader.read() == b""
    assert (reply.status, reply.error["code"]) == (400, "invalid_http")
    assert (reply.headers["x-request-id"], reply.headers["connection"]) == ("r1", "close")
    [line] = lines(caplog)
    assert (line["request_id"], line["method"], line["path"]) == ("r1", "POST", RESPONSES)
    assert (line["status"], line["error"]) == (400, "invalid_http")
    counted = of(wired.samples(), "http_server_request_duration_seconds_count")
    assert counted == {("POST", "400", RESPONSES): 1}
    assert of(wired.samples(), "antwort_request_errors_total") == {("invalid_http",): 1}


async def test_a_body_that_nobody_reads_is_not_answered_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wired = Wired(demo_provider())
    async with serving(wired.engine, wired.app) as server, connected(server.port) as wire:
        wire.send("GET", "/healthz", b"", CHUNKED)
        assert (await wire.reply()).status == 200
        wire.writer.write(b"zz\r\n")
        assert await wire.reader.read() == b""
    [line] = lines(caplog)
    assert (line["request_id"], line["status"]) == ("r1", 200)


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"\0", b"GET http:// HTTP/1.1\r\n\r\n"])
async def test_what_follows_an_answered_request_is_refused_by_itself(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wired = Wired(demo_provider())
    async with serving(wired.engine, wired.app) as server, connected(server.port) as wire:
        wire.send("GET", "/healthz")
        assert (await wire.reply()).status == 200
        wire.writer.write(data)
        assert (await wire.reply()).status == 400
    assert [line["status"] for line in lines(caplog)] == [200, 400]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    shown = [each for each in caplog.records if each.levelno >= logging.WARNING or each.name.startswith("antwort")]
    return [json.loads(JsonFormatter().format(record)) for record in shown]


async def send(server: Serving, data: bytes) -> Reply:
    async with connected(server.port) as wire:
        wire.writer.write(data)
        return await wire.reply()
