"""However an answer is cut into reads, and whether its head is known, the same comes of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.client import HttpClient
from antwort.net.connection import HttpConnection, Timeouts
from antwort.net.response import HEAD_CACHE, ConnectionLost, HttpResponse

_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
ANSWERS = [
    _JSON % (2, b"{}"),
    _JSON % (0, b""),
    _JSON % (8, b"\r\n\r\n\r\n\r\n"),
    b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + _JSON % (2, b"{}"),
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    _JSON % (2, b"{}") + b"HTTP/1.1 200 OK\r\n",
    _JSON % (9, b"too short"[:4]),
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"nothing of the kind\r\n\r\n",
]


def carried(loop: asyncio.AbstractEventLoop, pieces: list[bytes]) -> tuple[object, ...]:
    """What comes of an answer that ends with its connection, and whether that could have been used again before."""
    client = HttpClient("http://127.0.0.1:1")
    connection = HttpConnection(client, loop)
    connection.connection_made(MagicMock(get_write_buffer_size=lambda: 0, is_closing=lambda: False))
    reply = connection.send((b"",), Timeouts())
    for piece in pieces:
        if not reply.is_complete and reply.error is None:
            assert reply.waiter.done() is reply.has_head
            connection.data_received(piece)
    is_kept = client.idle == [connection]
    connection.connection_lost(None)
    assert reply.waiter.done()
    return outcome(reply, is_kept=is_kept)


def test_nothing_is_sent_over_a_connection_that_is_closing() -> None:
    loop = asyncio.new_event_loop()
    try:
        connection = HttpConnection(HttpClient("http://127.0.0.1:1"), loop)
        connection.connection_made(closing := MagicMock(is_closing=lambda: True))
        reply = connection.send((b"GET",), Timeouts())
        assert isinstance(reply.error, ConnectionLost)
        assert (reply.waiter.done(), reply.has_head, reply.has_started) == (True, False, False)
        assert [call for call in closing.mock_calls if call[0].startswith("write")] == []
    finally:
        loop.close()


def outcome(reply: HttpResponse, *, is_kept: bool) -> tuple[object, ...]:
    failure = None if reply.error is None else repr(reply.error)
    return reply.has_head, reply.status, dict(reply.headers), reply.is_complete, reply.take(), failure, is_kept


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % len(data) for place in at} - {0}), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


@pytest.mark.parametrize("data", ANSWERS)
def test_an_answer_in_two_pieces_or_byte_by_byte_is_the_same(data: bytes) -> None:
    loop = asyncio.new_event_loop()
    try:
        HEAD_CACHE.clear()
        whole = carried(loop, [data])
        assert carried(loop, [data]) == whole, "with its head known"
        # What follows a complete answer in a read of its own finds a connection that is idle already.
        end = data.find(b"{}HTTP") + 2 if b"{}HTTP" in data else len(data)
        for at in range(1, end):
            assert carried(loop, [data[:at], data[at:]]) == whole, data[:at]
        if end == len(data):
            assert carried(loop, [data[at : at + 1] for at in range(len(data))]) == whole
    finally:
        loop.close()


@given(st.sampled_from([data for data in ANSWERS if b"{}HTTP" not in data]), st.lists(st.integers(0, 200), max_size=6))
def test_an_answer_is_the_same_however_it_is_cut(data: bytes, at: list[int]) -> None:
    loop = asyncio.new_event_loop()
    try:
        assert carried(loop, cut(data, at)) == carried(loop, [data])
    finally:
        loop.close()
