"""Calls of free-form tools in a turn: shown as text while they are written, or held until their input is known."""

from __future__ import annotations

import pytest

from antwort.api.events import (
    ArgumentsDone,
    Batch,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    TurnEnded,
)
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.engine.loop.item_builders import reopened_items
from antwort.providers.base import CallDelta, Delta, Finished, TextDelta
from turn_kit import call_closed, call_fed, call_opened, custom_call, message, play, play_in

ENDED = [TurnEnded(finish="tool_calls")]
CUT = [TurnEnded(finish="length")]


def test_the_input_shows_as_text_as_it_comes() -> None:
    reads: list[list[Delta]] = [
        [CallDelta(0, "patch", '{"input":')],
        [CallDelta(0, "", ' "*** Begin')],
        [CallDelta(0, "", "\\n+x")],
        [CallDelta(0, "", '"}'), Finished("tool_calls", None)],
    ]
    opened, first, delta, *end = custom_call(0, 1, "patch", "*** Begin", "\n+x")
    assert play_in(reads) == [[opened], [first], [delta], [], [*end, *ENDED]]


def test_what_is_no_object_shows_when_it_is_whole() -> None:
    events = play(CallDelta(0, "patch", '"qu'), CallDelta(0, "", 'oted"'), Finished("tool_calls", None))
    assert events == [*custom_call(0, 1, "patch", "quoted"), *ENDED]


def test_a_call_without_arguments_has_an_empty_input() -> None:
    assert play(CallDelta(0, "patch", ""), Finished("tool_calls", None)) == [*custom_call(0, 1, "patch"), *ENDED]


def test_a_call_that_is_cut_is_incomplete_and_holds_what_was_shown() -> None:
    events = play(CallDelta(0, "patch", '{"input": "half\\u00'), Finished("length", None))
    assert events == [*custom_call(0, 1, "patch", "half", status="incomplete"), *CUT]


@pytest.mark.proves("RULING-3b")
def test_a_call_is_done_before_the_next_one_begins() -> None:
    said = (CallDelta(0, "patch", '{"input": "a"}'), CallDelta(1, "patch", '{"input": "b"}'))
    events = play(*said, Finished("tool_calls", None))
    assert events == [*custom_call(0, 1, "patch", "a"), *custom_call(1, 2, "patch", "b"), *ENDED]


@pytest.mark.proves("RULING-3b")
def test_behind_an_input_in_plain_text_the_next_call_waits_for_the_end() -> None:
    reads: list[list[Delta]] = [
        [CallDelta(0, "patch", "*** Begin"), CallDelta(1, "patch", '{"input": "b"}')],
        [CallDelta(0, "", " Patch")],
        [Finished("tool_calls", None)],
    ]
    first, second = custom_call(0, 1, "patch", "*** Begin", " Patch"), custom_call(1, 2, "patch", "b")
    assert play_in(reads) == [first[:2], first[2:3], [], [*first[3:], *second, *ENDED]]


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize(("more", "status"), [("", "incomplete"), ("}", "completed")])
def test_a_call_before_a_held_one_that_is_cut_is_complete_only_where_its_arguments_are(more: str, status: str) -> None:
    said = (CallDelta(0, "clock", "{"), CallDelta(1, "editor__sum", RIGHT), CallDelta(0, "", more))
    events = play(*said, CallDelta(1, "", " "), Finished("length", None))
    assert done(events) == [(0, "clock", status), (1, "sum", "incomplete")]


def test_the_namespace_of_a_function_stands_apart_from_its_name() -> None:
    events = play(CallDelta(0, "editor__open", "{}"), Finished("tool_calls", None))
    items = [event.item for event in events if isinstance(event, OutputItemAdded | OutputItemDone)]
    assert [(item.name, item.namespace) for item in items if isinstance(item, FunctionCall)] == [("open", "editor")] * 2


# ---- held until they are whole ----


def refused(at: int, n: int, arguments: str) -> Batch:
    item = McpCall(
        id=f"mcp_{n}",
        server_label="antwort",
        name="editor__sum",
        arguments="",
        status="in_progress",
        call_id=f"call_{n}",
    )
    return [
        OutputItemAdded(output_index=at, item=item),
        McpCallInProgress(item_id=item.id, output_index=at),
        McpArgumentsDelta(item_id=item.id, output_index=at, delta=arguments),
        McpArgumentsDone(item_id=item.id, output_index=at, arguments=arguments),
    ]


def test_a_call_that_fits_shows_whole_at_the_end() -> None:
    reads: list[list[Delta]] = [
        [CallDelta(0, "editor__sum", '{"input": "1')],
        [CallDelta(0, "", '2"}'), Finished("tool_calls", None)],
    ]
    assert play_in(reads) == [[], [], [*custom_call(0, 1, "sum", "12", namespace="editor"), *ENDED]]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{ "input" : "one" }', '{ "input" : "one" }'),
        ("one and two", '{"input": "one and two"}'),
        ('{"input": "a\nb"}', '{"input": "a\\nb"}'),
    ],
)
def test_a_call_that_does_not_fit_shows_as_a_refused_one_that_can_be_sent_again(written: str, arguments: str) -> None:
    events = play(CallDelta(0, "editor__sum", written), Finished("tool_calls", None))
    assert events == [*refused(0, 1, arguments), *ENDED]


