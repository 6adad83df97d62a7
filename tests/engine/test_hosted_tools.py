"""Tools of types that only OpenAI runs: run by a toolset in their place, dropped, or refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import McpCall, McpListTools
from antwort.api.tools import OpaqueTool
from antwort.engine.prompt.chat_request import chat_request
from antwort.engine.prompt.declared_tools import in_force, policy_for
from antwort.engine.settings import EngineSettings, HostedPolicy
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.toolset import Toolset
from codex_kit import CODEX_TOOLS, WEB_SEARCH
from engine_kit import WEATHER, ask, engine_of, items_of, kinds, only, sent, stream, text_of
from plan_kit import STEADY, plan_of, run_of

SEARCH: dict[str, Any] = {"type": "mcp", "server_label": "search"}
RUN = HostedPolicy(do="run", toolset="search")
FIND_ONLY = HostedPolicy(do="run", toolset="search", tools=("find",))


def search() -> Toolset:
    toolset = Toolset("search", instructions="Search before you guess.")

    @toolset.tool
    def find(query: str) -> str:
        """Find pages."""
        return f"pages about {query}"

    @toolset.tool
    def fetch(url: str) -> str:
        """Fetch a page."""
        return f"the page {url}"

    return toolset


def hosted(**policies: HostedPolicy) -> dict[str, Any]:
    return {"hosted": policies}


def offered(provider: ScriptedProvider, at: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in sent(provider.requests[at]).get("tools", [])]


# ---- whose word holds ----

POLICIES = {
    "web_search": HostedPolicy(do="refuse"),
    "web_*": HostedPolicy(do="drop"),
    "web_search_*": RUN,
    "*": HostedPolicy(do="refuse"),
}


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("web_search", "web_search"),
        ("web_search_preview", "web_search_*"),
        ("web_search_", "web_search_*"),
        ("web_", "web_*"),
        ("web", "*"),
        ("computer", "*"),
        ("", "*"),
    ],
)
def test_the_type_itself_goes_first_and_then_the_longest_beginning(kind: str, word: str) -> None:
    assert policy_for(kind, EngineSettings(hosted=POLICIES)) is POLICIES[word]


@pytest.mark.parametrize("unknown_tools", ["drop", "refuse"])
def test_a_type_that_nobody_spoke_of_goes_by_the_setting_for_unknown_tools(unknown_tools: Any) -> None:
    settings = EngineSettings(hosted={"web_search": RUN}, unknown_tools=unknown_tools)
    assert policy_for("computer", settings) == HostedPolicy(do=unknown_tools)


@STEADY
@given(st.text(max_size=20), st.dictionaries(st.text(max_size=8), st.just(RUN), max_size=4))
def test_a_policy_is_found_for_every_type_there_can_be(kind: str, policies: dict[str, HostedPolicy]) -> None:
    policy = policy_for(kind, EngineSettings(hosted=policies))
    begins = any(word.endswith("*") and kind.startswith(word[:-1]) for word in policies)
    assert (policy is RUN) is (kind in policies or begins)
    assert in_force([OpaqueTool(kind, {})], EngineSettings(hosted=policies)) == (
        [OpaqueTool(kind, {})] if policy is RUN else []
    )


# ---- run ----


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_toolset_takes_the_place_of_a_hosted_tool(streamed: bool) -> None:
    provider = ScriptedProvider(answer(call("find", query="cats")), answer(say("Cats purr.")))
    engine, request = engine_of(provider, search(), **hosted(web_search=FIND_ONLY)), ask(tools=CODEX_TOOLS)
    response = (await stream(engine, request)).response if streamed else await engine.create(request)
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed = only(response, McpListTools)
    assert (listed.server_label, [tool.name for tool in listed.tools]) == ("search", ["find"])
    made = only(response, McpCall)
    assert (made.server_label, made.name, made.output) == ("search", "find", "pages about cats")
    assert text_of(response) == "Cats purr."
    assert "find" in offered(provider)
    assert "fetch" not in offered(provider)
    assert [tool for tool in response.tools if tool["type"] == "web_search"] == [WEB_SEARCH]
    assert "tool_search" not in [tool["type"] for tool in response.tools]


async def test_the_toolset_may_tell_the_model_how_to_use_it() -> None:
    provider = ScriptedProvider(answer(say("No.")))
    await engine_of(provider, search(), **hosted(web_search=RUN)).create(ask(tools=[WEB_SEARCH]))
    assert sent(provider.requests[0])["messages"][0] == {"role": "system", "content": "Search before you guess."}


@pytest.mark.parametrize(
    "tools",
    [
        [WEB_SEARCH, WEB_SEARCH],
        [WEB_SEARCH, {"type": "web_search_preview"}],
        [WEB_SEARCH, SEARCH],
        [SEARCH, WEB_SEARCH, {"type": "namespace", "name": "a", "tools": [WEB_SEARCH]}],
    ],
    ids=["twice", "two types", "by label, too", "in a namespace, too"],
)
async def test_a_toolset_is_offered_and_listed_once(tools: list[dict[str, Any]]) -> None:
    provider = ScriptedProvider(answer(say("No.")))
    policies = {"web_search": FIND_ONLY, "web_search_preview": RUN}
    response = await engine_of(provider, search(), hosted=policies).create(ask(tools=tools))
    (listing,) = items_of(response, McpListTools)
    names = [tool.name for tool in listing.tools]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(offered(provider))
    assert len(response.tools) == len(tools) + (tools[-1]["type"] == "namespace")


async def test_what_one_declaration_leaves_out_another_brings_in() -> None:
    plan = await plan_of(ask(tools=[WEB_SEARCH, SEARCH]), search(), **hosted(web_search=FIND_ONLY))
    assert list(plan.toolbox.tools) == ["find", "fetch"]
    assert [tool.name for tool in plan.listings[0].tools] == ["find", "fetch"]


async def test_a_toolset_that_cannot_be_asked_is_shown_so_and_the_response_goes_on() -> None:
    class Broken(Toolset):
        async def discover(self, declared: Any, identity: Any) -> Any:
            raise OSError(declared, identity)

    provider = ScriptedProvider(answer(say("Without.")))
    response = await engine_of(provider, Broken("search"), **hosted(web_search=RUN)).create(ask(tools=[WEB_SEARCH]))
    assert only(response, McpListTools).error == "The tool server 'search' could not be asked for its tools."
    assert text_of(response) == "Without."


async def test_a_paused_call_of_a_stand_in_is_run_when_the_conversation_goes_on() -> None:
    store = MemoryStore()
    provider = ScriptedProvider(
        answer(call("find", query="cats"), call("weather", city="Paris")), answer(say("Cats, and sun."))
    )
    engine = engine_of(provider, search(), store=store, **hosted(web_search=RUN))
    first = await engine.create(ask(tools=[WEB_SEARCH, WEATHER]))
    assert first.status == "requires_action"
    (asked,) = [item for item in first.output if not isinstance(item, McpListTools | McpCall)]
    result = {"type": "function_call_output", "call_id": getattr(asked, "call_id", ""), "output": "sunny"}
    second = await engine.create(ask([result], previous_response_id=first.id))
    assert only(second, McpCall).output == "pages about cats"


@pytest.mark.parametrize("policy", [HostedPolicy(do="refuse"), HostedPolicy(do="drop")])
async def test_a_paused_call_of_a_stand_in_that_is_gone_is_answered_with_an_error(policy: HostedPolicy) -> None:
    store = MemoryStore()
    provider = ScriptedProvider(answer(call("find", query="cats"), call("weather", city="Paris")), answer(say("No.")))
    engine = engine_of(provider, search(), store=store, **hosted(web_search=RUN))
    first = await engine.create(ask(tools=[WEB_SEARCH, WEATHER]))
    later = engine_of(provider, search(), store=store, **hosted(web_search=policy))
    (asked,) = [item for item in first.output if not isinstance(item, McpListTools | McpCall)]
    result = {"type": "function_call_output", "call_id": getattr(asked, "call_id", ""), "output": "sunny"}
    second = await later.create(ask([result], previous_response_id=first.id))
    made = only(second, McpCall)
    assert made.status == "failed"
    assert "The tool 'find' is not available any more." in str(made.error_text)


# ---- choosing ----


@pytest.mark.parametrize(
    ("policy", "choice"),
    [(FIND_ONLY, {"type": "function", "function": {"name": "find"}}), (RUN, "required")],
    ids=["one tool", "several"],
)
async def test_a_hosted_type_may_be_forced(policy: HostedPolicy, choice: object) -> None:
    provider = ScriptedProvider(answer(say("No.")))
    engine = engine_of(provider, search(), **hosted(web_search=policy))
    response = await engine.create(ask(tools=[WEB_SEARCH, WEATHER], tool_choice={"type": "web_search"}))
    assert sent(provider.requests[0])["tool_choice"] == choice
    assert response.tool_choice == {"type": "web_search"}


async def test_a_backend_that_takes_lists_is_told_which_tools_stand_in_for_a_forced_type() -> None:
    plan = await plan_of(
        ask(tools=[WEB_SEARCH, WEATHER], tool_choice={"type": "web_search"}),
        search(),
        capabilities=Capabilities(allowed_tools=True),
        **hosted(web_search=RUN),
    )
    listed = [{"type": "function", "function": {"name": name}} for name in ("find", "fetch")]
    asked = sent(chat_request(run_of(plan), plan))
    assert asked["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": listed}}


async def test_of_a_forced_type_only_what_is_allowed_may_be_called() -> None:
    choice = {"type": "web_search"}
    request = ask(tools=[WEB_SEARCH, WEATHER], tool_choice=choice, allowed_tools=["fetch", "weather"])
    plan = await plan_of(request, search(), **hosted(web_search=RUN))
    asked = sent(chat_request(run_of(plan), plan))
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "fetch"}}


async def test_a_hosted_type_may_be_on_the_allowed_list() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    plan = await plan_of(
        ask(tools=[SEARCH, WEB_SEARCH, WEATHER], tool_choice=choice), search(), hosted={"web*": FIND_ONLY}
    )
    assert plan.toolbox.allowed == frozenset({"find"})


async def test_a_forced_type_whose_tools_are_not_allowed_is_refused() -> None:
    request = ask(tools=[WEB_SEARCH, WEATHER], tool_choice={"type": "web_search"}, allowed_tools=["weather"])
    with pytest.raises(InvalidField, match="not one of the allowed tools") as caught:
        await plan_of(request, search(), **hosted(web_search=RUN))
    assert caught.value.param == "tool_choice.type"


# ---- refuse and drop ----


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ([WEATHER, {"type": "computer_use_preview"}], "tools[1].type"),
        ([{"type": "namespace", "name": "a", "tools": [{"type": "computer"}]}], "tools[0].tools[0].type"),
    ],
)
async def test_a_type_may_be_refused(tools: list[dict[str, Any]], path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=tools), hosted={"computer*": HostedPolicy(do="refuse")})
    assert (caught.value.param, caught.value.code) == (path, "unsupported_tool")


async def test_a_type_may_be_dropped_where_others_are_refused() -> None:
    provider = ScriptedProvider(answer(say("Fine.")))
    engine = engine_of(provider, unknown_tools="refuse", **hosted(web_search=HostedPolicy(do="drop")))
    response = await engine.create(ask(tools=[WEB_SEARCH, WEATHER]))
    assert [tool["type"] for tool in response.tools] == ["function"]
    assert offered(provider) == ["weather"]


async def test_what_was_dropped_is_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "antwort.engine"):
        await plan_of(ask(tools=[*CODEX_TOOLS, WEB_SEARCH]))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["dropped tools of types that nobody here runs: web_search, tool_search"]


async def test_types_that_a_client_made_up_cannot_fill_or_forge_the_log(caplog: pytest.LogCaptureFixture) -> None:
    odd = [{"type": "a\nERROR all is lost"}, {"type": "x" * 5000}, *({"type": f"t{n}"} for n in range(20))]
    with caplog.at_level(logging.INFO, "antwort.engine"):
        await plan_of(ask(tools=odd))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert "a?ERROR?all?is?lost, xxx" in line
    assert line.endswith("t0, t1, t2, t3, t4, t5 and 14 more")
    assert len(line) < 400


async def test_a_request_that_loses_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "antwort.engine"):
        await plan_of(ask(tools=[WEATHER, WEB_SEARCH]), search(), **hosted(web_search=RUN))
    assert not caplog.records


# ---- engines that cannot be made ----


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (HostedPolicy(do="run"), "The policy for tools of type 'web*' names no toolset; known are search."),
        (
            HostedPolicy(do="run", toolset="calc"),
            "The policy for tools of type 'web*' names the toolset 'calc'; known are search.",
        ),
    ],
)
def test_an_engine_refuses_a_policy_that_nobody_can_run(policy: HostedPolicy, said: str) -> None:
    with pytest.raises(ValueError, match="policy for tools") as caught:
        engine_of(ScriptedProvider(), search(), hosted={"web*": policy})
    assert str(caught.value) == said
