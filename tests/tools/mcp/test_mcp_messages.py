"""What answers of servers mean, lists of tools, and pauses: the pure parts of sessions."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.conversion import MAX_LIST_BYTES, MAX_PAGES, MAX_TOOLS, ToolList, read_list, read_tool
from antwort.tools.mcp.messages import JsonRpcError, call_result, decode_message, error_result, progress_of, result_of
from antwort.tools.mcp.throttle import Cooldown

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["content", "isError", "tools", "name", "inputSchema", "error", "code", "nextCursor", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_whatever_a_server_answers_is_an_outcome_or_a_server_that_cannot_be_used(value: Any) -> None:
    try:
        outcome = call_result(value)
    except ServerUnavailable:
        return
    assert all(isinstance(part, dict) for part in outcome.content)
    assert isinstance(outcome.is_error, bool)


@given(st.dictionaries(st.sampled_from(["result", "error", "id"]), anything))
def test_whatever_a_message_says_is_a_result_a_refusal_or_none(message: dict[str, Any]) -> None:
    with suppress(ServerUnavailable, JsonRpcError):
        assert result_of(message) == message.get("result")


def test_a_refusal_is_the_tools_own_failure_in_the_servers_words() -> None:
    with pytest.raises(JsonRpcError) as refused:
        result_of({"error": {"code": -32602, "message": "no such tool"}})
    assert error_result(refused.value).content == ({"type": "text", "text": "no such tool"},)
    assert error_result(JsonRpcError(0, "")).content[0]["text"] == "The MCP server refused the call."


@given(st.binary(max_size=40) | anything.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_message_or_a_server_that_cannot_be_used(data: bytes) -> None:
    with suppress(ServerUnavailable):
        assert isinstance(asyncio.run(decode_message(data)), dict)


@given(anything)
def test_whatever_is_told_as_progress_is_understood_or_passed_over(params: Any) -> None:
    said = progress_of(params)
    assert said is None or isinstance(said[1].done, float)


def test_progress_that_no_number_can_hold_is_passed_over() -> None:
    assert progress_of({"progressToken": "a", "progress": 10**400}) is None
    said = progress_of({"progressToken": "a", "progress": 1, "total": 10**400})
    assert said is not None
    assert (said[1].done, said[1].total) == (1.0, None)


def collected(
    pages: Iterable[object], most: int = MAX_LIST_BYTES, forbidden: object = None, asked: list[object] | None = None
) -> ToolList:
    """The list of a server that answers with these pages."""
    answers = iter(pages)

    async def ask(cursor: str | None) -> object:
        if asked is not None:
            asked.append(cursor)
        return next(answers)

    return asyncio.run(read_list(ask, lambda schema: schema != forbidden, most))


@pytest.mark.parametrize(
    "pages",
    [
        [{"tools": [{"name": "a"}, {"name": "b"}], "nextCursor": "2"}, {"tools": [{"name": "c"}]}],
        [{"tools": [{"name": name}], "nextCursor": name} for name in "ab"]
        + [{"tools": [{"name": "c"}], "nextCursor": ""}],
    ],
)
def test_pages_make_one_list(pages: list[dict[str, Any]]) -> None:
    asked: list[object] = []
    assert [tool.name for tool in collected(pages, asked=asked).tools] == ["a", "b", "c"]
    assert asked == [None, *(page["nextCursor"] for page in pages[:-1])]


@given(
    st.lists(
        st.fixed_dictionaries({"tools": st.lists(anything, max_size=3)}, optional={"nextCursor": scalars}), max_size=3
    )
)
def test_pages_of_whatever_kind_hold_tools_of_different_names_only(pages: list[dict[str, Any]]) -> None:
    found = collected([*pages, {"tools": []}, {"tools": []}, {"tools": []}])
    assert len({tool.name for tool in found.tools}) == len(found.tools)


@pytest.mark.parametrize(
    ("per_page", "most_bytes", "tools"),
    [(1, MAX_LIST_BYTES, MAX_PAGES), (100, MAX_LIST_BYTES, MAX_TOOLS), (1, 50, 2)],
    ids=["too many pages", "too many tools", "too many bytes"],
)
def test_a_list_without_end_ends(per_page: int, most_bytes: int, tools: int) -> None:
    pages = (endless_page(number, per_page) for number in itertools.count())
    assert len(collected(pages, most_bytes).tools) == tools


def endless_page(number: int, size: int) -> dict[str, Any]:
    return {"tools": [{"name": f"tool_{number}_{at}"} for at in range(size)], "nextCursor": str(number)}


def test_a_page_with_more_tools_than_are_taken_is_cut() -> None:
    page = {"tools": [{"name": f"tool_{i}"} for i in range(MAX_TOOLS + 1)]}
    assert len(collected([page]).tools) == MAX_TOOLS


def test_what_is_left_out_is_told_once_for_the_whole_list() -> None:
    pages = ({"tools": [{"name": f"tool_{at}"}, {"nope": 1}], "nextCursor": str(at)} for at in itertools.count())
    assert collected(pages).left_out == f"{MAX_PAGES} in it are no tools and it is too long"
    assert collected([{"tools": [{"name": "a"}]}]).left_out == ""


def test_a_tool_that_the_protocol_forbids_is_left_out() -> None:
    page = {"tools": [{"name": "a", "inputSchema": {"type": "odd"}}, {"name": "b"}]}
    found = collected([page], forbidden={"type": "odd"})
    assert [tool.name for tool in found.tools] == ["b"]


def test_what_a_server_says_of_a_tool_is_kept() -> None:
    tool = read_tool(
        {
            "name": "a",
            "title": "A",
            "description": "d",
            "inputSchema": {"type": "object"},
            "outputSchema": {"type": "array"},
            "annotations": {"readOnlyHint": True},
        }
    )
    assert tool is not None
    assert (tool.title, tool.description) == ("A", "d")
    assert (tool.input_schema, tool.output_schema) == ({"type": "object"}, {"type": "array"})
    assert tool.annotations == {"readOnlyHint": True}


def test_the_first_failure_has_no_pause_and_the_next_ones_grow_up_to_half_a_minute() -> None:
    pauses = Cooldown()
    lengths = []
    for _ in range(12):
        pauses.failed(100.0)
        lengths.append(pauses.left(100.0))
    assert lengths[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert lengths[-1] == 30.0
    assert pauses.left(129.0) == 1.0
    assert pauses.left(200.0) == 0.0
    pauses.succeeded()
    assert pauses.left(100.0) == 0.0
    pauses.failed(100.0)
    assert pauses.left(100.0) == 0.0


@pytest.mark.parametrize("first", [True, False])
def test_a_tool_that_is_listed_twice_with_other_hints_has_none(first: bool) -> None:
    tools = [{"name": "wipe", "annotations": {"readOnlyHint": hint}} for hint in (first, not first)]
    found = collected([{"tools": tools[:1], "nextCursor": "more"}, {"tools": tools[1:]}])
    assert [(tool.name, tool.annotations) for tool in found.tools] == [("wipe", None)]
