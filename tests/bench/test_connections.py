"""The load of the benchmark of connections: its frames are those of the protocol, its figures are what it saw."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from connections.frames import CLOSE, PING, TEXT, Frames, written
from connections.machine import clients_at
from connections.report import table
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame as Real
from websockets.frames import Opcode
from websockets.streams import StreamReader

SIZES = st.lists(st.integers(0, 300) | st.sampled_from([65_535, 65_536, 70_000]), max_size=4)


def sent(payload: bytes, pieces: int) -> bytes:
    """A message as a server sends it, in so many frames."""
    size = max(1, -(-len(payload) // pieces))
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    kinds = [Opcode.TEXT, *[Opcode.CONT] * (len(parts) - 1)]
    frames = [
        Real(kind, part, fin=at == len(parts) - 1) for at, (kind, part) in enumerate(zip(kinds, parts, strict=True))
    ]
    return b"".join(frame.serialize(mask=False) for frame in frames)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(1, 5000))
def test_messages_are_read_whole_however_their_bytes_come(sizes: list[int], pieces: int, step: int) -> None:
    texts = [bytes(at % 251 for at in range(size)) for size in sizes]
    data = b"".join(sent(text, pieces) + Real(Opcode.PING, b"p").serialize(mask=False) for text in texts)
    step = max(step, len(data) // 2000)  # byte by byte where there are few
    reader = Frames()
    found = [frame for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert found == [frame for text in texts for frame in ((TEXT, text), (PING, b"p"))]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_server_reads_what_is_written(size: int) -> None:
    reader = StreamReader()
    reader.feed_data(written(TEXT, b"z" * size))
    parsing = Real.parse(reader.read_exact, mask=True)
    frame = _end(parsing)
    assert (frame.opcode, frame.data, frame.fin) == (Opcode.TEXT, b"z" * size, True)


def _end(parsing: Generator[None, None, Real]) -> Real:
    with pytest.raises(StopIteration) as stop:
        next(parsing)
    frame = stop.value.value
    assert isinstance(frame, Real)
    return frame


def test_a_close_is_told() -> None:
    assert Frames().feed(Real(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False)) == [(CLOSE, b"\x03\xe8")]


def test_connections_are_counted_as_long_as_the_server_has_them() -> None:
    rows = [
        "  sl  local_address rem_address   st tx_queue rx_queue",
        "   0: 0100007F:1F90 00000000:0000 0A 0",  # listens
        "   1: 0100007F:1F90 0100007F:C000 01 0",
        "   2: 0100007F:1F90 0100007F:C001 08 0",  # the client has closed, the server has not
        "   3: 0100007F:1F90 0100007F:C002 06 0",  # closed on both sides
        "   4: 0100007F:C000 0100007F:1F90 01 0",  # the client's end
    ]
    assert clients_at(8080, "\n".join(rows)) == 2


def test_the_table_sets_one_kind_against_the_other() -> None:
    turns = {"completed": 10, "under_way_at_once": 10, "seconds": 2.0, "turns_per_second": 5.0}
    states = {name: {"pss": 50 * 1024 * 1024} for name in ("before", "idle", "after_second", "closed")}
    figures: dict[str, Any] = {
        "open_seconds": 1.0,
        "first": turns,
        "second": turns,
        "states": states,
        "kib_per_connection": {"idle": 40.0, "after_second": 60.0},
        "cpu_ms_per_turn": 1.5,
        "connections_left": 0,
        "gauges_left": {},
    }
    rows = table(10, {"websocket": figures, "sse": {**figures, "open_seconds": 0.5}}).splitlines()
    assert rows[0] == "| 10 connections | websocket | sse | ratio |"
    assert rows[2] == "| open all of them, s | 1 | 0.5 | 2.00 |"
    assert "| connections left behind | 0 | 0 |  |" in rows
