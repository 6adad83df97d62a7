"""MCP servers as one executor, on sessions that play a script."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.api.items import InputImage
from antwort.api.tools import McpTool
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.net.ssrf import AddressPolicy
from antwort.testing import ExecutorContract
from antwort.testing.executors import context
from antwort.tools.base import (
    Progress,
    ToolCall,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolResult,
)
from antwort.tools.limits import ToolLimits
from antwort.tools.mcp.base import McpCallResult, ServerSpec, ServerTools, ServerUnavailable, Unauthorized
from antwort.tools.mcp.executor import McpExecutor, McpServerStatus
from antwort.tools.mcp.servers import Audience, McpPolicy, McpServer, McpToolPolicy
from mcp_sessions_kit import ScriptedServer, ScriptedSession, ScriptedSessions, text, tools

URL = "https://docs.example.com/mcp"
ANNE, BOB = Identity("acme", "anne"), Identity("acme", "bob")
DOCS = McpTool(server_label="docs")
STRANGER = McpTool(server_label="theirs", server_url="https://tools.example.com/mcp")


def docs(**fields: Any) -> McpServer:
    return McpServer("docs", url=URL, **fields)


def executor_of(server: ScriptedServer, *own: McpServer, policy: McpPolicy | None = None) -> McpExecutor:
    sessions = ScriptedSessions(docs=server, theirs=server, more=server)
    return McpExecutor(own or [docs()], policy or McpPolicy(declared=True), sessions)


def call_of(definition: ToolDefinition, arguments: str = "{}") -> ToolCall:
    return ToolCall(id="call_1", name=definition.name, arguments=arguments, definition=definition)


async def first(executor: McpExecutor, declared: McpTool = DOCS, identity: Identity = ANONYMOUS) -> ToolDefinition:
    found = await executor.discover(declared, identity)
    assert found is not None
    return found[0]


async def _script(name: str, arguments: str) -> McpCallResult:
    match name:
        case "hang":
            await asyncio.Event().wait()
        case "fail":
            return text("no luck", is_error=True)
    return text(arguments)


class TestMcpExecutor(ExecutorContract):
    def executor(self) -> ToolExecutor:
        return executor_of(ScriptedServer(("echo", "hang", "fail"), _script))

    def _call(self, name: str) -> ToolCall:
        definition = ToolDefinition(name=name, kind=ToolKind.MCP, server_label="docs", declared=DOCS)
        return ToolCall(id="call_test", name=name, arguments="{}", definition=definition)

    def runnable(self) -> ToolCall:
        return self._call("echo")

    def endless(self) -> ToolCall | None:
        return self._call("hang")

    def failing(self) -> ToolCall | None:
        return self._call("fail")


def test_it_is_all_that_the_engine_asks_for() -> None:
    executor = executor_of(ScriptedServer())
    assert executor.is_server
    assert executor.labels == ("docs",)


# ---- discovery ----


async def test_a_label_that_is_not_there_is_somebody_elses() -> None:
    assert await executor_of(ScriptedServer()).discover(McpTool(server_label="gone"), ANONYMOUS) is None
    assert await executor_of(ScriptedServer()).instruct(McpTool(server_label="gone"), ANONYMOUS) is None


async def test_the_tools_of_a_label_are_the_same_objects_as_long_as_the_list_is() -> None:
    server = ScriptedServer()
    executor = executor_of(server)
    some = McpTool(server_label="docs", allowed_tools=("echo",), require_approval="never")
    before = await executor.discover(DOCS, ANNE)
    assert await executor.discover(some, BOB) is before
    server.listed = tools("echo", "more")
    after = await executor.discover(DOCS, ANNE)
    assert after is not None
    assert [tool.name for tool in after] == ["echo", "more"]


async def test_a_server_that_cannot_be_asked_is_news_once_and_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "antwort.tools.mcp")
    server = ScriptedServer()
    server.down = ServerUnavailable("The tool server 'docs' cannot be reached.")
    executor = executor_of(server)
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            await executor.discover(DOCS, ANONYMOUS)
    server.down = None
    await executor.discover(DOCS, ANONYMOUS)
    await executor.discover(DOCS, ANONYMOUS)
    assert [record.getMessage() for record in caplog.records] == [
        "the MCP server 'docs' cannot be used: The tool server 'docs' cannot be reached.",
        "the MCP server 'docs' can be used again",
    ]


async def test_how_servers_stand_is_counted_by_the_operators_labels_alone() -> None:
    server = ScriptedServer()
    executor = executor_of(server, docs(), McpServer("more", url=URL, authorization="request"))
    tool = await first(executor)
    server.down = ServerUnavailable("The MCP server cannot be reached.")
    await executor.execute(call_of(tool), context())
    for declared in (DOCS, STRANGER, McpTool(server_label="more", authorization="mine")):
        with pytest.raises(ServerUnavailable):
            await executor.discover(declared, ANNE)
    assert executor.status() == [
        McpServerStatus("docs", False, 2),
        McpServerStatus("more", None, 1),
        McpServerStatus(None, None, 1),
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("The MCP server cannot be reached.", "The MCP server 'docs' cannot be reached."),
        ("The connection to the MCP server ended.", "The connection to the MCP server 'docs' ended."),
        ("The MCP server's answer is too long.", "The MCP server's answer is too long."),
        ("The MCP servers are being closed.", "The MCP servers are being closed."),
        ("The MCP server 'docs' is busy.", "The MCP server 'docs' is busy."),
    ],
)
async def test_whoever_reads_what_is_wrong_learns_with_which_server(said: str, told: str) -> None:
    server = ScriptedServer()
    server.down = Unauthorized(said)
    with pytest.raises(Unauthorized) as caught:
        await executor_of(server).discover(DOCS, ANONYMOUS)
    assert str(caught.value) == told


async def test_how_a_strangers_server_stands_is_not_the_operators_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = ScriptedServer()
    server.down = ServerUnavailable("The tool server 'theirs' cannot be reached.")
    with pytest.raises(ServerUnavailable):
        await executor_of(server).discover(STRANGER, ANONYMOUS)
    assert caplog.records == []


async def test_a_server_by_address_is_asked_only_where_the_policy_says_so() -> None:
    with pytest.raises(InvalidField, match="server_url"):
        await executor_of(ScriptedServer(), policy=McpPolicy()).discover(STRANGER, ANONYMOUS)
    found = await first(executor_of(ScriptedServer()), STRANGER)
    assert (found.server_label, found.declared) == ("theirs", STRANGER)


async def test_an_address_out_of_reach_is_never_asked() -> None:
    server = ScriptedServer()
    policy = McpPolicy(declared=True, reach=AddressPolicy(deny=("*.example.com",)))
    with pytest.raises(InvalidField) as caught:
        await executor_of(server, policy=policy).discover(STRANGER, ANONYMOUS)
    assert (caught.value.param, caught.value.code, server.lists) == ("server_url", "server_not_allowed", 0)


async def test_the_model_is_told_what_the_server_says_of_itself() -> None:
    server = ScriptedServer(tools("echo", instructions="Echo twice."))
    assert await executor_of(server).instruct(DOCS, ANONYMOUS) == "Echo twice."
    assert await executor_of(server).instruct(STRANGER, ANONYMOUS) == "Echo twice."


def test_two_servers_of_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match="two MCP servers labelled 'docs'"):
        McpExecutor([docs(), docs()])


def test_standing_servers_are_there_for_those_they_stand_for() -> None:
    own = (
        docs(standing=Audience(models=("qwen*",))),
        McpServer("more", url=URL, standing=Audience(subjects=("anne",))),
    )
    executor = executor_of(ScriptedServer(), *own, McpServer("theirs", url=URL))
    labels = [tool.server_label for tool in executor.standing("qwen3", ANNE)]
    assert (labels, executor.standing("gpt", BOB)) == (["docs", "more"], [])
    assert executor.labels == ("docs", "more", "theirs")


# ---- calls ----


async def test_a_call_goes_to_the_servers_own_name_with_its_key_and_its_progress() -> None:
    server, seen = ScriptedServer(), list[object]()
    executor = executor_of(server)
    tool = await first(executor)
    renamed = ToolDefinition(
        name="docs__echo", server_tool="echo", kind=tool.kind, server_label="docs", declared=tool.declared
    )
    around = context(idempotency_key="key_1", progress=seen.append)
    result = await executor.execute(call_of(renamed, '{"word":"a"}'), around)
    assert result == ToolResult("call_1", 'echo {"word":"a"}')
    assert (server.calls, seen) == ([("echo", '{"word":"a"}', "key_1")], [Progress(done=1)])


async def test_a_call_is_made_in_the_name_of_whoever_asks_for_it() -> None:
    sessions = ScriptedSessions(docs=ScriptedServer())
    executor = McpExecutor([docs(authorization="request")], sessions=sessions)
    mine = McpTool(server_label="docs", authorization="annes")
    tool = await first(executor, mine, ANNE)
    await executor.execute(call_of(tool), context(identity=ANNE))
    assert [(spec.headers["Authorization"], spec.owner) for spec in sessions.specs] == [
        ("Bearer annes", ("acme", "anne"))
    ] * 2
    assert len(sessions.sessions) == 1


async def test_a_picture_comes_through() -> None:
    async def draw(name: str, arguments: str) -> McpCallResult:
        return McpCallResult(content=({"type": "image", "data": "AAAA", "mimeType": "image/png"},))

    executor = executor_of(ScriptedServer(answer=draw))
    result = await executor.execute(call_of(await first(executor)), context())
    assert result.output == (InputImage(image_url="data:image/png;base64,AAAA"),)


async def test_a_server_that_goes_away_is_an_error_of_the_call() -> None:
    server = ScriptedServer()
    executor = executor_of(server)
    tool = await first(executor)
    server.down = ServerUnavailable("The tool server 'docs' has gone away.")
    assert await executor.execute(call_of(tool), context()) == ToolResult(
        "call_1", "The tool server 'docs' has gone away.", is_error=True
    )


@pytest.mark.parametrize("arguments", ["", " "])
async def test_no_arguments_at_all_are_none(arguments: str) -> None:
    server = ScriptedServer()
    executor = executor_of(server)
    assert not (await executor.execute(call_of(await first(executor), arguments), context())).is_error
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *("[]", "3", '"x"', "null", "{", "nonsense", '{"\udcff', '{"a":' + "[" * 50_000),
        *('{}, "name": "other"', '{"a": 1} {"b": 2}', '{"a": 01}', '{"a": "\x01"}'),
    ],
)
async def test_arguments_that_are_no_object_never_reach_the_server(arguments: str) -> None:
    server = ScriptedServer()
    executor = executor_of(server)
    result = await executor.execute(call_of(await first(executor), arguments), context())
    assert (result.is_error, server.calls) == (True, [])


@pytest.mark.parametrize(
    "tool",
    [
        ToolDefinition(name="echo", kind=ToolKind.MCP, server_label="docs"),  # a toolset's
        ToolDefinition(name="echo", kind=ToolKind.MCP, server_label="other", declared=DOCS),
        ToolDefinition(name="echo", kind=ToolKind.MCP, server_label="gone", declared=McpTool(server_label="gone")),
        ToolDefinition(name="echo", kind=ToolKind.FUNCTION, declared=DOCS),
    ],
)
async def test_what_it_did_not_find_it_does_not_run(tool: ToolDefinition) -> None:
    executor = executor_of(ScriptedServer())
    assert not executor.can_execute(tool)
    with pytest.raises(LookupError):
        await executor.execute(call_of(tool), context())


async def test_a_strangers_tool_is_not_run_where_addresses_are_not_named() -> None:
    tool = await first(executor_of(ScriptedServer()), STRANGER)
    assert not executor_of(ScriptedServer(), policy=McpPolicy()).can_execute(tool)


async def test_the_operators_servers_have_limits_of_their_own() -> None:
    limits = ToolLimits(timeout=3)
    executor = executor_of(ScriptedServer(), docs(limits=limits))
    assert executor.limits_of(await first(executor)) is limits
    assert executor.limits_of(await first(executor, STRANGER)) is None


# ---- start and stop ----


async def test_the_start_connects_to_what_all_share_and_waits_for_nobody() -> None:
    sessions = ScriptedSessions(docs=ScriptedServer(), own=ScriptedServer(), theirs=ScriptedServer())
    own = [
        docs(),
        McpServer("own", url=URL, sessions="identity"),
        McpServer("theirs", url=URL, authorization="request"),
    ]
    executor = McpExecutor(own, sessions=sessions)
    await executor.open()
    assert sessions.specs == []  # nothing has been waited for
    await asyncio.sleep(0)
    assert [spec.label for spec in sessions.specs] == ["docs"]
    await executor.close()
    assert sessions.is_closed


async def test_a_server_that_is_down_at_the_start_keeps_nothing_from_starting() -> None:
    server = ScriptedServer()
    server.down = OSError("no such thing was foreseen")
    executor = executor_of(server)
    await executor.open()
    await asyncio.sleep(0)
    server.down = None
    assert (await first(executor)).name == "echo"
    await executor.close()


async def test_closing_ends_a_start_that_hangs() -> None:
    began = asyncio.Event()

    class HangingSession(ScriptedSession):
        async def tools(self) -> ServerTools:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError("it never ends")

    class HangingSessions(ScriptedSessions):
        def session(self, spec: ServerSpec) -> ScriptedSession:
            return HangingSession(spec, ScriptedServer())

    executor = McpExecutor([docs()], sessions=HangingSessions())
    await executor.open()
    await began.wait()
    before = asyncio.all_tasks()
    await executor.close()
    assert asyncio.all_tasks() < before


def test_no_secret_shows_in_its_repr() -> None:
    assert repr(executor_of(ScriptedServer(), docs(token="hush"))) == "McpExecutor(docs)"


async def test_why_a_program_does_not_run_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    executor = McpExecutor([McpServer("run", command=("no-such-program",))])
    try:
        for _ in range(2):
            with pytest.raises(ServerUnavailable) as caught:
                await executor.discover(McpTool(server_label="run"), ANONYMOUS)
            assert "no-such-program" not in str(caught.value)
            assert caught.value.details == "the program 'no-such-program': No such file or directory"
    finally:
        await executor.close()
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "(the program 'no-such-program': No such file or directory)" in warning.getMessage()


async def test_a_tool_that_the_operator_names_and_the_server_has_not_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ScriptedServer(["echo"])
    own = docs(allowed_tools=("echo", "ecko"), tools={"delete": McpToolPolicy(require_approval=True)})
    executor = executor_of(server, own)
    for _ in range(3):
        await executor.discover(DOCS, ANONYMOUS)
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "has no tool named 'ecko', 'delete'" in warning.getMessage()
    assert executor.unknown_tools("docs") == ("ecko", "delete")
    server.listed = tools("echo", "ecko", "delete")
    await executor.discover(DOCS, ANONYMOUS)
    assert executor.unknown_tools("docs") == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"url": "nonsense"}, "has a url that cannot be asked"),
        ({"url": "ftp://there/"}, "has a url that cannot be asked"),
        ({"url": "https://a/#b"}, "it must not have a fragment"),
        ({"url": URL, "transport": "smoke"}, "has a transport that is none: 'smoke'"),
        ({"command": ("run",), "transport": "sse"}, "leave transport out"),
        ({"url": URL, "connect": -1}, "has a connect that is no number of seconds"),
        ({"url": URL, "connect": float("nan")}, "has a connect that is no number of seconds"),
        ({"url": URL, "list_age": 0}, "has a list_age that is no number of seconds"),
    ],
)
def test_a_server_that_cannot_be_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        McpServer("docs", **fields)


class Taking(ScriptedSession):
    """Knows in whose name it is."""

    def __init__(self, spec: ServerSpec, server: ScriptedServer, made: list[tuple[object, object]]) -> None:
        super().__init__(spec, server)
        self._made = made

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> McpCallResult:
        self._made.append((self.spec.owner, self.spec.headers.get("Authorization")))
        return await super().call(name, arguments, key=key, progress=progress)


class Names(ScriptedSessions):
    def __init__(self, server: ScriptedServer) -> None:
        super().__init__(theirs=server)
        self._server, self.made = server, list[tuple[object, object]]()

    def session(self, spec: ServerSpec) -> Taking:
        return Taking(spec, self._server, self.made)


async def test_calls_in_turns_are_each_made_in_the_name_and_with_the_credentials_of_their_own() -> None:
    sessions = Names(ScriptedServer())
    executor = McpExecutor([], McpPolicy(declared=True), sessions)
    plain = await first(executor, STRANGER, ANNE)
    signed = await first(executor, replace(STRANGER, authorization="of Anne"), ANNE)
    for tool, identity in [(plain, ANNE), (plain, BOB), (signed, ANNE), (plain, ANNE), (plain, ANNE), (signed, ANNE)]:
        await executor.execute(call_of(tool), context(identity=identity))
    anne, bob, token = ("acme", "anne"), ("acme", "bob"), "Bearer of Anne"
    assert sessions.made == [(anne, None), (bob, None), (anne, token), (anne, None), (anne, None), (anne, token)]
