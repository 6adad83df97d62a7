"""Tools that items declare, callers of tools, and what a server's call comes to, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, SERVER, WEATHER, replies
from serving import HELLO, RESPONSES, Serving, serving

USER = {"role": "user", "content": "Hello"}
ITEM: dict[str, Any] = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
PROGRAM = {**CLOCK, "allowed_callers": ["programmatic"]}


async def fails(_call: ToolCall, _context: ToolContext) -> str:
    raise RuntimeError("no")


RUN_HERE = answer(call("lookup"), call("fails"))
ASKED_FOR = answer(call("weather", city="Oslo"))
SAID = answer(say("Hm."))


@asynccontextmanager
async def playing(*answers: Answer) -> AsyncIterator[tuple[Serving, ScriptedProvider]]:
    depot, provider = ToolServerFake("depot", lookup=replies("found"), fails=fails), ScriptedProvider(*answers)
    async with serving(Engine(provider, executors=[depot], store=MemoryStore())) as running:
        yield running, provider


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with playing() as (running, _):
        yield running


async def created(server: Serving, **fields: Any) -> dict[str, Any]:
    """The response as it ended; of a stream, by its last event."""
    reply = await server.ask("POST", RESPONSES, {**HELLO, **fields})
    assert reply.status == 200, reply.body
    if not fields.get("stream"):
        return reply.json()  # type: ignore[no-any-return]
    return events(reply.body)[-1]["response"]  # type: ignore[no-any-return]


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.proves("RULING-20")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_tools_that_an_item_declares_are_called_also_by_those_that_continue(is_streamed: bool) -> None:
    async with playing(RUN_HERE, ASKED_FOR, ASKED_FOR) as (server, provider):
        first = await created(server, input=[ITEM, USER], tools=[SERVER], stream=is_streamed)
        assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_call", "mcp_call", "function_call"]
        assert [tool["type"] for tool in first["tools"]] == ["mcp"]
        made = first["output"][-1]
        listed = (await server.ask("GET", f"{RESPONSES}/{first['id']}/input_items?order=asc")).json()["data"]
        assert [item["type"] for item in listed] == ["additional_tools", "message"]
        assert listed[0]["tools"] == ITEM["tools"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "fair"}
        chosen = {"previous_response_id": first["id"], "tool_choice": {"type": "function", "name": "weather"}}
        second = await created(server, input=[result], stream=is_streamed, **chosen)
        assert [item["name"] for item in (made, *second["output"])] == ["weather", "weather"]
        assert offered(provider) == ["weather"]


def offered(provider: ScriptedProvider) -> list[str]:
    tools = provider.requests[-1].tools
    assert isinstance(tools, list)
    return [tool.function.name for tool in tools]


@pytest.mark.proves("RULING-20")
async def test_an_item_that_cannot_declare_tools_is_refused_with_its_place(server: Serving) -> None:
    for given, param in [
        ({**ITEM, "role": "user"}, "input[1].role"),
        ({**ITEM, "tools": None}, "input[1].tools"),
        ({**ITEM, "tools": [WEATHER, {**CLOCK, "name": ""}]}, "input[1].tools[1].name"),
        ({**ITEM, "tools": [{**CLOCK, "name": f"f{n}"} for n in range(129)]}, "input[1].tools"),
        ({**ITEM, "tools": [PROGRAM]}, "input[1].tools[0].allowed_callers"),
    ]:
        reply = await server.ask("POST", RESPONSES, {**HELLO, "input": [USER, given]})
        assert (reply.status, reply.error["param"]) == (400, param)
    conversation = {"items": [{**ITEM, "role": "user"}]}
    assert (await server.ask("POST", "/v1/conversations", conversation)).error["param"] == "items[0].role"


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        (PROGRAM, "tools[0]"),
        ({**CLOCK, "allowed_callers": []}, "tools[0]"),
        ({"type": "custom", "name": "note", "allowed_callers": ["programmatic"]}, "tools[0]"),
        ({**SERVER, "allowed_callers": ["programmatic"]}, "tools[0]"),
        ({"type": "namespace", "name": "n", "tools": [WEATHER, PROGRAM]}, "tools[0].tools[1]"),
    ],
    ids=["function", "nobody", "free-form", "server", "namespace"],
)
async def test_a_tool_that_only_programs_may_call_is_refused(server: Serving, tool: dict[str, Any], place: str) -> None:
    reply = await server.ask("POST", RESPONSES, {**HELLO, "tools": [tool]})
    assert (reply.status, reply.error["param"]) == (400, f"{place}.allowed_callers")
    assert "allow 'direct'" in reply.error["message"]


@pytest.mark.parametrize("callers", [["direct"], ["programmatic", "direct"], None])
async def test_one_that_the_model_may_call_is_offered_and_echoed_with_its_callers(callers: list[str] | None) -> None:
    async with playing(SAID) as (server, provider):
        response = await created(server, tools=[{**CLOCK, "allowed_callers": callers}])
        assert response["tools"][0]["allowed_callers"] == callers
        assert offered(provider) == ["clock"]


async def test_a_servers_call_says_null_where_it_has_no_output_or_no_error() -> None:
    async with playing(RUN_HERE, SAID, SAID) as (server, _):
        told = events((await server.ask("POST", RESPONSES, {**HELLO, "tools": [SERVER], "stream": True})).body)
        items = [event["item"] for event in told if event.get("item", {}).get("type") == "mcp_call"]
        begun = [(item["output"], item["error"]) for item in items if item["status"] == "in_progress"]
        assert begun == [(None, None)] * 2
        response = told[-1]["response"]
        found, failed = (item for item in response["output"] if item["type"] == "mcp_call")
        assert (found["output"], found["error"], failed["output"]) == ("found", None, None)
        assert failed["error"]["type"] == "mcp_tool_execution_error"
        kept = (await server.ask("GET", f"{RESPONSES}/{response['id']}")).json()
        assert kept["output"] == response["output"]
        again = await created(server, input=[*response["output"], USER])
        listed = (await server.ask("GET", f"{RESPONSES}/{again['id']}/input_items?order=asc")).json()["data"]
        assert [item for item in listed if item["type"] == "mcp_call"] == [found, failed]
