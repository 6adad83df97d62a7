"""A whole server, and what its operator has set for an MCP server: it holds for the address as for the label."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from antwort.config import Secret
from antwort.config.settings import McpServerSettings, McpToolSettings
from antwort.testing.mcp import Faults, Served, TryServer, served
from mcp_house import Call, called, house, listed, nothing_left_behind

ECHO = ("echo", {"text": "hello"})
COUNTER: Call = ("counter", {})


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


def ops(server: Served, label: str = "ops", **more: Any) -> McpServerSettings:
    return McpServerSettings(label=label, url=server.url, **more)


def mine(url: str, **more: Any) -> dict[str, Any]:
    return {"server_label": "mine", "server_url": url, "require_approval": "never", **more}


def questions(response: dict[str, Any]) -> list[str]:
    return [item["name"] for item in response["output"] if item["type"] == "mcp_approval_request"]


SPELLINGS = [
    "http://127.0.0.1:{port}/mcp",
    "HTTP://127.0.0.1:{port}/mcp",
    "http://127.0.0.1:{port}/mcp?x=1",
    "http://127.0.0.1:{port}/%6D%63p",
    "http://127.1:{port}/mcp",
    "http://0x7f.0.0.1:{port}/mcp",
    "http://localhost:{port}/mcp",
    "http://LOCALHOST.:{port}/mcp",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_request_that_names_the_operators_address_is_asked_what_the_label_is_asked(spelling: str) -> None:
    async with served() as server, house(ops(server, require_approval="always")) as ours:
        response = await ours.ask(mine(spelling.format(port=server.port)), ECHO)
        assert (response["status"], questions(response)) == ("requires_action", ["echo"])
        assert server.server.record.count("called") == 0


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_tool_that_the_operator_does_not_offer_is_not_to_be_had_by_address(spelling: str) -> None:
    async with served() as server, house(ops(server, allowed_tools=("add",))) as ours:
        response = await ours.ask(mine(spelling.format(port=server.port), allowed_tools=["echo", "add"]), ECHO)
        assert [tool["name"] for tool in listed(response)["tools"]] == ["add"]
        assert "no tool named" in called(response)[0]["error"]["content"][0]["text"]
        assert server.server.record.count("called") == 0


async def test_writes_hold_for_the_address() -> None:
    async with served() as server, house(ops(server, require_approval="writes")) as ours:
        response = await ours.ask(mine(server.url), ECHO, COUNTER)
        assert questions(response) == ["counter"]
        assert [call["name"] for call in called(response)] == ["echo"]


async def test_what_is_set_for_single_tools_holds_for_the_address() -> None:
    tools = {"counter": McpToolSettings(require_approval=True), "echo": McpToolSettings(read_only=False)}
    async with served() as server, house(ops(server, tools=tools)) as ours:
        assert questions(await ours.ask(mine(server.url), ECHO, COUNTER)) == ["counter"]
        reading = mine(server.url, require_approval={"never": {"read_only": True}})
        assert questions(await ours.ask(reading, ECHO)) == ["echo"]


async def test_a_request_can_ask_for_more_approvals_and_fewer_tools() -> None:
    tools = {"echo": McpToolSettings(require_approval=False)}
    async with served() as server, house(ops(server, tools=tools, allowed_tools=("echo", "add"))) as ours:
        asked = await ours.ask(mine(server.url, require_approval="always", allowed_tools=["echo"]), ECHO)
        assert questions(asked) == ["echo"]
        assert [tool["name"] for tool in listed(asked)["tools"]] == ["echo"]
        unsaid = {"server_label": "mine", "server_url": server.url}  # and then a stranger's calls are asked about
        assert questions(await ours.ask(unsaid, ECHO)) == ["echo"]


async def test_of_two_entries_with_one_address_the_stricter_counts() -> None:
    async with served() as server:
        one, two = ops(server, allowed_tools=("echo", "add")), ops(server, "more", require_approval="always")
        async with house(one, two) as ours:
            response = await ours.ask(mine(server.url), ECHO)
            assert questions(response) == ["echo"]
            assert [tool["name"] for tool in listed(response)["tools"]] == ["echo", "add"]
            assert called(await ours.ask("ops", ECHO))[0]["output"] == "hello"  # by its label it is one of them


async def test_the_operators_token_is_not_sent_for_a_request_that_names_the_address() -> None:
    locked = TryServer(faults=Faults(token="sesame"))
    async with served(locked) as server, house(ops(server, token=Secret("sesame"))) as ours:
        assert called(await ours.ask("ops", ECHO))[0]["output"] == "hello"
        assert "other credentials" in listed(await ours.ask(mine(server.url)))["error"]
        assert called(await ours.ask(mine(server.url, authorization="sesame"), ECHO))[0]["output"] == "hello"


async def test_other_servers_on_the_same_host_are_nobodys_but_the_requests() -> None:
    async with served() as server, served() as other, house(ops(server, require_approval="always")) as ours:
        assert called(await ours.ask(mine(other.url), ECHO))[0]["output"] == "hello"
