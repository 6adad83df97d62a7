"""Server-sent events: any line end, any length, cut anywhere."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.net.sse import SseParser


def parsed(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    return [payload for piece in pieces for payload in parser.feed(piece)] + parser.finish()


def one_byte_at_a_time(stream: bytes) -> list[bytes]:
    return parsed(*(stream[at : at + 1] for at in range(len(stream))))


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\rdata: b\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\ndata:\ndata: b\n\n", [b"a\n\nb"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b":\n\n:\n\n", []),
        (b": ping\ndata: a\n: pong\n\n", [b"a"]),
        (b"event: x\nid: 7\nretry: 9\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"data:\n\ndata: \n\n", []),
        (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbf\r\ndata: a\n\n", [b"a"]),
        (b"data: \xef\xbb\xbf\n\n", [b"\xef\xbb\xbf"]),
        (b"database: a\n\n", []),
        (b"", []),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
    ],
)
def test_a_stream_has_these_payloads_whole_and_byte_by_byte(stream: bytes, payloads: list[bytes]) -> None:
    assert parsed(stream) == payloads
    assert one_byte_at_a_time(stream) == payloads


def test_a_payload_is_handed_out_as_soon_as_its_blank_line_has_come() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b") == [b"a"]
    assert parser.feed(b"\r") == []
    assert parser.feed(b"\r") == [b"b"], "the second carriage return is a line end of its own"
    assert parser.feed(b"\n") == []


@pytest.mark.proves("MISTAKE-16")
def test_a_line_longer_than_64_kib_is_read_whole() -> None:
    payload = b'{"x": "' + b"x" * 300_000 + b'"}'
    stream = b"data: " + payload + b"\n\n"
    assert parsed(stream) == [payload]
    assert parsed(*(stream[at : at + 1400] for at in range(0, len(stream), 1400))) == [payload]


def _seconds_for(size: int) -> float:
    pieces = [b"data: ", *[b"x" * 64] * (size // 64), b"\n\n"]
    best = float("inf")
    for _ in range(3):
        parser = SseParser()
        start = time.process_time()
        for piece in pieces:
            parser.feed(piece)
        best = min(best, time.process_time() - start)
    return best


def test_a_long_line_in_small_pieces_costs_no_more_than_its_length() -> None:
    """Sixteen times the length takes sixteen times as long, and 256 times if each piece copied the line so far."""
    assert _seconds_for(2**21) < 80 * _seconds_for(2**17)


LINES = st.sampled_from(
    [b"", b"data: {}", b"data:{}", b"data", b": note", b"event: x", b"data: a:b", b"id: 1", b" data: x", b"data:  "]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30)


def by_the_book(lines: list[bytes]) -> list[bytes]:
    """The standard's own words, line by line; at the end of the stream an open event counts."""
    payloads, data = [], list[bytes]()
    for line in [*lines, b""]:
        name, _, value = line.partition(b":")
        if not line:
            payloads.append(b"\n".join(data))
            data = []
        elif name == b"data" and b":" in line:
            data.append(value.removeprefix(b" "))
    return [payload for payload in payloads if payload]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(stream=STREAMS, data=st.data())
def test_any_stream_cut_anywhere_is_read_by_the_book(stream: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    raw = b"".join(line + end for line, end in stream)
    expected = by_the_book(_lines(raw))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parsed(*pieces) == expected


def _lines(raw: bytes) -> list[bytes]:
    """CR LF, LF and CR end a line: exactly what the standard library's universal newlines do."""
    return raw.decode().replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")


def test_what_an_event_without_an_end_takes_up_is_known() -> None:
    parser = SseParser()
    for piece in (b"data: a\n\ndata: ", b"b", b"", b"c"):
        parser.feed(piece)
    assert parser.open_size == len(b"data: bc")
    parser.feed(b"\n\n")
    assert parser.open_size == 0
