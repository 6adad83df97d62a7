"""The events of Responses API servers become the same deltas as chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError, BackendCut, BackendError, RateLimited
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.responses_parser import ResponsesParser

Json = dict[str, Any]


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def read(*events: bytes) -> list[Delta]:
    parser = ResponsesParser()
    return [found for data in events for found in parser.feed(data)] + parser.finish()


COMPLETED = event("response.completed", response={"status": "completed"})
INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "see http://10.0.0.1"}}


def call(item_id: str | None, name: str, arguments: str = "") -> Json:
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


def added(at: int | None, item: Json) -> bytes:
    return event("response.output_item.added", output_index=at, item=item)


def done(at: int | None, item: Json) -> bytes:
    return event("response.output_item.done", output_index=at, item=item)


def arguments(at: int | None, item_id: str | None, delta: str) -> bytes:
    return event("response.function_call_arguments.delta", output_index=at, item_id=item_id, delta=delta)


F, G = [CallDelta(0, "f"), CallDelta(0, "", "{}")], [CallDelta(1, "g"), CallDelta(1, "", "[]")]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [added(0, call("x1", "f")), arguments(0, "x2", "{}"), done(0, call("x3", "f", "{}"))],
            F,
        ),
        (
            [
                *(added(0, call(None, "f")), arguments(0, None, "{}"), done(0, call(None, "f", "{}"))),
                *(added(1, call(None, "g")), arguments(1, None, "[]"), done(1, call(None, "g", "[]"))),
            ],
            F + G,
        ),
        (
            [
                *(added(None, call(None, "f")), arguments(None, None, "{}"), done(None, call(None, "f", "{}"))),
                *(added(None, call(None, "g")), arguments(None, None, "[]"), done(None, call(None, "g", "[]"))),
            ],
            F + G,
        ),
        (
            [
                *(added(0, call("p", "f")), added(1, call("q", "g")), arguments(1, "y", "[]"), arguments(0, "z", "{}")),
                *(done(0, call("p", "f", "{}")), done(1, call("q", "g", "[]"))),
            ],
            [F[0], G[0], G[1], F[1]],
        ),
        (
            [
                *(added(0, call("p", "f")), added(0, call("q", "g")), arguments(0, "p", "{}"), arguments(0, "q", "[]")),
                *(done(0, call("p", "f", "{}")), done(0, call("q", "g", "[]"))),
            ],
            [F[0], G[0], F[1], G[1]],
        ),
    ],
    ids=["ids that change", "no ids", "neither ids nor places", "side by side", "one place for all"],
)
def test_a_call_is_told_apart_by_its_place_and_its_id(events: list[bytes], expected: list[Delta]) -> None:
    assert read(*events, COMPLETED) == [*expected, Finished("tool_calls")]


@pytest.mark.parametrize("whole", ["{}", {}], ids=["text", "an object"])
def test_arguments_that_come_only_at_their_end_are_read_once(whole: Any) -> None:
    deltas = read(
        added(0, call("fc_1", "f")),
        event("response.function_call_arguments.done", output_index=0, item_id="fc_1", arguments=whole),
        done(0, {**call("fc_1", "f"), "arguments": whole}),
        COMPLETED,
    )
    assert deltas == [*F, Finished("tool_calls")]


SPOKEN = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
TWICE = {**SPOKEN, "content": [{"type": "output_text", "text": "Hi"}, {"type": "refusal", "refusal": "no"}]}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
TEXT_DONE = event("response.output_text.done", output_index=1, item_id="m", content_index=0, text="Hi")


def delta(text: str, **more: Any) -> bytes:
    return event("response.output_text.delta", delta=text, **more)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([TEXT_DONE, done(1, SPOKEN)], [TextDelta("Hi")]),
        ([done(0, THOUGHT), done(1, TWICE)], [ReasoningDelta("hm"), TextDelta("Hi"), RefusalDelta("no")]),
        ([TEXT_DONE, done(1, TWICE)], [TextDelta("Hi"), RefusalDelta("no")]),
        ([event("response.refusal.done", refusal="no")], [RefusalDelta("no")]),
        ([delta("Hi", output_index=1, item_id="x", content_index=0), TEXT_DONE, done(1, SPOKEN)], [TextDelta("Hi")]),
        ([delta("Hi", item_id="m"), done(1, SPOKEN)], [TextDelta("Hi")]),
        ([delta("Hi"), TEXT_DONE, done(1, SPOKEN)], [TextDelta("Hi")]),
        ([event("response.reasoning.delta", output_index=0, delta="hm"), done(0, THOUGHT)], [ReasoningDelta("hm")]),
    ],
)
def test_what_comes_without_deltas_is_read_when_it_is_done_and_only_then(
    events: list[bytes], expected: list[Delta]
) -> None:
    assert read(*events, COMPLETED) == [*expected, Finished("stop")]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], [ReasoningDelta("hm"), TextDelta("Hi"), CallDelta(0, "f", "{}")]),
        ([delta("Ho", output_index=7)], [TextDelta("Ho"), ReasoningDelta("hm"), CallDelta(0, "f", "{}")]),
        ([done(0, THOUGHT)], [ReasoningDelta("hm"), TextDelta("Hi"), CallDelta(0, "f", "{}")]),
        ([done(5, call("x", "f", "{}"))], [CallDelta(0, "f", "{}"), ReasoningDelta("hm"), TextDelta("Hi")]),
    ],
)
def test_what_comes_only_with_the_response_itself_is_read_there(before: list[bytes], expected: list[Delta]) -> None:
    response = {"status": "completed", "output": [THOUGHT, SPOKEN, call("fc_1", "f", "{}")]}
    assert read(*before, event("response.completed", response=response)) == [*expected, Finished("tool_calls")]


def test_items_with_one_id_are_read_once_at_the_end_of_a_stream_but_each_in_a_whole_response() -> None:
    thoughts = [{**THOUGHT, "content": [{"type": "reasoning_text", "text": text}]} for text in ("hm", "so")]
    texts = [{**SPOKEN, "content": [{"type": "output_text", "text": text}]} for text in ("Hi", "Ho")]
    response = {"status": "completed", "output": [*thoughts, *texts, call("m", "f", "{}"), call("m", "g", "{}")]}
    end = [CallDelta(0, "f", "{}"), CallDelta(1, "g", "{}"), Finished("tool_calls")]
    once = [ReasoningDelta("hm"), TextDelta("Hi"), *end]
    assert read(event("response.completed", response=response)) == once
    each = [ReasoningDelta("hm"), ReasoningDelta("so"), TextDelta("Hi"), TextDelta("Ho"), *end]
    assert read_whole(response) == each


def test_nothing_is_said_of_a_response_that_failed() -> None:
    """So another backend can be asked."""
    parser = ResponsesParser()
    failed = {"status": "failed", "error": {"message": "x"}, "output": [SPOKEN]}
    assert parser.feed(event("response.failed", response=failed)) == []
    with pytest.raises(BackendError):
        parser.finish()


@pytest.mark.parametrize(
    "odd",
    [
        event("response.future.delta", delta={"x": 1}),
        event("response.output_text.delta", delta=["x"]),
        event("response.output_item.added", item={"type": "tool_search_call", "arguments": {"q": 1}}),
        event("response.output_item.done", item=["x"]),
        event("response.output_item.done", item={"type": "message", "content": "x"}),
        event("response.output_item.done", item={"type": "message", "content": [7, {"text": 7, "logprobs": 7}]}),
        event("response.created", response="x"),
        event("response.output_item.added", output_index="0", item={"type": 7}),
        b'data: {"type": 7}\n\n',
    ],
)
def test_what_has_a_shape_that_nobody_knows_is_passed_over(odd: bytes) -> None:
    assert read(odd, delta("Hi"), COMPLETED) == [TextDelta("Hi"), Finished("stop")]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": None, "output_tokens": 3}, Usage(input_tokens=0, output_tokens=3, total_tokens=3)),
        ({"input_tokens": 1.5}, None),
        ("much", None),
        ({}, None),
    ],
)
def test_a_cost_that_nobody_can_read_fails_no_answer(usage: Any, expected: Usage | None) -> None:
    assert read(event("response.completed", response={"usage": usage})) == [Finished("stop", expected)]
    assert read_whole({"status": "completed", "usage": usage}) == [Finished("stop", expected)]


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
        (event("response.cancelled", response={"status": "cancelled"}), BackendCut),
        (event("response.incomplete", response={"status": "cancelled"}), BackendCut),
        (event("response.incomplete", response={"incomplete_details": {"reason": "deadline"}}), BackendCut),
        (event("response.completed", response=INCOMPLETE), BackendCut),
        (event("error", code="server_error", message="boom at 10.0.0.1"), BackendError),
        (event("error", error={"code": 429, "message": "slow down"}), RateLimited),
        (b"data: [DONE]\n\n", BackendCut),
        (b"", BackendCut),
        (b"data: {nonsense}\n\n", BackendError),
    ],
)
def test_a_failure_comes_after_what_was_said_before_it(last: bytes, expected: type[AntwortError]) -> None:
    parser = ResponsesParser()
    assert parser.feed(event("response.output_text.delta", delta="Hi") + last) == [TextDelta("Hi")]
    with pytest.raises(AntwortError) as caught:
        parser.finish()
    assert type(caught.value) is expected
    assert "10.0.0.1" not in caught.value.message


ODD_FIELDS = [{"item_id": 7}, {"output_index": "0"}, {"text": {"format": {"type": "text"}}}]


@pytest.mark.parametrize("odd", ODD_FIELDS, ids=str)
def test_an_odd_field_beside_the_response_loses_nothing_of_it(odd: Json) -> None:
    response = {"status": "completed", "output": [SAID], "usage": {"input_tokens": 3, "output_tokens": 4}}
    expected = [TextDelta("Hi"), Finished("stop", Usage(input_tokens=3, output_tokens=4, total_tokens=7))]
    assert read(event("response.completed", response=response, **odd)) == expected


@pytest.mark.parametrize("odd", ODD_FIELDS, ids=str)
def test_an_odd_field_beside_a_response_that_failed_makes_no_success_of_it(odd: Json) -> None:
    failed = {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}, "usage": {}}
    with pytest.raises(RateLimited):
        read(event("response.completed", response=failed, **odd))


def test_an_odd_field_of_the_response_loses_nothing_else_of_it() -> None:
    response = {"status": 7, "output": [SAID], "usage": {"input_tokens": 3, "output_tokens": 4}}
    expected = [TextDelta("Hi"), Finished("stop", Usage(input_tokens=3, output_tokens=4, total_tokens=7))]
    assert read(event("response.completed", response=response)) == expected


def test_log_probabilities_stand_beside_their_text() -> None:
    prob = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [{"token": "Ho", "logprob": -2}]}
    [text, _] = read(event("response.output_text.delta", delta="Hi", logprobs=[prob]), COMPLETED)
    assert isinstance(text, TextDelta)
    assert (text.logprobs[0].logprob, text.logprobs[0].top_logprobs[0].token) == (-0.5, "Ho")


# ---- an answer that was not streamed ----


def read_whole(response: Json | bytes) -> list[Delta]:
    return ResponsesParser().parse_body(response if isinstance(response, bytes) else json.dumps(response).encode())


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


@pytest.mark.parametrize(
    ("reason", "shown"), [("max_turns", "max_turns"), ("<b>", "unknown reason"), (7, "unknown reason")]
)
def test_a_whole_response_that_was_cut_by_a_limit_of_the_backend_s_own_is_cut_off(reason: object, shown: str) -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": reason}, "output": [call("x", "f", "{")]}
    with pytest.raises(BackendCut, match=rf"before it was complete: {shown}\.$"):
        read_whole(cut)


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
