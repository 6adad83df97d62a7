"""What comes behind a request's head and is no body: trailers, chunk extensions and the lines between chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
from serving import HELLO, RESPONSES, Serving, serving

LIMIT = 2000
CHUNKED = {"content-length": "", "transfer-encoding": "chunked"}
BODY = json.dumps(HELLO).encode()
ENDLESS = {
    "trailers": (b"0\r\n", b"A: b\r\n"),
    "one trailer": (b"0\r\nX: ", b"y" * 100),
    "the name of a trailer": (b"0\r\n", b"y" * 100),
    "a chunk extension": (b"2;x=", b"y" * 100),
    "a chunk size": (b"", b"0" * 100),
}


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(Engine(demo_provider(), store=MemoryStore()), head_limit=LIMIT) as running:
        yield running


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])


@asynccontextmanager
async def flooded(wire: Wire, start: bytes, more: bytes) -> AsyncIterator[None]:
    """Meanwhile, what has no end is sent."""

    async def send() -> None:
        with suppress(ConnectionError):  # the server has hung up
            wire.writer.write(start)
            while True:
                wire.writer.write(more)
                await wire.writer.drain()
                await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(5):
            yield
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def rest(wire: Wire) -> bytes:
    """What is left to read until the server hangs up, with or without having read all that was sent."""
    try:
        return await wire.reader.read()
    except ConnectionError:
        return b""


async def test_trailers_are_no_headers() -> None:
    def by_key(scope: Scope) -> Identity:
        if dict(scope["headers"]).get(b"authorization") != b"Bearer right":
            raise NotAuthenticated("No valid key was given.")
        return Identity("ada")

    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, identify=by_key)) as server, connected(server.port) as wire:
        trailers = b"Authorization: Bearer right\r\nX-Request-Id: theirs\r\nIdempotency-Key: k\r\n"
        sent = in_chunks(BODY, 1000) + b"0\r\n" + trailers + b"\r\n"
        wire.send("POST", RESPONSES, sent, {**CHUNKED, "x-request-id": "ours"})
        reply = await wire.reply()
        assert (reply.status, reply.headers["x-request-id"]) == (401, "ours")
        for _ in range(2):  # an Idempotency-Key would give the second the response of the first
            wire.send("POST", RESPONSES, sent, {**CHUNKED, "authorization": "Bearer right", "x-request-id": "ours"})
            reply = await wire.reply()
            assert (reply.status, reply.headers["x-request-id"]) == (200, "ours")
            assert "idempotent-replayed" not in reply.headers


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_comes_without_end_behind_a_head_is_a_431(server: Serving, kind: str) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, in_chunks(BODY, 1000), CHUNKED)
        async with flooded(wire, *ENDLESS[kind]):
            reply = await wire.reply()
            assert await rest(wire) == b""
    assert (reply.status, reply.error["code"]) == (431, "request_head_too_large")
    assert reply.error["message"] == f"The request's chunk extensions and trailers are larger than {LIMIT} bytes."
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("kind", ENDLESS)
async def test_it_is_not_read_either_behind_an_answer_that_did_not_wait_for_it(server: Serving, kind: str) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", "/healthz", b"", CHUNKED)
        assert (await wire.reply()).status == 405
        async with flooded(wire, *ENDLESS[kind]):
            assert await rest(wire) == b""


async def test_trailers_that_come_at_once_have_the_same_bound(server: Serving) -> None:
    for size, status in ((LIMIT - 1, 200), (LIMIT, 431)):
        async with connected(server.port) as wire:
            trailer = b"X: " + b"y" * size
            wire.send("POST", RESPONSES, in_chunks(BODY, 1000) + b"0\r\n" + trailer + b"\r\n\r\n", CHUNKED)
            assert (await wire.reply()).status == status


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_of_single_bytes_may_have_more_framing_than_a_head(server: Serving, at_once: bool) -> None:
    body = json.dumps({**HELLO, "input": "x" * (20_000 if at_once else LIMIT)}).encode()
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"", CHUNKED)
        for byte in [body] if at_once else [body[at : at + 1] for at in range(len(body))]:
            wire.writer.write(in_chunks(byte, 1))
            await wire.writer.drain()
            await asyncio.sleep(0)
        wire.writer.write(b"0\r\nX-Checksum: y\r\n\r\n")
        assert (await wire.reply()).status == 200
        wire.send("GET", "/healthz")
        assert (await wire.reply()).status == 200


# ---- transfer codings and hosts ----


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "identity", "chunked;q=1"])
async def test_a_transfer_coding_other_than_chunked_is_a_501(server: Serving, coding: str) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, in_chunks(BODY, 1000) + b"0\r\n\r\n", {**CHUNKED, "transfer-encoding": coding})
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (501, "transfer_coding_not_supported")
        assert f"'{coding}'" in reply.error["message"]
        assert reply.headers["connection"] == "close"
        assert await wire.reader.read() == b""


async def test_it_is_a_501_under_the_strict_setting_too() -> None:
    engine = Engine(demo_provider(), store=MemoryStore(), settings=EngineSettings(strict=True))
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, b"", {**CHUNKED, "transfer-encoding": "gzip, chunked"})
        assert (reply.status, reply.error["type"]) == (501, "invalid_request")


async def test_chunked_may_be_written_in_any_case(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, in_chunks(BODY, 9) + b"0\r\n\r\n", {**CHUNKED, "transfer-encoding": "Chunked"})
        assert (await wire.reply()).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"transfer-encoding: chunked, gzip\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n",
    ],
)
async def test_a_body_whose_end_can_be_read_in_two_ways_is_a_400(server: Serving, fields: bytes) -> None:
    async with connected(server.port) as wire:
        wire.writer.write(b"POST /healthz HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n0\r\n\r\n")
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (400, "invalid_http")
        assert await wire.reader.read() == b""


async def test_a_request_names_its_host(server: Serving) -> None:
    for line, status in ((b"HTTP/1.1", 400), (b"HTTP/1.1\r\nhost: a\r\nhost: b", 400), (b"HTTP/1.0", 200)):
        async with connected(server.port) as wire:
            wire.writer.write(b"GET /healthz " + line + b"\r\n\r\n")
            reply = await wire.reply()
            assert reply.status == status
            if status == 400:
                assert reply.error["code"] == "invalid_http"
                assert "Host" in reply.error["message"]
