"""The tools that a request declares itself: what the model is offered, and how its calls come back to the client."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import ArgumentsDone, CustomInputDelta, CustomInputDone, OutputItemAdded
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.api.wire import UNSET
from antwort.engine.plan import Plan
from antwort.engine.translate import chat_request
from antwort.engine.turn import Shown
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.providers.native_request import native_request
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.local import LocalExecutor
from antwort.tools.routing import Route, route
from codex_kit import AGENTS, APPLY_PATCH, APPLY_PATCH_GRAMMAR, CODEX_TOOLS, EXEC, PATCH
from engine_kit import ask, engine_of, function_calls, kinds, only, outputs, sent, stream
from plan_kit import STEADY, plan_of, run_of, server_called

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
DIGITS: dict[str, Any] = {
    "type": "custom",
    "name": "dial",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
}
NOTE: dict[str, Any] = {"type": "custom", "name": "note", "description": "Takes a note."}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def namespace(name: str, *tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **fields}


async def plan_with(*tools: dict[str, Any], grammar: Any = "described", **settings: Any) -> Plan:
    return await plan_of(ask(tools=list(tools)), capabilities=Capabilities(grammar=grammar), **settings)


async def definition_of(tool: dict[str, Any], grammar: Any = "described") -> ToolDefinition:
    (definition,) = (await plan_with(tool, grammar=grammar)).toolbox.tools.values()
    return definition


def offered(provider: ScriptedProvider, at: int = 0) -> dict[str, dict[str, Any]]:
    tools = sent(provider.requests[at]).get("tools", [])
    return {tool["function"]["name"]: tool["function"] for tool in tools}


# ---- free-form tools ----


async def test_a_free_form_tool_is_a_function_of_one_string() -> None:
    definition = await definition_of(NOTE)
    assert (definition.name, definition.kind, definition.description) == ("note", ToolKind.CUSTOM, "Takes a note.")
    assert definition.parameters == {
        "type": "object",
        "properties": {
            "input": {"type": "string", "description": "The whole input of the tool: plain text, not JSON."}
        },
        "required": ["input"],
        "additionalProperties": False,
    }


async def test_a_grammar_is_told_in_words_where_nobody_decodes_by_it() -> None:
    definition = await definition_of(APPLY_PATCH)
    assert definition.description == (
        "Use the `apply_patch` tool to edit files.\n\n"
        "The input must match this Lark grammar, from its first character to its last:\n\n" + APPLY_PATCH_GRAMMAR
    )
    assert definition.parameters is not None
    assert "pattern" not in definition.parameters["properties"]["input"]
    assert (await definition_of(DIGITS)).description == (
        "The input must match this regular expression, from its first character to its last:\n\n[0-9]+"
    )


@pytest.mark.parametrize(
    ("tool", "grammar", "is_held"),
    [(DIGITS, "pattern", True), (DIGITS, "plain_pattern", True), (APPLY_PATCH, "plain_pattern", False)],
)
async def test_a_grammar_is_a_pattern_where_the_backend_decodes_by_it(
    tool: dict[str, Any], grammar: str, is_held: bool
) -> None:
    definition = await definition_of(tool, grammar)
    assert definition.parameters is not None
    pattern = definition.parameters["properties"]["input"].get("pattern")
    assert (pattern is not None) is is_held
    assert (pattern is None) is ("must match" in (definition.description or ""))
    assert pattern is None or re.search(pattern, "007")


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ([NOTE, {**DIGITS, "format": {**DIGITS["format"], "definition": "("}}], "tools[1].format.definition"),
        (
            [namespace("a", NOTE, {**APPLY_PATCH, "format": {**APPLY_PATCH["format"], "definition": "start: x"}})],
            "tools[0].tools[1].format.definition",
        ),
    ],
)
async def test_a_grammar_that_cannot_be_read_is_refused_by_its_path(tools: list[dict[str, Any]], path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_with(*tools)
    assert (caught.value.param, caught.value.status) == (path, 400)


async def test_a_free_form_tool_is_the_clients_whoever_has_a_function_of_its_name() -> None:
    def note(input: str) -> str:  # noqa: A002 - what the tool takes
        raise AssertionError(input)

    provider = ScriptedProvider(answer(call("note", input="Remember this.")))
    response = await engine_of(provider, LocalExecutor(note)).create(ask(tools=[NOTE]))
    assert response.status == "requires_action"
    assert only(response, CustomToolCall).input == "Remember this."


# ---- how calls of free-form tools show ----


async def test_a_call_of_a_free_form_tool_shows_as_one() -> None:
    plan = await plan_with(NOTE, namespace("a", NOTE))
    assert plan.shown("note", run_of(plan)) == Shown("note", is_custom=True)
    assert plan.shown("a__note", run_of(plan)) == Shown("note", namespace="a", is_custom=True)


async def test_an_input_is_held_against_a_grammar_that_was_only_told() -> None:
    plan = await plan_with(DIGITS)
    fits = plan.shown("dial", run_of(plan)).fits
    assert fits is not None
    assert (fits("007"), fits("seven")) == (True, False)


@pytest.mark.parametrize(
    ("grammar", "fields", "settings"),
    [
        ("pattern", {}, {}),
        ("described", {"tool_choice": "none"}, {}),
        ("described", {}, {"refused_calls": "function_call"}),
        ("described", {}, {"strict": True}),
    ],
    ids=[
        "held by the backend",
        "nothing may be called",
        "refused as functions",
        "the standard knows no server's calls",
    ],
)
async def test_an_input_goes_to_the_client_unchecked(
    grammar: Any, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    plan = await plan_of(ask(tools=[DIGITS], **fields), capabilities=Capabilities(grammar=grammar), **settings)
    assert plan.shown("dial", run_of(plan)) == Shown("dial", is_custom=True)


async def test_a_second_wrong_input_is_the_clients() -> None:
    plan = await plan_with(DIGITS, namespace("a", DIGITS))
    failed = server_called(1, "dial", label="antwort", status="failed", error="It does not fit.")
    run = run_of(plan, failed)
    assert plan.shown("dial", run).fits is None
    assert plan.shown("a__dial", run).fits is not None


@pytest.mark.parametrize(
    ("refused_calls", "shown"), [("mcp_call", Shown("note", "antwort")), ("function_call", Shown("note"))]
)
async def test_a_free_form_tool_that_is_not_allowed_is_never_the_clients(refused_calls: str, shown: Shown) -> None:
    allowed = [{"type": "custom", "name": "dial"}]
    plan = await plan_of(ask(tools=[NOTE, DIGITS], allowed_tools=allowed), refused_calls=refused_calls)
    assert plan.shown("note", run_of(plan)) == shown


@pytest.mark.proves("FR-009")
async def test_a_refused_free_form_call_is_answered_where_functions_are_too() -> None:
    provider = ScriptedProvider(answer(call("note", input="x")), answer(say("No.")))
    engine = engine_of(provider, refused_calls="function_call")
    response = await engine.create(ask(tools=[NOTE, DIGITS], allowed_tools=["dial"]))
    assert kinds(response) == ["function_call", "function_call_output", "message"]
    assert "not allowed" in str(outputs(response)[0].output)


# ---- namespaces ----


async def test_a_namespace_is_flattened_for_the_model() -> None:
    plan = await plan_with(AGENTS)
    spawn, close = plan.toolbox.tools.values()
    assert (spawn.name, spawn.namespace, spawn.own_name) == (
        "multi_agent_v1__spawn_agent",
        "multi_agent_v1",
        "spawn_agent",
    )
    assert spawn.description == "Tools for spawning and managing sub-agents.\n\nSpawns an agent."
    assert close.description == "Tools for spawning and managing sub-agents."
    assert plan.shown(close.name, run_of(plan)) == Shown("close_agent", namespace="multi_agent_v1")


async def test_of_a_long_description_of_a_namespace_the_beginning_is_told() -> None:
    (tool,) = (await plan_with(namespace("a", function("x"), description="word " * 200))).toolbox.tools.values()
    assert tool.description is not None
    assert tool.description.endswith("word…")
    assert len(tool.description) <= 301


async def test_a_tool_in_a_namespace_is_the_clients_whoever_has_a_function_of_its_name() -> None:
    def a__x() -> str:
        raise AssertionError

    def x() -> str:
        raise AssertionError

    plan = await plan_of(ask(tools=[namespace("a", function("x"))]), LocalExecutor(a__x, x))
    assert route("a__x", plan.toolbox) is Route.CLIENT


async def test_a_name_that_backends_refuse_is_written_otherwise_and_comes_back_as_it_was() -> None:
    long = "x" * 100
    plan = await plan_with(function("files.read"), namespace("crm", function(long)), function(long))
    names = list(plan.toolbox.tools)
    assert all(LEGAL.fullmatch(name) for name in names)
    assert [plan.shown(name, run_of(plan)) for name in names] == [
        Shown("files.read"),
        Shown(long, namespace="crm"),
        Shown(long),
    ]


NAMES = st.text(alphabet="ab._-", min_size=1, max_size=4) | st.sampled_from(["a__b", "x" * 64, "x" * 128, "a_2"])
OWN = st.builds(lambda kind, name: {"type": kind, "name": name}, st.sampled_from(["function", "custom"]), NAMES)
SPACES = st.builds(
    lambda name, tools: {"type": "namespace", "name": name, "tools": tools},
    NAMES,
    st.lists(OWN, max_size=3, unique_by=lambda tool: tool["name"]),
)
OTHERS = st.just({"type": "web_search"})


def declared(tools: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    own = [(None, tool["name"]) for tool in tools if tool["type"] in ("function", "custom")]
    return own + [
        (tool["name"], inner["name"]) for tool in tools if tool["type"] == "namespace" for inner in tool["tools"]
    ]


@STEADY
@given(
    st.lists(OWN | SPACES | OTHERS, max_size=8).filter(lambda tools: len({*declared(tools)}) == len(declared(tools)))
)
async def test_every_name_is_legal_and_leads_back_to_what_was_declared(tools: list[dict[str, Any]]) -> None:
    plan = await plan_with(*tools)
    assert all(LEGAL.fullmatch(name) for name in plan.toolbox.tools)
    shown = [plan.shown(name, run_of(plan)) for name in plan.toolbox.tools]
    assert sorted(((one.namespace, one.name) for one in shown), key=str) == sorted(declared(tools), key=str)


# ---- what Codex sends ----


@pytest.mark.parametrize("streamed", [True, False])
async def test_codex_gets_its_calls_back_as_it_declared_the_tools(streamed: bool) -> None:
    provider = ScriptedProvider(
        answer(
            call("multi_agent_v1__spawn_agent", message="Go."),
            call("apply_patch", input=PATCH),
            call("exec_command", cmd="ls"),
        )
    )
    engine, request = engine_of(provider), ask(tools=CODEX_TOOLS, tool_choice="auto", store=False)
    response = (await stream(engine, request)).response if streamed else await engine.create(request)
    assert list(offered(provider)) == [
        "exec_command",
        "multi_agent_v1__spawn_agent",
        "multi_agent_v1__close_agent",
        "apply_patch",
    ]
    assert [tool["type"] for tool in response.tools] == ["function", "namespace", "custom"]
    assert response.status == "completed"
    spawn, run = function_calls(response)
    assert (spawn.namespace, spawn.name, spawn.arguments) == ("multi_agent_v1", "spawn_agent", '{"message":"Go."}')
    assert (run.namespace, run.name) == (UNSET, "exec_command")
    patch = only(response, CustomToolCall)
    assert (patch.name, patch.namespace, patch.input) == ("apply_patch", UNSET, PATCH)


async def test_the_events_of_a_call_carry_the_clients_names() -> None:
    provider = ScriptedProvider(answer(call("multi_agent_v1__close_agent", "{}"), call("note", input="one two")))
    outcome = await stream(engine_of(provider), ask(tools=[AGENTS, NOTE]))
    first, second = [event.item for event in outcome.events if isinstance(event, OutputItemAdded)]
    assert isinstance(first, FunctionCall)
    assert (first.name, first.namespace, first.arguments) == ("close_agent", "multi_agent_v1", "")
    assert [event.name for event in outcome.events if isinstance(event, ArgumentsDone)] == ["close_agent"]
    assert isinstance(second, CustomToolCall)
    assert "".join(event.delta for event in outcome.events if isinstance(event, CustomInputDelta)) == "one two"
    assert [event.input for event in outcome.events if isinstance(event, CustomInputDone)] == ["one two"]


async def test_a_wrong_patch_is_fed_back_once_and_never_the_clients() -> None:
    provider = ScriptedProvider(answer(call("apply_patch", input="nonsense")), answer(call("apply_patch", input=PATCH)))
    outcome = await stream(engine_of(provider), ask(tools=CODEX_TOOLS))
    assert kinds(outcome.response) == ["mcp_call", "custom_tool_call"]
    failed = only(outcome.response, McpCall)
    assert (failed.server_label, failed.name, failed.status) == ("antwort", "apply_patch", "failed")
    assert only(outcome.response, CustomToolCall).input == PATCH
    messages = sent(provider.requests[1])["messages"]
    assert messages[-2]["tool_calls"][0]["function"]["name"] == "apply_patch"
    assert messages[-1]["role"] == "tool"


# ---- calls of history ----


def called_names(provider: ScriptedProvider, at: int = -1) -> list[str]:
    messages = sent(provider.requests[at])["messages"]
    return [made["function"]["name"] for message in messages for made in message.get("tool_calls", [])]


SPAWNED = {
    "type": "function_call",
    "call_id": "c1",
    "name": "spawn_agent",
    "namespace": "multi_agent_v1",
    "arguments": "{}",
}
PATCHED = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": PATCH}
RESULTS = [
    {"type": "function_call_output", "call_id": "c1", "output": "spawned"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "patched"},
]


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([AGENTS, APPLY_PATCH], ["multi_agent_v1__spawn_agent", "apply_patch"]),
        ([], ["multi_agent_v1__spawn_agent", "apply_patch"]),
        (
            [AGENTS, function("multi_agent_v1__spawn_agent"), APPLY_PATCH],
            ["multi_agent_v1__spawn_agent_2", "apply_patch"],
        ),
        ([function("multi_agent_v1__spawn_agent")], ["multi_agent_v1__spawn_agent_2", "apply_patch"]),
    ],
    ids=["declared", "not declared any more", "numbered", "the name is another's now"],
)
async def test_calls_of_history_go_by_the_names_that_the_model_sees_now(
    tools: list[dict[str, Any]], names: list[str]
) -> None:
    provider = ScriptedProvider(answer(say("Done.")))
    await engine_of(provider).create(ask([SPAWNED, PATCHED, *RESULTS], tools=tools))
    assert called_names(provider) == names
    messages = sent(provider.requests[0])["messages"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["spawned", "patched"]


@pytest.mark.parametrize(
    "fields", [{"namespace": "c/d" * 40}, {"namespace": None}, {"type": "custom_tool_call", "input": ""}]
)
async def test_a_call_of_history_whose_name_no_backend_takes_gets_another(fields: dict[str, Any]) -> None:
    provider = ScriptedProvider(answer(say("Done.")))
    await engine_of(provider).create(ask([{**SPAWNED, "name": "a b", **fields}, RESULTS[0]]))
    assert all(LEGAL.fullmatch(name) for name in called_names(provider))


async def test_a_name_that_nobody_offered_is_refused_as_the_model_wrote_it() -> None:
    provider = ScriptedProvider(answer(call("fly away")), answer(say("No.")))
    engine = engine_of(provider, LocalExecutor(weather), refused_calls="function_call")
    response = await engine.create(ask(tools=[NOTE]))
    assert outputs(response)[0].output == "There is no tool named 'fly away'."
    assert all(LEGAL.fullmatch(name) for name in called_names(provider))


def weather() -> str:
    return "sunny"


async def test_a_backend_that_speaks_responses_gets_functions_like_any_other() -> None:
    plan = await plan_with(*CODEX_TOOLS)
    asked = native_request(chat_request(run_of(plan), plan))
    assert {tool["type"] for tool in asked["tools"]} == {"function"}
    assert asked["tools"][-1]["parameters"]["required"] == ["input"]


async def test_the_chain_brings_calls_back_to_the_model_under_its_names() -> None:
    provider = ScriptedProvider(
        answer(call("multi_agent_v1__spawn_agent"), call("apply_patch", input=PATCH)), answer(say("Done."))
    )
    engine = engine_of(provider)
    first = await engine.create(ask(tools=[AGENTS, APPLY_PATCH]))
    ids = [item.call_id for item in first.output if isinstance(item, FunctionCall | CustomToolCall)]
    # Either kind of output answers either kind of call.
    results = [
        {"type": "custom_tool_call_output", "call_id": ids[0], "output": "spawned"},
        {"type": "function_call_output", "call_id": ids[1], "output": "patched"},
    ]
    await engine.create(ask(results, tools=[AGENTS, APPLY_PATCH], previous_response_id=first.id))
    assert called_names(provider) == ["multi_agent_v1__spawn_agent", "apply_patch"]
    messages = sent(provider.requests[1])["messages"]
    assert messages[1]["tool_calls"][1]["function"]["arguments"] == sent_input(PATCH)
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["spawned", "patched"]


def sent_input(text: str) -> str:
    return '{"input":"' + text.replace("\n", "\\n") + '"}'


async def test_item_references_bring_calls_back_too() -> None:
    provider = ScriptedProvider(answer(call("multi_agent_v1__spawn_agent")), answer(say("Done.")))
    engine = engine_of(provider)
    first = await engine.create(ask(tools=[AGENTS]))
    (item,) = function_calls(first)
    again = [
        {"type": "item_reference", "id": item.id},
        {"type": "function_call_output", "call_id": item.call_id, "output": "spawned"},
    ]
    await engine.create(ask(again, tools=[AGENTS]))
    assert called_names(provider) == ["multi_agent_v1__spawn_agent"]


@pytest.mark.parametrize("by_chain", [True, False])
async def test_an_open_call_in_a_namespace_is_never_run_here(by_chain: bool) -> None:
    """The function of the same bare name is another one."""

    def spawn_agent() -> str:
        raise AssertionError

    provider = ScriptedProvider(answer(call("multi_agent_v1__spawn_agent")), answer(say("Done.")))
    engine = engine_of(provider, LocalExecutor(spawn_agent))
    first = await engine.create(ask(tools=[AGENTS]))
    assert first.status == "requires_action"
    if by_chain:
        second = await engine.create(ask(tools=[AGENTS], previous_response_id=first.id))
    else:
        second = await engine.create(ask([SPAWNED], tools=[AGENTS]))
    assert kinds(second) == ["message"]


# ---- choosing ----


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "exec_command"}, "exec_command"),
        (
            {"type": "function", "name": "spawn_agent", "namespace": "multi_agent_v1"},
            "multi_agent_v1__spawn_agent",
        ),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
    ],
)
async def test_a_forced_tool_goes_by_the_name_that_the_model_sees(choice: dict[str, Any], name: str) -> None:
    provider = ScriptedProvider(answer(say("No.")))
    response = await engine_of(provider).create(ask(tools=CODEX_TOOLS, tool_choice=choice))
    assert sent(provider.requests[0])["tool_choice"] == {"type": "function", "function": {"name": name}}
    assert response.tool_choice == choice


@pytest.mark.proves("FR-007")
@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"type": "function", "name": "spawn_agent"}, "name"),
        ({"type": "function", "name": "fly", "namespace": "multi_agent_v1"}, "name"),
        ({"type": "function", "name": "spawn_agent", "namespace": "other"}, "namespace"),
        ({"type": "function", "name": "apply_patch"}, "name"),
        ({"type": "custom", "name": "exec_command"}, "name"),
        ({"type": "custom", "name": "dance"}, "name"),
        ({"type": "web_search"}, "type"),
        ({"type": "image_generation"}, "type"),
    ],
)
async def test_a_forced_tool_that_is_not_there_is_refused_by_its_field(choice: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await plan_of(ask(tools=CODEX_TOOLS, tool_choice=choice))
    assert (caught.value.param, caught.value.code) == (f"tool_choice.{field}", "unknown_tool")


@pytest.mark.proves("FR-008")
@pytest.mark.parametrize(
    ("entry", "allowed"),
    [
        ({"type": "custom", "name": "apply_patch"}, {"apply_patch"}),
        ({"type": "function", "name": "close_agent", "namespace": "multi_agent_v1"}, {"multi_agent_v1__close_agent"}),
        ({"type": "function", "name": "close_agent"}, {"multi_agent_v1__close_agent"}),
        ({"type": "function", "name": "close_agent", "namespace": "other"}, set()),
        (
            {"type": "namespace", "name": "multi_agent_v1"},
            {"multi_agent_v1__spawn_agent", "multi_agent_v1__close_agent"},
        ),
        ({"type": "web_search"}, set()),
    ],
)
async def test_an_entry_of_the_allowed_list_means_what_it_names(entry: dict[str, Any], allowed: set[str]) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [entry]}
    plan = await plan_of(ask(tools=CODEX_TOOLS, tool_choice=choice))
    assert plan.toolbox.allowed == frozenset(allowed)
    assert plan.response.tool_choice == choice


async def test_a_name_alone_means_the_tool_outside_of_namespaces_first() -> None:
    tools = [function("x"), namespace("a", function("x")), function("y.z"), namespace("a", function("y.z"))]
    plan = await plan_of(ask(tools=tools, allowed_tools=["x", "y.z"]))
    assert plan.toolbox.allowed is not None
    assert {plan.toolbox.tools[name].namespace for name in plan.toolbox.allowed} == {None}


def test_the_kit_has_what_codex_sends() -> None:
    assert [tool["type"] for tool in CODEX_TOOLS] == ["function", "namespace", "web_search", "custom", "tool_search"]
    assert EXEC["strict"] is False
