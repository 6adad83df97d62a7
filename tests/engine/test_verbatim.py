"""What a compaction keeps word for word, whatever was said."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import at_once
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    InputImage,
    InputItem,
    InputText,
    Message,
    OpaqueItem,
)
from antwort.api.wire import replace
from antwort.engine.context.compaction import divided_steps, item_size, split_item_steps
from antwort.engine.history.calls import CallView, calls_in
from antwort.engine.history.turns import since_words
from plan_kit import STEADY, called, result, said, server_called, thought


def asked(text: str) -> Message:
    return Message(id="msg_u", role="user", content=(InputText(text=text),))


def divided(items: Sequence[InputItem], budget: int) -> tuple[tuple[InputItem, ...], tuple[InputItem, ...]]:
    return at_once(split_item_steps(items, budget, lambda _: 1))


def kept(items: Sequence[InputItem], budget: int) -> list[InputItem]:
    return [*divided(items, budget)[1]]


TURNS = [asked("1"), said("one"), asked("2"), said("two"), asked("3"), said("three")]


def test_as_many_of_the_latest_turns_stay_as_fit() -> None:
    assert kept(TURNS, 2) == TURNS[4:]
    assert kept(TURNS, 4) == TURNS[2:]


def test_they_begin_with_what_the_user_said() -> None:
    assert kept(TURNS, 3) == TURNS[4:]


def test_nothing_stays_where_there_is_no_room_and_all_is_answered() -> None:
    summarized, recent = divided(TURNS, 0)
    assert (summarized, recent) == (tuple(TURNS), ())


def test_of_what_fits_whole_the_last_exchange_stays() -> None:
    assert kept(TURNS, 100) == TURNS[4:]


def test_of_a_single_exchange_nothing_stays() -> None:
    assert kept(TURNS[:2], 100) == []


def test_what_is_not_answered_stays_whatever_its_size() -> None:
    assert kept([*TURNS, asked("4"), asked("and 5")], 0) == [asked("4"), asked("and 5")]


def test_the_last_results_stay_with_their_calls_and_with_what_led_to_them() -> None:
    turn: list[InputItem] = [thought("hm"), called(2), called(3), result(2), result(3)]
    assert kept([asked("1"), called(1), result(1), *turn], 0) == turn


def test_what_was_asked_stays_before_turns_in_the_middle_of_its_answer() -> None:
    items: list[InputItem] = [asked("1"), called(1), result(1), called(2), result(2)]
    assert kept(items, 3) == [asked("1"), called(2), result(2)]


def test_a_call_that_may_still_be_answered_stays_where_it_stands() -> None:
    open_call = called(7)
    _, recent = divided([*TURNS, open_call, asked("Wait."), said("Well."), asked("And?")], 0)
    assert recent == (open_call, asked("And?"))


def test_a_call_that_was_given_up_long_ago_is_summed_up() -> None:
    given_up = called(7)
    summarized, recent = divided([asked("1"), given_up, *TURNS], 2)
    assert recent == tuple(TURNS[4:])
    assert given_up in summarized


def test_a_servers_call_that_waits_stays_where_the_model_has_said_nothing_since() -> None:
    waits, mine = server_called(7, status="completed"), called(8)
    assert divided([*TURNS, asked("3"), waits, mine], 0)[1] == (waits, mine)
    assert divided([*TURNS, asked("3"), waits, mine, result(8)], 0)[1] == (
        waits,
        mine,
        result(8),
    )
    gone_on: list[InputItem] = [asked("3"), waits, said("3 left."), *TURNS]
    assert waits not in divided(gone_on, 0)[1]


def test_what_is_all_kept_is_not_summed_up() -> None:
    summarized, recent = divided([asked("1")], 5)
    assert (summarized, recent) == ((), (asked("1"),))


def test_an_empty_conversation_has_nothing_to_keep() -> None:
    summarized, recent = divided([], 5)
    assert (summarized, recent) == ((), ())


# ---- whatever was said ----

_n = st.integers(1, 4)
_turn: st.SearchStrategy[list[InputItem]] = st.one_of(
    st.just([asked("?")]),
    st.just([said("!")]),
    st.just([thought("hm"), said("!")]),
    _n.map(lambda n: [called(n), result(n)]),
    _n.map(lambda n: [thought("hm"), called(n), called(n + 10), result(n + 10), result(n)]),
    _n.map(lambda n: [called(n)]),
    _n.map(lambda n: [called(n), asked("wait"), result(n)]),
    _n.map(lambda n: [server_called(n, status="completed", output="3 left")]),
    _n.map(lambda n: [CustomToolCall(id="c", call_id=f"k{n}", name="p", input="x")]),
    _n.map(
        lambda n: [
            CustomToolCall(id="c", call_id=f"k{n}", name="p", input="x"),
            CustomToolCallOutput(id="o", call_id=f"k{n}", output="y"),
        ]
    ),
    _n.map(
        lambda n: [
            OpaqueItem("x_call", f"x{n}", {"type": "x_call", "call_id": f"f{n}"}),
            OpaqueItem("x_call_output", f"y{n}", {"type": "x_call_output", "call_id": f"f{n}"}),
        ]
    ),
)
_conversations = st.lists(_turn, max_size=8).map(lambda turns: [item for turn in turns for item in turn])


def orphans(items: Sequence[InputItem]) -> list[str]:
    """Results before which no call of their id stands unanswered."""
    open_calls: Counter[str] = Counter()
    found: list[str] = []
    for view in calls_in(items):
        if view.is_open:
            open_calls[view.call_id] += 1
        elif view.is_answer:
            open_calls[view.call_id] -= 1
            if open_calls[view.call_id] < 0:
                found.append(view.call_id)
    return found


@STEADY
@given(_conversations, st.integers(0, 12))
def test_no_result_is_kept_without_its_call(items: list[InputItem], budget: int) -> None:
    recent = divided(items, budget)[1]
    assert orphans(recent) == []


@STEADY
@given(_conversations, st.integers(0, 12))
def test_no_result_that_stays_behind_has_its_call_kept(items: list[InputItem], budget: int) -> None:
    """A call is open in what is kept only where it was open in all that was said."""
    recent = divided(items, budget)[1]
    assert open_ids(recent) <= open_ids(items)


def open_ids(items: Sequence[InputItem]) -> Counter[str]:
    views = calls_in(items)
    return Counter(view.call_id for view in views if view.is_open) - Counter(
        view.call_id for view in views if view.is_answer
    )


@STEADY
@given(_conversations, st.integers(0, 12))
def test_every_call_that_the_client_may_answer_yet_is_kept(items: list[InputItem], budget: int) -> None:
    summarized, recent = divided(items, budget)
    if summarized:
        assert open_ids(since_words(items, 2)) & open_ids(items) <= open_ids(recent)


@STEADY
@given(_conversations, st.integers(0, 12))
def test_what_is_kept_stands_in_its_order_and_does_not_begin_with_a_result(items: list[InputItem], budget: int) -> None:
    recent = divided(items, budget)[1]
    rest = iter(items)
    assert all(any(item is other for other in rest) for item in recent)
    assert not any(view.is_answer for view in calls_in(recent[:1]))


@STEADY
@given(_conversations, st.integers(0, 12))
def test_nothing_is_lost(items: list[InputItem], budget: int) -> None:
    summarized, recent = divided(items, budget)
    found = [*summarized, *recent]
    assert all(any(item is other for other in found) for item in items)


@STEADY
@given(_conversations)
def test_between_two_places_nothing_is_parted(items: list[InputItem]) -> None:
    for place in at_once(divided_steps(items))[0]:
        assert orphans(items[place:]) == []


def test_a_picture_counts_for_little() -> None:
    picture = Message(id="m", role="user", content=(InputImage(image_url="data:image/png;base64," + "A" * 100_000),))
    assert item_size(picture) < 5000
    assert item_size(asked("abc")) == 3


def test_a_call_that_was_cut_is_none() -> None:
    assert not CallView.of(called(1, status="incomplete")).is_open
    assert CallView.of(called(1)).is_open


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "open"])
def test_twice_the_calls_are_twice_the_work(answers: bool) -> None:
    items = [item for n in range(400) for item in (called(n), result(n))[: 1 + answers]]
    half = items[: len(items) // 2]
    assert work_of(lambda: divided(items, 8)) < 2.2 * work_of(lambda: divided(half, 8))


def work_of(action: Callable[[], object]) -> int:
    """How many calls of functions and steps of generators it takes."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return steps


def test_of_a_servers_call_what_the_model_reads_counts_once() -> None:
    picture = InputImage(image_url="data:image/png;base64," + "A" * 200_000)
    asked_for = item_size(server_called(1))
    text = "x" * 5000
    assert item_size(server_called(1, output=text)) == asked_for + 5000
    assert item_size(replace(server_called(1, output=text), content=(InputText(text=text),))) == asked_for + 5000
    assert item_size(server_called(1, error=text)) == asked_for + 5000
    assert item_size(replace(server_called(1, output="[image]"), content=(picture, picture))) == asked_for + 2 * 4096


def test_a_picture_in_a_result_of_another_kind_counts_as_one() -> None:
    shot = [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 200_000}]
    fields = {"type": "computer_call_output", "call_id": "c", "output": shot}
    assert item_size(OpaqueItem("computer_call_output", "x", fields)) == 4096
