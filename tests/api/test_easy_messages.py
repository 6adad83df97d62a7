"""Messages of plain texts are read in one go; to the same end as with care, and never where care would find a fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.input_items import LONGEST_ID, _easy_message, read_item, read_items
from antwort.api.items import Message
from antwort.api.limits import Limits
from antwort.api.wire import encode, replace
from antwort.errors import InvalidField

LIMITS = Limits(part_bytes=1000)

texts = st.text(max_size=5) | st.just("x" * 1100)
odd: st.SearchStrategy[Any] = st.none() | st.integers(0, 3) | texts | st.just([]) | st.just({}) | st.just(("a",))
kinds = st.sampled_from(
    ["input_text", "output_text", "text", "refusal", "summary_text", "input_image", "input_audio", "antwort:text", "x"]
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | odd,
        "text": texts | odd,
        "refusal": texts | odd,
        "annotations": odd,
        "logprobs": odd,
        "more": odd,
    },
)
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool", ""])
messages = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "antwort:message", "reasoning", ""]) | odd,
        "role": roles | odd,
        "content": texts | odd | st.lists(parts | texts, max_size=3),
        "id": st.sampled_from(["", "msg_1", "x" * LONGEST_ID, "x" * (LONGEST_ID + 1)]) | odd,
        "status": st.sampled_from(["completed", "in_progress", "incomplete", "failed"]) | odd,
        "phase": st.sampled_from(["commentary", "final_answer", "else"]) | odd,
        "more": odd,
    },
)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(messages)
def test_an_easy_message_is_what_the_careful_reading_makes_of_it(value: dict[str, Any]) -> None:
    size = len(encode(value))
    easy = _easy_message(value, size, LIMITS)
    if easy is None:
        return
    careful = read_item(value, "input[0]", LIMITS, size=size)
    assert isinstance(careful, Message)
    assert easy == (careful if value.get("id") else replace(careful, id=easy.id))
    assert easy.id.startswith("msg_") or easy.id == value["id"]


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": "hi", "id": "msg_1", "status": "incomplete"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": None},
        {"role": "system", "content": None},
    ],
)
def test_plain_messages_are_easy(value: dict[str, Any]) -> None:
    assert _easy_message(value, len(encode(value)), LIMITS) is not None


def test_what_is_wrong_is_named_by_its_place_all_the_same() -> None:
    entries = [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "input_text"}]}]
    with pytest.raises(InvalidField) as caught:
        read_items(entries, "input", LIMITS, most=5)
    assert caught.value.param == "input[1].content[0].text"


def test_a_message_as_large_as_a_part_may_be_is_measured_with_care() -> None:
    with pytest.raises(InvalidField) as caught:
        read_items([{"role": "user", "content": "x" * 1001}], "input", LIMITS, most=5)
    assert caught.value.param == "input[0].content[0].text"
