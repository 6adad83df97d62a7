"""Choosing among the tools that a request declares itself."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.errors import InvalidField
from antwort.testing import ScriptedProvider, answer, say
from codex_kit import CODEX_TOOLS
from engine_kit import ask, engine_of, sent
from plan_kit import plan_of


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools)}


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
