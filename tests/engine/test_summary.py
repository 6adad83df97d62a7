"""A conversation as the words that a summary is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.inputs import Limits, read_item
from antwort.api.items import InputImage, InputItem, InputText, Message, Refusal
from antwort.engine.summary import entries_of, question, take_piece
from plan_kit import STEADY, called, result, said, server_called, thought


def test_what_was_said_and_called_is_told_in_order() -> None:
    asked = Message(id="m", role="user", content=(InputText(text="Warm?"), InputImage(image_url="data:x")))
    refused = Message(id="m", role="assistant", content=(Refusal(refusal="No."),))
    items: list[InputItem] = [asked, thought("hm"), called(1, arguments='{"city":"Rome"}'), result(1), said("It is."), refused]
    assert entries_of(items) == [
        "User: Warm?\n[input_image]",
        'Assistant calls weather: {"city":"Rome"}',
        "Result of weather: sunny",
        "Assistant: It is.",
        "Assistant: No.",
    ]


def test_a_servers_call_is_told_with_its_result() -> None:
    assert entries_of([server_called(1, output="3 left", status="completed")]) == [
        "Assistant calls stock: {}\n\nResult of stock: 3 left"
    ]
    assert entries_of([server_called(1, error="closed", status="failed")]) == [
        "Assistant calls stock: {}\n\nResult of stock: closed"
    ]
    assert entries_of([server_called(1, status="completed")]) == ["Assistant calls stock: {}"]


def test_calls_of_other_kinds_are_told_by_their_form() -> None:
    call = read_item({"type": "shell_call", "call_id": "s", "arguments": "ls"}, "", Limits())
    out = read_item({"type": "shell_call_output", "call_id": "s", "output": "a.txt"}, "", Limits())
    custom = read_item({"type": "custom_tool_call", "call_id": "k", "name": "patch", "input": "+x"}, "", Limits())
    done = read_item({"type": "custom_tool_call_output", "call_id": "k", "output": "Done"}, "", Limits())
    other = read_item({"type": "web_search_call", "id": "w"}, "", Limits())
    assert entries_of([call, out, custom, done, other]) == [
        "Assistant calls shell: ls",
        "Result of shell: a.txt",
        "Assistant calls patch: +x",
        "Result of patch: Done",
    ]


def test_a_result_without_its_call_is_told_all_the_same() -> None:
    assert entries_of([result(1)]) == ["Result of a tool: sunny"]


def test_a_long_result_is_shortened_with_a_mark() -> None:
    (entry,) = entries_of([result(1, "a" * 50_000)])
    assert len(entry) < 10_000
    assert "characters left out" in entry


def test_what_says_nothing_has_no_entry() -> None:
    assert entries_of([said(""), thought("hm")]) == []


# ---- the question ----


def test_the_question_has_the_conversation_and_the_length() -> None:
    system, user = question(["User: Hi"], earlier="", guidance=None, words=100)
    assert (system.role, user.role) == ("system", "user")
    assert "at most 100 words" in str(system.content)
    assert "<conversation>\nUser: Hi\n</conversation>" in str(user.content)
    assert "<summary>" not in str(user.content)


def test_what_was_summed_up_earlier_is_folded_in() -> None:
    _, user = question(["User: Hi"], earlier="They {met}.", guidance=None, words=100)
    assert "<summary>\nThey {met}.\n</summary>" in str(user.content)
    assert "one summary" in str(user.content)


def test_the_instructions_of_the_request_are_told() -> None:
    system, _ = question([], earlier="", guidance="Keep all {names}.", words=100)
    assert str(system.content).endswith("Keep all {names}.")


# ---- pieces ----


def test_where_nobody_knows_the_room_all_is_one_piece() -> None:
    assert take_piece(["a" * 1000, "b"], None, len) == (["a" * 1000, "b"], [])


def test_a_piece_has_as_many_entries_as_fit() -> None:
    assert take_piece(["a" * 300, "b" * 300, "c" * 300], 700, len) == (["a" * 300, "b" * 300], ["c" * 300])


def test_an_entry_that_is_too_long_goes_on_in_the_next_piece() -> None:
    taken, rest = take_piece(["a" * 700, "b"], 400, len)
    assert (taken, rest) == (["a" * 400], ["(continued) " + "a" * 300, "b"])


@STEADY
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 900))
def test_piece_by_piece_it_comes_to_an_end_with_nothing_left_out(sizes: list[int], room: int) -> None:
    entries = ["x" * size for size in sizes]
    pieces = 0
    told = ""
    while entries:
        taken, entries = take_piece(entries, room, len)
        told += "".join(taken)
        pieces += 1
        assert pieces < 200
    assert told.count("x") == sum(sizes)


@pytest.mark.parametrize("room", [64, 1000])
def test_a_piece_is_no_longer_than_the_room_unless_that_is_tiny(room: int) -> None:
    taken, _ = take_piece(["x" * 5000], room, len)
    assert sum(map(len, taken)) <= max(room, 200)
