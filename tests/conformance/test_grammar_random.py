"""Random streams that follow the grammar, and random wounds to them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api import events as ev
from antwort.api.events import StreamEvent
from antwort.api.wire import to_plain
from antwort.testing.grammar import GrammarError, check_stream
from conformance.sample_streams import (
    CREATED,
    Events,
    Item,
    custom_call,
    ended,
    function_call,
    list_tools,
    mcp_call,
    message,
    reasoning,
    result,
    rich_message,
    written,
)

steady = settings(deadline=None, derandomize=True)
pieces = st.lists(st.text("ab", max_size=2), max_size=3)


@st.composite
def turn(draw: st.DrawFn, number: int) -> list[list[Item]]:
    """The items of one turn, in groups: what is open of a group is closed before the next."""
    said = [
        reasoning(f"rs_{number}", "x", *draw(pieces), summaries=draw(st.lists(pieces, max_size=2))),
        draw(st.sampled_from([message(f"msg_{number}", *draw(pieces)), rich_message(f"msg_{number}")])),
        list_tools(f"mcpl_{number}", error=draw(st.sampled_from([None, "no"]))),
    ]
    alone = draw(st.lists(st.sampled_from(said), unique=True))
    calls: list[Item] = []
    results: list[list[Item]] = []
    for i in range(draw(st.integers(0, 3))):
        name = f"{number}_{i}"
        kind = draw(st.sampled_from(["function", "custom", "server"]))
        if kind == "custom":
            calls.append(custom_call(f"ctc_{name}", f"call_{name}", *draw(pieces)))
        elif kind == "function":
            calls.append(function_call(f"fc_{name}", f"call_{name}", *draw(pieces)))
            results.append([result(f"fco_{name}", f"call_{name}")])
        else:
            output, error = draw(st.sampled_from([(None, None), ("3", None), (None, "no")]))
            calls.append(mcp_call(f"mcp_{name}", *draw(pieces), output=output, error=error))
    return [[one] for one in alone] + [calls] + results


@st.composite
def sound_streams(draw: st.DrawFn) -> Events:
    inside: Events = []
    first = 0
    for number in range(draw(st.integers(0, 3))):
        for group in draw(turn(number)):
            inside += draw(one_by_one([made(first + i) for i, made in enumerate(group)]))
            first += len(group)
    return around(inside)


@st.composite
def one_by_one(draw: st.DrawFn, items: list[Events]) -> Events:
    """Each is written before the next is added; servers' calls end whenever they like."""
    events: Events = []
    running: list[Events] = []
    for item in items:
        end = written(item)
        for event in item[:end]:
            while draw(st.booleans()) and running:
                events.append(_step(draw, running))
            events.append(event)
        if item[end:]:
            running.append(item[end:])
    while running:
        events.append(_step(draw, running))
    return events


def _step(draw: st.DrawFn, running: list[Events]) -> StreamEvent:
    at = draw(st.integers(0, len(running) - 1))
    event = running[at].pop(0)
    if not running[at]:
        del running[at]
    return event


def around(inside: Events) -> Events:
    opening: Events = [ev.ResponseCreated(response=CREATED), ev.ResponseInProgress(response=CREATED)]
    return [*opening, *inside, ended(inside)]


@steady
@given(sound_streams())
def test_a_random_stream_that_follows_the_grammar_is_taken(events: Events) -> None:
    assert check_stream(enumerate(events)).output == _last(events).response.output


