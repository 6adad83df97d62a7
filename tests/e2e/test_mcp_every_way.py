"""A whole server with real MCP servers, whichever way they are spoken to: found, called, failing, changing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.config.settings import McpServerSettings
from antwort.testing.mcp import Faults, TryServer, served
from antwort.testing.mcp.tools import PIXEL
from mcp_house import Call, House, called, house, listed, nothing_left_behind, request, spoke
from mcp_kit import STDIO
from serving import RESPONSES

WAYS = ("newest", "handshake", "older", "json", "stateless", "sse", "stdio")


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


@asynccontextmanager
async def spoken(way: str) -> AsyncIterator[House]:
    """A server with one MCP server, `try`, that is spoken to in this way."""
    if way == "stdio":
        async with house(McpServerSettings(label="try", command=STDIO, connect=60)) as ours:
            yield ours
        return
    oldest = {"handshake": "2025-11-25", "older": "2025-03-26"}.get(way)
    server = TryServer(faults=Faults(oldest=oldest))
    async with (
        served(server, json_answers=way == "json", is_stateless=way == "stateless") as running,
        house(_settings(way, running.sse_url if way == "sse" else running.url)) as ours,
    ):
        yield ours


def _settings(way: str, url: str) -> McpServerSettings:
    return McpServerSettings(label="try", url=url, transport="sse" if way == "sse" else "http", connect=60)


CALLS: tuple[Call, ...] = (
    ("echo", {"text": "hello"}),
    ("add", {"a": 1, "b": 2}),
    ("image", {}),
    ("resource", {}),
    ("fail", {"message": "No such file."}),
    ("raise", {}),
)


@pytest.mark.parametrize("way", ["newest", "handshake", "sse"])
async def test_null_for_arguments_is_none_of_them(way: str) -> None:
    async with spoken(way) as ours:
        response = await ours.ask("try", ("counter", None), ("add", None))
    counted, added = called(response)
    assert (counted["arguments"], counted["output"], counted["error"]) == ("null", "1", None)
    assert "a" in str(added["error"]), "what is required is missed by its name"


@pytest.mark.parametrize("way", WAYS)
async def test_tools_are_found_called_and_changed(way: str) -> None:
    async with spoken(way) as ours:
        response = await ours.ask("try", *CALLS)
        _check(ours, response)
        await ours.ask("try", ("change", {"name": "new"}))
        if way == "stateless":  # nobody is there to be told
            return
        async with asyncio.timeout(30):
            while "new" not in ours.backend.offered:  # the old list serves until the new one has come
                await ours.ask("try")
        assert called(await ours.ask("try", ("new", {})))[0]["output"] == "This is new."


def _check(ours: House, response: dict[str, Any]) -> None:
    assert len(listed(response)["tools"]) == 19
    echoed, added, image, resource, failed, raised = called(response)
    assert (echoed["output"], added["output"]) == ("hello", "3")
    assert "One pixel:" in str(image["output"])
    assert "Buy milk." in resource["output"]
    assert "note://tomorrow" in resource["output"]
    assert "No such file." in str(failed["error"])
    assert raised["error"]
    assert PIXEL in str(ours.backend.requests[-1]["messages"]), "the model sees the picture"
    assert spoke(response)


@pytest.mark.parametrize("way", ["newest", "handshake", "sse"])
async def test_a_stream_tells_of_the_list_and_of_each_call(way: str) -> None:
    async with spoken(way) as ours:
        reply = await ours.server.ask("POST", RESPONSES, request("try", ("echo", {"text": "hello"}), stream=True))
        names = [line[7:] for line in reply.body.decode().splitlines() if line.startswith("event: ")]
        told = [name for name in names if "mcp" in name]
        assert told == [
            "response.mcp_list_tools.in_progress",
            "response.mcp_list_tools.completed",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.delta",
            "response.mcp_call_arguments.done",
            "response.mcp_call.completed",
        ]
