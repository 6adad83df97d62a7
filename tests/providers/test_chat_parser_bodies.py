"""Whole Chat Completions answers give the same deltas as streamed ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError, BackendError, BackendRefused
from antwort.providers.answer_parser import DEFAULT_OUTPUT_BYTES, max_json_bytes
from antwort.providers.base import MAX_OUTPUT_BYTES, CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.chat import ChatProvider
from antwort.providers.chat_parser import ChatParser
from chunk_kit import DONE, Json, piece, read
from fleet_kit import asking
from replay_backend import Answer, serve

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
COST = Usage(input_tokens=7, output_tokens=2, total_tokens=9)


def message(finish: str | None = "stop", *, usage: object = None, **fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": finish}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def parse(body: bytes, max_bytes: int = DEFAULT_OUTPUT_BYTES) -> list[Delta]:
    return ChatParser(max_bytes=max_bytes).parse_body(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (message(content="Hi", usage=USAGE), [TextDelta("Hi"), Finished("stop", COST)]),
        (
            message("tool_calls", content="text", reasoning="hm", tool_calls=[piece("f", '{"x": 1}', id="a")]),
            [ReasoningDelta("hm"), TextDelta("text"), CallDelta(0, "f", '{"x": 1}'), Finished("tool_calls")],
        ),
        (
            message("length", content="Hi", reasoning_content="Hm", refusal=None, tool_calls=[]),
            [ReasoningDelta("Hm"), TextDelta("Hi"), Finished("length")],
        ),
        (message(refusal="No"), [RefusalDelta("No"), Finished("stop")]),
        (message(function_call={"name": "f", "arguments": "{}"}), [CallDelta(0, "f", "{}"), Finished("stop")]),
        (
            message(tool_calls=[piece(None, "{}"), piece("f")]),
            [CallDelta(0, "f"), CallDelta(1, "", "{}"), Finished("stop")],
        ),
        (message("model_context_window_exceeded", content="Hi"), [TextDelta("Hi"), Finished("length")]),
    ],
)
def test_a_whole_answer_gives_the_same_deltas(body: bytes, expected: list[Delta]) -> None:
    assert parse(body) == expected


@pytest.mark.parametrize("fields", [{}, {"index": 0}, {"id": "same"}, {"index": 0, "id": "same"}])
def test_in_a_whole_answer_every_entry_is_a_call_of_its_own(fields: Json) -> None:
    body = message(tool_calls=[piece("f", {}, **fields), piece("f", {}, **fields)])
    assert parse(body) == [CallDelta(0, "f", "{}"), CallDelta(1, "f", "{}"), Finished("stop")]


def test_a_whole_answer_in_parts_is_read_as_text() -> None:
    body = message(content=[{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}])
    assert parse(body) == [TextDelta("Hi!"), Finished("stop")]


def test_an_empty_whole_answer_is_only_its_end() -> None:
    assert parse(message(content=None, tool_calls=None)) == [Finished("stop")]


def test_a_whole_answer_without_a_reason_is_done() -> None:
    assert parse(message(None, content="Hi")) == [TextDelta("Hi"), Finished("stop")]


def test_the_details_of_the_usage_are_kept() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1}}
    usage = Usage(
        input_tokens=7,
        output_tokens=2,
        total_tokens=9,
        input_tokens_details=InputTokensDetails(cached_tokens=3),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    )
    assert parse(message(content="Hi", usage={**USAGE, **details}))[-1] == Finished("stop", usage)


def test_the_numbers_of_a_usage_that_can_be_read_are_kept() -> None:
    usage = {"prompt_tokens": [7], "completion_tokens": 10.0, "completion_tokens_details": {"reasoning_tokens": "4"}}
    expected = Usage(input_tokens=0, output_tokens=10, total_tokens=10)
    assert parse(message(content="Hi", usage=usage))[-1] == Finished("stop", expected)


@pytest.mark.parametrize("usage", ["much", [], {"prompt_tokens": [7]}, {"prompt_tokens": 0.5}, {"total_tokens": 9}])
def test_a_usage_that_cannot_be_read_does_not_fail_the_answer(usage: object) -> None:
    assert parse(message(content="Hi", usage=usage)) == [TextDelta("Hi"), Finished("stop")]


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
        parse(body)


def test_a_whole_answer_over_the_limit_is_cut_there() -> None:
    assert parse(message(content="x" * 2000, usage=USAGE), 1000) == [
        TextDelta("x" * 1000),
        Finished(MAX_OUTPUT_BYTES, COST),
    ]


async def test_a_whole_answer_that_is_too_large_is_an_error() -> None:
    body = b" " * (max_json_bytes(DEFAULT_OUTPUT_BYTES) + 1)
    async with serve(Answer((body,), headers={"content-type": "application/json"}, framing="eof")) as backend:
        provider = ChatProvider(backend.url)
        with pytest.raises(BackendError, match="too large"):
            _ = [batch async for batch in provider.infer(asking())]
        await provider.close()


# ---- ordinary answers in which some values are replaced by odd ones ----

PLACES = (
    ("choices",),
    ("usage",),
    ("error",),
    *(("choices", 0, name) for name in ("index", "message", "delta", "finish_reason", "logprobs")),
    *(
        ("choices", 0, "message", name)
        for name in ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
    ),
    *(("choices", 0, "message", "tool_calls", 0, name) for name in ("index", "id", "function")),
    *(("choices", 0, "message", "tool_calls", 0, "function", name) for name in ("name", "arguments")),
    *(("usage", name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")),
    *(("usage", f"{name}_tokens_details") for name in ("prompt", "completion")),
    ("usage", "prompt_tokens_details", "cached_tokens"),
    ("usage", "completion_tokens_details", "reasoning_tokens"),
)
counts = st.integers(0, 9)
details = st.none() | st.fixed_dictionaries({}, optional={"cached_tokens": counts, "reasoning_tokens": counts})
usages = st.fixed_dictionaries(
    {"prompt_tokens": counts, "completion_tokens": counts, "total_tokens": counts},
    optional={"prompt_tokens_details": details, "completion_tokens_details": details},
)
texts = st.none() | st.text(max_size=3)
call_lists = st.lists(st.builds(piece, st.sampled_from(["f", "g"]), id=st.sampled_from(["a", "b"])), max_size=3)
finishes = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "abort", "model_context_window_exceeded"])
bodies = st.builds(message, finishes, content=texts, reasoning=texts, tool_calls=call_lists, usage=st.none() | usages)
ODD = ("null", '""', '"x"', "0", "1", "-1", "1.0", "0.5", f"{2**41}", f"{2**65}", "true", "[]", "[{}]", "{}")
OTHERS = ('{"content": "y"}', '{"text": "t"}', '[{"function": {"arguments": {"x": 1}}}]')
changes = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from((*ODD, *OTHERS))), max_size=2)


@given(bodies, changes)
def test_a_whole_answer_gives_the_deltas_of_a_stream_with_that_one_chunk(
    body: bytes, changes: list[tuple[tuple[str | int, ...], str]]
) -> None:
    plain = json.loads(body)
    for place, value in changes:
        put(plain, place, json.loads(value))
    body = json.dumps(plain).encode()
    try:
        deltas = parse(body)
    except AntwortError:
        return
    assert deltas == read(b"data: " + body + b"\n\n", DONE)


def put(plain: Any, place: tuple[str | int, ...], value: object) -> None:
    """Replace a value, if the place exists."""
    *path, last = place
    try:
        for step in path:
            plain = plain[step]
        plain[last] = value
    except (IndexError, KeyError, TypeError):
        return
