"""The public reference servers for Node, which `make test-clients` installs: found, called, failing, changing.

Its name keeps it out of `make test`, which must not need npm.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antwort.config.settings import McpServerSettings
from clients.codex import PROGRAMS
from mcp_house import Call, House, called, house, listed, nothing_left_behind, spoke
from mcp_kit import nobody_there

NODE, EVERYTHING = str(PROGRAMS / "node"), str(PROGRAMS / "mcp-server-everything")
WAYS = ("stdio", "sse", "streamableHttp")


@asynccontextmanager
async def listening(way: str) -> AsyncIterator[str]:
    """The address of a server that everything can be tried on."""
    port = nobody_there()
    process = await asyncio.create_subprocess_exec(
        *(NODE, EVERYTHING, way), env={**os.environ, "PORT": str(port)}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while str(port).encode() not in await process.stderr.readline():
                pass
        yield f"http://127.0.0.1:{port}/{'sse' if way == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def everything(way: str) -> AsyncIterator[House]:
    if way == "stdio":
        async with house(McpServerSettings(label="all", command=(NODE, EVERYTHING), connect=60)) as ours:
            yield ours
        return
    async with listening(way) as url, house(_at(url)) as ours:
        yield ours


def _at(url: str) -> McpServerSettings:
    return McpServerSettings(label="all", url=url, transport="sse" if url.endswith("/sse") else "http")


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


@pytest.mark.parametrize("way", WAYS)
async def test_everything_is_found_and_can_be_called(way: str) -> None:
    async with everything(way) as ours:
        calls: tuple[Call, ...] = (
            ("echo", {"message": "hello"}),
            ("get-sum", {"a": 2, "b": 40}),
            ("get-structured-content", {"location": "Chicago"}),
            ("get-resource-links", {"count": 2}),
            ("get-tiny-image", {}),
        )
        response = await ours.ask("all", *calls)
        echoed, added, structured, linked, image = called(response)
        assert echoed["output"] == "Echo: hello"
        assert "42" in added["output"]
        assert "temperature" in json.loads(structured["output"])
        assert "demo://resource" in linked["output"]
        assert "Here's the image" in str(image["output"])
        assert spoke(response)
        names = {tool["name"] for tool in listed(response)["tools"]}
        assert {name for name, _ in calls} <= names


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_with_wrong_arguments_is_an_error_that_the_model_hears(way: str) -> None:
    async with everything(way) as ours:
        response = await ours.ask("all", ("get-structured-content", {"location": "Atlantis"}))
        assert called(response)[0]["error"]
        assert spoke(response)


@pytest.mark.parametrize("way", WAYS)
async def test_tools_that_come_after_the_start_are_offered_soon(way: str) -> None:
    """This server registers some of its tools once it has met its client, and says that its list has changed."""
    async with everything(way) as ours, asyncio.timeout(60):
        while "simulate-research-query" not in ours.backend.offered if ours.backend.requests else True:
            await ours.ask("all")


async def test_files_are_read_written_and_kept_within_their_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "note.txt").write_text("Buy milk.")
    (tmp_path / "secret.txt").write_text("Tell nobody.")
    command = (NODE, str(PROGRAMS / "mcp-server-filesystem"), str(tmp_path / "inside"))
    async with house(McpServerSettings(label="files", command=command, connect=60)) as ours:
        response = await ours.ask(
            "files",
            ("read_text_file", {"path": str(tmp_path / "inside" / "note.txt")}),
            ("write_file", {"path": str(tmp_path / "inside" / "new.txt"), "content": "Bread."}),
            ("read_text_file", {"path": str(tmp_path / "secret.txt")}),
        )
        read, written, refused = called(response)
        assert read["output"] == "Buy milk."
        assert not written.get("error")
        assert (tmp_path / "inside" / "new.txt").read_text() == "Bread."
        assert refused["error"]
        assert "Tell nobody." not in str(response)
        hints = {tool["name"]: tool["annotations"] for tool in listed(response)["tools"]}
        assert hints["read_text_file"]["readOnlyHint"] is True
        assert hints["write_file"]["readOnlyHint"] is False
        assert spoke(response)
