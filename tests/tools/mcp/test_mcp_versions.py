"""Every version of the protocol that the SDK's server speaks, by every transport, feature by feature.

What holds is recorded in docs/reference/mcp-versions.md. `make reference` renews that page.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from antwort.tools.base import Progress
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from mcp_versions_peer import NO_CHANNEL, TRANSPORTS, Restart, peer
from session_kit import KitPool, pooled, until

VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mcp-versions.md"
TABLE = re.compile(r"(?<=<!-- made by tests/tools/mcp/test_mcp_versions.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
IS_WRITING = os.environ.get("MCP_VERSIONS") == "write"
ROWS: list[str] = []
"""Those that are to be written."""
YES, ABSENT = "yes", "-"
SECONDS = 90.0


class Case:
    """A session with the server in one version, by one transport."""

    def __init__(self, version: str, transport: str, pool: KitPool, spec: ServerSpec, restart: Restart | None):
        self.transport, self.session, self.restart = transport, pool.get(spec), restart
        self.is_modern = version in MODERN_PROTOCOL_VERSIONS and has_transport(version, transport)

    async def text(self, name: str, arguments: str = "{}") -> str:
        outcome = await self.session.call(name, arguments, key="k")
        return str(outcome.content[0]["text"])


def has_transport(version: str, transport: str) -> bool:
    """Return False for a transport that the version no longer has: an older version is agreed on."""
    return version not in MODERN_PROTOCOL_VERSIONS or transport != "sse"


Feature: TypeAlias = Callable[[Case], Awaitable[str]]
"""Returns whether the version has it, by that transport. Raises where it has, and it does not work."""


async def list_by_page(case: Case) -> str:
    listed = await case.session.tools()
    assert {"echo", "add", "image"} <= {tool.name for tool in listed.tools}
    assert len(listed.tools) > 600, "page by page"
    assert listed.instructions == "These tools are for trying things out."
    assert await case.session.tools() is listed
    return YES


async def structured_result(case: Case) -> str:
    outcome = await case.session.call("add", '{"a": 1, "b": 2}', key="k")
    assert (outcome.structured, outcome.is_error) == ({"sum": 3}, False)
    return YES


async def picture(case: Case) -> str:
    outcome = await case.session.call("image", "{}", key="k")
    assert [part["type"] for part in outcome.content] == ["text", "image"]
    return YES


async def resource(case: Case) -> str:
    outcome = await case.session.call("resource", "{}", key="k")
    assert [part["type"] for part in outcome.content] == ["resource", "resource_link"]
    assert outcome.content[0]["resource"]["text"] == "Buy milk."
    return YES


async def failure(case: Case) -> str:
    for name, words in (("fail", "It did not work"), ("raise", "the tool broke"), ("nothing", "Unknown tool")):
        outcome = await case.session.call(name, "{}", key="k")
        assert outcome.is_error
        assert words in outcome.content[0]["text"]
    return YES


async def progress(case: Case) -> str:
    told: list[Progress] = []
    outcome = await case.session.call("progress", '{"steps": 3}', key="k", progress=told.append)
    assert not outcome.is_error
    if case.transport == "http, in JSON" and not told:  # such an answer has no room for it
        return ABSENT
    await until(lambda: len(told) == 3)
    return YES


async def cancellation(case: Case) -> str:
    calling = asyncio.create_task(case.session.call("wait", "{}", key="k"))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await case.text("echo", '{"text": "on we go"}') == "on we go"
    return YES


async def parallel_calls(case: Case) -> str:
    calls = [case.session.call("meet", '{"name": "x", "party": 5}', key=str(i)) for i in range(5)]
    assert not any(outcome.is_error for outcome in await asyncio.gather(*calls))
    return YES


async def request_declined(case: Case) -> str:
    if case.is_modern:
        with pytest.raises(ServerUnavailable, match="asked for input"):
            await case.session.call("ask", "{}", key="k")
        return YES
    answer = await case.text("ask")
    if answer == NO_CHANNEL:
        return ABSENT
    assert answer == "Not supported by this client."
    return YES


async def change_notice(case: Case) -> str:
    assert await case.text("change", '{"name": "fresh"}') == "There is a tool fresh now."
    if case.transport == "http, without sessions" and not case.is_modern:  # no stream to hear it by
        assert "fresh" in {tool.name for tool in (await case.session.refresh()).tools}
        return ABSENT
    async with asyncio.timeout(10.0):
        while "fresh" not in {tool.name for tool in (await case.session.tools()).tools}:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    return YES


async def reconnection(case: Case) -> str:
    """The server restarts, and its sessions are lost."""
    if case.restart is None:
        with pytest.raises(ServerUnavailable, match="not known"):
            await case.session.call("die", "{}", key="k")
    else:
        await case.restart()
    assert await case.text("echo", '{"text": "again"}') == "again"
    return YES


FEATURES: Mapping[str, Feature] = {
    "list, by page": list_by_page,
    "structured result": structured_result,
    "picture": picture,
    "resource": resource,
    "failure in words": failure,
    "progress": progress,
    "cancellation": cancellation,
    "parallel calls": parallel_calls,
    "server's request declined": request_declined,
    "change notice": change_notice,
    "reconnection": reconnection,
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_feature_in_every_version_by_every_transport(version: str, transport: str) -> None:
    async with peer(version, transport) as (spec, restart), pooled(patience=SECONDS) as pool:
        case = Case(version, transport, pool, spec, restart)
        seen = (await case.session.call("whoami", "{}", key="k")).structured
        if transport.startswith("http"):
            assert seen["headers"]["mcp-protocol-version"] == version
        if case.is_modern:
            assert seen["version"] == version
        held = [await feature(case) for feature in FEATURES.values()]
    if not has_transport(version, transport):
        held = [ABSENT] * len(FEATURES)
    row = f"| {version} | {transport} | {' | '.join(held)} |"
    if IS_WRITING:
        ROWS.append(row)
    else:
        assert row in table().splitlines(), "renew the page with `make reference`"


def test_the_page_has_no_other_rows() -> None:
    head = [f"| version | transport | {' | '.join(FEATURES)} |", "|---" * (2 + len(FEATURES)) + "|"]
    if IS_WRITING:  # all at once, at the end: two processes that write would spoil the page
        assert len(ROWS) == len(VERSIONS) * len(TRANSPORTS), "the page is written by one process"
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(table(), "\n".join([*head, *ROWS])), encoding="utf-8")
    lines = table().splitlines()
    assert lines[:2] == head
    assert len(lines) == 2 + len(VERSIONS) * len(TRANSPORTS)
    outside = PAGE.read_text(encoding="utf-8").replace(table(), "")
    assert "|" not in outside, "there is one table"


def table() -> str:
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return found[0]
