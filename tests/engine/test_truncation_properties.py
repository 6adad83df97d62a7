"""Whatever was said: what is left of it fits, is in its order, and is a conversation that a backend takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import at_once
from antwort.engine.context.message_text import Pictures
from antwort.engine.context.truncation import truncation_steps
from antwort.providers.base import ChatMessage
from fitting_kit import conversations, numbers, refused, size, text_of, total
from plan_kit import STEADY

_budgets = st.sampled_from([0, 300, 1000, 3000, 10_000, 100_000])


@STEADY
@given(conversations(), _budgets)
def test_it_fits_or_is_the_least_there_is(messages: list[ChatMessage], budget: int) -> None:
    found = at_once(truncation_steps(messages, budget, size))
    assert found.size == total(found.messages)
    assert found.size <= budget or found.messages == at_once(truncation_steps(messages, 0, size)).messages
    assert found.size <= total(messages) or found.left_out


@STEADY
@given(conversations(), _budgets)
def test_it_is_what_was_said_in_its_order(messages: list[ChatMessage], budget: int) -> None:
    kept = numbers(at_once(truncation_steps(messages, budget, size)).messages)
    assert kept == sorted(set(kept))
    assert set(kept) <= set(numbers(messages))


@STEADY
@given(conversations(), _budgets)
def test_what_must_not_go_is_there(messages: list[ChatMessage], budget: int) -> None:
    found = at_once(truncation_steps(messages, budget, size)).messages
    assert [each for each in found if each.role in ("system", "developer")] == [
        each for each in messages if each.role in ("system", "developer")
    ]
    asked = [each for each in messages if each.role == "user" and not isinstance(each, Pictures)]
    if asked:
        assert any(text_of(asked[-1]) in text_of(each) for each in found if each.role == "user")


@STEADY
@given(conversations(), _budgets)
def test_a_backend_takes_it(messages: list[ChatMessage], budget: int) -> None:
    found = at_once(truncation_steps(messages, budget, size)).messages
    assert refused(found) is None
    spoken = [each for each in found if each.role not in ("system", "developer")]
    if len(spoken) < len([each for each in messages if each.role not in ("system", "developer")]):
        assert spoken[0].role == "user"


@STEADY
@given(conversations(), _budgets)
def test_no_call_is_parted_from_its_results(messages: list[ChatMessage], budget: int) -> None:
    """Each answer stands there with as many results as it had, or is gone with them."""
    before = {numbers([answer[0]])[0]: answer for answer in _answers(messages)}
    for answer in _answers(at_once(truncation_steps(messages, budget, size)).messages):
        whole = before[numbers([answer[0]])[0]]
        assert [each.tool_call_id for each in answer] == [each.tool_call_id for each in whole]


def _answers(messages: list[ChatMessage]) -> list[list[ChatMessage]]:
    found: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == "assistant":
            found.append([message])
        elif message.role == "tool":
            found[-1].append(message)
    return found


@STEADY
@given(conversations(), _budgets)
def test_something_that_is_gone_is_spoken_of(messages: list[ChatMessage], budget: int) -> None:
    found = at_once(truncation_steps(messages, budget, size))
    said = "\n".join(map(text_of, found.messages))
    assert ("[Left out here" in said) == bool(found.left_out)
    if "characters left out" in said:
        assert found.shortened
