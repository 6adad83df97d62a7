"""The chunks of Chat Completions servers, with all their differences, become deltas."""

from __future__ import annotations

import pytest

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import BackendError
from antwort.providers.base import MAX_OUTPUT_BYTES, CallDelta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.chat_parser import ChatParser
from chunk_kit import DONE, Json, before_the_end, calls, delta, event, piece, read

# ---- text, reasoning, refusals ----


@pytest.mark.proves("MISTAKE-08")
@pytest.mark.parametrize("first", [{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}, {}])
def test_an_empty_first_chunk_says_nothing(first: Json) -> None:
    assert before_the_end(delta(**first), delta(content="Hi")) == [TextDelta("Hi")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_both_its_names(field: str) -> None:
    assert before_the_end(delta(**{field: "hm"}, content=None)) == [ReasoningDelta("hm")]


def test_reasoning_under_both_names_at_once_is_read_once() -> None:
    assert before_the_end(delta(reasoning="hm", reasoning_content="hm")) == [ReasoningDelta("hm")]


@pytest.mark.proves("MISTAKE-15")
def test_a_chunk_with_everything_in_it_loses_nothing() -> None:
    everything = calls(piece("f", "{}", index=0), content="text", refusal="no", reasoning_content="hm")
    expected = [ReasoningDelta("hm"), RefusalDelta("no"), TextDelta("text"), CallDelta(0, "f", "{}")]
    assert before_the_end(everything) == expected


@pytest.mark.proves("MISTAKE-15")
def test_calls_and_text_in_the_finish_chunk_are_not_lost() -> None:
    last = calls(piece("f", "{}", index=0), content="text", finish="tool_calls")
    assert read(last, DONE) == [TextDelta("text"), CallDelta(0, "f", "{}"), Finished("tool_calls")]


@pytest.mark.proves("EN-026")
def test_only_the_first_choice_is_read() -> None:
    both = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    other = {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
    assert before_the_end(event(both), event(other)) == [TextDelta("yes")]


def test_content_in_parts_is_read_as_text() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "!"}]
    assert before_the_end(delta(content=parts), delta(content=[]), delta(content="?")) == [
        TextDelta("Hi!"),
        TextDelta("?"),
    ]


@pytest.mark.parametrize("thinking", ["hm", [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]])
def test_a_part_that_thinks_is_reasoning(thinking: object) -> None:
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "Hi"}]
    assert before_the_end(delta(content=parts)) == [ReasoningDelta("hm"), TextDelta("Hi")]


def test_log_probabilities_with_null_parts_are_read() -> None:
    told = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": None}]}
    [text] = before_the_end(event({"choices": [{"delta": {"content": "Hi"}, "logprobs": told}]}))
    assert isinstance(text, TextDelta)
    assert [(each.token, each.logprob, each.bytes, each.top_logprobs) for each in text.logprobs] == [
        ("Hi", -0.5, (), ())
    ]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    odd = {"choices": [{"delta": {"content": "Hi", "audio": {}}, "token_ids": [1], "matched_stop": 7}], "timings": {}}
    assert before_the_end(b": keep-alive\n\n", event(odd), b":\n\n") == [TextDelta("Hi")]


# ---- the end ----


@pytest.mark.proves("MISTAKE-05")
def test_usage_in_a_trailing_chunk_without_choices_is_kept() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert read(delta("stop"), event({"choices": [], "usage": usage}), DONE) == [
        Finished(
            "stop",
            Usage(
                input_tokens=10,
                output_tokens=5,
                total_tokens=15,
                input_tokens_details=InputTokensDetails(cached_tokens=4),
                output_tokens_details=OutputTokensDetails(reasoning_tokens=3),
            ),
        )
    ]


def test_usage_on_every_chunk_is_not_added_up() -> None:
    told = [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n}} for n in (1, 2, 3)]
    [last] = read(*map(event, told), event({"choices": [], "usage": None}), delta("stop"), DONE)
    assert last == Finished("stop", Usage(input_tokens=7, output_tokens=3, total_tokens=10))


@pytest.mark.parametrize("number", [-1, 2**40 + 1, 10**400])
def test_a_number_of_tokens_that_cannot_be_counts_as_none(number: int) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": number, "total_tokens": number}
    [last] = read(event({"choices": [], "usage": usage}), delta("stop"), DONE)
    assert isinstance(last, Finished)
    assert last.usage == Usage(input_tokens=7, output_tokens=0, total_tokens=7)


@pytest.mark.parametrize("usage", [None, {}, {"total_tokens": 5}, {"prompt_tokens": "many"}, []])
def test_a_usage_that_says_nothing_is_none(usage: object) -> None:
    assert read(event({"choices": [], "usage": usage}), delta("stop"), DONE) == [Finished("stop", None)]


@pytest.mark.parametrize("late", [None, {}, {"total_tokens": 5}, {"prompt_tokens": "many"}, []])
def test_a_usage_that_says_nothing_does_not_erase_an_earlier_one(late: object) -> None:
    told = [{"choices": [], "usage": usage} for usage in ({"prompt_tokens": 7, "completion_tokens": 1}, late)]
    [last] = read(*map(event, told), delta("stop"), DONE)
    assert last == Finished("stop", Usage(input_tokens=7, output_tokens=1, total_tokens=8))


def test_details_that_are_null_are_nought() -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 1,
        "total_tokens": 8,
        "prompt_tokens_details": None,
        "completion_tokens_details": {"reasoning_tokens": None},
    }
    [last] = read(event({"choices": [], "usage": usage}), delta("stop"), DONE)
    assert last == Finished("stop", Usage(input_tokens=7, output_tokens=1, total_tokens=8))


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "load", "eos"])
def test_any_reason_to_finish_passes_through(reason: str) -> None:
    assert read(delta(reason), DONE) == [Finished(reason)]


def test_a_context_that_is_full_is_a_length() -> None:
    assert read(delta(finish="model_context_window_exceeded"), DONE)[-1] == Finished("length")


def test_a_stream_without_done_finishes_when_it_ends() -> None:
    parser = ChatParser()
    assert parser.feed(delta("stop", content="Hi")) == [TextDelta("Hi")]
    assert not parser.ended
    assert parser.finish() == [Finished("stop")]


def test_done_ends_the_answer_at_once_and_nothing_behind_it_counts() -> None:
    parser = ChatParser()
    assert parser.feed(delta("stop") + DONE + delta(content="late") + DONE) == [Finished("stop")]
    assert parser.ended
    assert parser.feed(delta(content="later")) == []
    assert parser.finish() == []


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE] \n\n"])
def test_done_counts_however_carelessly_it_is_written(last: bytes) -> None:
    assert read(delta("stop"), last) == [Finished("stop")]


def test_an_event_without_an_end_is_not_read_for_ever() -> None:
    parser, piece = ChatParser(max_bytes=1000), b"x" * 2**20
    fed = 0
    while not parser.ended:
        assert parser.feed(piece) == []
        fed += 1
    assert fed == 17
    with pytest.raises(BackendError, match="too large"):
        parser.finish()


def test_an_answer_that_is_too_large_while_its_call_has_no_name_is_cut() -> None:
    parser = ChatParser(max_bytes=1000)
    assert parser.feed(calls(piece(None, "x" * 2000, index=0))) == [Finished(MAX_OUTPUT_BYTES)]
    assert (parser.ended, parser.is_cut, parser.finish()) == (True, True, [])
