"""The tools that a request declares itself: what the model is offered, and how its calls come back to the client."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import CustomToolCall
from antwort.engine.loop.call_display import Shown, display_of
from antwort.engine.plan import Plan
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.grammar import Checks
from antwort.tools.local import LocalExecutor
from antwort.tools.routing import Route, route
from codex_kit import AGENTS, APPLY_PATCH, APPLY_PATCH_GRAMMAR
from engine_kit import ask, engine_of, kinds, only, outputs
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


async def plan_with(*tools: dict[str, Any], grammar: Any = "described", folds: bool = False, **settings: Any) -> Plan:
    capabilities = Capabilities(grammar=grammar, folds=folds)
    return await plan_of(ask(tools=list(tools)), capabilities=capabilities, **settings)


async def definition_of(tool: dict[str, Any], grammar: Any = "described") -> ToolDefinition:
    (definition,) = (await plan_with(tool, grammar=grammar)).toolbox.tools.values()
    return definition


RECURSIVE: dict[str, Any] = {
    "type": "custom",
    "name": "nest",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start ")" | "x"'},
}


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
    [(DIGITS, "pattern", True), (DIGITS, "plain_pattern", True), (RECURSIVE, "pattern", False)],
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


async def test_a_grammar_is_part_of_the_instructions_where_descriptions_are_written_anew() -> None:
    """Folded into one line it would be another grammar."""
    plan = await plan_with(APPLY_PATCH, DIGITS, namespace("a", RECURSIVE), grammar="plain_pattern", folds=True)
    patch, dial, nest = plan.toolbox.tools.values()
    assert [patch.description, dial.description, nest.description] == [APPLY_PATCH["description"], None, None]
    told = "must match this Lark grammar, from its first character to its last:"
    assert plan.toolbox.instructions == (
        f"The input of the tool apply_patch {told}\n\n{APPLY_PATCH_GRAMMAR}",
        f"The input of the tool a__nest {told}\n\n{RECURSIVE['format']['definition']}",
    )
    assert (await plan_with(APPLY_PATCH)).toolbox.instructions == ()
    assert len((await plan_with(APPLY_PATCH, folds=True)).toolbox.instructions) == 1


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
    assert display_of(plan, "note", run_of(plan), Checks()) == Shown("note", is_custom=True, is_clients=True)
    assert display_of(plan, "a__note", run_of(plan), Checks()) == Shown(
        "note", namespace="a", is_custom=True, is_clients=True
    )


async def test_an_input_is_held_against_a_grammar_that_was_only_told() -> None:
    plan = await plan_with(DIGITS)
    fits = display_of(plan, "dial", run_of(plan), Checks()).fits
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
    assert display_of(plan, "dial", run_of(plan), Checks()) == Shown("dial", is_custom=True, is_clients=True)


async def test_a_second_wrong_input_is_the_clients() -> None:
    plan = await plan_with(DIGITS, namespace("a", DIGITS))
    failed = server_called(1, "dial", label="antwort", status="failed", error="It does not fit.")
    run = run_of(plan, failed)
    assert display_of(plan, "dial", run, Checks()).fits is None
    assert display_of(plan, "a__dial", run, Checks()).fits is not None


@pytest.mark.parametrize(
    ("refused_calls", "shown"), [("mcp_call", Shown("note", "antwort")), ("function_call", Shown("note"))]
)
async def test_a_free_form_tool_that_is_not_allowed_is_never_the_clients(refused_calls: str, shown: Shown) -> None:
    allowed = [{"type": "custom", "name": "dial"}]
    plan = await plan_of(ask(tools=[NOTE, DIGITS], allowed_tools=allowed), refused_calls=refused_calls)
    assert display_of(plan, "note", run_of(plan), Checks()) == shown


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
    assert display_of(plan, close.name, run_of(plan), Checks()) == Shown(
        "close_agent", namespace="multi_agent_v1", is_clients=True
    )


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
    assert [display_of(plan, name, run_of(plan), Checks()) for name in names] == [
        Shown("files.read", is_clients=True),
        Shown(long, namespace="crm", is_clients=True),
        Shown(long, is_clients=True),
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
    shown = [display_of(plan, name, run_of(plan), Checks()) for name in plan.toolbox.tools]
    assert sorted(((one.namespace, one.name) for one in shown), key=str) == sorted(declared(tools), key=str)
