"""A backend's own Responses events become the same deltas as its chunks would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError, BackendCut, BackendError, RateLimited
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.responses import ResponsesReader

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
