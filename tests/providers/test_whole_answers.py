"""Answers that were not streamed give the same deltas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.errors import AntwortError, BackendError, BackendRefused
from antwort.providers.base import CallDelta, Finished, ReasoningDelta, TextDelta
from antwort.providers.chunks import WholeReader, read_whole
from antwort.providers.reading import OUTPUT_BYTES, json_cap
from chunk_kit import Json, piece

# ---- whole answers ----


def message(finish: str | None = "stop", **fields: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": fields, "finish_reason": finish}]}).encode()


def test_a_whole_answer_gives_the_same_deltas() -> None:
    body = message("tool_calls", content="text", reasoning="hm", tool_calls=[piece("f", '{"x": 1}', id="a")])
    assert read_whole(body) == [
        ReasoningDelta("hm"),
        TextDelta("text"),
        CallDelta(0, "f", '{"x": 1}'),
        Finished("tool_calls"),
    ]


@pytest.mark.parametrize("fields", [{}, {"index": 0}, {"id": "same"}, {"index": 0, "id": "same"}])
def test_in_a_whole_answer_every_entry_is_a_call_of_its_own(fields: Json) -> None:
    body = message(tool_calls=[piece("f", {}, **fields), piece("f", {}, **fields)])
    assert read_whole(body) == [CallDelta(0, "f", "{}"), CallDelta(1, "f", "{}"), Finished("stop")]


def test_a_whole_answer_in_parts_is_read_as_text() -> None:
    body = message(content=[{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}])
    assert read_whole(body) == [TextDelta("Hi!"), Finished("stop")]


def test_an_empty_whole_answer_is_only_its_end() -> None:
    assert read_whole(message(content=None, tool_calls=None)) == [Finished("stop")]


def test_a_whole_answer_without_a_reason_is_done() -> None:
    assert read_whole(message(None, content="Hi")) == [TextDelta("Hi"), Finished("stop")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "no", "code": 400}}', BackendRefused),
        (b'{"error": {"message": "no", "type": "overloaded"}}', BackendError),
        (b'{"object": "error", "message": "no"}', BackendError),
        (b'{"choices": []}', BackendError),
        (b"{}", BackendError),
        (b"<html>hello</html>", BackendError),
        (b"", BackendError),
        (message("abort", content="Hi"), BackendError),
    ],
)
def test_an_error_under_a_good_status_is_an_error(body: bytes, expected: type[AntwortError]) -> None:
    with pytest.raises(expected):
        read_whole(body)


def test_a_whole_answer_without_end_is_given_up() -> None:
    reader = WholeReader()
    piece_of_it = b" " * (json_cap(OUTPUT_BYTES) // 4 + 1)
    for _ in range(4):
        assert not reader.ended
        reader.feed(piece_of_it)
    assert reader.ended
    with pytest.raises(BackendError, match="too large"):
        reader.finish()
