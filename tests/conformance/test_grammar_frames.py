"""The checker over the body of a streamed answer, as it came over the wire."""

from __future__ import annotations

import json

import pytest

from antwort.api.standard import STANDARD
from antwort.api.wire import encode, to_plain
from antwort.testing.grammar import GrammarError, check_frames
from conformance.sample_streams import VALID, Events

DONE = "data: [DONE]\n\n"


def frame(number: int, plain: dict[str, object]) -> str:
    return f"event: {plain['type']}\ndata: {encode(plain | {'sequence_number': number}).decode()}\n\n"


def body_of(events: Events) -> str:
    return "".join(frame(number, to_plain(event)) for number, event in enumerate(events)) + DONE


BODY = body_of(VALID["text"])


@pytest.mark.parametrize("name", VALID)
def test_the_frames_of_a_sound_stream_give_its_response(name: str) -> None:
    response = check_frames(body_of(VALID[name]))
    assert response == check_frames(body_of(VALID[name]).encode())
    assert to_plain(response) == to_plain(VALID[name][-1])["response"]


def strict_body_of(events: Events) -> str:
    written = [json.loads(STANDARD.encode(event)) for event in events]
    return "".join(frame(number, plain) for number, plain in enumerate(written)) + DONE


SOUND = [name for name, events in VALID.items() if to_plain(events[-1])["type"] != "response.requires_action"]
FOREIGN = ("mcp_call", "custom_tool_call", "reasoning_text.")


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_stream_in_the_standards_words_gives_the_same_response(name: str) -> None:
    body = strict_body_of(VALID[name])
    assert check_frames(body, strict=True).output == check_frames(body_of(VALID[name])).output
    if any(word in body for word in FOREIGN):
        with pytest.raises(GrammarError, match="the data is no event"):
            check_frames(body)


@pytest.mark.parametrize(
    ("name", "said", "instead", "rule"),
    [
        ("reasoning", "response.reasoning.delta", "response.reasoning_text.delta", "not in the standard's words"),
        ("a server's calls, side by side", "antwort:mcp_call", "mcp_call", "not in the standard's words"),
        ("a server's calls, side by side", "antwort:response.mcp_", "response.mcp_", "not in the standard's words"),
        ("text", "response.completed", "antwort:response.completed", "the data is no event"),
    ],
)
def test_a_stream_that_is_not_in_the_standards_words_is_told_where(
    name: str, said: str, instead: str, rule: str
) -> None:
    body = strict_body_of(VALID[name])
    assert said in body
    with pytest.raises(GrammarError, match=rule):
        check_frames(body.replace(said, instead), strict=True)


def test_comments_may_stand_anywhere() -> None:
    commented = ": hello\n\n" + BODY.replace("\n\nevent", "\n\n: keep-alive\n\nevent").replace("data:", ": in\ndata:")
    assert check_frames(commented).status == "completed"


def test_keep_alives_that_are_events_must_be_expected() -> None:
    created, in_progress, *rest = VALID["no output at all"]
    body = body_of([created, in_progress, in_progress, *rest])
    assert check_frames(body, keepalive=True).status == "completed"
    with pytest.raises(GrammarError, match=r"event 2 \(response\.in_progress\): response\.in_progress comes once"):
        check_frames(body)


FAULTS: dict[str, tuple[str | bytes, str]] = {
    "CRLF": (BODY.replace("\n", "\r\n"), "event 0: lines end with LF alone"),
    "no DONE": (BODY.removesuffix(DONE), r"the stream: its last frame is data: \[DONE\]"),
    "DONE in the middle": (DONE + BODY, "event 0: a frame is an event line and a data line"),
    "DONE twice": (BODY + DONE, "a frame is an event line and a data line"),
    "something after DONE": (BODY + "data: {}\n\n", "a frame is an event line and a data line"),
    "DONE as an event": (BODY.replace(DONE, "event: done\n" + DONE), r"the stream: its last frame is data: \[DONE\]"),
    "no empty line at the end": (BODY.removesuffix("\n"), "every frame ends with an empty line"),
    "nothing": ("", "every frame ends with an empty line"),
    "only comments": (": hello\n\n", r"the stream: its last frame is data: \[DONE\]"),
    "only DONE": (DONE, "it ended after 0 events without a terminal event"),
    "an id line": (BODY.replace("data:", "id: 1\ndata:", 1), "event 0: a frame is an event line and a data line"),
    "a retry line": (BODY.replace("data:", "retry: 1\ndata:", 1), "event 0: a frame is an event line and a data line"),
    "no event line": (BODY.replace("event: response.created\n", ""), "event 0: a frame is an event line and a data"),
    "no data line": ("event: ping\n\n" + BODY, "event 0: a frame is an event line and a data line"),
    "data before event": ("data: {}\nevent: x\n\n" + BODY, "event 0: a frame is an event line and a data line"),
    "data in two lines": (BODY.replace(",", ",\ndata: ", 1), "event 0: a frame is an event line and a data line"),
    "another name": (
        BODY.replace("event: response.created", "event: response.queued"),
        r"event 0 \(response.queued\): the event line and the type in the data \(response.created\) differ",
    ),
    "no JSON": ("event: x\ndata: {\n\n" + BODY, r"event 0 \(x\): the data is no event"),
    "no object": ("event: x\ndata: []\n\n" + BODY, r"event 0 \(x\): the data is no event"),
    "an unknown event": ('event: x\ndata: {"type":"x"}\n\n' + BODY, r"event 0 \(x\): the data is no event"),
    "a field missing": (BODY.replace('"delta":"Hello",', ""), "missing required field `delta`"),
    "a null for an unset field": (BODY.replace('"role":', '"phase":null,"role":'), "got `null`"),
    "no number": (
        BODY.replace('"sequence_number":0', '"number":0'),
        r"event 0 \(response.created\): .* sequence_number",
    ),
    "a number in quotes": (
        BODY.replace('"sequence_number":1}', '"sequence_number":"1"}'),
        "event 1 .* sequence_number",
    ),
    "a wrong number": (
        BODY.replace('"sequence_number":1}', '"sequence_number":2}'),
        "event 2 .*: the number should be 1",
    ),
    "a broken rule": (BODY.replace('"delta":"Hello"', '"delta":"Jello"'), "event 7 .*: the whole text"),
    "not UTF-8": (b"\xff" + BODY.encode(), "the stream: it is not UTF-8"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_body_with_a_fault_is_told_which(name: str) -> None:
    body, rule = FAULTS[name]
    with pytest.raises(GrammarError, match=rule):
        check_frames(body)
