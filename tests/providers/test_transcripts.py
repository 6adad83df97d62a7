"""Every recorded answer of a real engine, replayed over a socket, comes out as the right deltas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.responses import InputTokensDetails, Usage
from antwort.errors import AntwortError, BackendRefused, ContextTooLong, ModelNotFound
from antwort.providers.base import (
    CallDelta,
    ChatMessage,
    ChatRequest,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.providers.chat import ChatProvider
from antwort.providers.chat_parser import ChatParser
from antwort.providers.errors import NotReady
from antwort.providers.responses_parser import ResponsesParser
from replay_backend import CASES, Answer, Case, recorded, serve


@dataclass(frozen=True)
class Turn:
    """What an answer adds up to."""

    finish: str
    usage: tuple[int, int, int, int] | None
    """Tokens in, out, in total, and of those in, how many were cached."""
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Refusal:
    error: type[AntwortError]
    says: str


PARIS = "The capital of France is Paris."
FRANCE = '{\n  "city": "Paris",\n  "country": "FRANCE"\n}'
SUM = "\nThe answer to this classic math problem is 4."
IN_PARIS = ("get_weather", '{"city": "Paris"}')
IN_ROME = ("get_weather", '{"city": "Rome"}')
STORY = "The story is a classic example of a"
IGNORED = (
    "Paris, the City of Light, the capital of art and culture. The weather in Paris is indeed quite unique. "
    "The city is known for its warm"
)
PROSE = (
    "The weather in Paris is Paris.\n\nThe function is:\n```\nfunction get_weather(city) {\n"
    '  return {\n    "description'
)
TOKYO = '"The weather in Tokyo is hot and sunny, with a high of 12C and a low of 1C."'

EXPECTED: dict[str, Turn | Refusal] = {
    "llama.cpp/err_bad_json": Refusal(BackendRefused, "[json.exception.parse_error.101] parse error at line 1"),
    "llama.cpp/err_bad_role": Turn("length", (24, 4, 28, 21), "You are a helpful"),
    "llama.cpp/err_context_stream": Refusal(ContextTooLong, "exceeds the available context size (4096 tokens)"),
    "llama.cpp/err_loading": Refusal(NotReady, "The backend is not ready; try again later."),
    "llama.cpp/err_tool_choice_object": Turn("length", (244, 8, 252, 238), "I'm glad you're happy with the"),
    "llama.cpp/json_schema_stream": Turn("stop", (40, 19, 59, 23), FRANCE),
    "llama.cpp/length_stream": Turn("length", (34, 12, 46, 23), STORY + ' "story of the'),
    "llama.cpp/logprobs_stream": Turn("length", (31, 4, 35, 23), "I'm here to"),
    "llama.cpp/reasoning_nonstream": Turn("stop", (39, 13, 52, 38), reasoning=SUM),
    "llama.cpp/reasoning_stream": Turn("stop", (39, 13, 52, 0), reasoning=SUM),
    "llama.cpp/reasoning_truncated_stream": Turn("length", (39, 10, 49, 38), reasoning=SUM.removesuffix("4.")),
    "llama.cpp/responses_native_stream": Turn("stop", (35, 8, 43, 21), PARIS),
    "llama.cpp/stop_seq_stream": Turn("stop", (35, 6, 41, 23), PARIS.removesuffix(" Paris.")),
    "llama.cpp/text_nonstream": Turn("stop", (35, 8, 43, 34), PARIS),
    "llama.cpp/text_stream_nousage": Turn("stop", None, PARIS),
    "llama.cpp/text_stream_usage": Turn("stop", (35, 8, 43, 0), PARIS),
    "llama.cpp/tool_auto_stream": Turn(
        "length", (410, 60, 470, 403), calls=(("get_weather", '{"city": "Tokyo_1' + "_" * 35),)
    ),
    "llama.cpp/tool_parallel_stream": Turn(
        "length", (413, 110, 523, 403), calls=(("get_weather", '{"city": "Paris' + "_" * 88),)
    ),
    "llama.cpp/tool_required_ignored_stream": Turn("length", (37, 30, 67, 0), IGNORED),
    "llama.cpp/tool_required_nonstream": Turn("tool_calls", (410, 32, 442, 409), calls=(IN_PARIS,)),
    "llama.cpp/tool_required_prose_stream": Turn("length", (250, 30, 280, 240), PROSE),
    "llama.cpp/tool_required_stream": Turn("tool_calls", (410, 32, 442, 0), calls=(IN_PARIS,)),
    "llama.cpp/tool_result_final_stream": Turn("stop", (384, 7, 391, 240), "18 C, light rain"),
    "llama.cpp/tool_truncated_stream": Turn("length", (410, 16, 426, 404), calls=(("get_weather", "{"),)),
    "vllm/err_bad_json": Refusal(BackendRefused, "'msg': 'JSON decode error'"),
    "vllm/err_context_stream": Refusal(ContextTooLong, "This model's maximum context length is 2048 tokens."),
    "vllm/err_model": Refusal(ModelNotFound, "The model 'nope' does not exist."),
    "vllm/json_schema_stream": Turn("stop", (36, 19, 55, 0), FRANCE),
    "vllm/length_stream": Turn("length", (34, 8, 42, 0), STORY),
    "vllm/responses_native_stream": Turn("stop", (35, 8, 43, 0), PARIS),
    "vllm/stop_seq_stream": Turn("stop", (35, 6, 41, 0), PARIS.removesuffix(" Paris.")),
    "vllm/text_nonstream": Turn("stop", (35, 8, 43, 0), PARIS),
    "vllm/text_stream_continuous_usage": Turn("stop", (35, 8, 43, 0), PARIS),
    "vllm/text_stream_nousage": Turn("stop", None, PARIS),
    "vllm/text_stream_usage": Turn("stop", (35, 8, 43, 0), PARIS),
    "vllm/tool_auto_stream": Turn("stop", (410, 27, 437, 0), TOKYO),
    "vllm/tool_named_nonstream": Turn("stop", (410, 31, 441, 0), calls=(IN_ROME,)),
    "vllm/tool_named_stream": Turn("stop", (410, 31, 441, 0), calls=(IN_ROME,)),
    "vllm/tool_required_nonstream": Turn("tool_calls", (410, 31, 441, 0), calls=(IN_PARIS,)),
    "vllm/tool_required_stream": Turn("tool_calls", (410, 31, 441, 0), calls=(IN_PARIS,)),
    "vllm/tool_truncated_stream": Turn("length", (410, 12, 422, 0)),
}
TURNS = [name for name, expected in EXPECTED.items() if isinstance(expected, Turn)]
REFUSALS = [name for name, expected in EXPECTED.items() if isinstance(expected, Refusal)]
CHAT_TURNS = [name for name in TURNS if not CASES[name].is_native]


def added_up(deltas: Iterable[Delta]) -> Turn:
    """The turn, and on the way: `Finished` once and last, no empty delta, calls numbered in order, named once."""
    text = reasoning = ""
    calls: list[tuple[str, str]] = []
    *before, last = deltas
    for delta in before:
        match delta:
            case TextDelta(text=piece):
                assert piece
                text += piece
            case ReasoningDelta(text=piece):
                assert piece
                reasoning += piece
            case CallDelta(index=at, name=name, arguments=piece):
                assert bool(name) == (at == len(calls))
                calls = [*calls, (name, piece)] if name else [*calls[:at], (calls[at][0], calls[at][1] + piece)]
            case RefusalDelta() | Finished():
                raise AssertionError(f"{delta} is not to come here")
    assert isinstance(last, Finished)
    return Turn(last.finish, figures(last.usage), text, reasoning, tuple(calls))


def figures(usage: Usage | None) -> tuple[int, int, int, int] | None:
    if usage is None:
        return None
    assert usage.input_tokens_details == InputTokensDetails(cached_tokens=usage.input_tokens_details.cached_tokens)
    cached = usage.input_tokens_details.cached_tokens
    return usage.input_tokens, usage.output_tokens, usage.total_tokens, cached


async def replayed(case: Case, answer: Answer | None = None) -> list[Delta]:
    """All deltas of `case` through the provider, in answer to a request for the same model and form."""
    asked = ChatRequest(
        model="nope" if case.name == "vllm/err_model" else "smollm2",
        messages=[ChatMessage(role="user", content="Hello")],
        stream=case.is_streamed or "stream" in case.name.split("_"),
    )
    async with serve(answer or recorded(case)) as backend:
        provider = ChatProvider(backend.url)
        try:
            return [delta async for batch in provider.infer(asked) for delta in batch]
        finally:
            await provider.close()


def read_in(case: Case, pieces: Iterable[bytes]) -> list[Delta]:
    if not (case.is_native or case.is_streamed):
        return ChatParser().parse_body(b"".join(pieces))
    parser = ResponsesParser() if case.is_native else ChatParser()
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return deltas + parser.finish()


def test_every_recording_is_expected() -> None:
    assert set(EXPECTED) == set(CASES)
    assert len(CASES) == 41


@pytest.mark.proves("EN-001", "MISTAKE-05", "MISTAKE-07")
@pytest.mark.parametrize("name", CHAT_TURNS)
async def test_a_recorded_answer_comes_out_as_its_deltas(name: str) -> None:
    assert added_up(await replayed(CASES[name])) == EXPECTED[name]


@pytest.mark.parametrize("name", CHAT_TURNS)
async def test_a_recorded_answer_sent_byte_by_byte_comes_out_the_same(name: str) -> None:
    assert added_up(await replayed(CASES[name], recorded(CASES[name]).split(1))) == EXPECTED[name]


@pytest.mark.proves("EN-034", "RULING-12")
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_recorded_refusal_becomes_our_error(name: str) -> None:
    expected = cast("Refusal", EXPECTED[name])
    with pytest.raises(expected.error) as caught:
        await replayed(CASES[name])
    assert type(caught.value) is expected.error
    assert expected.says in caught.value.message


@pytest.mark.parametrize("name", [name for name in TURNS if CASES[name].is_native])
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_a_recorded_native_answer_comes_out_as_its_deltas(name: str, size: int) -> None:
    body = CASES[name].body
    assert added_up(read_in(CASES[name], (body[at : at + size] for at in range(0, len(body), size)))) == EXPECTED[name]


@pytest.mark.parametrize("name", TURNS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_however_a_recording_is_cut_into_reads_its_deltas_are_the_same(name: str, data: st.DataObject) -> None:
    body = CASES[name].body
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read_in(CASES[name], pieces) == read_in(CASES[name], [body])


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(CHAT_TURNS), size=st.integers(1, 5000))
async def test_pieces_of_any_size_on_the_wire_give_the_same_turn(name: str, size: int) -> None:
    assert added_up(await replayed(CASES[name], recorded(CASES[name]).split(size))) == EXPECTED[name]


def test_recorded_log_probabilities_stand_beside_their_text() -> None:
    deltas = read_in(CASES["llama.cpp/logprobs_stream"], [CASES["llama.cpp/logprobs_stream"].body])
    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    assert [delta.text for delta in texts] == ["I", "'m", " here", " to"]
    assert [delta.logprobs[0].token for delta in texts] == ["I", "'m", " here", " to"]
    first = texts[0].logprobs[0]
    assert (first.logprob, first.bytes) == (-1.5726760625839233, (73,))
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [
        ("I", -1.5726760625839233),
        ("Hello", -1.788051962852478),
    ]


def test_the_texts_agree_with_a_plain_reading_of_the_recordings() -> None:
    """Guards the table above against slips: the same sums by the standard library's JSON, line by line."""
    for name in CHAT_TURNS:
        case, expected = CASES[name], cast("Turn", EXPECTED[name])
        if case.is_streamed:
            chunks = [json.loads(line[6:]) for line in case.body.splitlines() if line.startswith(b"data: {")]
            messages = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        else:
            messages = [json.loads(case.body)["choices"][0]["message"]]
        assert expected.text == "".join(message.get("content") or "" for message in messages)
        assert expected.reasoning == "".join(message.get("reasoning_content") or "" for message in messages)
