"""The tools that a server lists, as a model may be offered them."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from antwort.api.tools import McpTool
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.mcp.base import ServerTool, ServerTools
from antwort.tools.mcp.conversion import define, instructions_of, read_tool, usual_approval
from antwort.tools.mcp.servers import ApprovalRule, McpPolicy, McpServer, McpToolPolicy

DOCS = McpTool(server_label="docs")
URL = "https://docs.example.com/mcp"


def listed(*tools: ServerTool) -> ServerTools:
    return ServerTools(tools=tools)


def one(tool: ServerTool, *servers: McpServer, **fields: Any) -> ToolDefinition:
    (definition,) = define(listed(tool), DOCS, *servers, **fields)
    return definition


def hinted(**hints: Any) -> ServerTool:
    return ServerTool(name="find", annotations=hints)


def test_a_tool_is_defined_as_its_server_lists_it() -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    found = one(ServerTool(name="find", description="Finds.", input_schema=schema))
    assert found == ToolDefinition(
        name="find", kind=ToolKind.MCP, description="Finds.", parameters=schema, server_label="docs", declared=DOCS
    )


def test_a_tool_without_a_schema_takes_an_object() -> None:
    for tool in ({"name": "find"}, {"name": "find", "inputSchema": {}}):
        assert (found := read_tool(tool)) is not None
        assert one(found).parameters == {"type": "object", "properties": {}}
    odd: object
    for odd in (None, [], True):
        assert read_tool({"name": "find", "inputSchema": odd}) is None


@pytest.mark.parametrize(
    ("tool", "about"),
    [
        (ServerTool(name="find", title="Find a page"), "Find a page"),
        (ServerTool(name="find", title="Find a page", description=" "), "Find a page"),
        (ServerTool(name="find", annotations={"title": "Find it"}), "Find it"),
        (ServerTool(name="find", title="find"), None),
        (ServerTool(name="find"), None),
    ],
)
def test_a_title_stands_in_for_a_description(tool: ServerTool, about: str | None) -> None:
    assert one(tool).description == about


def test_hints_say_what_a_call_does_and_show_as_they_came() -> None:
    found = one(hinted(readOnlyHint=True, openWorldHint=False, title=None))
    assert (found.read_only, found.idempotent) == (True, True)
    assert found.annotations == {"readOnlyHint": True, "openWorldHint": False}
    assert one(hinted(idempotentHint=True)).idempotent
    assert not one(hinted(readOnlyHint="yes", idempotentHint=1)).idempotent
    assert one(hinted(title=None)).annotations is None


def test_the_operator_knows_better_than_the_hints() -> None:
    server = McpServer(
        "docs", url=URL, tools={"find": McpToolPolicy(read_only=False, idempotent=False, parallel=False)}
    )
    found = one(hinted(readOnlyHint=True, idempotentHint=True), server)
    assert (found.read_only, found.idempotent, found.is_serial) == (False, False, True)


@pytest.mark.parametrize("name", ["", "  ", "x" * 257, "a\nb", "a\x1b[2J"])
def test_a_tool_without_a_usable_name_is_left_out(name: str) -> None:
    assert read_tool({"name": name}) is None


def test_only_what_the_operator_allows_is_offered() -> None:
    server = McpServer("docs", url=URL, allowed_tools=("find", "gone"))
    tools = listed(ServerTool(name="drop"), ServerTool(name="find"))
    assert [tool.name for tool in define(tools, DOCS, server)] == ["find"]


@pytest.mark.parametrize(
    ("demand", "read_only", "needs"),
    [
        ("never", False, False),
        ("writes", True, False),
        ("writes", False, True),
        ("always", True, True),
    ],
)
def test_the_operator_demands_approval(demand: ApprovalRule, read_only: bool, needs: bool) -> None:
    server = McpServer("docs", url=URL, require_approval=demand)
    assert one(hinted(readOnlyHint=read_only), server).needs_approval is needs


def test_a_tool_may_need_approval_otherwise_than_its_server() -> None:
    lax = McpServer("docs", url=URL, require_approval="always", tools={"find": McpToolPolicy(require_approval=False)})
    strict = McpServer("docs", url=URL, require_approval="never", tools={"find": McpToolPolicy(require_approval=True)})
    assert [one(hinted(), server).needs_approval for server in (lax, strict)] == [False, True]


@pytest.mark.parametrize(
    ("usual", "force", "needs"), [("always", False, None), ("always", True, True), ("never", False, False)]
)
def test_a_strangers_tools_need_what_the_policy_says(
    usual: Literal["always", "never"], force: bool, needs: bool | None
) -> None:
    policy = McpPolicy(require_approval=usual, force_approval=force)
    assert one(hinted(readOnlyHint=True), needs_approval=usual_approval(policy)).needs_approval is needs


@pytest.mark.parametrize("usual", [False, None, True])
def test_the_operators_demand_holds_beside_what_the_policy_says(usual: bool | None) -> None:
    strict = McpServer("docs", url=URL, require_approval="always")
    lax = McpServer("docs", url=URL, tools={"find": McpToolPolicy(require_approval=False)})
    assert one(hinted(), strict, lax, needs_approval=usual).needs_approval is True
    assert one(hinted(), lax, needs_approval=usual).needs_approval is usual


def test_the_model_is_told_in_the_words_of_the_request_the_operator_or_the_server() -> None:
    own = ServerTools(instructions="Search first.")
    plain = McpServer("docs", url=URL)
    described = McpServer("docs", url=URL, description="Our handbook.")
    told = McpTool(server_label="docs", server_description="The manual.")
    assert instructions_of(own, DOCS, plain) == "Search first."
    assert instructions_of(own, DOCS, described) == "Our handbook."
    assert instructions_of(own, told, described) == "The manual."
    assert instructions_of(own, DOCS, None) == "Search first."
    assert instructions_of(ServerTools(), DOCS, plain) is None
    assert len(instructions_of(ServerTools(instructions="x" * 10**6), DOCS, None) or "") < 20_000
