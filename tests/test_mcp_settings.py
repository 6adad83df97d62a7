"""Settings of MCP servers -> an executor."""

from __future__ import annotations

from typing import Literal

import pytest

from antwort.api.tools import McpTool
from antwort.api.wire import replace
from antwort.asgi import create_app
from antwort.config import CannotStart, Secret, Settings
from antwort.config.settings import (
    AuthSettings,
    KeySettings,
    McpServerSettings,
    McpSettings,
    McpToolSettings,
    OAuthSettings,
    ReachSettings,
    ServerSettings,
    StandingSettings,
    ToolLimits,
    ToolSettings,
)
from antwort.engine.engine import Engine
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.testing import ScriptedProvider
from antwort.tools.limits import ToolBounds
from antwort.tools.mcp.base import ClientCredentials, ServerUnavailable
from antwort.tools.mcp.servers import Audience, McpToolPolicy, base_spec, untrusted_spec
from antwort.toolsets import make_mcp, make_policy, make_server
from mcp_kit import nobody_there

URL = "https://docs.example.com/mcp"
KEY = KeySettings(name="ada", key=Secret("sk-ada"))
LOOPBACK = McpTool(server_label="near", server_url="http://127.0.0.1:8001/mcp")


def test_all_that_is_set_for_a_server_reaches_it() -> None:
    settings = McpServerSettings(
        label="docs",
        url=URL,
        headers={"X-Team": Secret("team")},
        oauth=OAuthSettings(client_id="us", client_secret=Secret("hush"), scopes=("read",), token_url=URL),
        standing=StandingSettings(models=("qwen*",), subjects=("anne",), tenants=("acme",)),
        sessions="identity",
        allowed_tools=("find",),
        require_approval="writes",
        connect=3,
        list_age=4,
        tools={"find": McpToolSettings(read_only=True, require_approval=False)},
    )
    server = make_server(settings, ToolLimits())
    assert server.headers == {"X-Team": "team"}
    assert server.oauth == ClientCredentials(client_id="us", client_secret="hush", scopes=("read",), token_url=URL)
    assert server.standing == Audience(models=("qwen*",), subjects=("anne",), tenants=("acme",))
    assert (server.sessions, server.allowed_tools, server.require_approval) == ("identity", ("find",), "writes")
    assert server.tools == {"find": McpToolPolicy(read_only=True, require_approval=False)}
    spec = base_spec(server, make_policy(McpSettings(largest=5, unsolicited_bytes=6), is_near=False))
    assert (spec.connect, spec.list_age, spec.largest, spec.unsolicited) == (3, 4, 5, 24)


def test_a_program_gets_its_environment_in_clear() -> None:
    settings = McpServerSettings(label="files", command=("run",), env={"KEY": Secret("hush")}, folder="/srv")
    server = make_server(settings, ToolLimits())
    assert (server.command, server.env, server.folder, server.way) == (("run",), {"KEY": "hush"}, "/srv", "stdio")


def test_limits_of_a_server_and_of_its_tools_go_before_those_of_all() -> None:
    usual = ToolLimits(timeout=60, total=9, output_bytes=100, tools={"other": ToolBounds(timeout=1)})
    one = McpToolSettings(timeout=2, output_bytes=3, concurrency=4, parallel=False)
    own = make_server(McpServerSettings(label="docs", url=URL, timeout=5, concurrency=6, tools={"find": one}), usual)
    assert own.limits is not None
    assert (own.limits.timeout, own.limits.total, own.limits.output_bytes) == (5, 6, 100)
    assert own.limits.tools == {
        "other": ToolBounds(timeout=1),
        "find": ToolBounds(timeout=2, output_bytes=3, concurrency=4, parallel=False),
    }
    plain = make_server(McpServerSettings(label="docs", url=URL), usual)
    assert plain.limits == usual


def test_what_is_not_said_of_a_servers_tool_is_as_for_all_tools_of_its_name() -> None:
    bounds = ToolBounds(timeout=5, concurrency=2, output_bytes=3, arguments_bytes=100, parallel=False)
    usual = ToolLimits(tools={"write": bounds})

    def bounds_with(tool: McpToolSettings) -> ToolBounds:
        limits = make_server(McpServerSettings(label="docs", url=URL, tools={"write": tool}), usual).limits
        assert limits is not None
        return limits.tools["write"]

    assert bounds_with(McpToolSettings(require_approval=True)) == bounds
    assert bounds_with(McpToolSettings(timeout=1)) == replace(bounds, timeout=1)
    assert bounds_with(McpToolSettings(parallel=True)) == replace(bounds, parallel=True)


