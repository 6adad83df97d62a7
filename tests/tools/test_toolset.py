"""Functions under a label."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.testing.executors import ExecutorContract, context
from antwort.tools.base import ToolCall, ToolDefinition, ToolExecutor, ToolKind
from antwort.tools.limits import ToolLimits, limited
from antwort.tools.local import LocalTool, tool
from antwort.tools.toolset import Toolset, ToolsetInfo

DECLARED = McpTool(server_label="calc")


def echo(text: str) -> str:
    return text


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def fail() -> None:
    raise ValueError("as it should")


def calc() -> Toolset:
    return Toolset("calc", echo, wait_for_ever, fail)


def asked(name: str, arguments: str = "{}", *, model_name: str | None = None) -> ToolCall:
    definition = ToolDefinition(
        name=model_name or name, kind=ToolKind.MCP, server_label="calc", server_tool=name if model_name else None
    )
    return ToolCall(id="call_test", name=definition.name, arguments=arguments, definition=definition)


@pytest.mark.proves("FR-001", "FR-002", "FR-003")
class TestToolset(ExecutorContract):
    def executor(self) -> ToolExecutor:
        return calc()

    def runnable(self) -> ToolCall:
        return asked("echo", '{"text": "hello"}', model_name="calc__echo")

    def endless(self) -> ToolCall:
        return asked("wait_for_ever")

    def failing(self) -> ToolCall:
        return asked("fail")


def test_a_toolset_is_a_tool_server_and_stays_one_within_limits() -> None:
    assert calc().is_server
    assert limited(calc()).is_server


async def test_it_answers_to_its_own_label_only() -> None:
    found = await calc().discover(DECLARED, ANONYMOUS)
    assert found is not None
    assert [(each.name, each.kind, each.server_label) for each in found] == [
        ("echo", ToolKind.MCP, "calc"),
        ("wait_for_ever", ToolKind.MCP, "calc"),
        ("fail", ToolKind.MCP, "calc"),
    ]
    assert await calc().discover(McpTool(server_label="other"), ANONYMOUS) is None


@pytest.mark.parametrize("field", ["server_url", "connector_id"])
async def test_an_address_beside_the_label_is_refused_and_never_fetched(field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await calc().discover(replace(DECLARED, **{field: "https://example.com"}), ANONYMOUS)
    assert caught.value.param == field


async def test_a_client_that_must_name_an_address_can_name_the_label_again() -> None:
    assert await calc().discover(replace(DECLARED, connector_id="calc"), ANONYMOUS)


@pytest.mark.proves("MISTAKE-26")
@pytest.mark.parametrize(
    "definition",
    [
        ToolDefinition(name="echo", kind=ToolKind.FUNCTION),
        ToolDefinition(name="echo", kind=ToolKind.LOCAL),
        ToolDefinition(name="echo", kind=ToolKind.MCP, server_label="other"),
        ToolDefinition(name="echo", kind=ToolKind.MCP, server_label="calc", server_tool="shout"),
    ],
    ids=["the request's own", "a bare function", "another server's", "not one of its tools"],
)
def test_it_runs_nothing_but_its_own(definition: ToolDefinition) -> None:
    assert not calc().can_execute(definition)


def test_functions_are_added_by_decorator_bare_or_with_options() -> None:
    maths = Toolset("maths", instructions="Round down.")

    @maths.tool
    def half(number: int) -> int:
        """Half of a number."""
        return number // 2

    @maths.tool(name="twice", timeout=3.0, read_only=True)
    def double(number: int) -> int:
        return number * 2

    assert isinstance(half, LocalTool)
    assert (half(5), double(4)) == (2, 8)
    assert maths.info("mypkg.maths") == ToolsetInfo("maths", ("half", "twice"), "mypkg.maths")
    assert maths.timeout_of(ToolDefinition(name="t", kind=ToolKind.MCP, server_label="maths", server_tool="twice")) == 3
    assert repr(maths) == "Toolset('maths': half, twice)"


async def test_a_tool_added_later_is_found_at_the_next_request() -> None:
    maths = Toolset("maths")
    assert await maths.discover(McpTool(server_label="maths"), ANONYMOUS) == []
    maths.tool(echo)
    found = await maths.discover(McpTool(server_label="maths"), ANONYMOUS)
    assert found is not None
    assert [each.name for each in found] == ["echo"]


def test_two_tools_of_one_name_in_a_toolset_are_an_error() -> None:
    with pytest.raises(ValueError, match="two tools named 'echo'"):
        Toolset("calc", echo, tool(echo))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 65, "antwort"])
def test_a_name_that_no_label_can_have_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a toolset"):
        Toolset(name)


async def test_a_tools_own_limit_holds_under_whatever_name_the_model_sees() -> None:
    """Otherwise a request that declares a function of that name would lift the limit."""
    within = limited(calc(), ToolLimits(timeouts={"wait_for_ever": 0.01}))
    result = await within.execute(asked("wait_for_ever", model_name="calc__wait_for_ever"), context())
    assert result.is_error
    assert "did not answer within 0.01 s" in str(result.output)


async def test_a_server_without_instructions_has_none_within_limits() -> None:
    within = limited(calc())
    assert await within.instruct(DECLARED, ANONYMOUS) is None


def test_more_functions_join_a_toolset_under_its_label_and_it_stays_as_it_was() -> None:
    @tool
    def later() -> str:
        return "later"

    mine = calc()
    joined = mine.joined_by([later])
    assert (joined.label, [each.definition.name for each in joined.tools][-1]) == ("calc", "later")
    assert [each.definition.name for each in mine.tools] == ["echo", "wait_for_ever", "fail"]
    assert later.is_bare
    with pytest.raises(ValueError, match="two tools named 'echo'"):
        mine.joined_by([tool(echo)])


def test_a_function_knows_whether_it_is_in_a_toolset() -> None:
    bare, added, given = tool(echo), tool(echo), tool(echo)
    toolset = Toolset("one", given)
    Toolset("two").add(added)
    assert [each.is_bare for each in (bare, added, given, *toolset.tools)] == [True, False, False, False]
