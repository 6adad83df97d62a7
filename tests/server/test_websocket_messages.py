"""What is said and heard on a WebSocket: pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import Limits, at_once
from antwort.api.events import OutputTextDelta
from antwort.api.standard import OPENAI, STANDARD
from antwort.engine.runs.event_log import NumberedBatch
from antwort.errors import ConnectionTooOld, InvalidField, RateLimited, ResponseNotFound
from antwort.server.errors import socket_failure
from antwort.server.messages import CreateMessage, SteerFailed, message_steps, written


def read_message(message: str | bytes) -> CreateMessage | SteerFailed | None:
    return at_once(message_steps(message, Limits()))


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def said(**fields: Any) -> str:
    return json.dumps({"type": "response.create", **fields})


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_json"),
        ('"response.create"', None, "invalid_json"),
        ("", None, "invalid_json"),
        (b"{}", None, "invalid_json"),
        ("{}", "type", "missing_required_parameter"),
        ('{"type": null}', "type", "missing_required_parameter"),
        ('{"type": 7}', "type", "invalid_value"),
        ('{"type": ["response.create"]}', "type", "invalid_value"),
        ('{"type": "response.cancel"}', "type", "invalid_value"),
        ('{"type": "response.steer", "input": "x"}', "previous_response_id", "invalid_value"),
        ('{"type": "response.steer", "previous_response_id": "r"}', "input", "invalid_value"),
        ('{"type": "response.steer", "previous_response_id": "r", "input": []}', "input", "invalid_value"),
        ('{"type": "response.steer", "previous_response_id": "r", "input": {"x": 1}}', "input", "invalid_value"),
        ("[" * 300 + "]" * 300, None, "invalid_json"),
    ],
)
def test_what_is_not_understood_says_what_is_wrong(message: str | bytes, param: str | None, code: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_message(message)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_the_type_of_a_message_is_not_repeated_at_length() -> None:
    with pytest.raises(InvalidField) as caught:
        read_message(json.dumps({"type": "x" * 10_000}))
    assert len(caught.value.message) < 200


_JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.text() | st.binary() | _JSON.map(json.dumps) | _JSON.map(lambda kind: json.dumps({"type": kind})))
def test_no_message_is_met_with_anything_but_an_answer(message: str | bytes) -> None:
    try:
        heard = read_message(message)
    except InvalidField:
        return
    assert heard is None


def test_what_needs_no_answer_gets_none() -> None:
    assert read_message('{"type": "response.processed", "response_id": "resp_1"}') is None


def test_a_body_that_repeats_what_is_so_anyway_is_taken() -> None:
    heard = read_message(said(input="Hi", stream=True, stream_options={"include_obfuscation": False}, background=False))
    assert isinstance(heard, CreateMessage)
    request = at_once(heard.request_steps(Limits()))
    assert request.stream is True
    assert request.raw == heard.raw


@pytest.mark.parametrize(("field", "value"), [("stream", False), ("background", True)])
def test_what_cannot_be_had_here_is_refused_by_its_name(field: str, value: bool) -> None:
    heard = read_message(said(input="Hi", **{field: value}))
    assert isinstance(heard, CreateMessage)
    with pytest.raises(InvalidField, match="WebSocket") as caught:
        at_once(heard.request_steps(Limits()))
    assert caught.value.param == field


@pytest.mark.parametrize("lane", ["", 7, [], "x" * 65])
def test_a_lane_has_a_short_name(lane: object) -> None:
    heard = read_message(said(stream_id=lane))
    assert isinstance(heard, CreateMessage)
    with pytest.raises(InvalidField) as caught:
        _ = heard.stream_id
    assert caught.value.param == "stream_id"


def test_every_event_is_one_message_that_carries_its_number() -> None:
    texts = written(
        [NumberedBatch(3, [delta("a"), delta("ü")]), NumberedBatch(5, []), NumberedBatch(5, [delta("c")])], OPENAI
    )
    events = [json.loads(text) for text in texts if isinstance(text, bytes)]
    assert [(event["type"], event["sequence_number"], event["delta"]) for event in events] == [
        ("response.output_text.delta", 3, "a"),
        ("response.output_text.delta", 4, "ü"),
        ("response.output_text.delta", 5, "c"),
    ]
    assert [*events[0]][:2] == ["type", "sequence_number"]


@given(st.text(min_size=1, max_size=64), st.text())
def test_the_name_of_a_lane_is_carried_as_it_came(lane: str, text: str) -> None:
    texts = written([NumberedBatch(0, [delta(text)])], STANDARD, lane)
    [event] = [json.loads(each) for each in texts if isinstance(each, bytes)]
    assert (event["stream_id"], event["delta"]) == (lane, text)


def test_an_error_is_a_message_with_a_status() -> None:
    sent = json.loads(socket_failure(ResponseNotFound("resp_1", param="previous_response_id")))
    assert sent == {
        "type": "error",
        "status": 404,
        "error": {
            "message": "No response with id 'resp_1'.",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        },
        "headers": {"x-should-retry": "false"},
    }


def test_an_error_says_how_long_to_wait_as_an_http_answer_does() -> None:
    sent = json.loads(
        socket_failure(RateLimited("Slow down.", retry_after=1.5), stream_id="a", headers=[(b"x-a", b"b")])
    )
    assert sent["headers"] == {"retry-after": "2", "retry-after-ms": "1500", "x-should-retry": "true", "x-a": "b"}
    assert sent["stream_id"] == "a"


def test_the_strict_setting_writes_the_types_of_the_standard() -> None:
    sent = json.loads(socket_failure(ResponseNotFound("resp_1", param="previous_response_id"), strict=True))
    assert sent["error"]["type"] == "not_found"


@pytest.mark.parametrize(("seconds", "words"), [(3600, "60 minutes"), (90, "1.5 minutes"), (0.5, "0.5 seconds")])
def test_the_limit_of_a_connection_is_said_in_words(seconds: float, words: str) -> None:
    assert f"limit of {words}." in ConnectionTooOld(seconds).message
