"""A backend's own Responses events become the same deltas as its chunks would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError, BackendCut, BackendError, RateLimited
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.responses import ResponsesReader, WholeResponseReader

Json = dict[str, Any]


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def read(*events: bytes) -> list[Delta]:
    reader = ResponsesReader()
    return [found for data in events for found in reader.feed(data)] + reader.finish()


COMPLETED = event("response.completed", response={"status": "completed"})


def call(item_id: str, name: str, arguments: str = "") -> Json:
    return {"type": "function_call", "id": item_id, "call_id": "c", "name": name, "arguments": arguments}


def test_text_reasoning_and_refusals_are_read() -> None:
    deltas = read(
        event("response.reasoning_text.delta", delta="hm"),
        event("response.reasoning_summary_text.delta", delta="in short"),
        event("response.output_text.delta", delta="Hi"),
        event("response.output_text.delta", delta=""),
        event("response.refusal.delta", delta="no"),
        COMPLETED,
    )
    assert deltas == [ReasoningDelta("hm"), TextDelta("Hi"), RefusalDelta("no"), Finished("stop")]


@pytest.mark.parametrize("kind", ["reasoning", "reasoning_text", "reasoning_summary_text"])
def test_reasoning_is_read_under_all_its_names(kind: str) -> None:
    assert read(event(f"response.{kind}.delta", delta="hm"), COMPLETED) == [ReasoningDelta("hm"), Finished("stop")]


def test_calls_are_numbered_and_their_arguments_follow() -> None:
    deltas = read(
        event("response.output_item.added", item=call("fc_1", "f")),
        event("response.output_item.added", item=call("fc_2", "g")),
        event("response.function_call_arguments.delta", item_id="fc_1", delta="{}"),
        event("response.function_call_arguments.delta", delta="[]"),
        event("response.output_item.done", item=call("fc_1", "f", "{}")),
        COMPLETED,
    )
    expected = [CallDelta(0, "f"), CallDelta(1, "g"), CallDelta(0, "", "{}"), CallDelta(1, "", "[]")]
    assert deltas == [*expected, Finished("tool_calls")]


def test_arguments_that_come_only_with_the_finished_item_are_read() -> None:
    deltas = read(
        event("response.output_item.added", item=call("fc_1", "f")),
        event("response.output_item.done", item=call("fc_1", "f", "{}")),
        event("response.output_item.done", item=call("fc_2", "g", "[]")),
        event("response.output_item.done", item={"type": "message", "id": "msg_1"}),
        COMPLETED,
    )
    expected = [CallDelta(0, "f"), CallDelta(0, "", "{}"), CallDelta(1, "g", "[]")]
    assert deltas == [*expected, Finished("tool_calls")]


def test_arguments_of_a_call_nobody_announced_are_passed_over() -> None:
    assert read(event("response.function_call_arguments.delta", delta="{}"), COMPLETED) == [Finished("stop")]


@pytest.mark.parametrize(
    ("kind", "response", "finish"),
    [
        ("response.incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ("response.incomplete", {"incomplete_details": None}, "length"),
        ("response.incomplete", {"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ("response.completed", {"status": "incomplete"}, "length"),
        ("response.completed", {}, "stop"),
        ("response.completed", {"status": "requires_action"}, "stop"),
        ("response.requires_action", {}, "stop"),
    ],
)
def test_an_ending_has_its_reason(kind: str, response: Json, finish: str) -> None:
    assert read(event(kind, response=response)) == [Finished(finish)]


def test_usage_is_read_with_its_details() -> None:
    usage = {
        "input_tokens": 5,
        "output_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    [last] = read(event("response.completed", response={"usage": usage}))
    assert last == Finished(
        "stop",
        Usage(
            input_tokens=5,
            output_tokens=3,
            total_tokens=8,
            input_tokens_details=InputTokensDetails(cached_tokens=2, cache_write_tokens=1),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
        ),
    )


@pytest.mark.proves("EN-036")
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (event("response.failed", response={"error": {"code": "rate_limit_exceeded", "message": "x"}}), RateLimited),
        (event("response.failed", response={"status": "failed", "error": None}), BackendError),
        (event("response.cancelled", response={"status": "cancelled"}), BackendError),
        (event("error", code="server_error", message="boom at 10.0.0.1"), BackendError),
        (event("error", error={"code": 429, "message": "slow down"}), RateLimited),
        (b"data: [DONE]\n\n", BackendCut),
        (b"", BackendCut),
        (b"data: {nonsense}\n\n", BackendError),
    ],
)
def test_a_failure_comes_after_what_was_said_before_it(last: bytes, expected: type[AntwortError]) -> None:
    reader = ResponsesReader()
    assert reader.feed(event("response.output_text.delta", delta="Hi") + last) == [TextDelta("Hi")]
    with pytest.raises(AntwortError) as caught:
        reader.finish()
    assert type(caught.value) is expected
    assert "10.0.0.1" not in caught.value.message


def test_log_probabilities_stand_beside_their_text() -> None:
    prob = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [{"token": "Ho", "logprob": -2}]}
    [text, _] = read(event("response.output_text.delta", delta="Hi", logprobs=[prob]), COMPLETED)
    assert isinstance(text, TextDelta)
    assert (text.logprobs[0].logprob, text.logprobs[0].top_logprobs[0].token) == (-0.5, "Ho")


# ---- an answer that was not streamed ----


def read_whole(response: Json | bytes) -> list[Delta]:
    reader = WholeResponseReader()
    body = response if isinstance(response, bytes) else json.dumps(response).encode()
    assert reader.feed(body[:9]) == reader.feed(body[9:]) == []
    return reader.finish()


def message(*parts: Json) -> Json:
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": list(parts)}


SAID = message({"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []})


def test_a_whole_response_gives_the_same_deltas() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": [{"text": "no"}]}
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]}
    refused = message({"type": "refusal", "refusal": "no"})
    output = [thought, summed, SAID, refused, {"type": "web_search_call", "id": "w"}]
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    assert read_whole({"status": "completed", "output": output, "usage": usage, "error": None}) == [
        ReasoningDelta("hm"),
        ReasoningDelta("in short"),
        TextDelta("Hi"),
        RefusalDelta("no"),
        Finished("stop", Usage(input_tokens=5, output_tokens=3, total_tokens=8)),
    ]


@pytest.mark.parametrize("status", ["completed", "requires_action"])
def test_the_calls_of_a_whole_response_are_numbered(status: str) -> None:
    output = [call("fc_1", "f", "{}"), SAID, call("fc_1", "g", "[]")]
    expected = [CallDelta(0, "f", "{}"), TextDelta("Hi"), CallDelta(1, "g", "[]"), Finished("tool_calls")]
    assert read_whole({"status": status, "output": output}) == expected


def test_a_whole_response_that_was_cut_says_why() -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [SAID]}
    assert read_whole(cut) == [TextDelta("Hi"), Finished("length")]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}, "output": []}, RateLimited),
        ({"status": "failed", "error": None, "output": [SAID]}, BackendError),
        ({"status": "in_progress", "output": []}, BackendError),
        ({"error": {"code": 429, "message": "slow down"}}, RateLimited),
        ({}, BackendError),
        (b"<html>", BackendError),
    ],
)
def test_a_whole_response_that_failed_is_an_error(response: Json | bytes, expected: type[AntwortError]) -> None:
    with pytest.raises(AntwortError) as caught:
        read_whole(response)
    assert type(caught.value) is expected
