"""Requests that use MCP servers: by label, by address, and those that the operator has put into them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.items import FunctionCall, InputImage, McpCall, McpListTools
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings, HostedPolicy
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.net.ssrf import AddressPolicy
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.limits import ToolLimits
from antwort.tools.mcp.base import McpCallResult, ServerSpec, ServerTool, ServerTools, ServerUnavailable, Unauthorized
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import Audience, McpPolicy, McpServer
from antwort.tools.toolset import Toolset
from engine_kit import CLOCK, ask, engine_of, items_of, kinds, only, sent, server_calls, stream, text_of
from mcp_sessions_kit import ScriptedServer, ScriptedSession, ScriptedSessions, text, tools

ANNE, BOB = Identity("acme", "anne"), Identity("acme", "bob")
URL = "https://docs.example.com/mcp"
THEIRS = "https://tools.example.com/mcp"
DOCS = {"type": "mcp", "server_label": "docs"}
NEWS = {"type": "mcp", "server_label": "news"}
STRANGER = {"type": "mcp", "server_label": "theirs", "server_url": THEIRS, "require_approval": "never"}
OPEN = McpPolicy(declared=True, reach=AddressPolicy())


def servers(*labels: str, **fields: Any) -> list[McpServer]:
    return [McpServer(label, url=f"https://{label}.example.com/mcp", **fields) for label in labels]


def executor(sessions: ScriptedSessions, *own: McpServer) -> McpExecutor:
    return McpExecutor(own or servers("docs", "news"), OPEN, sessions)


def offered(provider: ScriptedProvider, at: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in sent(provider.requests[at]).get("tools", [])]


def lists(response: Response) -> list[McpListTools]:
    return items_of(response, McpListTools)


def done(*turns: Any) -> ScriptedProvider:
    return ScriptedProvider(*turns, answer(say("Done.")))


async def test_a_request_names_a_server_by_its_label_and_its_call_is_run() -> None:
    server, provider = ScriptedServer(tools("find", instructions="Find first.")), done(answer(call("find", word="a")))
    result = await stream(engine_of(provider, executor(ScriptedSessions(docs=server))), ask(tools=[DOCS]))
    assert kinds(result.response) == ["mcp_list_tools", "mcp_call", "message"]
    assert only(result.response, McpCall).output == 'find {"word":"a"}'
    assert offered(provider) == ["find"]
    assert "Find first." in sent(provider.requests[0])["messages"][0]["content"]


async def test_a_request_names_a_server_by_its_address() -> None:
    sessions = ScriptedSessions({THEIRS: ScriptedServer(("find",))})
    response = await engine_of(done(answer(call("find"))), executor(sessions)).create(ask(tools=[STRANGER]))
    assert (only(response, McpCall).server_label, text_of(response)) == ("theirs", "Done.")
    assert all(spec.is_untrusted and spec.owner == ("default", "") for spec in sessions.specs)


@pytest.mark.proves("CP-030")
async def test_an_address_that_may_not_be_named_is_an_error_that_names_its_place() -> None:
    evil = {**STRANGER, "server_url": "https://169.254.169.254/latest"}
    with pytest.raises(InvalidField) as caught:
        await engine_of(done(), executor(ScriptedSessions())).create(ask(tools=[CLOCK, evil]))
    assert (caught.value.param, caught.value.code) == ("tools[1].server_url", "server_not_allowed")


async def test_one_label_with_two_addresses_is_refused() -> None:
    other = {**STRANGER, "server_url": "https://other.example.com/mcp"}
    with pytest.raises(InvalidField) as caught:
        await engine_of(done(), executor(ScriptedSessions())).create(ask(tools=[STRANGER, other]))
    assert (caught.value.param, caught.value.code) == ("tools[1].server_label", "duplicate_tool")


async def test_servers_with_tools_of_one_name_are_told_apart_and_shown_by_their_own() -> None:
    sessions = ScriptedSessions(docs=ScriptedServer(("find",)), news=ScriptedServer(("find",)))
    provider = done(answer(call("news__find"), call("docs__find")))
    response = await engine_of(provider, executor(sessions)).create(ask(tools=[DOCS, NEWS]))
    assert offered(provider) == ["docs__find", "news__find"]
    assert [(item.server_label, item.name) for item in server_calls(response)] == [("news", "find"), ("docs", "find")]


async def test_what_a_server_says_of_its_tools_shows_in_its_list() -> None:
    hinted = ServerTool(name="find", title="Find it", annotations={"readOnlyHint": True, "title": None})
    server = ScriptedServer(ServerTools(tools=(hinted, ServerTool(name="plain"))))
    response = await engine_of(done(), executor(ScriptedSessions(docs=server))).create(ask(tools=[DOCS]))
    find, plain = only(response, McpListTools).tools
    assert (find.description, find.annotations) == ("Find it", {"readOnlyHint": True})
    assert not plain.annotations


async def test_a_picture_is_shown_to_the_model_and_kept_beside_the_call() -> None:
    async def draw(name: str, arguments: str) -> McpCallResult:
        return McpCallResult(content=({"type": "image", "data": "AAAA", "mimeType": "image/png"},))

    provider = done(answer(call("draw")))
    sessions = ScriptedSessions(docs=ScriptedServer(("draw",), draw))
    response = await engine_of(provider, executor(sessions)).create(ask(tools=[DOCS]))
    picture = "data:image/png;base64,AAAA"
    assert only(response, McpCall).content == (InputImage(image_url=picture),)
    assert sent(provider.requests[1])["messages"][-1]["content"][-1]["image_url"] == {"url": picture}


async def test_an_error_of_a_tool_is_fed_back() -> None:
    async def fail(name: str, arguments: str) -> McpCallResult:
        return text("no such page", is_error=True)

    provider = done(answer(call("find")))
    sessions = ScriptedSessions(docs=ScriptedServer(("find",), fail))
    response = await engine_of(provider, executor(sessions)).create(ask(tools=[DOCS]))
    assert (only(response, McpCall).status, only(response, McpCall).error_text) == ("failed", "no such page")
    assert text_of(response) == "Done."


# ---- servers that cannot be asked ----


@pytest.mark.parametrize(
    "news",
    [ServerUnavailable("The tool server 'docs' cannot be reached."), Unauthorized("It refused the credentials.")],
)
async def test_a_server_that_cannot_be_asked_shows_so_and_the_others_are_there(news: Exception) -> None:
    down = ScriptedServer()
    down.down = news
    provider = done()
    engine = engine_of(provider, executor(ScriptedSessions(docs=down, news=ScriptedServer(("read",)))))
    result = await stream(engine, ask(tools=[DOCS, NEWS]))
    docs, other = lists(result.response)
    assert (docs.error, docs.tools) == (str(news), ())
    assert not other.error
    assert (offered(provider), text_of(result.response)) == (["read"], "Done.")
    assert "response.mcp_list_tools.failed" in result.names


async def test_a_server_that_hangs_holds_up_no_other_and_is_not_waited_for_long() -> None:
    asked = asyncio.Event()

    class Slow(ScriptedSession):
        async def tools(self) -> ServerTools:
            await asked.wait()  # comes only when the next one is asked, so not before it
            await asyncio.Event().wait()
            raise AssertionError

    quick = ScriptedServer(("read",))

    class Sessions(ScriptedSessions):
        def session(self, spec: ServerSpec) -> ScriptedSession:
            if spec.label == "docs":
                return Slow(spec, ScriptedServer())
            asked.set()
            return super().session(spec)

    provider = done()
    engine = engine_of(provider, executor(Sessions(news=quick)), discovery=0.05)
    response = await engine.create(ask(tools=[DOCS, NEWS]))
    docs, news = lists(response)
    assert docs.error == "The tool server 'docs' did not list its tools in time."
    assert (quick.lists > 0, offered(provider)) == (True, ["read"])
    assert [tool.name for tool in news.tools] == ["read"]


async def test_a_list_that_changes_between_requests_shows_in_the_next() -> None:
    server, provider = ScriptedServer(("find",)), ScriptedProvider(answer(say("One.")), answer(say("Two.")))
    engine = engine_of(provider, executor(ScriptedSessions(docs=server)))
    await engine.create(ask(tools=[DOCS]))
    server.listed = tools("find", "drop")
    await engine.create(ask(tools=[DOCS]))
    assert [offered(provider, at) for at in (0, 1)] == [["find"], ["find", "drop"]]


# ---- standing servers ----


def standing(**fields: Any) -> list[McpServer]:
    return servers("docs", standing=Audience(**fields))


async def test_a_standing_server_is_there_without_being_named() -> None:
    provider = done(answer(call("echo")))
    engine = engine_of(provider, executor(ScriptedSessions(docs=ScriptedServer()), *standing()))
    result = await stream(engine, ask())
    assert kinds(result.response) == ["mcp_list_tools", "mcp_call", "message"]
    assert result.response.tools == ()


async def test_a_standing_server_that_is_named_is_there_once() -> None:
    provider = done()
    engine = engine_of(provider, executor(ScriptedSessions(docs=ScriptedServer(("a", "b"))), *standing()))
    response = await engine.create(ask(tools=[{**DOCS, "allowed_tools": ["a"]}]))
    assert (offered(provider), len(lists(response))) == (["a"], 1)


@pytest.mark.parametrize(
    ("fields", "identity", "is_there"),
    [
        ({"models": ("scripted",)}, ANONYMOUS, True),
        ({"models": ("other*",)}, ANONYMOUS, False),
        ({"subjects": ("anne",)}, ANNE, True),
        ({"subjects": ("anne",)}, BOB, False),
    ],
)
async def test_a_standing_server_is_there_for_those_it_stands_for(
    fields: dict[str, Any], identity: Identity, is_there: bool
) -> None:
    engine = engine_of(done(), executor(ScriptedSessions(docs=ScriptedServer()), *standing(**fields)))
    assert bool(lists(await engine.create(ask(), identity))) is is_there


async def test_the_choice_and_the_allowed_list_know_standing_servers() -> None:
    provider = done(answer(call("b")))
    engine = engine_of(provider, executor(ScriptedSessions(docs=ScriptedServer(("a", "b"))), *standing()))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "docs", "name": "a"}]}
    response = await engine.create(ask(tool_choice=allowed))
    assert "not allowed" in (only(response, McpCall).error_text or "")
    await engine_of(done(), executor(ScriptedSessions(docs=ScriptedServer()), *standing())).create(
        ask(tool_choice={"type": "mcp", "server_label": "docs"})
    )


async def test_a_paused_call_of_a_standing_server_is_run_first_when_the_request_goes_on() -> None:
    provider = done(answer(call("echo"), call("clock")))
    server = ScriptedServer()
    engine = engine_of(provider, executor(ScriptedSessions(docs=server), *standing(models=("scripted",))))
    first = await engine.create(ask(tools=[CLOCK]))
    assert (first.status, server.calls) == ("requires_action", [])
    output = {"type": "function_call_output", "call_id": only(first, FunctionCall).call_id, "output": "noon"}
    second = await engine.create(ask([output], previous_response_id=first.id, tools=[CLOCK]))
    assert only(second, McpCall).output == "echo {}"


async def test_a_compaction_offers_no_tools() -> None:
    server = ScriptedServer()
    engine = engine_of(ScriptedProvider(answer(say("In short."))), executor(ScriptedSessions(docs=server), *standing()))
    await engine.compact(model="scripted", input="A long story.")
    assert server.lists == 0


async def test_what_a_standing_server_adds_is_counted() -> None:
    plain = await engine_of(done()).count(ask())
    engine = engine_of(done(), executor(ScriptedSessions(docs=ScriptedServer()), *standing()))
    assert await engine.count(ask()) > plain


# ---- the engine ----


async def test_executors_are_opened_and_closed_with_the_engine() -> None:
    server = ScriptedServer()
    sessions = ScriptedSessions(docs=server, news=server)
    async with engine_of(done(), executor(sessions)):
        await asyncio.sleep(0)
        assert server.lists == 2
    assert sessions.is_closed


async def test_an_executor_that_cannot_be_opened_or_closed_keeps_nothing_from_its_start_and_its_end() -> None:
    class Odd(McpExecutor):
        async def open(self) -> None:
            raise OSError("not today")

        async def close(self) -> None:
            raise OSError("nor tomorrow")

    provider = done()
    async with engine_of(provider, Odd(sessions=ScriptedSessions())) as engine:
        assert text_of(await engine.create(ask())) == "Done."
    assert provider.is_closed


def test_a_label_is_one_servers_whichever_kind_it_is_of() -> None:
    with pytest.raises(ValueError, match="two tool servers labelled 'docs'"):
        Engine(done(), executors=[Toolset("docs"), McpExecutor(servers("docs"))])


async def test_the_toolsets_of_the_engine_are_those_of_mcp_servers_too() -> None:
    down = ScriptedServer()
    down.down = ServerUnavailable("The tool server 'news' cannot be reached.")
    sessions = ScriptedSessions(docs=ScriptedServer(), news=down)
    docs, news = await engine_of(done(), executor(sessions)).toolsets()
    assert [tool.name for tool in docs.tools] == ["echo"]
    assert news.error == "The tool server 'news' cannot be reached."


async def test_an_mcp_server_stands_in_for_a_hosted_tool() -> None:
    provider = done(answer(call("search")))
    hosted = {"web_search": HostedPolicy(do="run", toolset="docs")}
    sessions = ScriptedSessions(docs=ScriptedServer(("search",)))
    response = await engine_of(provider, executor(sessions), hosted=hosted).create(ask(tools=[{"type": "web_search"}]))
    assert only(response, McpCall).name == "search"


async def test_a_server_has_limits_of_its_own() -> None:
    async def long(name: str, arguments: str) -> McpCallResult:
        return text("x" * 100)

    own = servers("docs", limits=ToolLimits(output_bytes=10))
    sessions = ScriptedSessions(docs=ScriptedServer(("find",), long))
    response = await engine_of(done(answer(call("find"))), executor(sessions, *own)).create(ask(tools=[DOCS]))
    assert str(only(response, McpCall).output).startswith("x" * 10 + "\n[output cut")


async def test_no_credentials_show_in_a_response_or_its_record() -> None:
    sessions = ScriptedSessions({THEIRS: ScriptedServer(("find",))})
    engine = Engine(
        done(answer(call("find"))), store=MemoryStore(), executors=[executor(sessions)], settings=EngineSettings()
    )
    secret = {**STRANGER, "authorization": "hush-token", "headers": {"X-Key": "hush-header"}}
    response = await engine.create(ask(tools=[secret]))
    again = await engine.retrieve(ANONYMOUS, response.id)
    assert "hush" not in f"{response!r}{again!r}"
    assert sessions.headers[-1] == {"X-Key": "hush-header", "Authorization": "Bearer hush-token"}
