"""Which tools fit what is looked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.ranking import Index, index_of, is_indexed
from plan_kit import STEADY
from tool_catalogue import CATALOGUE, QUERIES


def tool(name: str, description: str = "", label: str = "s", **parameters: str) -> ToolDefinition:
    properties = {key: {"type": "string", "description": about} for key, about in parameters.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return ToolDefinition(name=name, kind=ToolKind.MCP, server_label=label, description=description, parameters=schema)


def found(tools: Sequence[ToolDefinition], query: str, most: int = 5) -> list[str]:
    return [tools[at].name for at in Index(tools).best(query, most)]


# ---- quality ----


def test_of_a_hundred_tools_the_right_one_is_among_the_first_five() -> None:
    missed = [(query, wanted) for query, wanted in QUERIES if wanted not in found(CATALOGUE, query)]
    assert len(missed) <= len(QUERIES) // 20, missed


def test_mostly_it_is_the_very_first() -> None:
    firsts = sum(found(CATALOGUE, query, 1) == [wanted] for query, wanted in QUERIES)
    assert firsts >= len(QUERIES) * 0.8


# ---- words ----


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("create_issue", "issue"),
        ("create-issue", "creating issues"),
        ("createIssue", "create issue"),
        ("create.issue", "Issues: created"),
        ("HTTPRequest", "http request"),
        ("listS3Buckets", "bucket"),
        ("translate_text", "translation"),
        ("delete_entries", "entry deletion"),
        ("天気予報", "天気"),
        ("naïve_größe", "größe"),
    ],
)
def test_names_are_split_where_people_see_words(name: str, query: str) -> None:
    assert found([tool("other_thing"), tool(name)], query) == [name]


def test_descriptions_and_parameters_are_looked_into() -> None:
    tools = [tool("one", "Sends a telegram."), tool("two", city="Where it rains."), tool("three")]
    assert found(tools, "telegram") == ["one"]
    assert found(tools, "city") == ["two"]
    assert found(tools, "raining") == ["two"]
    assert found(tools, "snowing") == []


def test_a_name_counts_for_more_than_a_mention() -> None:
    assert found([tool("status", "Reads mail and other things."), tool("mail", "Sends.")], "mail") == ["mail", "status"]


def test_a_name_that_is_asked_for_comes_first() -> None:
    tools = [tool("get_user_by_name", "Get user get user get user."), tool("get_user", "Something else.")]
    assert found(tools, "get_user", 1) == ["get_user"]
    assert found(tools, " GET_USER ", 1) == ["get_user"]


def test_a_server_is_found_by_its_label() -> None:
    assert found([tool("list", label="github"), tool("list_2", label="jira")], "jira list", 1) == ["list_2"]


def test_what_has_no_word_of_the_query_is_not_found() -> None:
    assert found([tool("add"), tool("sub")], "weather") == []
    assert found([tool("add")], "the of and") == []
    assert found([], "weather") == []


def test_equals_come_by_their_names_whatever_the_order() -> None:
    tools = [tool(name, "Same words.") for name in ("b", "a", "c")]
    assert found(tools, "same words") == found(tools[::-1], "same words") == ["a", "b", "c"]


def test_what_is_said_beyond_reason_is_not_read() -> None:
    long = tool("long", "x " * 100_000 + "needle", **{f"p{n}": "pin" for n in range(1000)})
    assert found([long], "needle") == []
    assert found([long], "p999") == []
    assert found([long], "p1 pin") == ["long"]


@STEADY
@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=40), st.integers(0, 5))
def test_whatever_is_looked_for_each_tool_is_found_at_most_once(names: list[str], query: str, most: int) -> None:
    tools = [tool(name, name) for name in dict.fromkeys(names)]
    names = found(tools, query, most)
    assert len(names) == len(set(names)) <= most
    assert names == found(tools, query, most)


# ---- indexes that were made before ----


def test_the_same_tools_are_indexed_once() -> None:
    tools = [tool("once_only", "Unlike any other.")]
    assert not is_indexed(tools)
    made = index_of(tools)
    assert is_indexed(tools)
    assert index_of([*tools]) is made
    assert index_of([tool("once_only", "Unlike any other.")]) is not made  # another schema, as far as anybody can tell


def test_an_index_outlives_a_request_and_keeps_no_tools_of_it() -> None:
    made = index_of([tool("kept")])
    assert not any(isinstance(each, ToolDefinition) for kept in vars(made).values() for each in kept)


def test_of_many_indexes_the_latest_are_kept() -> None:
    first = [tool(f"first_{n}") for n in range(10_000)]
    second = [tool(f"second_{n}") for n in range(10_000)]
    made = index_of(first)
    assert index_of(first) is made
    index_of(second)
    assert not is_indexed(first)
    assert is_indexed(second)


def test_of_two_that_say_a_word_as_often_the_shorter_one_is_meant() -> None:
    long = tool("alpha", "Send an invoice, and also keep books, warehouses, holidays, parcels, vehicles and contracts.")
    assert found([long, tool("omega", "Send an invoice.")], "invoice") == ["omega", "alpha"]
