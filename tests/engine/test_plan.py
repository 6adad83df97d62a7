"""The plan: what is offered, who runs it, how it shows, and what the backend can take."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    InputVideo,
    McpToolInfo,
    Message,
)
from antwort.api.wire import replace
from antwort.engine.loop.call_display import Shown, display_of
from antwort.engine.loop.item_builders import reasoning_style
from antwort.engine.plan import Plan
from antwort.engine.prompt.content_checks import check_capabilities
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.tool_names import legal_name, model_name
from antwort.engine.prompt.toolbox import build_toolbox
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField, UnsupportedFeature
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities
from antwort.testing import ToolServerFake
from antwort.tools.base import ToolDefinition, ToolExecutor, ToolKind
from antwort.tools.grammar import Checks
from antwort.tools.limits import all_limited
from antwort.tools.routing import Route, Toolbox, route
from engine_kit import CLOCK, SERVER, WEATHER, FunctionExecutor, ask, replies, weather_tool
from plan_kit import depot, plan_of, run_of, said

OTHER_SERVER = {"type": "mcp", "server_label": "shop"}


async def toolbox_of(*executors: ToolExecutor, **fields: Any) -> Toolbox:
    return (await plan_of(ask(**fields), *executors)).toolbox


# ---- what is offered ----


async def test_a_function_is_offered_as_it_was_declared() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    declared = {"type": "function", "name": "weather", "parameters": schema, "description": "The weather."}
    toolbox = await toolbox_of(tools=[{**declared, "strict": True}])
    assert toolbox.tools == {
        "weather": ToolDefinition(
            name="weather",
            kind=ToolKind.FUNCTION,
            description="The weather.",
            parameters=schema,
            strict=True,
        )
    }


async def test_tools_are_offered_in_the_order_they_were_declared() -> None:
    toolbox = await toolbox_of(depot(), tools=[CLOCK, SERVER, WEATHER])
    assert list(toolbox.tools) == ["clock", "depot_stock", "depot_price", "weather"]


@pytest.mark.proves("MISTAKE-25")
async def test_a_servers_tools_are_offered_only_where_the_request_names_it() -> None:
    assert list((await toolbox_of(depot(), tools=[WEATHER])).tools) == ["weather"]


async def test_a_server_is_asked_for_its_tools_and_they_are_listed_by_its_own_names() -> None:
    plan = await plan_of(ask(tools=[SERVER]), depot())
    (listing,) = plan.listings
    assert (listing.server_label, listing.status, listing.id[:5]) == ("depot", "completed", "mcpl_")
    schema = {"type": "object", "properties": {}}
    assert listing.tools == tuple(McpToolInfo(name=name, input_schema=schema) for name in ("stock", "price"))


async def test_a_listing_says_what_the_server_says_about_its_tools() -> None:
    class Described(ToolServerFake):
        async def discover(self, declared: Any, identity: Any) -> list[ToolDefinition]:
            schema = {"type": "object", "required": ["n"]}
            return [ToolDefinition(name="count", kind=ToolKind.MCP, description="Counts.", parameters=schema)]

    plan = await plan_of(ask(tools=[SERVER]), Described("depot"))
    info = McpToolInfo(name="count", input_schema={"type": "object", "required": ["n"]}, description="Counts.")
    assert plan.listings[0].tools == (info,)


async def test_each_label_finds_its_own_server() -> None:
    shop = ToolServerFake("shop", buy=replies("bought"))
    plan = await plan_of(ask(tools=[OTHER_SERVER, SERVER]), weather_tool(), depot(), shop)
    assert list(plan.toolbox.tools) == ["buy", "depot_stock", "depot_price"]
    assert [listing.server_label for listing in plan.listings] == ["shop", "depot"]


@pytest.mark.proves("CP-036")
async def test_a_label_that_nobody_knows_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=[WEATHER, OTHER_SERVER]), depot())
    assert (caught.value.param, caught.value.code) == ("tools[1].server_label", "unknown_tool_server")


@pytest.mark.proves("RULING-1")
async def test_the_label_of_refused_calls_is_no_servers() -> None:
    """A call that was refused would otherwise be run as the call to that server which it looks like."""
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=[{"type": "mcp", "server_label": "antwort"}]), ToolServerFake("antwort"))
    assert (caught.value.param, caught.value.code) == ("tools[0].server_label", "reserved_label")


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["price"], ["depot_price"]),
        ({"tool_names": ["stock"]}, ["depot_stock"]),
        ({"read_only": True}, []),
        ([], []),
        (None, ["depot_stock", "depot_price"]),
    ],
)
async def test_a_declaration_may_leave_out_some_of_a_servers_tools(allowed: Any, names: list[str]) -> None:
    plan = await plan_of(ask(tools=[{**SERVER, "allowed_tools": allowed}]), depot())
    assert list(plan.toolbox.tools) == names
    assert [f"depot_{info.name}" for info in plan.listings[0].tools] == names


@pytest.mark.proves("MISTAKE-26")
@pytest.mark.parametrize("tools", [[WEATHER, SERVER], [SERVER, WEATHER]], ids=["function first", "server first"])
async def test_a_declared_function_goes_before_a_servers_tool_of_the_same_name(tools: list[Any]) -> None:
    toolbox = await toolbox_of(ToolServerFake("depot", weather=replies("from the server")), tools=tools)
    assert toolbox.tools["weather"].kind is ToolKind.FUNCTION
    assert route("weather", toolbox) is Route.CLIENT


async def test_two_servers_tools_with_one_name_are_both_offered_by_label() -> None:
    shop = ToolServerFake("shop", stock=replies("shop"))
    toolbox = await toolbox_of(depot(prefix=""), shop, tools=[SERVER, OTHER_SERVER])
    assert list(toolbox.tools) == ["depot__stock", "price", "shop__stock"]
    assert {name: tool.own_name for name, tool in toolbox.tools.items()}["shop__stock"] == "stock"


async def test_a_tool_that_nobody_here_runs_is_dropped_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "antwort.engine"):
        plan = await plan_of(ask(tools=[WEATHER, {"type": "web_search"}]))
    assert list(plan.toolbox.tools) == ["weather"]
    assert [tool["type"] for tool in plan.response.tools] == ["function"]
    assert "nobody here runs: web_search" in caplog.text


async def test_a_tool_that_nobody_here_runs_is_refused_where_that_is_set() -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=[WEATHER, {"type": "web_search"}]), unknown_tools="refuse")
    assert (caught.value.param, caught.value.code) == ("tools[1].type", "unsupported_tool")


# ---- the allowed list ----


def _choice(*tools: dict[str, str]) -> dict[str, Any]:
    return {"type": "allowed_tools", "tools": list(tools)}


WEATHER_ENTRY = {"type": "function", "name": "weather"}


@pytest.mark.proves("FR-008", "FR-010")
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, None),
        ({"allowed_tools": []}, None),
        ({"allowed_tools": ["weather"]}, {"weather"}),
        ({"allowed_tools": [WEATHER_ENTRY]}, {"weather"}),
        ({"tool_choice": _choice(WEATHER_ENTRY)}, {"weather"}),
        ({"tool_choice": _choice({"type": "function", "name": "depot_stock"})}, {"depot_stock"}),
        ({"tool_choice": _choice({"type": "mcp", "server_label": "depot"})}, {"depot_stock", "depot_price"}),
        ({"tool_choice": _choice({"type": "mcp", "server_label": "depot", "name": "stock"})}, {"depot_stock"}),
        (
            {"tool_choice": _choice(WEATHER_ENTRY, {"type": "mcp", "server_label": "depot", "name": "price"})},
            {"weather", "depot_price"},
        ),
    ],
)
async def test_both_forms_of_the_allowed_list_come_to_names(fields: dict[str, Any], names: set[str] | None) -> None:
    toolbox = await toolbox_of(depot(), tools=[WEATHER, CLOCK, SERVER], **fields)
    assert toolbox.allowed == names
    assert len(toolbox.tools) == 4


@pytest.mark.proves("FR-008")
@pytest.mark.parametrize("entry", ["dance", {"type": "mcp", "server_label": "shop"}])
async def test_a_list_that_names_none_of_the_tools_allows_none(entry: Any) -> None:
    toolbox = await toolbox_of(weather_tool(), depot(), tools=[WEATHER, SERVER], allowed_tools=[entry])
    assert {route(name, toolbox) for name in toolbox.tools} == {Route.REJECTED}


# ---- a forced tool ----


@pytest.mark.proves("FR-007", "CP-036")
@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "dance"}, "tool_choice.name"),
        ({"type": "function", "name": "stock"}, "tool_choice.name"),
        ({"type": "mcp", "server_label": "shop"}, "tool_choice.server_label"),
        ({"type": "mcp", "server_label": "depot", "name": "dance"}, "tool_choice.name"),
        ({"type": "mcp", "server_label": "depot", "name": "depot_stock"}, "tool_choice.name"),
    ],
)
async def test_a_forced_tool_that_is_not_offered_is_refused(choice: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=[WEATHER, SERVER], tool_choice=choice), depot())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, "unknown_tool")


@pytest.mark.proves("FR-007")
@pytest.mark.parametrize("kind", ["acme:dance", "custom"])
async def test_a_tool_that_is_no_function_cannot_be_forced_as_one(kind: str) -> None:
    with pytest.raises(InvalidField, match="not one of the tools"):
        await plan_of(ask(tools=[{"type": kind, "name": "dance"}], tool_choice={"type": "function", "name": "dance"}))


@pytest.mark.proves("FR-005")
@pytest.mark.parametrize(
    "choice",
    [
        WEATHER_ENTRY,
        {"type": "function", "name": "depot_stock"},
        {"type": "mcp", "server_label": "depot"},
        {"type": "mcp", "server_label": "depot", "name": "stock"},
        {"type": "mcp", "server_label": "depot", "name": None},
        "required",
        "none",
    ],
)
async def test_a_tool_that_is_offered_may_be_forced(choice: Any) -> None:
    plan = await plan_of(ask(tools=[WEATHER, SERVER], tool_choice=choice), depot())
    assert len(plan.toolbox.tools) == 3


# ---- whether anything is run ----


@pytest.mark.proves("FR-004")
@pytest.mark.parametrize(
    ("executors", "tools", "may_run"),
    [
        ([], [WEATHER], False),
        ([FunctionExecutor()], [WEATHER], False),
        ([weather_tool()], [WEATHER], True),
        ([weather_tool()], [CLOCK], True),
        ([weather_tool()], [], True),
        ([depot()], [WEATHER], False),
        ([depot()], [WEATHER, SERVER], True),
        ([depot(), FunctionExecutor()], [SERVER], True),
        ([depot()], [{**SERVER, "allowed_tools": []}], False),
    ],
)
async def test_the_loop_is_on_where_somebody_here_could_run_something(
    executors: list[ToolExecutor], tools: list[Any], may_run: bool
) -> None:
    assert (await toolbox_of(*executors, tools=tools)).may_run is may_run


@pytest.mark.proves("FR-006")
async def test_with_choice_none_the_loop_is_off() -> None:
    assert not (await toolbox_of(weather_tool(), depot(), tools=[WEATHER, SERVER], tool_choice="none")).may_run


async def test_a_toolbox_keeps_the_executors_in_their_order() -> None:
    executors = all_limited([weather_tool(), depot()])
    toolbox, _ = await build_toolbox(ask(tools=[WEATHER]), Discovery(executors, ANONYMOUS, EngineSettings()))
    assert toolbox.executors == executors


# ---- how a call shows ----


async def _full_plan(**fields: Any) -> Plan:
    settings = {"refused_calls": fields.pop("refused_calls", "mcp_call")}
    return await plan_of(ask(tools=[WEATHER, CLOCK, SERVER], **fields), weather_tool(), depot(), **settings)


def shown(plan: Plan, name: str) -> Shown:
    return display_of(plan, name, run_of(plan), Checks())


@pytest.mark.proves("RULING-1")
@pytest.mark.parametrize("refused_calls", ["mcp_call", "function_call"])
@pytest.mark.parametrize(
    ("name", "as_server_call", "as_function_call"),
    [
        ("weather", Shown("weather", counts=True), Shown("weather", counts=True)),
        ("clock", Shown("clock", "antwort"), Shown("clock")),
        ("dance", Shown("dance", "antwort"), Shown("dance")),
        ("depot_stock", Shown("stock", "depot", counts=True), Shown("stock", "depot", counts=True)),
        ("stock", Shown("stock", "antwort"), Shown("stock")),
    ],
    ids=["run here", "not allowed", "unknown", "a server's", "a server's own name"],
)
async def test_how_a_call_shows(refused_calls: str, name: str, as_server_call: Shown, as_function_call: Shown) -> None:
    allowed = ["weather", "depot_stock"]
    plan = await _full_plan(allowed_tools=allowed, refused_calls=refused_calls)
    assert shown(plan, name) == (as_server_call if refused_calls == "mcp_call" else as_function_call)


@pytest.mark.proves("RULING-1")
async def test_a_call_for_the_client_shows_as_a_function() -> None:
    assert shown(await _full_plan(), "clock") == Shown("clock", is_clients=True)


@pytest.mark.proves("RULING-1", "EDGE-2")
async def test_without_executors_an_unknown_name_shows_as_a_function() -> None:
    assert shown(await plan_of(ask(tools=[WEATHER])), "dance") == Shown("dance", is_clients=True)


@pytest.mark.proves("RULING-1", "FR-006")
async def test_a_servers_tool_shows_as_the_servers_even_when_nothing_is_run_or_allowed() -> None:
    """The client must never run it."""
    assert shown(await _full_plan(tool_choice="none"), "depot_stock") == Shown("stock", "depot")
    plan = await _full_plan(allowed_tools=["weather"], refused_calls="function_call")
    assert shown(plan, "depot_stock") == Shown("stock", "depot")


async def test_a_servers_tool_that_keeps_its_name_goes_by_it_everywhere() -> None:
    entry = {"type": "mcp", "server_label": "depot", "name": "price"}
    declared = {**SERVER, "allowed_tools": ["price", "stock"]}
    plan = await plan_of(ask(tools=[declared], tool_choice=_choice(entry)), depot(prefix=""))
    assert list(plan.toolbox.tools) == ["stock", "price"]
    assert plan.toolbox.allowed == frozenset({"price"})
    assert shown(plan, "price") == Shown("price", "depot", counts=True)
    forced = await plan_of(ask(tools=[declared], tool_choice=entry), depot(prefix=""))
    assert len(forced.toolbox.tools) == 2


async def test_a_tool_of_no_server_that_is_not_the_clients_shows_as_the_houses() -> None:
    plan = await plan_of(ask())
    code = ToolDefinition(name="python", kind=ToolKind.SANDBOX)
    toolbox = Toolbox(tools={"python": code}, may_run=False)
    assert shown(replace(plan, toolbox=toolbox), "python") == Shown("python", "antwort")


async def test_the_model_name_of_a_servers_tool_is_found_by_label_and_own_name() -> None:
    toolbox = (await _full_plan()).toolbox
    assert model_name(toolbox, "depot", "stock") == "depot_stock"
    assert model_name(toolbox, "shop", "stock") == "stock"
    assert model_name(toolbox, "antwort", "weather") == "weather"
    assert model_name(toolbox, "depot", "weather") == "depot__weather"  # "weather" is the request's own
    assert model_name(toolbox, "shop", "a.b") == legal_name("a.b")
    plain = await toolbox_of(depot(prefix=""), tools=[SERVER])
    assert model_name(plain, "depot", "stock") == "stock"


@pytest.mark.parametrize(
    ("reasoning", "style"),
    [
        (None, "text"),
        ({"effort": "low"}, "text"),
        ({"summary": "auto"}, "summary"),
        ({"generate_summary": "concise"}, "summary"),
    ],
)
async def test_how_reasoning_shows(reasoning: Any, style: str) -> None:
    options = ask(reasoning=reasoning).reasoning
    assert ("text" if options is None else reasoning_style(options)) == style


# ---- what the backend can take ----

PICTURE = InputImage(image_url="data:image/png;base64,AA==")
BLIND = Capabilities(vision=False)


def _message(*parts: Any) -> Message:
    return Message(id="msg_1", role="user", content=parts)


def _output(*parts: Any) -> FunctionCallOutput:
    return FunctionCallOutput(id="fco_1", call_id="call_1", output=parts)


@pytest.mark.proves("EN-012", "CP-030")
@pytest.mark.parametrize(
    ("item", "capabilities", "param"),
    [
        (_message(InputText(text="Look:"), PICTURE), BLIND, "input[1].content[1]"),
        (_message(InputVideo(video_url="https://example.org/x")), BLIND, "input[1].content[0]"),
        (_message(InputFile(file_data="AA==")), Capabilities(), "input[1].content[0]"),
        (_message(InputFile(file_url="https://example.org/x")), Capabilities(files=True), "input[1].content[0]"),
        (_message(InputImage(file_id="file_1")), Capabilities(), "input[1].content[0]"),
        (_message(InputFile(file_id="file_1")), Capabilities(files=True), "input[1].content[0]"),
    ],
)
def test_what_the_model_cannot_take_is_refused_where_it_stands(
    item: InputItem, capabilities: Capabilities, param: str
) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        check_capabilities([(), (said("Hi"), item)], capabilities)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.proves("EN-012")
def test_a_picture_in_the_history_is_refused_as_the_histories() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        check_capabilities([(_message(PICTURE),), (said("Nice."),), (_message(InputText(text="And?")),)], BLIND)
    assert caught.value.param == "previous_response_id"


@pytest.mark.parametrize("part", [PICTURE, InputImage(file_id="file_1"), InputFile(file_url="https://example.org/x")])
def test_what_a_tool_gave_does_not_bar_the_way(part: Any) -> None:
    custom = CustomToolCallOutput(id="ctco_1", call_id="call_1", output=(part,))
    check_capabilities([(_output(part),), (_output(part), custom, _message(InputText(text="And?")))], BLIND)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (InputFile(file_url="https://example.org/x"), "'file_data' only"),
        (InputFile(file_id="file_1"), "'file_data' only"),
        (InputImage(file_id="file_1"), "'image_url' only"),
    ],
)
def test_what_has_no_way_in_is_told_the_one_there_is(part: Any, said: str) -> None:
    with pytest.raises(UnsupportedFeature, match=said):
        check_capabilities([(_message(part),)], Capabilities(files=True))


def test_what_the_model_takes_passes() -> None:
    seeing = _message(PICTURE, InputVideo(video_url="https://example.org/x"), InputText(text="Look."))
    check_capabilities(
        [(seeing, _output(PICTURE), FunctionCallOutput(id="f", call_id="c", output="x"))], Capabilities()
    )
    check_capabilities([(_message(InputFile(file_data="AA==")),)], Capabilities(files=True))
