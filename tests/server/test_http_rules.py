"""What is asked of every request before it is anybody's business, and what every answer has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.exchange import Scope
from antwort.server.http import Transport
from antwort.storage.memory import MemoryStore
from antwort.testing import demo_provider
from raw_http import Wire, connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

LIMIT = 2000


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, body_limit=LIMIT)) as running:
        yield running


# ---- bodies ----


@pytest.mark.proves("TR-005", "TR-JSON")
async def test_a_body_that_is_declared_too_large_is_refused_before_it_is_read(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", {"content-length": str(LIMIT + 1)})
        reply = await wire.reply()
    assert reply.status == 413
    assert reply.error["code"] == "body_too_large"
    assert str(LIMIT) in reply.error["message"]


@pytest.mark.proves("TR-005")
async def test_a_body_of_unknown_length_is_counted_while_it_is_read(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", {"content-length": "", "transfer-encoding": "chunked"})
        for _ in range(3):
            wire.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        reply = await wire.reply()
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        assert await wire.reader.read() == b""


@pytest.mark.proves("TR-005")
async def test_a_body_of_unknown_length_that_comes_at_once_is_counted_too(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", {"content-length": "", "transfer-encoding": "chunked"})
        wire.writer.write(b"bb8\r\n" + b"x" * 3000 + b"\r\n0\r\n\r\n")
        assert (await wire.reply()).status == 413


@pytest.mark.proves("TR-005")
async def test_a_body_of_exactly_the_limit_is_read(server: Serving) -> None:
    body = b'{"model":"scripted","input":"' + b"x" * (LIMIT - 31) + b'"}'
    assert len(body) == LIMIT
    assert (await server.ask("POST", RESPONSES, body)).status == 200


async def test_what_is_left_of_a_body_too_large_is_dropped_and_the_connection_lives_on(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"x" * 3 * LIMIT)
        assert (await wire.reply()).status == 413
        wire.send("GET", "/healthz")
        assert (await wire.reply()).json() == {"status": "ok"}


async def test_a_body_that_comes_in_pieces_is_put_together(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", {"content-length": "", "transfer-encoding": "chunked"})
        for piece in (b'{"model":"scri', b'pted","inp', b'ut":"Hello"}'):
            wire.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await wire.writer.drain()
            await asyncio.sleep(0)
        wire.writer.write(b"0\r\n\r\n")
        assert (await wire.reply()).json()["status"] == "completed"


RIGHT_TYPES = [
    "application/json",
    "application/json; charset=utf-8",
    "Application/JSON;charset=UTF-8",
    'application/json; charset="utf-8"',
    "application/json;charset=utf8",
    "application/json; charset = utf-8",
    "application/json; profile=x",
    "application/json; charset=utf-8; v=1",
    "application/json;",
]
WRONG_TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/json; charset=latin-1",
    "application/json; v=1; CHARSET=utf-16",
    "",
    "json",
]


@pytest.mark.proves("TR-006")
@pytest.mark.parametrize("content_type", RIGHT_TYPES)
async def test_json_is_the_right_content_type_also_with_its_charset(server: Serving, content_type: str) -> None:
    assert (await server.ask("POST", RESPONSES, HELLO, {"content-type": content_type})).status == 200


@pytest.mark.proves("TR-006", "TR-JSON")
@pytest.mark.parametrize("content_type", WRONG_TYPES)
async def test_any_other_content_type_or_none_is_a_415(server: Serving, content_type: str) -> None:
    reply = await server.ask("POST", RESPONSES, HELLO, {"content-type": content_type})
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.proves("TR-006")
async def test_a_body_in_no_coding_may_say_so_in_any_case(server: Serving) -> None:
    assert (await server.ask("POST", RESPONSES, HELLO, {"content-encoding": "IDENTITY"})).status == 200


@pytest.mark.proves("TR-006")
async def test_a_compressed_body_is_a_415_that_names_the_coding(server: Serving) -> None:
    reply = await server.ask("POST", RESPONSES, HELLO, {"content-encoding": "gzip"})
    assert reply.status == 415
    assert "gzip" in reply.error["message"]


@pytest.mark.proves("TR-013", "CP-030")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        (b'{"input":[{"role":"user","content":[{"type":"wrong"}]}]}', "input[0].content[0].type", "invalid_value"),
        (b'{"temperature":9}', "temperature", "invalid_value"),
    ],
)
async def test_a_wrong_body_is_a_400_that_names_the_field(
    server: Serving, body: bytes, param: str | None, code: str
) -> None:
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 400
    assert (reply.error["type"], reply.error["param"], reply.error["code"]) == ("invalid_request_error", param, code)


# ---- addresses and methods ----


@pytest.mark.proves("TR-006a", "TR-JSON")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/responses", "POST, GET, HEAD"),
        ("PUT", "/v1/responses/resp_1", "GET, HEAD, DELETE"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("DELETE", "/v1/responses/resp_1/input_items", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/models/a/b", "GET, HEAD"),
        ("OPTIONS", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    server: Serving, method: str, path: str, allowed: str
) -> None:
    reply = await server.ask(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    assert reply.error["code"] == "method_not_allowed"


@pytest.mark.proves("TR-JSON")
@pytest.mark.parametrize(
    "path",
    ["/", "/responses", "/v1", "/v1/responses/", "/v1/responses/resp_1/", "/v1/responses/a/b", "/v1/models/", "/v2/x"],
)
async def test_an_address_with_nothing_behind_it_is_a_404_in_json(server: Serving, path: str) -> None:
    reply = await server.ask("GET", path)
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")


async def test_a_slash_within_an_id_leads_to_no_other_address(server: Serving) -> None:
    for path in ("/v1/responses/resp_x%2Fcancel", "/v1/responses/resp_x%2Finput_items"):
        reply = await server.ask("GET", path)  # of `cancel`, this would be the wrong method
        assert (reply.status, reply.error["code"]) == (404, "response_not_found")
    assert (await server.ask("POST", "/v1%2Fresponses", HELLO)).error["code"] == "unknown_url"


async def test_an_address_may_be_written_with_escapes(server: Serving) -> None:
    assert (await server.ask("GET", "/v1/%6Dodels/scripte%64")).json()["id"] == "scripted"
    assert (await server.ask("GET", "/v1/models/a%2Fb")).error["code"] == "model_not_found"


@pytest.mark.proves("TR-JSON")
async def test_bytes_that_are_not_http_get_a_400_in_json(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.writer.write(b"this is not http\r\n\r\n")
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (400, "invalid_http")
        assert reply.headers["x-request-id"].startswith("req_")
        assert await wire.reader.read() == b""


async def test_head_is_answered_like_get_without_the_body(server: Serving) -> None:
    async with connected(server.port) as wire:
        for path, status in (("/healthz", 200), ("/v1/models", 200), ("/v1/responses/resp_1", 404)):
            wire.send("HEAD", path)
            reply = await wire.reply()
            assert (reply.status, reply.body) == (status, b"")
            assert int(reply.headers["content-length"]) > 0


# ---- request ids, logs, surprises ----


@pytest.mark.proves("TR-026")
async def test_a_request_id_is_taken_over_and_given_back(server: Serving) -> None:
    for path in ("/healthz", "/nowhere"):
        reply = await server.ask("GET", path, headers={"x-request-id": "trace:7/a-B_c.d"})
        assert reply.headers["x-request-id"] == "trace:7/a-B_c.d"


@pytest.mark.proves("TR-026")
@pytest.mark.parametrize("given", [None, "", "with space", 'quo"te', "x" * 129, "caf\u00e9"])
async def test_a_request_without_a_usable_id_gets_one(server: Serving, given: str | None) -> None:
    replies = [await server.ask("GET", "/healthz", headers={"x-request-id": given} if given else {}) for _ in range(2)]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert all(made.startswith("req_") for made in ids)
    assert len(set(ids)) == 2


@pytest.mark.proves("TR-026")
@pytest.mark.parametrize("body", [HELLO, STREAMED])
async def test_every_request_leaves_one_line_without_content(
    server: Serving, body: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "antwort.transport"):
        reply = await server.ask("POST", f"{RESPONSES}?key=hush", {**body, "input": "a secret"}, {"x-request-id": "r1"})
        await server.ask("GET", "/v1/responses/re%0Asp", headers={"x-request-id": "r2"})
    first, second = [fields_of(record) for record in caplog.records if record.name == "antwort.transport"]
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/responses", 200)
    assert (first["request_id"], first["response_status"]) == ("r1", "completed")
    assert str(first["response_id"]).startswith("resp_")
    assert (second["path"], second["status"]) == ("/v1/responses/re%0Asp", 404)
    assert (second["request_id"], second.get("response_id"), second["error"]) == ("r2", None, "response_not_found")
    assert reply.headers["x-request-id"] == "r1"
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {**record.__dict__["said"], **record.__dict__["fields"]}


class BrokenStore(MemoryStore):
    async def get(self, identity: Identity, response_id: str) -> None:
        raise ZeroDivisionError("a defect of ours, at /secret/place")


@pytest.mark.proves("TR-025", "TR-013", "TR-JSON", "RULING-12")
async def test_an_unexpected_exception_is_a_clean_500_and_a_logged_traceback(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(demo_provider(), store=BrokenStore())
    async with serving(engine) as server:
        reply = await server.ask("GET", "/v1/responses/resp_1", headers={"x-request-id": "r1"})
    assert (reply.status, reply.error["type"], reply.error["code"]) == (500, "server_error", "server_error")
    assert b"secret" not in reply.body
    assert reply.headers["x-request-id"] == "r1"
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.name == "antwort.transport"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.proves("RULING-12")
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", RESPONSES, b"{", {}, 400, "invalid_json"),
        ("GET", f"{RESPONSES}/resp_1", None, {}, 404, "response_not_found"),
        ("GET", "/v1/nowhere", None, {}, 404, "unknown_url"),
        ("PUT", RESPONSES, None, {}, 405, "method_not_allowed"),
        ("POST", RESPONSES, b"x" * (LIMIT + 1), {}, 413, "body_too_large"),
        ("POST", RESPONSES, b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ("GET", "/v1/models", None, {"x-long": "x" * 100_000}, 431, "request_head_too_large"),
    ],
)
async def test_what_is_wrong_with_a_request_has_one_type_and_a_code_of_its_own(
    server: Serving, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int, code: str
) -> None:
    reply = await server.ask(method, path, body, headers)
    assert (reply.status, reply.error["type"], reply.error["code"]) == (status, "invalid_request_error", code)


@pytest.mark.proves("RULING-12")
async def test_the_strict_setting_writes_the_standards_types() -> None:
    engine = Engine(demo_provider(), store=MemoryStore(), settings=EngineSettings(strict=True))
    async with serving(engine) as server:
        assert (await server.ask("GET", "/v1/responses/resp_1")).error["type"] == "not_found"
        assert (await server.ask("POST", RESPONSES, b"{")).error["type"] == "invalid_request"


async def test_whoever_cannot_be_identified_gets_nothing_but_health() -> None:
    def nobody(_: Scope) -> Identity:
        raise NotAuthenticated("No valid key was given.")

    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, identify=nobody)) as server:
        for method, path in (
            ("POST", RESPONSES),
            ("GET", f"{RESPONSES}/resp_1"),
            ("DELETE", f"{RESPONSES}/resp_1"),
            ("POST", f"{RESPONSES}/resp_1/cancel"),
            ("GET", f"{RESPONSES}/resp_1/input_items"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/scripted"),
        ):
            assert (await server.ask(method, path)).status == 401
        assert (await server.ask("GET", "/healthz")).status == 200


async def test_a_client_that_leaves_while_it_sends_its_body_is_logged_as_gone(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "antwort.transport"):
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, b"{", {"content-length": "100"})
            await _answered_elsewhere(server, wire)
        await until(lambda: any(" 499 " in record.getMessage() for record in caplog.records))


async def _answered_elsewhere(server: Serving, wire: Wire) -> None:
    """The server has had its turn at what was written before."""
    await wire.writer.drain()
    await server.ask("GET", "/healthz")
