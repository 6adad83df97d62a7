"""Two of the public reference servers, over standard input and output: found, called, and failing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antwort.config.settings import McpServerSettings
from mcp_house import called, house, listed, nothing_left_behind, spoke

PAGE = (
    b"<html><head><title>A list</title></head><body><article><h1>Errands</h1><p>Buy milk.</p></article></body></html>"
)


def reference(label: str, module: str, *arguments: str) -> McpServerSettings:
    return McpServerSettings(label=label, command=(sys.executable, "-m", module, *arguments), connect=60)


@asynccontextmanager
async def page() -> AsyncIterator[str]:
    """A page on a loopback port, and nothing beside it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        status, body = (b"200 OK", PAGE) if b" /list " in line else (b"404 Not Found", b"")
        head = b"HTTP/1.1 %b\r\ncontent-type: text/html\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        writer.write(head % (status, len(body)) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_time_server_tells_and_converts_times() -> None:
    async with nothing_left_behind(), house(reference("time", "mcp_server_time")) as ours:
        noon = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Kolkata"}
        response = await ours.ask("time", ("convert_time", noon), ("get_current_time", {"timezone": "Nowhere/Land"}))
        assert {tool["name"] for tool in listed(response)["tools"]} == {"get_current_time", "convert_time"}
        assert all(tool["annotations"]["readOnlyHint"] for tool in listed(response)["tools"])
        converted, failed = called(response)
        assert json.loads(converted["output"])["target"]["timezone"] == "Asia/Kolkata"
        assert "Nowhere/Land" in str(failed["error"])
        assert spoke(response)


async def test_the_fetch_server_brings_a_page_and_says_what_it_could_not() -> None:
    settings = reference("fetch", "mcp_server_fetch", "--allow-private-ips", "--ignore-robots-txt")
    async with nothing_left_behind(), page() as url, house(settings) as ours:
        response = await ours.ask("fetch", ("fetch", {"url": f"{url}/list"}), ("fetch", {"url": f"{url}/none"}))
        brought, missing = called(response)
        assert "Buy milk." in brought["output"]
        assert "404" in str(missing["error"])
        assert "Buy milk." in ours.backend.results[0]
        assert spoke(response)
