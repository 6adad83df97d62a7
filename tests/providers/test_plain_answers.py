"""What is read at one go is what would be read with every care; all else is left to that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.providers.chunks import read_any, read_whole
from antwort.providers.plain import read_plain
from chunk_kit import Json

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
COST = Usage(input_tokens=7, output_tokens=2, total_tokens=9)


def answer(message: Json, finish: object = "stop", **fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], **fields}).encode()


def call(name: object = "f", arguments: object = "{}", **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (answer({"content": "Hi"}, usage=USAGE), [TextDelta("Hi"), Finished("stop", COST)]),
        (
            answer({"content": None, "tool_calls": [call(id="a"), call("g", id="a")]}, "tool_calls", usage=USAGE),
            [CallDelta(0, "f", "{}"), CallDelta(1, "g", "{}"), Finished("tool_calls", COST)],
        ),
        (
            answer({"content": "Hi", "reasoning_content": "Hm", "refusal": None, "tool_calls": []}, "length"),
            [ReasoningDelta("Hm"), TextDelta("Hi"), Finished("length")],
        ),
    ],
)
def test_what_backends_mostly_say_is_read_at_one_go(body: bytes, expected: list[Delta]) -> None:
    assert read_plain(body) == expected == read_any(body)


def test_details_of_the_cost_are_kept() -> None:
    told = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    body = answer({"content": "Hi"}, usage=told)
    end = (read_plain(body) or [])[-1]
    assert isinstance(end, Finished)
    assert end.usage == Usage(
        input_tokens=7,
        output_tokens=2,
        total_tokens=9,
        input_tokens_details=InputTokensDetails(cached_tokens=3),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    )
    assert read_any(body)[-1] == end


@pytest.mark.parametrize(
    "body",
    [
        answer({"content": [{"type": "text", "text": "Hi"}]}),
        answer({"refusal": "No"}),
        answer({"tool_calls": [call("")]}),
        answer({"tool_calls": [call(None)]}),
        answer({"tool_calls": [call(arguments={})]}),
        answer({"content": "Hi"}, None),
        answer({"content": "Hi"}, "abort"),
        answer({"content": "Hi"}, "model_context_window_exceeded"),
        answer({"content": "Hi"}, usage={**USAGE, "prompt_tokens": -1}),
        answer({"content": "Hi"}, usage={**USAGE, "total_tokens": 2**41}),
        answer({"content": "Hi"}, usage="much"),
        answer({"content": "Hi"}, error={"message": "no"}),
        b'{"choices": []}',
        b"<html>",
    ],
)
def test_what_needs_a_closer_look_is_left_alone(body: bytes) -> None:
    assert read_plain(body) is None


# ---- in all cases: plain answers, in which some places are bent ----

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
calls = st.lists(st.builds(call, st.sampled_from(["f", "g"]), id=st.sampled_from(["a", "b"])), max_size=3)
messages = st.fixed_dictionaries({"content": texts}, optional={"reasoning": texts, "tool_calls": calls})
finishes = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "abort", "model_context_window_exceeded"])
answers = st.builds(answer, messages, finishes, usage=st.none() | usages)
ODD = ("null", '""', '"x"', "0", "1", "-1", "1.0", "0.5", f"{2**41}", f"{2**65}", "true", "[]", "[{}]", "{}")
OTHERS = ('{"content": "y"}', '{"text": "t"}', '[{"function": {"arguments": {"x": 1}}}]')
bends = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from((*ODD, *OTHERS))), max_size=2)


@given(answers, bends)
def test_both_ways_come_to_the_same(body: bytes, bends: list[tuple[tuple[str | int, ...], str]]) -> None:
    told = json.loads(body)
    for place, value in bends:
        bend(told, place, json.loads(value))
    body = json.dumps(told).encode()
    plain = read_plain(body)
    event("another" if plain is None else "plain")
    assert plain is None or plain == read_any(body)
    assert outcome(read_whole, body) == outcome(read_any, body)


def bend(told: Any, place: tuple[str | int, ...], value: object) -> None:
    """Put the value there, where there is such a place."""
    *way, last = place
    try:
        for step in way:
            told = told[step]
        told[last] = value
    except (IndexError, KeyError, TypeError):
        return


def outcome(read: Callable[[bytes], list[Delta]], body: bytes) -> object:
    try:
        return read(body)
    except AntwortError as error:
        return type(error), error.message
