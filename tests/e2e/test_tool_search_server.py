"""A whole server in front of an MCP server with more tools than a model can be told of."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from antwort.config.settings import McpServerSettings
from antwort.testing.mcp import TryServer, served
from mcp_house import House, called, house, listed, spoke

SEARCH = ("tool_search", {"query": "tool_123", "limit": 1})


@asynccontextmanager
async def many(number: int = 200) -> AsyncIterator[House]:
    async with (
        served(TryServer(many=number)) as server,
        house(McpServerSettings(label="try", url=server.url, description="Odds and ends.")) as ours,
    ):
        yield ours


async def test_a_tool_is_found_among_two_thousand_and_called_in_the_next_response() -> None:
    async with many(2000) as ours:
        first = await ours.ask("try", SEARCH)
        (search,) = called(first)
        assert (search["server_label"], search["name"], search["status"]) == ("antwort", "tool_search", "completed")
        assert [tool["name"] for tool in json.loads(search["output"])["tools"]] == ["tool_123"]
        assert len(listed(first)["tools"]) > 2000
        assert ours.backend.offered == ["tool_search", "tool_123"]
        second = await ours.ask("try", ("tool_123", {}), previous_response_id=first["id"])
        assert called(second)[0]["output"] == "This is tool_123."
        assert ours.backend.offered == ["tool_search", "tool_123"]
        assert spoke(second)


async def test_what_was_found_stays_in_a_conversation() -> None:
    async with many() as ours:
        conversation = (await ours.server.ask("POST", "/v1/conversations", {})).json()["id"]
        await ours.ask("try", SEARCH, conversation=conversation)
        await ours.ask("try", conversation=conversation)
        assert ours.backend.offered == ["tool_search", "tool_123"]


async def test_the_model_is_told_what_the_server_is_for() -> None:
    async with many() as ours:
        await ours.ask("try")
        (search,) = ours.backend.requests[-1]["tools"]
        assert "- try: Odds and ends. (2" in search["function"]["description"]


async def test_the_official_client_streams_a_search() -> None:
    async with many() as ours:
        client = AsyncOpenAI(base_url=ours.server.url, api_key="none")
        asked: Any = {"tools": [{"type": "mcp", "server_label": "try", "defer_loading": True}, {"type": "tool_search"}]}
        async with client, client.responses.stream(model="test-model", input=json.dumps([SEARCH]), **asked) as stream:
            async for _ in stream:
                pass
            response = await stream.get_final_response()
        assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
        assert [tool.type for tool in response.tools] == ["mcp", "tool_search"]