@pytest.mark.proves("RULING-3b")
@steady
@given(st.data())
def test_a_stream_in_which_an_item_is_added_too_early_is_refused(data: st.DataObject) -> None:
    items = {
        "message": message("msg_1", *data.draw(pieces)),
        "reasoning": reasoning("rs_1", "x"),
        "function": function_call("fc_1", "call_1", *data.draw(pieces)),
        "custom": custom_call("ctc_1", "call_2", *data.draw(pieces)),
        "server": mcp_call("mcp_1", *data.draw(pieces), output="3"),
    }
    one, other = data.draw(st.permutations(sorted(items)))[:2]
    first, second = items[one](0), items[other](1)
    early = data.draw(st.integers(1, written(first) - 1))
    head, rest = first[:early], [first[early:], second[1:]]
    mixed = [*head, second[0]]
    while any(rest):
        mixed.append(data.draw(st.sampled_from([queue for queue in rest if queue])).pop(0))
    with pytest.raises(GrammarError, match="an item is added when the one before it is done"):
        check_stream(enumerate(around(mixed)))


def _last(events: Events) -> ev.Terminal:
    last = events[-1]
    assert isinstance(last, ev.TERMINAL)
    return last


# ---- wounds ----


@st.composite
def wounded(draw: st.DrawFn, events: Events) -> list[int]:
    """Which events come after a random wound, and in what order, as places in `events`."""
    places = list(range(len(events)))
    i, j = draw(st.sampled_from(places)), draw(st.sampled_from(places))
    match draw(st.sampled_from(["drop", "repeat", "swap", "move"])):
        case "drop":
            del places[i]
        case "repeat":
            places.insert(j, i)
        case "swap":
            places[i], places[j] = places[j], places[i]
        case "move":
            places.insert(j, places.pop(i))
    return places


@steady
@given(st.data())
def test_numbers_show_every_event_that_is_lost_repeated_or_moved(data: st.DataObject) -> None:
    events = data.draw(sound_streams())
    places = data.draw(wounded(events))
    accepted = _is_taken([(place, events[place]) for place in places])
    assert accepted == (places == list(range(len(events))))


@steady
@given(st.data())
def test_a_wounded_stream_with_fresh_numbers_is_refused_or_says_the_same(data: st.DataObject) -> None:
    events = data.draw(sound_streams())
    mixed = [events[place] for place in data.draw(wounded(events))]
    if _is_taken(list(enumerate(mixed))):
        assert _meaning(mixed) == _meaning(events)


@steady
@given(st.data())
def test_a_wrong_number_is_refused(data: st.DataObject) -> None:
    events = data.draw(sound_streams())
    numbers = list(range(len(events)))
    at = data.draw(st.sampled_from(numbers))
    numbers[at] = data.draw(st.integers().filter(lambda number: number != at))
    assert not _is_taken(list(zip(numbers, events, strict=True)))


def _is_taken(numbered: list[tuple[int, StreamEvent]]) -> bool:
    try:
        check_stream(numbered)
    except GrammarError:
        return False
    return True


def _meaning(events: Events) -> dict[tuple[str, str], list[Any]]:
    """What the stream says about each thing: its events in order, deltas joined.

    Events of different things may come in any order, and an empty delta says nothing.
    """
    said: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for event in events:
        plain = to_plain(event)
        thing = said[_thing(event)]
        delta = plain.pop("delta", None)
        if delta is None:
            thing.append(plain)
        elif delta:
            logprobs = plain.pop("logprobs", [])
            if thing and isinstance(thing[-1], tuple) and thing[-1][0] == plain:
                thing[-1] = (plain, thing[-1][1] + delta, thing[-1][2] + logprobs)
            else:
                thing.append((plain, delta, logprobs))
    return {thing: entries for thing, entries in said.items() if entries}


def _thing(event: StreamEvent) -> tuple[str, str]:
    match event:
        case ev.OutputItemAdded() | ev.OutputItemDone():
            return event.item.id, "life"
        case ev.SummaryPartAdded() | ev.SummaryPartDone() | ev.SummaryTextDelta() | ev.SummaryTextDone():
            return event.item_id, "summary"
        case ev.AnnotationAdded():
            return event.item_id, "annotations"
        case ev.ItemEvent():
            return event.item_id, "content"
        case _:
            return "", "response"
