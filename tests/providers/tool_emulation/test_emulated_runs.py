"""Runs of the engine with a model whose tool calls are emulated."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from antwort.api.items import CustomToolCall
from antwort.providers.base import Capabilities, TextDelta
from antwort.providers.tool_emulation.emulation import Constrained
from antwort.testing.scripted import Answer, ScriptedProvider, answer
from antwort.tools.local import LocalExecutor
from engine_kit import CLOCK, WEATHER, ask, engine_of, kinds, only, stream


def model(*texts: str, finish: str = "stop") -> tuple[Constrained, ScriptedProvider]:
    """A model that writes these, a few characters at a time."""

    def written(text: str) -> Answer:
        return answer([TextDelta(text[at : at + 5]) for at in range(0, len(text), 5)], finish=finish)

    inner = ScriptedProvider(*map(written, texts))
    return Constrained(inner, "constrained"), inner


def calls(*made: tuple[str, dict[str, Any]]) -> str:
    return json.dumps({"calls": [{"name": name, "arguments": arguments} for name, arguments in made]})


async def weather(city: str) -> str:
    return f"18 degrees in {city}"


TOOLS = LocalExecutor(weather)


async def test_a_call_is_made_run_and_answered() -> None:
    provider, inner = model(calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), '{"answer": "Mild."}')
    outcome = await stream(engine_of(provider, TOOLS), ask("How is it?", tools=[WEATHER], stream=True))
    assert outcome.response.status == "completed"
    assert kinds(outcome.response) == ["function_call", "function_call"] + ["function_call_output"] * 2 + ["message"]
    last = inner.requests[1].messages[-1]
    assert (last.role, last.content) == (
        "user",
        "Results:\nweather: 18 degrees in Rome\nweather: 18 degrees in Oslo",
    )
    assert outcome.names.count("response.output_text.delta") > 1
    assert outcome.names.count("response.function_call_arguments.delta") > 2


async def test_arguments_that_do_not_fit_all_the_same_are_news_for_the_model() -> None:
    """A backend that does not hold its model to the schema is no reason to trust it."""
    provider, inner = model(calls(("weather", {"town": 5})), '{"answer": "Sorry."}')
    outcome = await stream(engine_of(provider, TOOLS), ask(tools=[WEATHER], stream=True))
    assert outcome.response.status == "completed"
    assert "do not fit" in str(inner.requests[1].messages[-1].content)


async def test_a_list_of_allowed_tools_is_all_that_the_model_hears_of() -> None:
    provider, inner = model(calls(("clock", {})))
    listed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}
    outcome = await stream(engine_of(provider), ask(tools=[WEATHER, CLOCK], tool_choice=listed, stream=True))
    assert kinds(outcome.response) == ["function_call"]
    assert "weather" not in str(inner.requests[0].messages[0].content)
    assert "weather" not in json.dumps(inner.requests[0].response_format)


async def test_a_call_that_a_limit_cuts_off_is_incomplete_and_not_run() -> None:
    provider, inner = model('{"calls": [{"name": "weather", "arguments": {"city": "Ro', finish="length")
    outcome = await stream(engine_of(provider, TOOLS), ask(tools=[WEATHER], stream=True, max_output_tokens=20))
    assert outcome.response.status == "incomplete"
    assert [item.status for item in outcome.response.output] == ["incomplete"]
    assert len(inner.requests) == 1


# ---- free-form tools ----


def dial(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "dial", "format": form}


@pytest.mark.parametrize("definition", [r"\+?[0-9]{3,9}", r"^\+?\d{3,9}$", r"\+[0-9]{3,9}|[0-9]{3,9}"])
async def test_a_plain_regular_expression_is_what_the_model_is_held_to(definition: str) -> None:
    tool = dial("regex", definition)
    provider, inner = model(calls(("dial", {"input": "+4930"})))
    outcome = await stream(engine_of(provider), ask(tools=[tool], tool_choice={"type": "custom", "name": "dial"}))
    form = inner.requests[0].response_format
    assert isinstance(form, dict)
    held = form["json_schema"]["schema"]["properties"]["calls"]["items"]["properties"]["arguments"]
    pattern = held["properties"]["input"]["pattern"]
    assert re.fullmatch(pattern, "+4930")
    assert not re.fullmatch(pattern, "call home")
    assert only(outcome.response, CustomToolCall).input == "+4930"


@pytest.mark.parametrize(
    "lines",
    [
        dial("regex", r"(?:say .*\n)+"),
        dial("regex", r"(?:say [+--]?[a-z]+\n)+"),
        dial("lark", r"start: /say [a-z]+\n/+"),
    ],
)
async def test_a_grammar_that_no_decoder_is_trusted_with_is_told_and_checked(lines: dict[str, Any]) -> None:
    provider, inner = model(calls(("dial", {"input": "sing"})), calls(("dial", {"input": "say hi\n"})))
    outcome = await stream(engine_of(provider), ask(tools=[lines]))
    assert "must match this " in str(inner.requests[0].messages[0].content)
    assert "pattern" not in str(inner.requests[0].response_format)
    assert kinds(outcome.response) == ["mcp_call", "custom_tool_call"]
    assert only(outcome.response, CustomToolCall).input == "say hi\n"


@pytest.mark.parametrize(
    ("mode", "inner", "grammar"),
    [
        ("constrained", "described", "plain_pattern"),
        ("constrained", "pattern", "plain_pattern"),
        ("auto", "described", "described"),
        ("auto", "pattern", "plain_pattern"),
        ("native", "pattern", "pattern"),
    ],
)
def test_it_holds_to_grammars_as_far_as_its_schemas_keep_them(mode: Any, inner: Any, grammar: str) -> None:
    provider = Constrained(ScriptedProvider(capabilities=Capabilities(grammar=inner)), mode)
    assert provider.capabilities("m").grammar == grammar
    assert provider.capabilities("m").folds is (mode != "native")
