"""Whether a response gets nowhere, told by its items alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import Mark
from antwort.api.items import InputImage, OutputItem
from antwort.api.wire import replace
from antwort.engine.stuck import Made, Standstill, may_stand_still, standstill, turns_made
from engine_kit import SERVER, WEATHER, ask, weather_tool
from plan_kit import STEADY, called, depot, ended, plan_of, ran, result, run_of, server_called

Turns = list[list[Made]]


def made(what: Hashable, *, is_error: bool = False) -> Made:
    return Made("f", what, is_error)


def turns(text: str) -> Turns:
    """`AB A x`: a turn of the calls A and B, one of A, and one of x; small letters are errors."""
    return [[made(each, is_error=each.islower()) for each in turn] for turn in text.split()]


def found(text: str, after: int = 3) -> str:
    stands = standstill(turns(text), after)
    if stands is None:
        return "goes on"
    return "ends" if stands.was_told else "is told"


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("", "goes on"),
        ("A A", "goes on"),
        ("A A A", "is told"),
        ("A A A A", "ends"),
        ("A A A B", "goes on"),
        ("AAA", "is told"),  # side by side is three times, too
        ("AAAA", "is told"),  # and nobody ends who was not told
        ("AAA A", "ends"),
        ("A B A B", "goes on"),
        ("A B A B A B", "is told"),
        ("A B A B A B A", "is told"),
        ("A B A B A B A B", "ends"),
        ("AB AB AB", "is told"),
        ("AB AB AB A", "ends"),
        ("A B A C A D A E", "goes on"),  # what is new shows that it gets on
        ("A A A B A A", "goes on"),
        ("A A A AB A A A", "ends"),
        ("a b", "goes on"),
        ("a b c", "is told"),
        ("a b c d", "ends"),
        ("a b c D", "goes on"),
        ("a b c D e f", "goes on"),
        ("ab c def", "is told"),
        ("aA b c", "goes on"),
        ("a b cA d", "goes on"),
    ],
)
def test_when_it_is_said_and_when_it_is_over(text: str, then: str) -> None:
    assert found(text) == then


def test_a_turn_without_answered_calls_breaks_a_row_of_errors() -> None:
    assert standstill([*turns("a b"), [], *turns("c")], 3) is None


def test_the_model_is_told_what_it_does() -> None:
    assert standstill(turns("A A A"), 3) == Standstill(
        "You have made this same call of 'f' 3 times, and its result was the same each time. To make it again brings "
        "nothing new, and the response is ended then: do something else, or answer with what you have.",
        was_told=False,
    )
    stands = standstill(turns("a b c"), 3)
    assert stands is not None
    assert stands.words.startswith("The last 3 turns have brought nothing but errors.")


CALLS = st.builds(made, st.integers(0, 3), is_error=st.booleans())
TURNS = st.lists(st.lists(CALLS, min_size=1, max_size=3), max_size=12)
AFTER = st.integers(2, 5)


def course(given_turns: Sequence[Sequence[Made]], after: int) -> list[Standstill | None]:
    """What is found after each turn."""
    return [standstill(given_turns[: at + 1], after) for at in range(len(given_turns))]


@STEADY
@given(TURNS, AFTER)
def test_nobody_ends_who_was_not_told_before(some: Turns, after: int) -> None:
    was_told = False
    for stands in course(some, after):
        if stands is not None and stands.was_told:
            assert was_told
            break
        was_told = was_told or stands is not None


@STEADY
@given(st.integers(2, 6), CALLS, TURNS)
def test_the_same_again_and_again_is_told_after_so_many_and_over_with_one_more(
    after: int, same: Made, before: Turns
) -> None:
    new = made("new")
    stands = [standstill([*before, [new], *[[same]] * times], after) for times in (after + 1, after + 2)]
    assert [each is not None for each in stands] == [True, True]
    assert stands[1] is not None
    assert stands[1].was_told


@STEADY
@given(TURNS, AFTER)
def test_what_brings_something_new_each_turn_and_not_only_errors_goes_on(some: Turns, after: int) -> None:
    # The same call twice in one turn counts twice.
    fresh = [[*turn[: after - 1], made(("new", at))] for at, turn in enumerate(some)]
    assert course(fresh, after) == [None] * len(some)


@STEADY
@given(TURNS, AFTER, st.integers(0, 12))
def test_it_is_a_matter_of_what_was_called_and_not_of_the_names_of_it(some: Turns, after: int, by: int) -> None:
    other = [[made((each.what, by), is_error=each.is_error) for each in turn] for turn in some]
    assert course(some, after) == course(other, after)


# ---- reading the items ----


async def kinds(*happened: OutputItem | Mark) -> list[list[bool]]:
    """For each call of each turn whether it is the same as the very first one, result included."""
    plan = await plan_of(ask(tools=[WEATHER, SERVER]), weather_tool(), depot())
    read = turns_made(run_of(plan, *happened))
    first = next(each for turn in read for each in turn)
    return [[each.what == first.what for each in turn] for turn in read]


@pytest.mark.parametrize(
    ("arguments", "is_same"),
    [
        ('{"a": 1, "b": [true, null, "x"]}', True),
        ('{"b":[true,null,"x"],"a":1}', True),
        ('{"b": [true, null, "\\u0078"], "a": 1.0}', True),
        ('{"a": 1, "b": [1, null, "x"]}', False),
        ('{"a": true, "b": [true, null, "x"]}', False),
        ('{"a": "1", "b": [true, null, "x"]}', False),
        ('{"a": 1, "b": [null, true, "x"]}', False),
        ('{"a": 1, "b": {"true": null, "x": 1}}', False),
        ('{"a": 1, "b": [true, null, "x"]', False),
        ("", False),
    ],
)
async def test_arguments_are_the_same_when_they_say_the_same(arguments: str, is_same: bool) -> None:
    first = called(1, arguments='{"a": 1, "b": [true, null, "x"]}')
    second = called(2, arguments=arguments)
    assert await kinds(first, ended(), result(1), second, ended(), result(2)) == [[True], [is_same]]


async def test_what_is_no_json_is_compared_as_it_is_and_nesting_ends_somewhere() -> None:
    deep = "[" * 100_000
    items = [called(1, arguments=deep), called(2, arguments=deep), called(3, arguments="[")]
    assert await kinds(*items, ended(), result(1), result(2), result(3)) == [[True, True, False]]


async def test_the_tool_its_server_the_result_and_whether_it_is_an_error_all_count() -> None:
    first = server_called(1, "stock", status="completed", output="3")
    others: list[OutputItem] = [
        server_called(2, "stock", status="completed", output="3"),
        server_called(3, "price", status="completed", output="3"),
        server_called(4, "stock", label="shop", status="completed", output="3"),
        server_called(5, "stock", status="completed", output="4"),
        server_called(6, "stock", status="failed", error="3"),
        called(7, "stock"),
    ]
    assert await kinds(first, *others, ended(), result(7, "3")) == [[True, True, False, False, False, False, False]]


async def test_results_in_parts_are_compared_whole() -> None:
    parts = (InputImage(image_url="data:a"),)
    items = [called(n) for n in (1, 2, 3)]
    outputs = [replace(result(n), output=parts) for n in (1, 2)]
    other = replace(result(3), output=(InputImage(image_url="data:b"),))
    assert await kinds(*items, ended(), *outputs, other) == [[True, True, False]]


async def test_calls_that_have_no_result_or_were_cut_or_are_of_an_earlier_response_are_not_counted() -> None:
    plan = await plan_of(ask(tools=[WEATHER, SERVER]), weather_tool(), depot())
    run = run_of(
        plan,
        server_called(1, status="completed", output="3"),
        called(2),
        called(3, status="incomplete"),
        server_called(4, status="completed"),
        called(5),
        ended(),
        result(5),
        ran(5),
    )
    assert [[each.name for each in turn] for turn in turns_made(run, {"call_1"})] == [["weather"]]
    assert [[each.name for each in turn] for turn in turns_made(run)] == [["stock", "weather"]]


async def test_results_behind_the_end_of_their_turn_count_for_it() -> None:
    first, second = (called(1), ended(), result(1, is_error=True)), (called(2), ended(), result(2))
    plan = await plan_of(ask(tools=[WEATHER]), weather_tool())
    read = turns_made(run_of(plan, *first, *second))
    assert [[each.is_error for each in turn] for turn in read] == [[True], [False]]


# ---- what need not be looked at ----

ANSWERS = st.tuples(st.sampled_from(["server", "function"]), st.sampled_from(["a", "b", "c"]), st.booleans())


def _answered(number: int, answer: tuple[str, str, bool]) -> tuple[OutputItem, OutputItem | None]:
    """A call, and its result where that is an item of its own."""
    kind, said, is_error = answer
    if kind == "function":
        return called(number), result(number, said, is_error=is_error)
    if is_error:
        return server_called(number, status="failed", error=said), None
    return server_called(number, status="completed", output=said), None


@STEADY
@given(st.lists(st.lists(ANSWERS, max_size=3), min_size=1, max_size=8), AFTER)
async def test_a_look_at_the_results_misses_no_standstill(some: list[list[tuple[str, str, bool]]], after: int) -> None:
    plan = await plan_of(ask(tools=[WEATHER, SERVER]), weather_tool(), depot())
    happened: list[OutputItem | Mark] = []
    for at, turn in enumerate(some):
        pairs = [_answered(10 * at + number, answer) for number, answer in enumerate(turn)]
        happened += [*[call for call, _ in pairs], ended(), *[found for _, found in pairs if found is not None]]
        run = run_of(plan, *happened)
        if standstill(turns_made(run), after) is not None:
            assert may_stand_still(run, after)


async def test_different_results_are_not_looked_at() -> None:
    plan = await plan_of(ask(tools=[SERVER]), depot())
    calls = [server_called(number, status="completed", output=str(number)) for number in range(5)]
    assert not may_stand_still(run_of(plan, *[each for call in calls for each in (call, ended())]), 3)
