"""Every version of the protocol that the SDK's server speaks, by every transport, feature by feature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from antwort.testing.mcp import Faults, TryServer, served
from antwort.tools.base import Progress
from antwort.tools.mcp.base import ServerSpec, Session
from mcp_kit import STDIO
from session_kit import PATIENCE, session_with, until

TRANSPORTS = ("http", "http, in JSON", "http, without sessions", "sse", "stdio")
VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
Feature: TypeAlias = Callable[[Session, str], Awaitable[None]]


@asynccontextmanager
async def session_in(version: str, transport: str) -> AsyncGenerator[Session, None]:
    oldest = None if version in MODERN_PROTOCOL_VERSIONS else version
    if transport == "stdio":
        command = STDIO if oldest is None else (*STDIO, "--oldest", oldest)
        async with session_with(ServerSpec(label="x", transport="stdio", command=command, connect=PATIENCE)) as session:
            yield session
        return
    server = TryServer(many=600, faults=Faults(oldest=oldest))
    is_json, is_stateless = transport.endswith("JSON"), transport.endswith("sessions")
    async with served(server, json_answers=is_json, is_stateless=is_stateless) as at:
        spec = ServerSpec(label="x", url=at.url)
        if transport == "sse":
            spec = ServerSpec(label="x", url=at.sse_url, transport="sse")
        async with session_with(spec) as session:
            yield session


async def lists(session: Session, transport: str) -> None:
    listed = await session.tools()
    assert {"echo", "add", "image"} <= {tool.name for tool in listed.tools}
    assert len(listed.tools) > 600 or transport == "stdio", "page by page"
    assert listed.instructions == "These tools are for trying things out."
    assert await session.tools() is listed


async def answers(session: Session, transport: str) -> None:
    outcome = await session.call("add", '{"a": 1, "b": 2}', key="k")
    assert (outcome.structured, outcome.is_error) == ({"sum": 3}, False)


async def shows_pictures(session: Session, transport: str) -> None:
    outcome = await session.call("image", "{}", key="k")
    assert [part["type"] for part in outcome.content] == ["text", "image"]


async def fails(session: Session, transport: str) -> None:
    for name, words in (("fail", "It did not work"), ("raise", "the tool broke"), ("nothing", "Unknown tool")):
        outcome = await session.call(name, "{}", key="k")
        assert outcome.is_error
        assert words in outcome.content[0]["text"]


async def reports_progress(session: Session, transport: str) -> None:
    told: list[Progress] = []
    outcome = await session.call("progress", '{"steps": 3}', key="k", progress=told.append)
    assert not outcome.is_error
    if transport != "http, in JSON":  # there is no room for it in such an answer
        await until(lambda: len(told) == 3)


async def is_cancelled(session: Session, transport: str) -> None:
    await session.tools()
    calling = asyncio.create_task(session.call("wait", "{}", key="k"))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not (await session.call("echo", '{"text": "on we go"}', key="k")).is_error


async def runs_side_by_side(session: Session, transport: str) -> None:
    calls = [session.call("meet", '{"name": "x", "party": 5}', key=str(i)) for i in range(5)]
    assert not any(outcome.is_error for outcome in await asyncio.gather(*calls))


FEATURES: tuple[Feature, ...] = (
    lists,
    answers,
    shows_pictures,
    fails,
    reports_progress,
    is_cancelled,
    runs_side_by_side,
)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_feature_in_every_version_by_every_transport(version: str, transport: str) -> None:
    async with session_in(version, transport) as session:
        seen = (await session.call("whoami", "{}", key="k")).structured
        if transport.startswith("http"):
            assert seen["headers"]["mcp-protocol-version"] == version
        if version in MODERN_PROTOCOL_VERSIONS and transport != "sse":  # which is older than that
            assert seen["version"] == version
        for feature in FEATURES:
            await feature(session, transport)
