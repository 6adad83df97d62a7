"""`GET /v1/toolsets`: what requests can reach by label."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.identity import Identity
from antwort.testing import ScriptedProvider, ToolServerFake
from antwort.tools.base import ToolDefinition
from antwort.tools.toolset import Toolset
from serving import serving


async def never(*_: object) -> str:
    raise AssertionError("nobody calls it here")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_every_label_is_listed_with_its_tools_as_a_request_would_be_shown_them() -> None:
    engine = Engine(ScriptedProvider(), executors=[Toolset("calc", add), Toolset("empty")])
    async with serving(engine) as server:
        answered = (await server.ask("GET", "/v1/toolsets")).json()
    assert answered["object"] == "list"
    [calc, empty] = answered["data"]
    assert (calc["type"], calc["server_label"], calc["status"]) == ("mcp_list_tools", "calc", "completed")
    [tool] = calc["tools"]
    assert (tool["name"], tool["description"]) == ("add", "Add two numbers.")
    assert tool["input_schema"]["required"] == ["a", "b"]
    assert (empty["server_label"], empty["tools"]) == ("empty", [])


async def test_without_labels_the_list_is_empty() -> None:
    async with serving(Engine(ScriptedProvider(), executors=[ToolServerFake("unlabelled", run=never)])) as server:
        assert (await server.ask("GET", "/v1/toolsets")).json() == {"object": "list", "data": []}


class Broken(Toolset):
    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        raise OSError("the secret place is down")


async def test_a_server_that_cannot_be_asked_says_so_and_hides_why() -> None:
    async with serving(Engine(ScriptedProvider(), executors=[Broken("far")])) as server:
        [listed] = (await server.ask("GET", "/v1/toolsets")).json()["data"]
    assert listed["error"] == "The tool server 'far' could not be asked for its tools."
    assert listed["tools"] == []
