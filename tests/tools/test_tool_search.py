"""The house's own function to look for tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.search import FOUND_AT_ONCE, MOST_FOUND, ToolSearch, found_in
from tool_catalogue import CATALOGUE


async def searched(search: ToolSearch, arguments: str) -> ToolResult:
    call = ToolCall(id="call_1", name=search.definition.name, arguments=arguments, definition=search.definition)
    return await search.execute(call, ToolContext(response_id="r", idempotency_key="k", cancelled=asyncio.Event()))


async def found(search: ToolSearch, **asked: Any) -> list[str]:
    result = await searched(search, json.dumps(asked))
    assert isinstance(result.output, str)
    assert not result.is_error
    return [*found_in(result.output)]


def of_catalogue() -> ToolSearch:
    return ToolSearch("tool_search", CATALOGUE)


async def test_a_search_tells_the_tools_by_the_names_to_call_them_by() -> None:
    tool = ToolDefinition(
        name="depot__stock", kind=ToolKind.MCP, server_label="depot", server_tool="stock", description="What is\n left."
    )
    result = await searched(ToolSearch("tool_search", [tool]), '{"query": "stock"}')
    told = {"tools": [{"name": "depot__stock", "server": "depot", "description": "What is left."}]}
    assert json.loads(str(result.output)) == told


async def test_a_search_finds_as_many_as_it_is_asked_for_within_reason() -> None:
    assert len(await found(of_catalogue(), query="get list search create")) == FOUND_AT_ONCE
    assert len(await found(of_catalogue(), query="get list search create", limit=2)) == 2
    assert len(await found(of_catalogue(), query="get list search create", limit=10_000)) == MOST_FOUND == 20
    assert len(await found(of_catalogue(), query="get list search create", limit=-1)) == 1
    assert len(await found(of_catalogue(), query="get list search create", limit=None)) == FOUND_AT_ONCE


async def test_a_number_may_be_written_as_text() -> None:
    assert len(await found(of_catalogue(), query="get list search create", limit="3")) == 3
    assert len(await found(of_catalogue(), query="get list search create", limit="1e999")) == MOST_FOUND


@pytest.mark.parametrize("limit", ["three", "nan", "", True])
async def test_what_is_no_number_is_named(limit: object) -> None:
    result = await searched(of_catalogue(), json.dumps({"query": "issue", "limit": limit}))
    assert result.is_error
    assert result.output == "'limit' must be a number from 1 to 20, or be left out."


async def test_a_search_that_finds_nothing_says_so() -> None:
    result = await searched(of_catalogue(), '{"query": "zebra"}')
    assert json.loads(str(result.output)) == {
        "tools": [],
        "hint": "No tool fits. Try other words, or answer without one.",
    }
    assert not result.is_error


@pytest.mark.parametrize("arguments", ["", "{}", "[]", '{"query": 1}', '{"query": " "}', '{"query":', "[" * 100_000])
async def test_a_search_for_nothing_is_an_error_for_the_model(arguments: str) -> None:
    result = await searched(of_catalogue(), arguments)
    assert result.is_error
    assert "'query'" in str(result.output)


async def test_a_long_catalogue_is_searched_all_the_same() -> None:
    tools = [ToolDefinition(name=f"tool_{n}", kind=ToolKind.MCP, server_label="s") for n in range(500)]
    assert await found(ToolSearch("tool_search", tools), query="tool_321", limit=1) == ["tool_321"]


async def test_what_is_said_of_a_tool_is_told_in_short() -> None:
    tool = ToolDefinition(name="add", kind=ToolKind.MCP, server_label="s", description="word " * 5000)
    assert len(str((await searched(ToolSearch("tool_search", [tool]), '{"query": "add"}')).output)) < 300


@pytest.mark.parametrize(
    "text", ["", "stock", "[]", '{"tools": "x"}', '{"tools": [1]}', '{"tools": [{}]}', "[" * 10**5]
)
def test_what_is_no_result_of_a_search_finds_nothing(text: str) -> None:
    assert [*found_in(text)] == []


def test_no_result_finds_more_than_a_search_can() -> None:
    text = json.dumps({"tools": [{"name": f"t{n}"} for n in range(1000)]})
    assert len([*found_in(text)]) == MOST_FOUND


def test_only_its_own_function_is_run() -> None:
    search = of_catalogue()
    assert search.can_execute(search.definition)
    assert not search.can_execute(ToolDefinition(name="tool_search", kind=ToolKind.FUNCTION))
    assert not search.can_execute(ToolDefinition(name="tool_search", kind=ToolKind.MCP, server_label="depot"))
