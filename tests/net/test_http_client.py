"""The HTTP client on real sockets: answers, connecting, and what has to be refused."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from antwort.net.client import HttpClient, HttpResponse, header_lines
from antwort.net.connection import CONNECT_LIMIT_SECONDS, Timeouts
from antwort.net.response import MAX_HEAD_BYTES, ConnectFailed, InvalidResponse
from http_kit import OK, client_of, fetched, gone
from replay_backend import Answer, serve, sse

TLS = Path(__file__).parent / "tls"

# ---- answers ----


@pytest.mark.parametrize("framing", ["chunked", "length", "eof"])
async def test_a_body_is_read_whole_however_it_is_framed(framing: str) -> None:
    answer = Answer((b"one ", b"two ", b"three"), framing=framing)  # type: ignore[arg-type]  # mypy sees a plain str
    async with serve(answer) as backend, client_of(backend) as client:
        async with await client.request("POST", "/path?q=1", b"{}") as reply:
            assert reply.status == 200
            assert reply.headers["Content-Type"] == reply.headers["content-type"] == "text/event-stream"
            assert await reply.read(100) == b"one two three"
        assert client.idle_connections == (0 if framing == "eof" else 1)
    [seen] = backend.requests
    assert (seen.method, seen.path, seen.body) == ("POST", "/path?q=1", b"{}")
    assert seen.headers["host"] == backend.url.removeprefix("http://").removesuffix("/v1")
    assert seen.headers["content-type"] == "application/json"


async def test_reads_bring_what_has_come_and_end_with_the_body() -> None:
    gate = asyncio.Event()
    async with (
        serve(Answer((b"one",), gate=gate)) as backend,
        client_of(backend) as client,
        await client.request("GET", "/") as reply,
    ):
        reads = reply
        assert await anext(reads) == b"one"
        gate.set()
        assert [data async for data in reads] == []
    assert "content-length" not in backend.requests[0].headers


async def test_fields_of_the_same_name_are_joined() -> None:
    raw = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"
    async with serve(raw) as backend, client_of(backend) as client, await client.request("GET", "/") as reply:
        assert reply.headers["x-A"] == "1, 2"
        assert list(reply.headers) == ["x-a", "content-length"]
        assert len(reply.headers) == 2
        assert reply.headers.get("other") is None


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\nHTTP/1.1 102 P\r\n\r\n"]
)
async def test_interim_answers_are_skipped(interim: bytes) -> None:
    raw = interim + b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nhi"
    async with serve(raw) as backend, client_of(backend) as client, await client.request("GET", "/") as reply:
        assert (reply.status, reply.headers.get("x-a"), await reply.read(2)) == (201, None, b"hi")


async def test_trailers_are_passed_over() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Late: 1\r\n\r\n"
    async with serve(raw) as backend, client_of(backend) as client, await client.request("GET", "/") as reply:
        assert await reply.read(2) == b"hi"
        assert "x-late" not in reply.headers


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
    ],
)
async def test_an_answer_that_is_not_http_is_a_bad_answer(raw: bytes) -> None:
    async with serve(raw) as backend, client_of(backend) as client:
        with pytest.raises(InvalidResponse):
            await fetched(client)
        assert client.open_connections == 0


FIELDS = b"".join(b"X-A: %d\r\n" % number for number in range(1000))
INTERIM = b"HTTP/1.1 103 Early Hints\r\n" + FIELDS + b"\r\n"
END = b"Content-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\n" + FIELDS * 20 + END,),
        (b"HTTP/1.1 200 OK\r\n", *[FIELDS] * 20, END),
        (b"HTTP/1.1 200 OK\r\nX-A: ", *[b"x" * 1000] * 100),
        (b"HTTP/1.1 200 ", *[b"OK" * 1000] * 100),
        (*[INTERIM] * 20, b"HTTP/1.1 200 OK\r\n" + END),
    ],
    ids=["one read", "many reads", "one field", "the reason", "interim answers"],
)
async def test_a_head_over_the_limit_is_a_bad_answer(pieces: tuple[bytes, ...]) -> None:
    async with serve(Answer(pieces, framing="raw", ending="hold")) as backend, client_of(backend) as client:
        with pytest.raises(InvalidResponse):
            async with asyncio.timeout(5):
                await fetched(client)
        assert client.open_connections == 0


async def test_a_long_head_under_the_limit_is_read_and_its_body_does_not_count() -> None:
    body = b"x" * 2 * MAX_HEAD_BYTES
    raw = b"HTTP/1.1 200 OK\r\n" + FIELDS * 4 + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with serve(raw) as backend, client_of(backend) as client, await client.request("GET", "/") as reply:
        assert reply.headers["x-a"].count(",") == 3999
        assert await reply.read(len(body)) == body


LONG = [b"x" * 10_000] * 50  # more than one read
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + b"2\r\nhi\r\n0\r\n" + FIELDS * 50,),
        (CHUNKED + b"2\r\nhi\r\n0\r\n", *[FIELDS] * 50),
        (CHUNKED + b"2\r\nhi\r\n0\r\nX: ", *LONG),
        (CHUNKED + b"2;x=", *LONG),
        (CHUNKED, *[b"0" * 10_000] * 50),
    ],
    ids=["trailers in one read", "trailers in many", "one trailer", "a chunk extension", "a chunk size"],
)
async def test_what_is_around_a_body_is_limited_as_a_head_is(pieces: tuple[bytes, ...]) -> None:
    async with serve(Answer(pieces, framing="raw", ending="hold")) as backend, client_of(backend) as client:
        with pytest.raises(InvalidResponse):
            async with asyncio.timeout(5):
                await fetched(client)
        assert client.open_connections == 0


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_body_of_single_bytes_and_a_trailer_are_read(size: int) -> None:
    body = b"x" * 20_000  # in chunks of one byte, it takes more than the limit
    raw = CHUNKED + b"1\r\nx\r\n" * len(body) + b"0\r\nX-Checksum: y\r\n\r\n"
    pieces = tuple(raw[at : at + size] for at in range(0, len(raw), size)) if size > 1 else (raw,)
    async with serve(Answer(pieces, framing="raw", ending="hold")) as backend, client_of(backend) as client:
        assert await fetched(client) == body
        assert client.idle_connections == 1


async def test_a_body_over_the_limit_is_given_up() -> None:
    async with serve(sse(b"x" * 1000, ending="hold")) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            with pytest.raises(InvalidResponse, match="too long"):
                await reply.read(999)
        assert client.open_connections == 0
        await gone(backend)


async def test_a_large_request_is_sent_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serve(OK) as backend, client_of(backend) as client:
        assert await fetched(client, body) == b'{"ok": true}'
    assert backend.requests[0].body == body


# ---- connecting ----


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_backend_that_is_not_there_is_a_failed_connection() -> None:
    client = HttpClient(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectFailed) as caught:
        await fetched(client)
    assert isinstance(caught.value.__cause__, OSError)
    assert "127.0.0.1" not in str(caught.value)


async def test_a_name_that_cannot_be_a_host_is_a_failed_connection() -> None:
    client = HttpClient("http://" + "x" * 70 + ".invalid")
    with pytest.raises(ConnectFailed):
        await fetched(client)


@pytest.mark.parametrize(
    ("origin", "host", "field"),
    [
        ("http://bücher.example:81", "xn--bcher-kva.example", "xn--bcher-kva.example:81"),
        ("http://Books.example", "books.example", "books.example"),
        ("http://[::1]:81", "::1", "[::1]:81"),
    ],
)
def test_a_host_is_written_as_a_head_can_carry_it(origin: str, host: str, field: str) -> None:
    client = HttpClient(origin)
    assert client.host == host
    assert f"Host: {field}\r\n".encode() in client._head("GET", "/", b"")


async def test_a_request_has_headers_of_its_own_and_a_body_of_any_type() -> None:
    fields = header_lines({"Content-Type": "application/x-www-form-urlencoded", "X-Key": "1"})
    async with serve(OK) as backend, client_of(backend) as client:
        for body in (b"a=b", None):
            async with await client.request("POST", "/", body, fields=fields) as reply:
                await reply.read(100)
    first, second = backend.requests
    assert (first.headers["content-type"], first.headers["x-key"]) == ("application/x-www-form-urlencoded", "1")
    assert first.body == b"a=b"
    assert (second.headers["x-key"], second.headers.get("content-length")) == ("1", None)


@pytest.mark.parametrize(
    "header", [("X-A", "1\r\nX-B: 2"), ("X A", "1"), ("X:A", "1"), ("", "1"), ("X-A", "ü"), ("é", "1")]
)
def test_a_header_that_could_be_read_as_another_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        header_lines(dict([header]))


def test_a_host_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be one"):
        HttpClient("http://" + "ü" * 70 + ".example")


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return server, ssl.create_default_context(cafile=TLS / "cert.pem")


async def test_https_is_spoken_and_its_connections_are_used_again() -> None:
    server, trusting = contexts()
    async with serve(OK, sse(b"a", ending="hold"), tls=server) as backend:
        client = HttpClient(backend.url, tls=trusting)
        assert await fetched(client) == b'{"ok": true}'
        async with await client.request("GET", "/") as reply:
            assert await anext(reply) == b"a"
        await gone(backend)
        assert client.open_connections == 0
        await client.close()
    assert backend.connections == 1


async def test_a_certificate_nobody_vouches_for_is_refused() -> None:
    server, _ = contexts()
    async with serve(OK, tls=server) as backend:
        with pytest.raises(ConnectFailed) as caught:
            await fetched(HttpClient(backend.url))
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
    assert backend.requests == []


@pytest.mark.parametrize("origin", ["", "localhost:8000", "ftp://host", "http://", "unix:///x"])
def test_an_address_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="http"):
        HttpClient(origin)


@pytest.mark.parametrize("headers", [{"X": "a\r\nY: b"}, {"X\n": "a"}, {"X:": "a"}, {"X": "schlüssel"}])
def test_a_header_that_would_break_the_request_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        HttpClient("http://host", headers=headers)


def test_a_reply_needs_no_generator_to_be_closed() -> None:
    """An iterator that holds nothing itself: leaving it half read leaves nothing to clean up."""
    assert not hasattr(HttpResponse, "aclose")


# ---- connecting as one of several ----


@pytest.mark.parametrize(
    ("own", "share", "seconds"), [(1.5, None, 1.5), (1.5, 0.4, 0.4), (0.2, 0.4, 0.2), (2.0, 0.4, 0.4), (5.0, 0.4, 5.0)]
)
def test_a_share_of_the_time_for_connecting_is_all_there_is_unless_more_than_two_seconds_are_needed(
    own: float, share: float | None, seconds: float
) -> None:
    token = CONNECT_LIMIT_SECONDS.set(share)
    try:
        assert Timeouts(connect=own).connect_seconds() == seconds
    finally:
        CONNECT_LIMIT_SECONDS.reset(token)
