"""Calls that a client's history leaves open: what was said after them was said after their results."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import InputItem
from antwort.engine.prompt.chat_request import chat_request
from antwort.engine.prompt.messages import NO_RESULT
from engine_kit import ask, sent
from plan_kit import called, plan_of, result, run_of, said, server_called, thought

OPEN = {"a function's": called(1), "a server's": server_called(1, status="completed")}


async def told(*items: InputItem, earlier: tuple[tuple[InputItem, ...], ...] = ()) -> list[str]:
    """The messages of a request with these input items: what each calls and says, in that order."""
    plan = await plan_of(ask(), items=items, earlier=earlier)
    messages: list[Any] = sent(chat_request(run_of(plan), plan))["messages"]
    return [_told(message) for message in messages]


def _told(message: dict[str, Any]) -> str:
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    return " ".join([message["role"], *calls, *filter(None, [message["content"]])])


@pytest.mark.proves("RULING-3", "FR-021")
@pytest.mark.parametrize("call", OPEN.values(), ids=list(OPEN))
async def test_what_was_said_after_an_open_call_comes_after_its_note(call: InputItem) -> None:
    assert await told(call, said("It is noon.")) == ["assistant call_1", f"tool {NO_RESULT}", "assistant It is noon."]


@pytest.mark.parametrize("call", OPEN.values(), ids=list(OPEN))
async def test_what_was_said_before_an_open_call_stays_with_it(call: InputItem) -> None:
    assert await told(said("Let me look."), call, said("It is noon.")) == [
        "assistant call_1 Let me look.",
        f"tool {NO_RESULT}",
        "assistant It is noon.",
    ]


async def test_what_was_thought_after_an_open_call_is_of_the_next_turn() -> None:
    assert await told(called(1), thought("Noon."), said("It is noon.")) == [
        "assistant call_1",
        f"tool {NO_RESULT}",
        "assistant It is noon.",
    ]


async def test_open_calls_side_by_side_are_of_one_turn() -> None:
    assert await told(called(1), server_called(2, status="completed"), said("Done.")) == [
        "assistant call_1 call_2",
        f"tool {NO_RESULT}",
        f"tool {NO_RESULT}",
        "assistant Done.",
    ]


async def test_words_between_a_call_and_its_result_are_of_the_calls_turn() -> None:
    assert await told(called(1), said("Wait."), result(1)) == ["assistant call_1 Wait.", "tool sunny"]


async def test_a_turn_of_the_record_that_spoke_after_a_call_stays_one() -> None:
    said_so = await told(said("Hm."), earlier=((called(1), said("Wait.")),))
    assert said_so[:2] == ["assistant call_1 Wait.", f"tool {NO_RESULT}"]
