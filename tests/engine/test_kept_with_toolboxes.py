"""What is kept with a toolbox for the next request with the same tools: never another's, never out of date."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import UNSET, replace
from antwort.engine.loop.call_display import Shown, display_of
from antwort.engine.plan import Plan, draft_response
from antwort.engine.prompt.chat_request import chat_request
from antwort.engine.settings import EngineSettings, HostedPolicy
from antwort.tools.base import ToolDefinition
from antwort.tools.grammar import Checks
from engine_kit import SERVER, ask, weather_tool
from plan_kit import depot, plan_of, run_of

SETTINGS = EngineSettings()


class Moody:
    """Runs the tools of a server, as long as it wants to."""

    def __init__(self) -> None:
        self._server, self.wants = depot(), True
        self.kind, self.execute = self._server.kind, self._server.execute
        self.discover, self.instruct = self._server.discover, self._server.instruct

    def can_execute(self, tool: ToolDefinition) -> bool:
        return self.wants and self._server.can_execute(tool)


async def planned(*executors: Any, **fields: Any) -> Plan:
    return await plan_of(ask(tools=[SERVER], **fields), *executors)


# ---- how calls show ----


async def test_how_a_call_shows_follows_who_runs_it() -> None:
    server = Moody()
    plan = await planned(weather_tool(), server)
    run = run_of(plan)
    counted, uncounted = Shown("stock", "depot", counts=True), Shown("stock", "depot")
    assert display_of(plan, "depot_stock", run, Checks()) == counted
    server.wants = False
    assert display_of(plan, "depot_stock", run, Checks()) == uncounted
    server.wants = True
    assert display_of(plan, "depot_stock", run, Checks()) == counted


async def test_a_call_that_is_to_be_approved_is_asked_for_by_what_the_run_may_still_call() -> None:
    plan = await plan_of(ask(tools=[{**SERVER, "require_approval": "always"}], max_tool_calls=1), depot())
    run = run_of(plan)
    asks = display_of(plan, "depot_stock", run, Checks()).asks
    asks_no_more = display_of(plan, "depot_stock", replace(run, calls_run=1), Checks()).asks
    assert asks is not None
    assert asks_no_more is not None
    assert (asks("{}", 0), asks_no_more("{}", 0)) == (True, False)


async def test_a_toolbox_that_is_made_of_another_keeps_nothing_of_it() -> None:
    plan = await planned(depot())
    run, toolbox = run_of(plan), plan.toolbox
    assert display_of(plan, "depot_stock", run, Checks()).name == "stock"
    chat_request(run, plan)
    renamed = {"depot_stock": replace(toolbox.tools["depot_stock"], server_tool="shelf", description="Anew")}
    other = replace(plan, toolbox=replace(toolbox, tools=renamed))
    assert display_of(other, "depot_stock", run, Checks()).name == "shelf"
    assert [tool.function.description for tool in chat_request(run, other).tools or ()] == ["Anew"]


# ---- what the model is told ----


async def test_requests_with_the_same_toolbox_tell_of_the_same_tools_and_of_nothing_else_of_each_other() -> None:
    first = await planned(depot(), instructions="Be brief.", temperature=0.5)
    again = replace(await planned(depot(), parallel_tool_calls=False), toolbox=first.toolbox)
    one, two = chat_request(run_of(first), first), chat_request(run_of(again), again)
    assert one.tools == two.tools
    assert [message.role for message in two.messages] == ["user"]
    assert (one.parallel_tool_calls, two.parallel_tool_calls) == (UNSET, False)
    assert (one.temperature, bool(two.temperature)) == (0.5, False)


async def test_tools_are_left_out_of_the_last_inference_and_there_in_the_next_response() -> None:
    plan = await plan_of(ask(tools=[SERVER], max_turns=2), depot(), final_answer=True)
    run = run_of(plan)
    assert chat_request(run, plan).tools
    assert not chat_request(replace(run, turns=1), plan).tools
    assert chat_request(run, plan).tools


async def test_a_forced_choice_is_told_with_tools_that_are_kept() -> None:
    plan = await planned(depot())
    chat_request(run_of(plan), plan)
    forced = await planned(depot(), tool_choice="required")
    forced = replace(forced, toolbox=plan.toolbox)
    assert chat_request(run_of(forced), forced).tool_choice == "required"
    assert not chat_request(run_of(plan), plan).tool_choice
    assert chat_request(replace(run_of(plan), over_limit_turns=(1,)), plan).tool_choice == "none"


# ---- how tools are echoed ----


def echoed(*tools: dict[str, Any], settings: EngineSettings = SETTINGS) -> tuple[Any, ...]:
    return draft_response(ask(tools=[*tools]), "model", settings).tools


def test_each_response_has_its_tools_for_itself() -> None:
    request = ask(tools=[{**SERVER, "allowed_tools": ["stock"]}])
    first, before = (draft_response(request, "model", SETTINGS).tools for _ in range(2))
    first[0]["allowed_tools"].append("mine")
    first[0]["server_label"] = "mine"
    assert draft_response(request, "model", SETTINGS).tools == before


def test_other_tools_and_other_settings_are_echoed_as_they_are() -> None:
    search = {"type": "web_search"}
    assert [tool["server_label"] for tool in echoed(SERVER)] == ["depot"]
    assert [tool["server_label"] for tool in echoed({**SERVER, "server_label": "other"})] == ["other"]
    assert echoed() == echoed(search) == ()
    run = EngineSettings(hosted={"web_search": HostedPolicy(do="run", toolset="depot")})
    assert [tool["type"] for tool in echoed(search, settings=run)] == ["web_search"]
    assert echoed(search) == ()


@pytest.mark.parametrize("secret", [{"authorization": "s3cret"}, {"headers": {"X-Key": "s3cret"}}])
def test_an_echo_repeats_no_credentials(secret: dict[str, Any]) -> None:
    assert "s3cret" not in str(echoed({**SERVER, **secret}))