@pytest.mark.parametrize(
    ("loopback", "is_near", "is_allowed"),
    [("auto", True, True), ("auto", False, False), ("always", False, True), ("never", True, False)],
)
def test_this_machine_may_be_named_where_nobody_else_could_name_it(
    loopback: Literal["auto", "always", "never"], is_near: bool, is_allowed: bool
) -> None:
    policy = make_policy(McpSettings(reach=ReachSettings(loopback=loopback)), is_near=is_near)
    if is_allowed:
        assert untrusted_spec(LOOPBACK, ANONYMOUS, policy).url == LOOPBACK.server_url
    else:
        with pytest.raises(InvalidField, match="server_url"):
            untrusted_spec(LOOPBACK, ANONYMOUS, policy)


@pytest.mark.parametrize(
    ("host", "comes_to"), [("127.0.0.1", ServerUnavailable), ("::1", ServerUnavailable), ("0.0.0.0", InvalidField)]
)
async def test_what_the_server_listens_on_says_whether_it_is_near(host: str, comes_to: type[Exception]) -> None:
    executor = make_mcp(Settings(server=ServerSettings(host=host)))
    with pytest.raises(comes_to):  # nobody is there, or nobody may look
        await executor.discover(replace(LOOPBACK, server_url=f"http://127.0.0.1:{nobody_there()}/mcp"), ANONYMOUS)
    await executor.close()


@pytest.mark.parametrize(
    ("auth", "is_allowed"),
    [
        (AuthSettings(keys=(KEY,)), False),
        (AuthSettings(keys=(KEY,), required="never"), True),
        (AuthSettings(required="always"), False),
    ],
)
async def test_a_server_that_asks_for_keys_may_be_public_by_way_of_a_proxy(
    auth: AuthSettings, is_allowed: bool
) -> None:
    executor = make_mcp(Settings(auth=auth))
    with pytest.raises(ServerUnavailable if is_allowed else InvalidField):
        await executor.discover(replace(LOOPBACK, server_url=f"http://127.0.0.1:{nobody_there()}/mcp"), ANONYMOUS)
    await executor.close()


def test_a_label_that_cannot_be_is_told_before_the_start() -> None:
    with pytest.raises(CannotStart, match=r"^mcp_servers\[0\]\.label must be 1 to 64 letters"):
        make_mcp(Settings(mcp_servers=(McpServerSettings(label="my.server", url=URL),)))


async def test_a_mounted_application_does_not_know_who_can_reach_it() -> None:
    application = create_app(Settings(scripted=True, memory=True))
    async with application.lifespan():
        with pytest.raises(InvalidField) as caught:
            await application.engine.create(
                {"input": "Hi", "tools": [{"type": "mcp", "server_label": "near", "server_url": LOOPBACK.server_url}]}
            )
    assert (caught.value.param, caught.value.code) == ("tools[0].server_url", "server_not_allowed")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(mcp=McpSettings(reach=ReachSettings(allow=("ok.example.com", "a b")))), r"^mcp\.reach\.allow\[1\] "),
        (Settings(mcp=McpSettings(reach=ReachSettings(deny=("10.0.0.0/99",)))), r"^mcp\.reach\.deny\[0\] "),
        (Settings(mcp_servers=(McpServerSettings(label="a", url="https://[::1"),)), r"^mcp_servers\[0\]\.url "),
    ],
)
def test_what_only_the_network_can_judge_is_told_before_the_start(settings: Settings, said: str) -> None:
    with pytest.raises(CannotStart, match=said):
        make_mcp(settings)


def test_the_executor_is_one_that_an_engine_takes() -> None:
    server = McpServerSettings(label="docs", url=URL)
    executor = make_mcp(Settings(mcp_servers=(server,), tools=ToolSettings()))
    assert executor.labels == ("docs",)
    Engine(ScriptedProvider(), executors=[executor])
