"""The cache of response heads: a cached head gives the same response as parsing it again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.response import HEAD_CACHE, HttpResponse

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    HEAD_CACHE.clear()


NO_CONNECTION: Any = None


def fed(*pieces: bytes) -> HttpResponse:
    loop = asyncio.new_event_loop()
    try:
        response = HttpResponse(loop.create_future(), NO_CONNECTION)
        for piece in pieces:
            response.feed(piece)
        return response
    finally:
        loop.close()


def found(response: HttpResponse) -> tuple[object, ...]:
    state = (response.has_head, response.is_complete, response.keep_alive, response.has_started, response.reads)
    return response.status, dict(response.headers), b"".join(response.chunks), response.buffered_bytes, *state


def test_an_answer_with_a_known_head_has_its_own_body() -> None:
    first, second = fed(PLAIN + b"{}"), fed(PLAIN + b"[]")
    assert first.parser is not None
    assert second.parser is None, "it was not parsed"
    assert found(second) == (200, dict(first.headers), b"[]", 2, True, True, True, True, 1)


def framed(length: int) -> bytes:
    """An answer with as much behind its head."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX: y\r\n\r\n" % length
    return head + b"x" * length


@pytest.mark.parametrize("length", [0, 2, *range(60, 90)])
def test_a_known_head_that_comes_in_two_pieces_is_read_as_a_whole(length: int) -> None:
    """Also where there is as much of it so far as there is to be of its body."""
    data = framed(length)
    whole = found(fed(data))[:-1]
    for at in range(1, len(data)):
        assert found(fed(data[:at], data[at:]))[:-1] == whole, data[:at]


@pytest.mark.parametrize("rest", [b"", b"{", b"{}x", b"{}HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_more_or_less_than_one_answer_is_parsed(rest: bytes) -> None:
    fed(PLAIN + b"{}")
    response = fed(PLAIN + rest)
    assert response.parser is not None
    assert response.is_complete is (len(rest) >= 2)
    assert response.is_complete is False or response.keep_alive is (rest == b"{}")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN + b"{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_other_heads_are_not_remembered(data: bytes) -> None:
    assert fed(data).is_complete
    assert not HEAD_CACHE


def test_an_empty_body_is_one() -> None:
    empty = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    assert found(fed(empty)) == found(fed(empty)) == (202, {"content-length": "0"}, b"", 0, True, True, True, True, 1)


def test_only_so_many_are_remembered() -> None:
    for number in range(300):
        fed(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 0\r\n\r\n" % number)
    assert len(HEAD_CACHE) == 256


_FIELDS = st.lists(st.sampled_from([b"A: b", b"A: c", b"Content-Type: text/plain", b"Connection: close", b""]))


@given(st.sampled_from([200, 204, 304, 404]), _FIELDS, st.integers(0, 4), st.binary(max_size=6), st.binary(max_size=6))
def test_what_is_recalled_is_what_would_be_parsed(
    status: int, fields: list[bytes], length: int, first: bytes, second: bytes
) -> None:
    head = b"HTTP/1.1 %d OK\r\n%bContent-Length: %d\r\n\r\n"
    lines = b"".join(field + b"\r\n" for field in fields if field)
    data = head % (status, lines, length)
    HEAD_CACHE.clear()
    anew = _outcome(data + second)
    HEAD_CACHE.clear()
    _outcome(data + first)
    assert _outcome(data + second) == anew


def _outcome(data: bytes) -> tuple[object, ...] | str:
    try:
        return found(fed(data))
    except Exception as error:
        return repr(error)
