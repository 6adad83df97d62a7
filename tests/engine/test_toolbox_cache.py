"""Toolboxes are made anew only where they would come out otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from antwort.api.items import McpListTools
from antwort.api.tools import McpTool
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.toolbox import build_toolbox, toolbox_cache
from antwort.engine.settings import EngineSettings
from antwort.identity import ANONYMOUS, Identity
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult, Unanswered
from antwort.tools.limits import Limited, limited
from antwort.tools.routing import Toolbox
from engine_kit import ask

DOCS = {"type": "mcp", "server_label": "docs"}
STRANGER = {**DOCS, "server_url": "https://docs.example.com/mcp"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


class Docs:
    """A server whose list is what it is told to be."""

    kind = ToolKind.MCP

    def __init__(self, *names: str) -> None:
        self.tools: Sequence[ToolDefinition] = ()
        self.words: str | None = None
        self.is_down = self.is_confused = False
        self.claims = 0
        self.list(*names)

    def list(self, *names: str) -> None:
        self.tools = tuple(ToolDefinition(name=name, kind=ToolKind.MCP, server_label="docs") for name in names)

    def can_execute(self, tool: ToolDefinition) -> bool:
        self.claims += 1
        if self.is_confused:
            raise RuntimeError("not now")
        return tool.server_label == "docs"

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        raise NotImplementedError

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        if self.is_down:
            raise Unanswered("The server 'docs' is down.")
        return self.tools if declared.server_label == "docs" else None

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        return self.words


class Desk:
    """Where toolboxes are made, one after the other, with the same server."""

    def __init__(self) -> None:
        self.docs, self.boxes = Docs("find", "read"), toolbox_cache()
        self.executors: tuple[ToolExecutor, ...] = (self.docs,)
        self.settings = EngineSettings()

        self.identity = ANONYMOUS
        self._limited: dict[int, Limited] = {}  # as in an engine, the same for all requests

    async def made(self, *tools: dict[str, Any], **fields: Any) -> tuple[Toolbox, tuple[McpListTools, ...]]:
        for executor in self.executors:
            self._limited.setdefault(id(executor), limited(executor))
        shelf = Discovery(tuple(self._limited[id(each)] for each in self.executors), self.identity, self.settings)
        return await build_toolbox(ask(tools=[*tools], **fields), shelf, cache=self.boxes)


@pytest.mark.parametrize("tools", [(), (DOCS,)])
async def test_the_same_tools_are_the_same_toolbox(tools: tuple[dict[str, Any], ...]) -> None:
    desk = Desk()
    first, second = await desk.made(*tools), await desk.made(*tools)
    assert first[0] is second[0]
    assert [each.tools for each in first[1]] == [each.tools for each in second[1]]


async def test_each_response_has_a_list_of_its_own() -> None:
    desk = Desk()
    (first,), (second,) = (await desk.made(DOCS))[1], (await desk.made(DOCS))[1]
    assert first.id != second.id
    assert first.tools == second.tools


async def test_what_changes_the_tools_or_who_may_be_called_makes_another() -> None:
    desk = Desk()
    first, _ = await desk.made(DOCS)
    approved, _ = await desk.made({**DOCS, "require_approval": "always"})
    assert [tool.needs_approval for tool in first.tools.values()] == [False, False]
    assert [tool.needs_approval for tool in approved.tools.values()] == [True, True]
    fewer, (shown,) = await desk.made({**DOCS, "allowed_tools": ["find"]})
    assert list(fewer.tools) == [tool.name for tool in shown.tools] == ["find"]
    none, _ = await desk.made(DOCS, tool_choice="none")
    assert (first.may_run, none.may_run) == (True, False)


async def test_a_list_that_has_changed_is_told_at_once() -> None:
    desk = Desk()
    await desk.made(DOCS)
    desk.docs.list("write")
    toolbox, (shown,) = await desk.made(DOCS)
    assert list(toolbox.tools) == [tool.name for tool in shown.tools] == ["write"]


async def test_a_list_that_can_change_in_place_is_not_trusted() -> None:
    desk = Desk()
    desk.docs.tools = growing = list(desk.docs.tools)
    await desk.made(DOCS)
    growing.pop()
    assert list((await desk.made(DOCS))[0].tools) == ["find"]


async def test_other_instructions_make_another() -> None:
    desk = Desk()
    await desk.made(DOCS)
    desk.docs.words = "Find first."
    assert (await desk.made(DOCS))[0].instructions == ("Find first.",)


async def test_a_server_that_is_down_and_back_again_is_told_so() -> None:
    desk = Desk()
    await desk.made(DOCS)
    desk.docs.is_down = True
    toolbox, (shown,) = await desk.made(DOCS)
    assert (toolbox.tools, shown.error) == ({}, "The server 'docs' is down.")
    desk.docs.is_down = False
    assert list((await desk.made(DOCS))[0].tools) == ["find", "read"]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_server_that_cannot_say_for_a_moment_whether_it_runs_a_tool_is_asked_again(is_first: bool) -> None:
    desk = Desk()
    if not is_first:
        assert (await desk.made(DOCS))[0].may_run
    desk.docs.is_confused = True
    assert not (await desk.made(DOCS))[0].may_run
    desk.docs.is_confused = False
    assert (await desk.made(DOCS))[0].may_run
    assert len(desk.boxes) == 1


class Steady(Docs):
    is_steady = True


@pytest.mark.parametrize(("kind", "claims"), [(Docs, 2), (Steady, 1)])
async def test_only_who_says_so_is_not_asked_again_whether_it_runs_a_tool(kind: type[Docs], claims: int) -> None:
    desk = Desk()
    desk.docs = kind("find")
    desk.executors = (limited(desk.docs),)
    for _ in range(2):
        await desk.made(DOCS)
    assert desk.docs.claims == claims


@pytest.mark.parametrize(
    "tool",
    [
        FUNCTION,
        {**DOCS, "authorization": "s3cret"},
        {**DOCS, "headers": {"X-Key": "s3cret"}},
        {**STRANGER, "authorization": "s3cret"},
        {**STRANGER, "headers": {"X-Key": "s3cret"}},
    ],
)
async def test_what_a_request_declares_itself_or_brings_to_log_in_is_not_remembered(tool: dict[str, Any]) -> None:
    desk = Desk()
    first, second = (await desk.made(tool))[0], (await desk.made(tool))[0]
    assert first is not second
    assert not len(desk.boxes)


# ---- strangers' tools ----


async def test_strangers_tools_are_remembered_as_long_as_their_list_is_the_same() -> None:
    desk = Desk()
    first, second = (await desk.made(STRANGER))[0], (await desk.made(STRANGER))[0]
    assert first is second
    desk.docs.list("write")
    assert list((await desk.made(STRANGER))[0].tools) == ["write"]
    elsewhere = {**STRANGER, "server_url": "https://docs.example.org/mcp"}
    assert (await desk.made(elsewhere))[0] is not (await desk.made(STRANGER))[0]


@pytest.mark.parametrize("other", [Identity("another"), Identity(owner="another")])
async def test_nobody_is_given_what_was_made_of_strangers_tools_for_somebody_else(other: Identity) -> None:
    desk = Desk()
    first, _ = await desk.made(STRANGER)
    desk.identity = other
    assert (await desk.made(STRANGER))[0] is not first
    desk.identity = ANONYMOUS
    assert (await desk.made(STRANGER))[0] is first


async def test_many_tools_of_strangers_are_not_remembered() -> None:
    desk = Desk()
    desk.docs.list(*[f"tool_{number:0100}" for number in range(2000)])
    await desk.made(STRANGER)
    assert not len(desk.boxes)


@pytest.mark.parametrize("tool", [DOCS, STRANGER])
async def test_what_a_request_says_at_length_is_not_remembered(tool: dict[str, Any]) -> None:
    desk = Desk()
    names = [f"tool_{number:03000}" for number in range(128)]
    await desk.made({**tool, "allowed_tools": names})
    await desk.made({**tool, "require_approval": {"never": {"tool_names": names}}})
    await desk.made(tool, allowed_tools=[{"type": "mcp", "server_label": "docs", "name": name} for name in names])
    assert not len(desk.boxes)


async def test_a_strangers_tool_that_cannot_be_written_is_in_nobodys_way() -> None:
    desk = Desk()
    odd = ToolDefinition(name="odd", kind=ToolKind.MCP, server_label="docs", parameters={"default": object()})
    desk.docs.tools = (*desk.docs.tools, odd)
    toolbox, _ = await desk.made({**STRANGER, "allowed_tools": ["find"]})
    assert list(toolbox.tools) == ["find"]


async def test_strangers_tools_push_out_none_of_the_operators() -> None:
    desk = Desk()
    first, _ = await desk.made(DOCS)
    for number in range(20):
        await desk.made({**STRANGER, "server_url": f"https://docs.example.com/{number}"})
    assert (await desk.made(DOCS))[0] is first


class Many(Docs):
    """A server that has something else for each client, by the same label."""

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        return self.lists[identity.owner]

    lists: dict[str, tuple[ToolDefinition, ...]]


async def test_each_client_has_the_tools_that_the_server_has_for_it() -> None:
    desk = Desk()
    many = desk.docs = Many()
    many.lists = {name: (ToolDefinition(name=name, kind=ToolKind.MCP, server_label="docs"),) for name in ("one", "two")}
    desk.executors = (many,)
    for owner in ("one", "two", "one", "two"):
        desk.identity = Identity(owner=owner)
        toolbox, (shown,) = await desk.made(DOCS)
        assert list(toolbox.tools) == [tool.name for tool in shown.tools] == [owner]
    assert len(desk.boxes) == 2


class Somewhere(Docs):
    """A server that the operator has put into the requests for one model."""

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return [McpTool(server_label="docs")] if identity.owner == "one" else []


async def test_servers_that_join_the_request_of_one_client_do_not_join_that_of_another() -> None:
    desk = Desk()
    desk.docs = Somewhere("find")
    desk.executors = (desk.docs,)
    for owner, names in (("one", ["find"]), ("two", []), ("one", ["find"])):
        desk.identity = Identity(owner=owner)
        assert list((await desk.made())[0].tools) == names


class WithKey(Docs):
    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return [McpTool(server_label="docs", headers={"X-Key": "s3cret"})]


async def test_what_a_server_that_joins_brings_to_log_in_is_not_remembered() -> None:
    desk = Desk()
    desk.docs = WithKey("find")
    desk.executors = (desk.docs,)
    assert list((await desk.made())[0].tools) == ["find"]
    assert not len(desk.boxes)


async def test_only_the_last_few_are_remembered() -> None:
    desk = Desk()
    for number in range(100):
        await desk.made({**DOCS, "allowed_tools": [f"tool_{number}"]})
    assert len(desk.boxes) == 64
