"""These calls, these executors, this allowed list -> this routing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.tools.base import BaseExecutor, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import limited
from antwort.tools.local import LocalExecutor
from antwort.tools.routing import Route, Toolbox, find_executor, is_registered, refusal, route, routed
from engine_kit import FunctionExecutor


class ByName:
    """Claims every tool whose bare name it knows: the mistake that routing must not let through."""

    def __init__(self, kind: ToolKind, *names: str) -> None:
        self.kind = kind
        self._names = names

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name in self._names

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        raise AssertionError("routing runs nothing")


class ServerByName(ByName):
    """The same mistake in a tool server: it lists tools of its own."""

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        raise AssertionError("routing asks nobody for tools")


class Broken(ServerByName):
    def can_execute(self, tool: ToolDefinition) -> bool:
        raise ConnectionError("no server")


def define(name: str, kind: ToolKind = ToolKind.FUNCTION) -> ToolDefinition:
    label = None if kind is ToolKind.FUNCTION else "server"
    return ToolDefinition(name=name, kind=kind, server_label=label)


def box(
    *tools: ToolDefinition,
    executors: tuple[BaseExecutor, ...] = (),
    allowed: set[str] | None = None,
    may_run: bool | None = None,
) -> Toolbox:
    offered = {tool.name: tool for tool in tools}
    return Toolbox(
        tools=offered,
        executors=executors,
        allowed=None if allowed is None else frozenset(allowed),
        may_run=is_registered(executors, offered) if may_run is None else may_run,
    )


function, mcp = define("f"), define("m", ToolKind.MCP)
local = limited(ByName(ToolKind.LOCAL, "f"))
server = limited(ServerByName(ToolKind.MCP, "f", "m"))
sandbox = limited(ByName(ToolKind.SANDBOX, "f", "s"))
remote = limited(ByName(ToolKind.MCP, "f"))
clients = limited(FunctionExecutor())


@pytest.mark.parametrize(
    ("toolbox", "name", "expected"),
    [
        # nobody here runs anything
        (box(function), "f", Route.CLIENT),
        (box(function, executors=(clients,)), "f", Route.CLIENT),
        (box(function), "never_declared", Route.CLIENT),
        (box(function, executors=(clients,)), "never_declared", Route.CLIENT),
        # somebody runs it
        (box(function, executors=(local,)), "f", Route.SERVER),
        (box(function, executors=(sandbox,)), "f", Route.SERVER),
        (box(function, executors=(remote,)), "f", Route.SERVER),
        (box(mcp, executors=(server,)), "m", Route.SERVER),
        (
            box(define("s", ToolKind.SANDBOX), executors=(limited(ServerByName(ToolKind.SANDBOX, "s")),)),
            "s",
            Route.SERVER,
        ),
        # somebody is here, and runs other things
        (box(define("other"), executors=(local,)), "other", Route.CLIENT),
        (box(function, executors=(local,)), "never_declared", Route.UNKNOWN),
        # a tool of a server that nobody stands for is not the client's to run
        (box(mcp, executors=(local,)), "m", Route.UNKNOWN),
        (box(mcp), "m", Route.UNKNOWN),
        # nothing is run
        (box(function, executors=(local,), may_run=False), "f", Route.CLIENT),
        (box(mcp, executors=(server,), may_run=False), "m", Route.HELD),
        (box(function, executors=(local,), may_run=False), "never_declared", Route.CLIENT),
        # the allowed list
        (box(function, define("g"), allowed={"g"}), "f", Route.REJECTED),
        (box(function, define("g"), allowed={"g"}), "g", Route.CLIENT),
        (box(function, mcp, executors=(local, server), allowed={"m"}), "f", Route.REJECTED),
        (box(function, mcp, executors=(local, server), allowed={"m"}), "m", Route.SERVER),
        (box(function, executors=(local,), allowed={"g"}, may_run=False), "f", Route.REJECTED),
        (box(function, executors=(local,), allowed={"g"}), "never_declared", Route.UNKNOWN),
        (box(function, allowed={"g"}), "never_declared", Route.REJECTED),
        (box(function, executors=(local,), allowed=set()), "f", Route.REJECTED),
    ],
)
@pytest.mark.proves("FR-018", "EDGE-1", "EDGE-2")
def test_a_call_goes_where_the_table_says(toolbox: Toolbox, name: str, expected: Route) -> None:
    assert route(name, toolbox) is expected


@pytest.mark.proves("MISTAKE-23")
def test_a_client_tool_outside_the_allowed_list_is_not_handed_to_the_client() -> None:
    toolbox = box(function, define("g"), allowed={"g"})
    assert (route("f", toolbox), route("g", toolbox)) == (Route.REJECTED, Route.CLIENT)


@pytest.mark.proves("FR-010")
def test_an_absent_allowed_list_allows_all_and_a_list_of_none_allows_none() -> None:
    all_allowed = box(function, mcp, executors=(local, server), allowed=None)
    assert [route(name, all_allowed) for name in "fm"] == [Route.SERVER] * 2
    none_allowed = box(function, mcp, executors=(local, server), allowed=set())
    assert [route(name, none_allowed) for name in "fm"] == [Route.REJECTED] * 2


@pytest.mark.proves("MISTAKE-26")
@pytest.mark.parametrize(
    "namesake", [server, limited(ServerByName(ToolKind.SANDBOX, "f")), limited(ServerByName(ToolKind.LOCAL, "f"))]
)
def test_a_function_of_the_request_is_not_run_by_a_tool_server_of_that_name(namesake: BaseExecutor) -> None:
    assert namesake.can_execute(function), "the stand-in must make the mistake"
    assert find_executor(function, [namesake]) is None
    assert route("f", box(function, executors=(namesake, limited(ByName(ToolKind.LOCAL, "x"))))) is Route.CLIENT


@pytest.mark.proves("MISTAKE-26", "FR-003")
@pytest.mark.parametrize("claims", [local, sandbox, remote])
def test_a_function_of_the_request_is_run_by_the_executor_that_claims_it_behind_a_server_of_that_name(
    claims: BaseExecutor,
) -> None:
    assert find_executor(function, [server, claims]) is claims


@pytest.mark.proves("FR-003")
def test_the_first_executor_that_can_run_a_tool_runs_it() -> None:
    first, second = limited(ServerByName(ToolKind.MCP, "m")), limited(ServerByName(ToolKind.MCP, "m"))
    assert find_executor(mcp, [local, first, second]) is first


@pytest.mark.proves("FR-003")
@pytest.mark.parametrize("kind", [ToolKind.MCP, ToolKind.LOCAL, ToolKind.SANDBOX])
def test_a_tool_of_a_server_is_not_run_by_an_executor_of_functions_before_it(kind: ToolKind) -> None:
    assert find_executor(mcp, [limited(ByName(kind, "m")), server]) is server
    assert find_executor(mcp, [limited(ByName(kind, "m"))]) is None


def test_the_function_executor_is_never_chosen() -> None:
    class Eager(FunctionExecutor):
        def can_execute(self, tool: ToolDefinition) -> bool:
            return True

    assert find_executor(function, [limited(Eager())]) is None


def test_an_executor_that_cannot_say_what_it_runs_is_passed_over_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="antwort.tools"):
        assert find_executor(mcp, [limited(Broken(ToolKind.MCP)), server]) is server
    assert "could not say whether it runs a tool" in caplog.text


@pytest.mark.proves("FR-004")
@pytest.mark.parametrize(
    ("executors", "tools", "expected"),
    [
        ((), [function], False),
        ((clients,), [function], False),
        ((local,), [], True),
        ((limited(LocalExecutor()),), [], True),
        ((sandbox,), [], True),
        ((server,), [], False),
        ((server,), [function], False),
        ((server,), [mcp], True),
        ((remote,), [], False),
        ((remote,), [function], True),
        ((server,), [define("other", ToolKind.MCP)], False),
        ((limited(Broken(ToolKind.MCP)),), [mcp], False),
        ((clients, server, local), [function], True),
    ],
)
def test_what_counts_as_registered(
    executors: tuple[BaseExecutor, ...], tools: list[ToolDefinition], expected: bool
) -> None:
    assert is_registered(executors, {tool.name: tool for tool in tools}) is expected


@pytest.mark.proves("FR-004", "EDGE-2")
def test_without_executors_every_call_that_may_be_made_is_the_clients() -> None:
    assert [route(name, box(function)) for name in ("f", "never_declared")] == [Route.CLIENT] * 2


@pytest.mark.parametrize(
    ("toolbox", "name", "words"),
    [
        (box(function, define("g"), allowed={"g"}), "f", "'f' is not allowed"),
        (box(function), "nope", "no tool named 'nope'"),
        (box(mcp, executors=(local,)), "m", "'m' is not available"),
    ],
)
def test_a_refusal_says_why(toolbox: Toolbox, name: str, words: str) -> None:
    assert words in refusal(name, toolbox)


names = st.sampled_from(["a", "b", "c", "d"])
kinds = st.sampled_from(list(ToolKind))
definitions = st.lists(st.builds(define, names, kinds), unique_by=lambda tool: tool.name)
makes = st.sampled_from([ByName, ServerByName])
executors = st.lists(
    st.builds(lambda make, kind, own: limited(make(kind, *own)), makes, kinds, st.lists(names)), max_size=4
)
allowed_lists = st.none() | st.frozensets(names)
toolboxes = st.builds(
    lambda tools, those, allowed, may_run: Toolbox(
        tools={tool.name: tool for tool in tools}, executors=tuple(those), allowed=allowed, may_run=may_run
    ),
    definitions,
    executors,
    allowed_lists,
    st.booleans(),
)
called = names | st.just("undeclared")


@given(called, toolboxes)
def test_only_an_allowed_and_claimed_tool_is_run_here(name: str, toolbox: Toolbox) -> None:
    if route(name, toolbox) is not Route.SERVER:
        return
    executor = find_executor(toolbox.tools[name], toolbox.executors)
    assert toolbox.may_run
    assert not toolbox.allowed or name in toolbox.allowed
    assert executor is not None
    assert executor.kind is not ToolKind.FUNCTION
    assert toolbox.tools[name].kind is not ToolKind.FUNCTION or not isinstance(executor, ServerByName)


@given(called, toolboxes)
def test_only_functions_and_undeclared_names_go_to_the_client(name: str, toolbox: Toolbox) -> None:
    if route(name, toolbox) is not Route.CLIENT:
        return
    definition = toolbox.tools.get(name)
    assert definition is None or definition.kind in (ToolKind.FUNCTION, ToolKind.CUSTOM)
    assert definition is None or not toolbox.allowed or name in toolbox.allowed
    assert definition is not None or not toolbox.may_run


# ---- what is remembered ----


class Counting(ServerByName):
    """Counts how often it is asked, and runs the tool or not as it is told."""

    def __init__(self) -> None:
        super().__init__(ToolKind.MCP, "m")
        self.asked, self.is_there = 0, True

    def can_execute(self, tool: ToolDefinition) -> bool:
        self.asked += 1
        return self.is_there and super().can_execute(tool)


class Steady(Counting):
    is_steady = True


def test_one_who_holds_to_its_word_is_asked_once_for_a_toolbox() -> None:
    steady = limited(own := Steady())
    toolbox = box(mcp, executors=(steady,), may_run=True)
    assert [routed("m", toolbox) for _ in range(3)] == [(Route.SERVER, steady)] * 3
    assert own.asked == 1
    assert routed("m", box(mcp, executors=(steady,), may_run=True))[1] is steady
    assert own.asked == 2


@pytest.mark.parametrize("beside", [(), (limited(Steady()),)], ids=["alone", "before another"])
def test_one_who_may_change_its_mind_is_asked_each_time(beside: tuple[BaseExecutor, ...]) -> None:
    moody = Counting()
    toolbox = box(mcp, executors=(limited(moody), *beside), may_run=True)
    assert routed("m", toolbox) == (Route.SERVER, toolbox.executors[0])
    moody.is_there = False
    found = routed("m", toolbox)
    assert found == ((Route.SERVER, beside[0]) if beside else (Route.UNKNOWN, None))


def test_a_toolbox_that_is_made_of_another_is_asked_about_anew() -> None:
    toolbox = box(mcp, executors=(limited(Steady()),), may_run=True)
    assert route("m", toolbox) is Route.SERVER
    assert route("m", msgspec.structs.replace(toolbox, may_run=False)) is Route.HELD
    assert route("m", msgspec.structs.replace(toolbox, allowed=frozenset())) is Route.REJECTED
    assert route("m", toolbox) is Route.SERVER


def test_names_that_models_make_up_are_not_remembered() -> None:
    toolbox = box(mcp, executors=(limited(Steady()),), may_run=True)
    assert {route(f"made up {n}", toolbox) for n in range(100)} == {Route.UNKNOWN}
    assert [*toolbox.ways] == ["m"]
