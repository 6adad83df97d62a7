"""Connections are used again when, and only when, they are clean."""

from __future__ import annotations

import asyncio

import pytest

from antwort.net.client import HttpClient, Pool
from antwort.net.response import ConnectionLost
from http_kit import CLOSED_UNANSWERED, OK, client_of, fetched, gone
from replay_backend import Answer, serve, sse

# ---- reuse ----


async def test_a_connection_is_used_again_after_a_complete_answer() -> None:
    async with serve(OK, sse(b"a", b"b"), OK) as backend, client_of(backend) as client:
        for expected in (b'{"ok": true}', b"ab", b'{"ok": true}'):
            assert await fetched(client) == expected
            assert client.open_connections == client.idle_connections == 1
    assert (backend.connections, len(backend.requests)) == (1, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi and more",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 500 No\r\nX-Late: 1\r\nContent-Length: 3\r\n\r\nBAD",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nBAD",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_a_connection_is_not_used_again_unless_it_is_clean(raw: bytes) -> None:
    async with serve(Answer((raw,), framing="raw", ending="hold")) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            assert (reply.status, await reply.read(100)) == (200, b"hi")
            assert "x-late" not in reply.headers
        assert client.open_connections == 0
        await gone(backend)


async def test_bytes_on_an_idle_connection_close_it() -> None:
    gate, finished = asyncio.Event(), asyncio.Event()
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await gate.wait()
        writer.write(raw)
        assert await reader.read() == b""
        writer.close()
        finished.set()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await fetched(client, None) == b"hi"
        assert client.idle_connections == 1
        gate.set()
        await finished.wait()
        assert client.open_connections == client.idle_connections == 0


async def test_an_answer_before_the_request_was_sent_costs_the_connection() -> None:
    answered, finished = asyncio.Event(), asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await answered.wait()
        writer.transport.abort()
        finished.set()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024) as server:
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with await client.request("POST", "/", b"x" * 2**25) as reply:
            assert (reply.status, await reply.read(0)) == (413, b"")
            assert client.open_connections == 0
        answered.set()
        await finished.wait()


async def test_a_pooled_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async with serve(OK) as backend, client_of(backend) as client:
        await fetched(client)
        for writer in backend._writers:
            writer.close()
        assert await fetched(client) == b'{"ok": true}'
    assert (backend.connections, len(backend.requests)) == (2, 2)


async def test_a_pooled_connection_that_closes_without_a_byte_is_tried_once_more() -> None:
    async with serve(OK, CLOSED_UNANSWERED, OK) as backend, client_of(backend) as client:
        await fetched(client)
        assert await fetched(client) == b'{"ok": true}'
    assert (backend.connections, len(backend.requests)) == (2, 3)


async def test_a_fresh_connection_that_closes_without_a_byte_is_not_tried_again() -> None:
    async with serve(OK, CLOSED_UNANSWERED) as backend, client_of(backend) as client:
        await fetched(client)
        with pytest.raises(ConnectionLost) as caught:
            await fetched(client)
        assert not caught.value.response_started
    assert (backend.connections, len(backend.requests)) == (2, 3)


async def test_a_request_that_must_not_be_sent_twice_is_not_sent_again_over_a_fresh_connection() -> None:
    async with serve(OK, CLOSED_UNANSWERED, OK) as backend, client_of(backend) as client:
        await fetched(client)
        with pytest.raises(ConnectionLost):
            await client.request("POST", "/x", b"{}", resends=False)
        assert len(backend.requests) == 2
        assert await fetched(client) == b'{"ok": true}'


async def test_a_pooled_connection_that_breaks_off_in_mid_answer_is_not_tried_again() -> None:
    torn = Answer((b"HTTP/1.1 200 OK\r\n",), framing="raw", ending="cut")
    async with serve(OK, torn) as backend, client_of(backend) as client:
        await fetched(client)
        with pytest.raises(ConnectionLost) as caught:
            await fetched(client)
        assert caught.value.response_started
    assert len(backend.requests) == 2


async def test_no_more_connections_are_kept_idle_than_allowed() -> None:
    async with serve(OK) as backend, client_of(backend, pool=Pool(max_idle=2)) as client:
        await asyncio.gather(*(fetched(client) for _ in range(5)))
        assert client.open_connections == client.idle_connections == 2
    assert len(backend.requests) == 5


async def test_an_idle_connection_is_closed_when_its_time_is_up() -> None:
    async with serve(OK) as backend, client_of(backend, pool=Pool(idle_expiry=0.02)) as client:
        await fetched(client)
        await gone(backend)
        assert client.open_connections == client.idle_connections == 0
