"""What a compaction keeps word for word stays within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import at_once
from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    InputItem,
    InputText,
    McpCall,
    Message,
    OpaqueItem,
    Text,
    ToolError,
)
from antwort.api.wire import replace
from antwort.engine.context.compaction import item_size, short_result_steps
from antwort.engine.history.calls import calls_in, result_of
from plan_kit import STEADY, called, result, said, server_called

LOG = "line\n" * 4000


def asked(text: str) -> Message:
    return Message(id="msg_u", role="user", content=(InputText(text=text),))


def text_in(item: InputItem) -> str:
    assert isinstance(item, FunctionCallOutput | CustomToolCallOutput | McpCall)
    assert isinstance(item.output, str)
    return item.output


def test_what_fits_stays_as_it_is() -> None:
    items: list[InputItem] = [asked("1"), called(1), result(1, LOG)]
    assert at_once(short_result_steps(items, 50_000, item_size)) == tuple(items)


def test_the_longest_results_give_way_and_say_how_much_is_missing() -> None:
    items: list[InputItem] = [asked("1" * 500), called(1), called(2), result(1, LOG), result(2, "short")]
    found = at_once(short_result_steps(items, 3000, item_size))
    assert sum(map(item_size, found)) < 3200
    assert (*found[:3], found[4]) == (*items[:3], items[4])
    text = text_in(found[3])
    assert text.startswith("line\nline\n")
    assert text.endswith("line\nline\n")
    assert "characters left out" in text


def test_results_of_the_same_size_share_the_room() -> None:
    found = at_once(short_result_steps([called(1), called(2), result(1, LOG), result(2, LOG)], 4000, item_size))
    first, second = (item_size(item) for item in found[2:])
    assert first == second < 2100


def test_what_the_user_said_stays_whatever_its_size() -> None:
    items: list[InputItem] = [asked(LOG), called(1), result(1, LOG)]
    found = at_once(short_result_steps(items, 1000, item_size))
    assert found[:2] == tuple(items[:2])
    assert item_size(found[2]) < 200


def test_without_results_there_is_nothing_to_shorten() -> None:
    items: list[InputItem] = [asked(LOG), called(1), said(LOG)]
    assert at_once(short_result_steps(items, 10, item_size)) == tuple(items)


def test_results_of_every_kind_are_shortened() -> None:
    in_parts = FunctionCallOutput(id="o", call_id="c", output=(InputText(text=LOG), InputImage(image_url="data:x")))
    free = CustomToolCallOutput(id="o", call_id="k", output=LOG)
    server = server_called(1, status="completed", output=LOG)
    shown = replace(server, content=(Text(text=LOG),))
    fields = {"type": "shell_call_output", "call_id": "s", "status": "completed", "stdout": LOG, "exit": 0}
    found = at_once(
        short_result_steps(
            [in_parts, free, server, shown, OpaqueItem("shell_call_output", "x", fields)], 5000, item_size
        )
    )
    assert all(item_size(item) < 1500 for item in found)
    assert isinstance(found[0], FunctionCallOutput)
    assert found[0].output[1] == InputImage(image_url="data:x")
    assert isinstance(found[4], OpaqueItem)
    call_id, output = str(found[4].fields["call_id"]), result_of(found[4])
    assert (call_id, "characters left out" in str(output)) == ("s", True)


@pytest.mark.parametrize("error", [LOG, ToolError(content=(Text(text=LOG),))], ids=["text", "object"])
def test_errors_are_shortened_like_results(error: str | ToolError) -> None:
    (found,) = at_once(short_result_steps([replace(server_called(1, status="failed"), error=error)], 2000, item_size))
    assert isinstance(found, McpCall)
    assert type(found.error) is type(error)
    assert "characters left out" in str(found.error_text)
    assert item_size(found) < 2200


_items = st.lists(
    st.one_of(
        st.integers(0, 3000).map(lambda n: asked("x" * n)),
        st.integers(0, 3000).map(lambda n: said("x" * n)),
        st.integers(1, 9).map(called),
        st.tuples(st.integers(1, 9), st.integers(0, 9000)).map(lambda each: result(each[0], "x" * each[1])),
        st.integers(0, 9000).map(lambda n: server_called(1, status="completed", output="x" * n)),
    ),
    max_size=8,
)


@STEADY
@given(_items, st.integers(0, 9000))
def test_no_call_and_no_result_is_lost(items: list[InputItem], budget: int) -> None:
    found = at_once(short_result_steps(items, budget, item_size))
    assert [(type(view.item), view.call_id, view.is_open, view.is_answer) for view in calls_in(found)] == [
        (type(view.item), view.call_id, view.is_open, view.is_answer) for view in calls_in(items)
    ]
    spoken = sum(item_size(item) for item in items if not isinstance(item, FunctionCallOutput | McpCall))
    assert sum(map(item_size, found)) <= max(budget, spoken) + 400 * len(items)
