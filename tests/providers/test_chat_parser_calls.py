"""Pieces of calls are assigned to their calls, whatever the backend leaves out."""

from __future__ import annotations

import pytest

from antwort.providers.base import CallDelta, TextDelta
from chunk_kit import DONE, Json, before_the_end, calls, delta, event, piece, read

# ---- calls ----


def test_arguments_come_in_pieces_of_the_same_call() -> None:
    deltas = before_the_end(
        calls(piece("f", None, index=0, id="a", type="function")),
        calls(piece(None, '{"x"', index=0), content=None),
        calls(piece(None, ": 1}", index=0)),
    )
    assert deltas == [CallDelta(0, "f", '{"x"'), CallDelta(0, "", ": 1}")]


@pytest.mark.proves("MISTAKE-12")
def test_parallel_calls_keep_their_order_and_their_pieces_apart() -> None:
    deltas = before_the_end(
        calls(piece("f", "1", index=3, id="a"), piece("g", "2", index=1, id="b")),
        calls(piece(None, "4", index=1), piece(None, "3", index=3)),
    )
    assert deltas == [CallDelta(0, "f", "1"), CallDelta(1, "g", "2"), CallDelta(1, "", "4"), CallDelta(0, "", "3")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"index": 0, "id": "a"}, {"index": 0, "id": "b"}),
        ({"index": 0}, {"index": 0, "id": "b"}),
        ({"id": "a"}, {"id": "b"}),
        ({}, {}),
        ({"index": None, "id": ""}, {"index": None, "id": ""}),
        ({"index": 0, "id": "a"}, {"id": "b"}),
    ],
)
def test_a_second_name_under_another_id_or_without_an_index_is_a_second_call(first: Json, second: Json) -> None:
    deltas = before_the_end(
        calls(piece("f", "{", **first)),
        calls(piece(None, "}", **first)),
        calls(piece("f", "{}", **second)),
        calls(piece(None, " ", **second)),
    )
    assert deltas == [CallDelta(0, "f", "{"), CallDelta(0, "", "}"), CallDelta(1, "f", "{}"), CallDelta(1, "", " ")]


def test_another_name_under_the_same_index_without_ids_is_a_second_call() -> None:
    deltas = before_the_end(calls(piece("f", "{}", index=0)), calls(piece("g", "{}", index=0)))
    assert deltas == [CallDelta(0, "f", "{}"), CallDelta(1, "g", "{}")]


@pytest.mark.parametrize("rest", [{"index": 0}, {"index": 0, "id": "a"}, {"id": "a"}])
def test_a_name_in_pieces_is_one_name_until_the_arguments_begin(rest: Json) -> None:
    deltas = before_the_end(
        calls(piece("a", index=0, id="a")), calls(piece("d", "", **rest)), calls(piece("d", "{}", **rest))
    )
    assert deltas == [CallDelta(0, "add", "{}")]


def test_a_whole_name_repeated_before_the_arguments_begin_is_one_name() -> None:
    deltas = before_the_end(*[calls(piece("add", text, index=0)) for text in ("", "", "{", "}")])
    assert deltas == [CallDelta(0, "add", "{"), CallDelta(0, "", "}")]


def test_two_names_in_one_chunk_are_two_calls_though_neither_has_arguments() -> None:
    deltas = before_the_end(calls(piece("f", index=0), piece("g", index=0)))
    assert deltas == [CallDelta(0, "f"), CallDelta(1, "g")]


def test_a_call_without_arguments_stands_before_what_is_said_behind_it() -> None:
    deltas = before_the_end(calls(piece("f", index=0)), delta(content="So."))
    assert deltas == [CallDelta(0, "f"), TextDelta("So.")]


# ---- the legacy form ----


def test_a_legacy_function_call_is_a_call() -> None:
    deltas = before_the_end(
        delta(function_call={"name": "ad"}),
        delta(function_call={"name": "d", "arguments": '{"a"'}),
        delta("function_call", function_call={"arguments": ": 1}"}),
    )
    assert deltas == [CallDelta(0, "add", '{"a"'), CallDelta(0, "", ": 1}")]


def test_a_legacy_function_call_beside_tool_calls_is_the_same_call() -> None:
    deltas = before_the_end(
        calls(piece("f", "{}", index=0, id="a"), function_call={"name": "f", "arguments": "{}"}),
        delta(function_call={"name": "f", "arguments": "{}"}),
    )
    assert deltas == [CallDelta(0, "f", "{}")]


@pytest.mark.parametrize("again", [{"index": 0, "id": "a"}, {"id": "a"}, {"index": 0}])
def test_a_name_repeated_on_every_piece_is_given_once(again: Json) -> None:
    deltas = before_the_end(calls(piece("f", "{", index=0, id="a")), calls(piece("f", "}", **again)))
    assert deltas == [CallDelta(0, "f", "{"), CallDelta(0, "", "}")]


def test_an_id_that_changes_without_a_name_is_the_same_call() -> None:
    deltas = before_the_end(calls(piece("f", "{", index=0, id="a")), calls(piece(None, "}", index=0, id="b")))
    assert deltas == [CallDelta(0, "f", "{"), CallDelta(0, "", "}")]


def test_a_piece_without_an_index_goes_to_the_call_with_its_id() -> None:
    deltas = before_the_end(
        calls(piece("f", "1", id="a"), piece("g", "2", id="b")), calls(piece(None, "3", id="a"), piece(None, "4"))
    )
    assert deltas == [CallDelta(0, "f", "1"), CallDelta(1, "g", "2"), CallDelta(0, "", "3"), CallDelta(0, "", "4")]


@pytest.mark.parametrize(
    ("given_as", "text"),
    [({"city": "Rome", "n": 1}, '{"city":"Rome","n":1}'), ({}, "{}"), ([1], "[1]"), (None, ""), ("", "")],
)
def test_arguments_may_be_an_object_or_absent(given_as: object, text: str) -> None:
    assert before_the_end(calls(piece("f", given_as, index=0))) == [CallDelta(0, "f", text)]


def test_arguments_before_the_name_wait_for_it() -> None:
    deltas = before_the_end(calls(piece(None, "{", index=0, id="a")), calls(piece("f", "}", index=0)))
    assert deltas == [CallDelta(0, "f", "{}")]


def test_a_call_that_never_gets_a_name_is_shown_at_the_end() -> None:
    deltas = before_the_end(calls(piece(None, "{}", index=0), {"index": 5, "function": None}))
    assert deltas == [CallDelta(0, "", "{}")]


def test_whole_messages_in_a_stream_are_read_like_its_deltas() -> None:
    """Some backends put `message` where `delta` belongs."""
    first, second = (event({"choices": [{"message": {"tool_calls": [piece(name, "{}", id=name)]}}]}) for name in "ab")
    assert read(first, second, DONE)[:2] == [CallDelta(0, "a", "{}"), CallDelta(1, "b", "{}")]
