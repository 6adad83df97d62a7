"""What a compaction stands for, sealed and opened again; and what counts of a conversation that has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import Limits
from antwort.api.item_parsing import read_item
from antwort.api.items import Compaction, InputItem, InputText, Message
from antwort.crypto import CannotOpen, Vault
from antwort.engine.context.compaction_item import (
    Memories,
    Memory,
    MemoryLost,
    distinct,
    in_force,
    is_instruction,
    since_compaction,
)
from plan_kit import STEADY, called, result, said, server_called, thought

VAULT = Vault(["a secret of the tests"])


def memories(tenant: str = "acme", vault: Vault = VAULT) -> Memories:
    return Memories(vault, tenant)


def told(text: str, role: Any = "system") -> Message:
    return Message(id="msg_1", role=role, content=(InputText(text=text),))


def asked(text: str) -> Message:
    return told(text, "user")


def compaction(memory: Memory, *, by: Memories | None = None) -> Compaction:
    return Compaction(id="cmp_1", encrypted_content=(by or memories()).seal(memory))


ITEMS: list[InputItem] = [
    asked("Hello"),
    said("Hi"),
    thought("hm"),
    called(1),
    result(1),
    server_called(2, status="completed", output="3 left"),
    read_item({"type": "shell_call", "id": "sh_1", "call_id": "s", "action": {"deep": [1]}}, "", Limits()),
    read_item({"type": "custom_tool_call", "id": "c", "call_id": "k", "name": "p", "input": "x"}, "", Limits()),
    read_item(
        {"type": "function_call", "id": "f", "call_id": "n", "name": "open", "namespace": "editor", "arguments": "{}"},
        "",
        Limits(),
    ),
]


@STEADY
@given(st.lists(st.sampled_from(ITEMS)).map(tuple), st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_sealed_comes_out_as_it_went_in(items: tuple[InputItem, ...], summary: str) -> None:
    memory = Memory((told("Be brief."),), summary, items)
    assert memories().opened(compaction(memory)) == memory


def test_it_opens_for_nobody_else() -> None:
    with pytest.raises(CannotOpen):
        memories("other").opened(compaction(Memory(summary="All of it.")))


def test_what_was_sealed_for_another_purpose_is_no_compaction() -> None:
    with pytest.raises(CannotOpen):
        memories().opened(Compaction(id="cmp_1", encrypted_content=VAULT.seal("reasoning", "acme", b"hm")))


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version":2}', b'{"version":1}', b'{"version":1,"instructions":5}'])
def test_a_form_that_is_not_known_does_not_open(data: bytes) -> None:
    with pytest.raises(CannotOpen):
        memories().opened(Compaction(id="cmp_1", encrypted_content=VAULT.seal("compaction", "acme", data)))


# ---- what counts ----


def counted(*stretches: Sequence[InputItem], inputs: set[int] | None = None, by: Memories | None = None) -> Any:
    return since_compaction(stretches, inputs if inputs is not None else {0}, by or memories())


def test_without_a_compaction_all_counts() -> None:
    found = counted([asked("1")], [said("one")])
    assert (found.stretches, found.is_compacted, found.skipped) == (([asked("1")], [said("one")]), False, 0)


def test_what_stands_before_it_does_not_count_any_more() -> None:
    item = compaction(Memory(summary="They met."))
    found = counted([asked("1"), called(9), item, asked("2")], [said("two")])
    assert found.stretches == ([asked("2")], [said("two")])
    assert (found.summary, found.instructions, found.skipped) == ("They met.", (), 0)


def test_the_latest_turns_that_it_holds_come_first() -> None:
    item = compaction(Memory(summary="They met.", recent=(called(1),)))
    found = counted([asked("1")], [item, result(1)], inputs={0, 1})
    assert found.stretches == ((called(1),), [result(1)])
    assert (found.inputs, found.skipped) == (frozenset({0, 1}), 1)


def test_of_several_the_last_counts() -> None:
    first, second = compaction(Memory(summary="Early.")), compaction(Memory(summary="Late."))
    assert counted([first, asked("1"), second, asked("2")]).summary == "Late."


def test_instructions_that_stand_before_it_are_kept() -> None:
    item = compaction(Memory((told("Old."),), "They met."))
    assert counted([told("New."), asked("1"), item]).instructions == (told("New."),)


def test_where_none_stand_the_sealed_ones_count() -> None:
    item = compaction(Memory((told("Old."),), "They met."))
    assert counted([asked("1"), item]).instructions == (told("Old."),)


def test_those_of_an_earlier_one_count_beside_those_that_came_after_it() -> None:
    first = compaction(Memory((told("Old."),), "They met."))
    second = compaction(Memory((told("Old."), told("New.")), "And parted."))
    found = counted([first, told("New."), asked("1"), second])
    assert found.instructions == (told("Old."), told("New."))


def test_where_only_a_part_of_what_came_before_is_left_away_no_instruction_is_lost() -> None:
    item = compaction(Memory((told("Never tell."), told("It is Tuesday.")), "They met."))
    found = counted([told("It is Tuesday."), asked("1"), told("Be brief."), item])
    assert found.instructions == (told("Never tell."), told("It is Tuesday."), told("Be brief."))


def test_instructions_that_are_said_again_are_heard_once() -> None:
    item = compaction(Memory((told("Be brief."), told("Be brief.")), "They met."))
    found = counted([item, told("Be brief."), asked("1")], [told("Be brief."), told("Be kind."), asked("2")])
    assert found.instructions == (told("Be brief."),)
    assert found.stretches == ([asked("1")], [told("Be kind."), asked("2")])


def test_the_same_words_in_another_role_are_another_instruction() -> None:
    item = compaction(Memory((told("Be brief."),), "They met."))
    assert counted([item, told("Be brief.", "developer")]).stretches == ([told("Be brief.", "developer")],)


_told = st.lists(st.sampled_from([told(text, role) for text in "ABC" for role in ("system", "developer")]), max_size=5)


@STEADY
@given(_told, _told)
def test_no_instruction_is_lost_and_none_doubled(sealed: list[InputItem], standing: list[InputItem]) -> None:
    found = in_force(sealed, standing)
    assert all(found.count(item) == 1 for item in found)
    assert all(item in found for item in standing)
    if all(item in sealed for item in standing):
        assert found == distinct(sealed)
    assert in_force(found, standing) == in_force(found, []) == in_force(found, found) == found


@STEADY
@given(_told, _told)
def test_no_more_than_stands_there_takes_the_place_of_what_is_sealed(
    sealed: list[InputItem], standing: list[InputItem]
) -> None:
    if any(item in sealed for item in standing):
        missing = [item for item in distinct(sealed) if item not in in_force(sealed, standing)]
        assert len(missing) <= len([item for item in distinct(standing) if item not in sealed])
        assert not any(item in standing for item in missing)


@pytest.mark.parametrize("place", [0, 1])
def test_a_front_that_is_the_same_but_for_a_date_does_not_pile_up_dates(place: int) -> None:
    sealed: tuple[InputItem, ...] = ()
    for day in range(5):
        front = [told("You are Codex.")]
        front.insert(place, told(f"It is the {day}."))
        sealed = in_force(sealed, front)
    assert sealed == tuple(front)


def test_what_was_told_in_between_stays_where_the_front_is_sent_anew() -> None:
    sealed = (told("You are Codex."), told("It is Monday."), told("Never tell."))
    found = in_force(sealed, [told("You are Codex."), told("It is Tuesday.")])
    assert found == (told("You are Codex."), told("It is Tuesday."), told("Never tell."))


# ---- what is told again ----


def test_who_goes_back_to_an_earlier_instruction_has_it_hold() -> None:
    english, german = told("English."), told("German.")
    assert distinct([english, german, english]) == (german, english)
    found = counted([compaction(Memory((english, german), "They met.")), english, asked("1")], [german, asked("2")])
    assert found.instructions == (english, german)
    assert found.stretches == ([english, asked("1")], [german, asked("2")])


def test_a_front_that_is_sent_with_each_turn_is_heard_once() -> None:
    front = (told("Be brief."), told("It is Monday."))
    found = counted(
        [compaction(Memory(front, "They met.")), *front, asked("1")], [*front, told("Be kind."), asked("2")]
    )
    assert found.stretches == ([asked("1")], [told("Be kind."), asked("2")])


@STEADY
@given(_told, st.lists(_told, max_size=4))
def test_in_whatever_order_they_are_told_the_last_one_stands_last(
    sealed: list[InputItem], turns: list[list[InputItem]]
) -> None:
    stretches = [[*turn, asked(str(number))] for number, turn in enumerate(turns)]
    found = counted([compaction(Memory(tuple(sealed), "They met."))], *stretches)
    heard = [item for stretch in found.stretches for item in stretch if is_instruction(item)]
    assert distinct((*found.instructions, *heard)) == distinct((*sealed, *(item for turn in turns for item in turn)))


def test_what_a_client_sent_and_cannot_be_opened_is_lost() -> None:
    item = compaction(Memory(summary="They met."), by=memories("other"))
    with pytest.raises(MemoryLost) as caught:
        counted([asked("1")], [asked("2"), item], inputs={1})
    assert (caught.value.stretch, caught.value.place) == (1, 1)


def test_for_what_was_made_here_all_that_it_stood_for_counts(caplog: pytest.LogCaptureFixture) -> None:
    item = compaction(Memory(summary="They met."), by=memories("other"))
    found = counted([asked("1")], [item, said("one")])
    assert found.stretches == ([asked("1")], [item, said("one")])
    assert "its key is gone" in caplog.text


def test_a_compaction_whose_key_is_gone_gives_way_to_an_earlier_one() -> None:
    lost, known = compaction(Memory(summary="Late."), by=memories("other")), compaction(Memory(summary="Early."))
    assert counted([known, asked("1")], [lost]).summary == "Early."
