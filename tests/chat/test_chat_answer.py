"""The events of a stream, folded into what is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antwort.chat.answer import CallPart, ChatAnswer, ProblemPart, ReasoningPart, TextPart, TokenUsage, read_event


def fed(*events: tuple[float, dict[str, Any]]) -> ChatAnswer:
    answer = ChatAnswer(began=0.0)
    for now, event in events:
        answer.feed(read_event(msgspec.json.encode(event)), now)
    return answer


def added(at: int, **item: object) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": at, "item": item}


def done(at: int, **item: object) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": at, "item": item}


def piece(kind: str, at: int, delta: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": at, "delta": delta}


def ended(how: str = "completed", **response: object) -> dict[str, Any]:
    return {"type": f"response.{how}", "response": {"id": "resp_1", "model": "m", "status": how, **response}}


CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "demo", "name": "add"}
ARGUMENTS = '{"a": 1}'


def test_text_grows_piece_by_piece_and_is_done_with_its_item() -> None:
    answer = fed((1, added(0, type="message")), (2, piece("output_text", 0, "Hel")), (3, piece("output_text", 0, "lo")))
    assert answer.parts == [TextPart("Hello")]
    answer = fed((1, piece("output_text", 0, "Hi")), (2, done(0, type="message", content=[])))
    assert answer.parts == [TextPart("Hi", is_done=True)]


def test_text_that_comes_without_pieces_is_that_of_its_item() -> None:
    content = [{"type": "output_text", "text": "Hello"}, {"type": "refusal", "refusal": "No."}]
    assert fed((1, done(0, type="message", content=content))).text == "Hello\nNo."


def test_reasoning_is_kept_apart_and_its_summary_is_not_said_twice() -> None:
    answer = fed(
        (1, piece("reasoning_text", 0, "Hm")),
        (1, piece("reasoning_summary_text", 0, "It said hm")),
        (2, piece("reasoning_text", 0, ".")),
        (3, piece("output_text", 1, "Yes")),
    )
    assert answer.parts == [ReasoningPart("Hm."), TextPart("Yes")]
    assert fed((1, piece("reasoning_summary_text", 0, "Short"))).parts == [ReasoningPart("Short", is_summary=True)]


def test_a_call_runs_from_its_whole_arguments_to_its_result() -> None:
    answer = fed(
        (1, added(1, **CALL, arguments="")),
        (2, piece("mcp_call_arguments", 1, '{"a"')),
        (3, {"type": "response.mcp_call_arguments.done", "output_index": 1, "arguments": ARGUMENTS}),
        (5, done(1, **CALL, arguments=ARGUMENTS, output="2")),
    )
    [called] = answer.parts
    assert isinstance(called, CallPart)
    assert (called.title, called.arguments, called.output, called.error) == ("demo.add", ARGUMENTS, "2", "")
    assert called.seconds(99) == 2
    assert called.is_done


def test_a_server_that_writes_to_the_letter_of_the_standard_is_understood() -> None:
    strict = {**CALL, "type": f"antwort:{CALL['type']}"}
    whole = {"type": "antwort:response.mcp_call_arguments.done", "output_index": 0, "arguments": ARGUMENTS}
    answer = fed((1, added(0, **strict, arguments="")), (2, whole), (5, done(0, **strict, output="2")))
    [called] = answer.parts
    assert isinstance(called, CallPart)
    assert (called.title, called.arguments, called.output, called.seconds(99)) == ("demo.add", ARGUMENTS, "2", 3)


def test_calls_that_run_side_by_side_end_each_for_itself() -> None:
    whole = {"type": "response.mcp_call_arguments.done", "arguments": ARGUMENTS}
    answer = fed(
        (1, added(0, **CALL)),
        (1, added(1, **CALL)),
        (2, {**whole, "output_index": 0}),
        (2, {**whole, "output_index": 1}),
        (3, done(1, **CALL, output="late is fine")),
    )
    first, second = answer.parts
    assert (first.is_done, second.is_done) == (False, True)
    assert isinstance(first, CallPart)
    assert first.seconds(4) == 2


@pytest.mark.parametrize(
    "error",
    [
        "it broke",
        {"message": "it broke"},
        {"error": {"message": "it broke"}},
        {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "it broke"}]},
    ],
)
def test_the_error_of_a_call_is_read_in_any_shape(error: object) -> None:
    [called] = fed((1, done(0, **CALL, error=error))).parts
    assert isinstance(called, CallPart)
    assert (called.error, called.output) == ("it broke", "")


def test_the_input_of_a_free_form_tool_is_what_it_is_called_with() -> None:
    call = {"type": "custom_tool_call", "name": "patch", "namespace": "editor", "call_id": "c"}
    pieces: list[tuple[float, dict[str, Any]]] = [
        (1, added(0, **call, input="")),
        (2, piece("custom_tool_call_input", 0, "+o")),
        (3, piece("custom_tool_call_input", 0, "ne")),
    ]
    [called] = fed(*pieces).parts
    assert isinstance(called, CallPart)
    assert (called.title, called.arguments, called.began) == ("editor.patch", "+one", None)
    whole = {"type": "response.custom_tool_call_input.done", "output_index": 0, "input": "+one"}
    [called] = fed(*pieces, (4, whole), (5, done(0, **call, input="+one"))).parts
    assert isinstance(called, CallPart)
    assert (called.arguments, called.began) == ("+one", 4)
    [called] = fed((5, done(0, **call, input="+one"))).parts
    assert isinstance(called, CallPart)
    assert (called.arguments, called.began) == ("+one", 5)


def test_a_function_that_the_server_runs_has_its_result_in_an_item_of_its_own() -> None:
    call = {"type": "function_call", "name": "add", "call_id": "c", "arguments": ARGUMENTS}
    answer = fed(
        (1, added(0, **{**call, "arguments": ""})),
        (2, done(0, **call)),
        (4, done(1, type="function_call_output", call_id="c", output=[{"type": "input_text", "text": "2"}])),
    )
    [called] = answer.parts
    assert isinstance(called, CallPart)
    assert (called.title, called.output, called.seconds(9)) == ("add", "2", 2)
    failed = fed(
        (1, done(0, **call)), (2, done(1, type="function_call_output", call_id="c", output="x", is_error=True))
    )
    [called] = failed.parts
    assert isinstance(called, CallPart)
    assert (called.error, called.output) == ("x", "")


def test_a_tool_server_that_could_not_be_asked_is_a_problem_and_a_list_is_not() -> None:
    listed = done(0, type="mcp_list_tools", server_label="demo", tools=[])
    assert fed((1, listed)).parts == []
    assert fed((1, done(0, type="mcp_list_tools", error="down"))).parts == [ProblemPart("down")]


def test_the_end_tells_what_it_took_and_what_was_said() -> None:
    answer = fed((0.5, piece("output_text", 0, "Hi")), (2, ended(usage={"input_tokens": 5, "output_tokens": 30})))
    assert (answer.status, answer.response_id, answer.model) == ("completed", "resp_1", "m")
    assert answer.usage == TokenUsage(5, 30)
    assert answer.tokens_per_second() == 20
    assert answer.parts[0].is_done


def test_the_time_in_tools_is_not_the_models() -> None:
    calls: list[tuple[float, dict[str, Any]]] = []
    for at, (began, stopped) in enumerate([(1, 5), (2, 4), (4, 6)]):  # 1 to 6 in all
        calls.append((began, {"type": "response.mcp_call_arguments.done", "output_index": at, "arguments": "{}"}))
        calls.append((stopped, done(at, **CALL, output="x")))
    answer = fed((0, piece("reasoning_text", 9, "Hm")), *calls, (8, ended(usage={"output_tokens": 30})))
    assert answer.tokens_per_second() == 10


@pytest.mark.parametrize(
    ("event", "status", "problem"),
    [
        (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), "incomplete", "as long as it may be"),
        (ended("incomplete", incomplete_details={"reason": "odd"}), "incomplete", "odd"),
        (ended("failed", error={"code": "server_error", "message": "It hurts."}), "failed", "It hurts."),
        (ended("failed"), "failed", "broke off"),
        (ended("completed", status="cancelled"), "cancelled", ""),
        ({"type": "error", "message": "No.", "error": {}}, "failed", "No."),
        ({"type": "error", "error": {"message": "No."}}, "failed", "No."),
    ],
)
def test_an_answer_that_ends_otherwise_says_why(event: dict[str, Any], status: str, problem: str) -> None:
    answer = fed((1, event))
    assert answer.status == status
    assert problem in answer.problem


def test_what_is_open_at_the_end_is_closed() -> None:
    answer = fed((1, piece("output_text", 0, "Hi")), (1, added(1, **CALL)))
    answer.finish("cancelled", "", 2.0)
    said, called = answer.parts
    assert said.is_done
    assert isinstance(called, CallPart)
    assert (called.error, called.is_done) == ("cancelled", True)
    answer.cut_off(3.0)
    assert (answer.status, answer.ended) == ("cancelled", 2.0)


def test_a_stream_that_just_stops_is_an_answer_that_broke_off() -> None:
    answer = fed((1, piece("output_text", 0, "Hi")))
    answer.cut_off(2.0)
    assert (answer.status, answer.problem) == ("failed", "The answer broke off.")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'"x"',
        b"{",
        b"\xff",
        b'{"type":7}',
        b'{"type":"response.new.thing","delta":{}}',
        b'{"type":"response.output_item.done","output_index":0,"item":{"type":"new_call","output":[1]}}',
        b'{"type":"response.output_item.done","item":null}',
        b'{"type":"response.output_item.added","item":7}',
        b"[" * 5000,
    ],
)
def test_what_nobody_knows_changes_nothing(payload: bytes) -> None:
    answer = ChatAnswer(began=0.0)
    answer.feed(read_event(payload), 1.0)
    assert answer == ChatAnswer(began=0.0)


def test_an_odd_field_does_not_hide_the_others() -> None:
    payload = b'{"type":"response.completed","response":{"id":"r","status":"completed","usage":"lots","output":7}}'
    answer = ChatAnswer(began=0.0)
    answer.feed(read_event(payload), 1.0)
    assert (answer.status, answer.response_id, answer.usage) == ("completed", "r", TokenUsage())


def test_a_call_that_waits_to_be_approved_is_one_of_those_that_are_asked_about() -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "demo", "name": "add"}
    events = [(1.0, added(0, **request, arguments=ARGUMENTS)), (1.0, done(0, **request, arguments=ARGUMENTS))]
    answer = fed(*events, (2.0, ended("completed", status="requires_action")))
    (called,) = answer.awaiting_approval
    assert (called.title, called.arguments, called.approval, called.is_done) == ("demo.add", ARGUMENTS, "mcpr_1", True)
    assert (called.error, called.seconds(3.0), answer.status) == ("", None, "completed")
