"""Events as bytes, compared byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

import pytest

from antwort.api.events import (
    ArgumentsDone,
    ErrorEvent,
    McpCallInProgress,
    OutputItemDone,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    StreamEvent,
)
from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, Message, OutputText
from antwort.api.payload import CUT_FROM
from antwort.api.responses import Response
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.api.wire import encode
from antwort.engine.runs.event_log import NumberedBatch
from antwort.server.sse import DONE, KEEPALIVE, SLICE, written


def frames(*batches: NumberedBatch) -> bytes:
    return b"".join(slices_of(batches))


def slices_of(batches: Sequence[NumberedBatch], words: Wording = OPENAI) -> list[bytes]:
    first, rest = written(batches, words)
    return [first, *(rest or ())]


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


@pytest.mark.proves("TR-009")
def test_a_frame_is_an_event_line_and_a_data_line_that_ends_in_lf() -> None:
    assert frames(NumberedBatch(first=7, events=[delta("Hi")])) == (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","sequence_number":7,"item_id":"msg_1","output_index":0,'
        b'"content_index":0,"delta":"Hi","logprobs":[]}\n\n'
    )


EVENTS: list[StreamEvent] = [
    ResponseCreated(response=Response(id="resp_1", created_at=1, status="in_progress", model="m")),
    OutputItemDone(output_index=3, item=FunctionCall(id="fc_1", call_id="call_1", name="f", arguments="{}")),
    ArgumentsDone(item_id="fc_1", output_index=0, name="f", arguments='{"a":"line\\nline"}'),
    McpCallInProgress(item_id="mcp_1", output_index=2),
    ErrorEvent(code="c", message="m", param=None, error={"type": "server_error"}),
    delta("two\nlines\r\nand \u2028 more"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_frame_holds_the_event_unchanged_but_for_its_number(event: StreamEvent) -> None:
    event_line, data_line, *rest = frames(NumberedBatch(first=12, events=[event])).decode().split("\n")
    assert rest == ["", ""]
    data = json.loads(data_line.removeprefix("data: "))
    assert event_line == f"event: {data['type']}"
    assert list(data)[:2] == ["type", "sequence_number"]
    assert data.pop("sequence_number") == 12
    assert data == json.loads(encode(event))


def test_every_kind_of_event_says_its_type_first() -> None:
    """The number is spliced in behind it."""
    for kind in get_args(StreamEvent):
        assert kind.__struct_config__.tag_field == "type"
        assert kind.__struct_config__.tag


def test_the_events_of_a_batch_are_numbered_on_from_its_first() -> None:
    sent = frames(NumberedBatch(first=98, events=[delta("a"), delta("b"), delta("c")])).decode()
    numbers = [json.loads(line[6:])["sequence_number"] for line in sent.split("\n") if line.startswith("data: ")]
    assert numbers == [98, 99, 100]


@pytest.mark.proves("RULING-10")
def test_a_tick_without_events_is_a_comment() -> None:
    assert frames(NumberedBatch(first=4, events=[])) == KEEPALIVE == b": keep-alive\n\n"


def test_batches_that_wait_together_are_written_together() -> None:
    waiting = [
        NumberedBatch(first=0, events=[delta("a")]),
        NumberedBatch(first=1, events=[]),
        NumberedBatch(first=1, events=[delta("b")]),
    ]
    assert slices_of(waiting) == [b"".join(frames(batch) for batch in waiting)]


@pytest.mark.proves("TR-010")
def test_the_mark_after_the_last_event_is_a_data_line_alone() -> None:
    assert DONE == b"data: [DONE]\n\n"


TEXT = 'a "quote", a \\ and an ü. ' * 20_000
"""Which has to be escaped, wherever it is cut."""
LARGE: list[StreamEvent] = [
    OutputItemDone(output_index=0, item=Message(id="msg_1", role="assistant", content=(OutputText(text=TEXT),))),
    OutputItemDone(output_index=0, item=FunctionCallOutput(id="fco_1", call_id="call_1", output=TEXT)),
    ResponseCompleted(
        response=Response(
            id="resp_1",
            created_at=1,
            status="completed",
            model="m",
            output=(McpCall(id="mcp_1", server_label="s", name="f", arguments="{}", output=TEXT),) * 2,
        )
    ),
]


@pytest.mark.parametrize("words", [OPENAI, STANDARD], ids=["openai", "standard"])
@pytest.mark.parametrize("event", LARGE, ids=lambda event: type(event).__name__)
def test_a_large_event_is_written_in_slices_and_unchanged(event: StreamEvent, words: Wording) -> None:
    slices = slices_of([NumberedBatch(first=3, events=[delta("a"), event], size=CUT_FROM + 1)], words)
    assert max(map(len, slices)) < 4 * SLICE
    first, second, rest = b"".join(slices).decode().split("\n\n")
    data = json.loads(second.split("\ndata: ")[1])
    assert ("delta" in first, rest) == (True, "")
    assert list(data)[:2] == ["type", "sequence_number"]
    assert data.pop("sequence_number") == 4
    assert data == json.loads(words.encode(event))