def done(events: Batch) -> list[tuple[int, str, str]]:
    """The calls that were closed, by their place."""
    items = [(event.output_index, event.item) for event in events if isinstance(event, OutputItemDone)]
    calls = [(at, item) for at, item in items if isinstance(item, FunctionCall | CustomToolCall | McpCall)]
    return sorted((at, item.name, item.status) for at, item in calls)


def test_calls_behind_a_held_one_wait_for_it() -> None:
    """Clients run calls in the order of the items: a patch first, then the command that reads what it wrote."""
    reads: list[list[Delta]] = [
        [CallDelta(0, "weather", "{}")],
        [CallDelta(1, "editor__sum", '{"input": "1"}')],
        [CallDelta(2, "clock", '{"ci')],
        [CallDelta(3, "patch", '{"input": "x"}'), CallDelta(2, "", 'ty": 1}')],
        [Finished("tool_calls", None)],
    ]
    first, *between, last = play_in(reads)
    assert first == [*call_opened(0, 1, "weather"), *call_fed(0, 1, "{}")]
    assert between == [call_closed(0, 1, "weather", "{}"), [], [], []]
    assert done(last) == [(at, name, "completed") for at, name in enumerate(["sum", "clock", "patch"], 1)]
    assert [event.arguments for event in last if isinstance(event, ArgumentsDone)] == ['{"city": 1}']


def test_a_message_behind_a_held_call_does_not_wait() -> None:
    reads: list[list[Delta]] = [
        [CallDelta(0, "editor__sum", '{"input": "1"}'), TextDelta("So.")],
        [Finished("tool_calls", None)],
    ]
    first, _, last = play_in(reads)
    assert [event.output_index for event in first if isinstance(event, OutputItemAdded)] == [0]
    assert done(last) == [(1, "sum", "completed")]


WRONG, RIGHT = '{"input": "one"}', '{"input": "1"}'


@pytest.mark.parametrize(
    ("calls", "is_refused"),
    [
        ([("editor__sum", WRONG)], True),
        ([("editor__sum", WRONG), ("editor__sum", WRONG)], True),
        ([("editor__sum", WRONG), ("weather", "{}")], True),
        ([("stock", "{}"), ("editor__sum", WRONG)], True),
        ([("editor__sum", WRONG), ("clock", "{}")], False),
        ([("clock", "{}"), ("editor__sum", WRONG)], False),
        ([("editor__sum", RIGHT), ("editor__sum", WRONG)], False),
        ([("editor__sum", WRONG), ("patch", "x")], False),
    ],
)
def test_a_wrong_input_is_refused_unless_the_client_has_another_call_to_run(
    calls: list[tuple[str, str]], is_refused: bool
) -> None:
    events = play(*(CallDelta(at, *call) for at, call in enumerate(calls)), Finished("tool_calls", None))
    added = [event.item for event in events if isinstance(event, OutputItemAdded)]
    assert [
        type(item) for item in added if isinstance(item, McpCall | CustomToolCall) and item.name != "stock_level"
    ] == [McpCall if is_refused else CustomToolCall for name, _ in calls if name in ("editor__sum", "patch")]


def test_a_held_call_that_is_cut_is_incomplete_and_was_never_checked() -> None:
    events = play(TextDelta("So:"), CallDelta(0, "editor__sum", '{"input": "on'), Finished("length", None))
    cut = custom_call(1, 1, "sum", "on", namespace="editor", status="incomplete")
    assert events == [*message(0, "msg_1", "So:"), *cut, *CUT]


def test_what_was_whole_before_a_held_call_was_cut_is_complete() -> None:
    events = play(CallDelta(0, "weather", "{}"), CallDelta(1, "editor__sum", ""), Finished("length", None))
    whole = [*call_opened(0, 1, "weather"), *call_fed(0, 1, "{}"), *call_closed(0, 1, "weather", "{}")]
    (added, *rest) = custom_call(1, 1, "sum", namespace="editor", status="incomplete")
    assert events[:4] == whole
    assert [type(event) for event in events[4:]] == [type(event) for event in (added, *rest, *CUT)]


@pytest.mark.parametrize(
    ("last", "statuses"),
    [
        (CallDelta(2, "", "y"), ["completed", "completed", "incomplete"]),
        (CallDelta(1, "", "y"), ["completed", "incomplete", "incomplete"]),
        (TextDelta("So"), ["incomplete", "incomplete", "incomplete"]),
    ],
)
def test_of_calls_that_wait_those_before_the_one_that_is_cut_are_whole(last: Delta, statuses: list[str]) -> None:
    events = play(
        CallDelta(0, "editor__sum", WRONG),
        CallDelta(1, "clock", "{"),
        CallDelta(2, "clock", "{"),
        last,
        Finished("length", None),
    )
    assert [status for _, _, status in done(events)] == statuses
    assert [name for _, name, _ in done(events)] == ["sum", "clock", "clock"]


def test_a_held_call_of_an_inference_that_broke_off_is_never_shown() -> None:
    assert play(CallDelta(0, "editor__sum", '{"input": "1"}'), aborted=True) == []


def test_a_call_left_reopened_items_goes_on_from_the_text_that_was_shown() -> None:
    said, _ = play_in([[CallDelta(0, "patch", '{"input": "one\\ttwo')]], aborted=True)
    ((at, item),) = reopened_items(said).items()
    closing: Batch = []
    item.close("incomplete", closing)
    assert at == 0
    assert [*said, *closing] == custom_call(0, 1, "patch", "one\ttwo", status="incomplete")
