"""What a client sets and the tools it offers, in the words of Chat Completions."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import chat_request
from antwort.providers.base import Capabilities
from antwort.testing import tokens
from engine_kit import CLOCK, SERVER, WEATHER, ask, sent, weather_tool
from plan_kit import called, depot, ended, over_limit, plan_of, ran, result, run_of

# ---- parameters ----


async def sent_for(plan: Plan, *happened: Any) -> dict[str, Any]:
    return sent(chat_request(run_of(plan, *happened), plan))


@pytest.mark.proves("EN-024", "EN-026")
async def test_what_was_not_set_is_not_sent_and_one_answer_is_asked_for() -> None:
    plan = await plan_of(ask("Hi"))
    assert await sent_for(plan) == {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


async def test_what_was_set_is_sent() -> None:
    plan = await plan_of(
        ask(
            "Hi",
            stream=True,
            temperature=0.0,
            top_p=0.5,
            presence_penalty=1,
            frequency_penalty=-1,
            max_output_tokens=99,
            reasoning={"effort": "low"},
            user="u1",
            tools=[CLOCK],
            parallel_tool_calls=False,
        )
    )
    plain = await sent_for(plan)
    del plain["messages"], plain["tools"], plain["model"]
    assert plain == {
        "stream": True,
        "temperature": 0.0,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "max_tokens": 99,
        "reasoning_effort": "low",
        "user": "u1",
        "parallel_tool_calls": False,
    }


@pytest.mark.proves("FR-016")
@pytest.mark.parametrize("given", [True, False])
async def test_parallel_calls_are_passed_on_where_there_are_tools(given: bool) -> None:
    plan = await plan_of(ask(tools=[WEATHER], parallel_tool_calls=given))
    assert (await sent_for(plan))["parallel_tool_calls"] is given
    without = await plan_of(ask(parallel_tool_calls=given))
    assert "parallel_tool_calls" not in await sent_for(without)


async def test_the_limit_of_tokens_goes_in_the_field_of_the_backend() -> None:
    capabilities = Capabilities(max_tokens_field="max_completion_tokens")
    plain = await sent_for(await plan_of(ask(max_output_tokens=99), capabilities=capabilities))
    assert plain["max_completion_tokens"] == 99
    assert "max_tokens" not in plain


async def test_a_later_turn_gets_the_tokens_that_are_left() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_output_tokens=99), weather_tool())
    plain = await sent_for(plan, called(1), ended(usage=tokens(7, 30)), result(1), ran(1))
    assert plain["max_tokens"] == 69


@pytest.mark.parametrize("takes_it", [True, False])
async def test_what_only_some_backends_know_is_sent_to_those(takes_it: bool) -> None:
    capabilities = Capabilities(prompt_cache_key=takes_it, verbosity=takes_it)
    plan = await plan_of(ask(prompt_cache_key="k", text={"verbosity": "low"}), capabilities=capabilities)
    plain = await sent_for(plan)
    expected = ("k", "low") if takes_it else (None, None)
    assert (plain.get("prompt_cache_key"), plain.get("verbosity")) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"top_logprobs": 0}, {}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
    ],
)
async def test_logprobs_are_asked_for_when_the_client_wants_them(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    plain = await sent_for(await plan_of(ask(**fields)))
    assert {key: value for key, value in plain.items() if "logprobs" in key} == expected


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        ),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False, "description": "An x."},
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": False, "description": "An x."},
            },
        ),
    ],
)
async def test_the_format_of_the_answer_is_nested_as_backends_take_it(form: Any, expected: Any) -> None:
    plain = await sent_for(await plan_of(ask(text={"format": form})))
    assert plain.get("response_format") == expected


# ---- tools ----


@pytest.mark.proves("EN-023")
async def test_tools_go_out_nested_with_what_was_declared() -> None:
    full = {**WEATHER, "description": "The weather.", "strict": True}
    bare = {"type": "function", "name": "clock"}
    plan = await plan_of(ask(tools=[full, bare]))
    assert (await sent_for(plan))["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather.",
                "parameters": WEATHER["parameters"],
                "strict": True,
            },
        },
        {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
    ]


@pytest.mark.proves("EN-023")
async def test_a_servers_tools_are_functions_to_the_backend() -> None:
    plan = await plan_of(ask(tools=[SERVER]), depot())
    names = [entry["function"]["name"] for entry in (await sent_for(plan))["tools"]]
    assert names == ["depot_stock", "depot_price"]


@pytest.mark.proves("FR-005", "EN-023")
@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", None), ("required", "required"), ("none", "none"), (None, None)]
)
async def test_a_choice_in_one_word_is_passed_on_unless_it_is_what_backends_do_anyway(
    choice: str | None, expected: str | None
) -> None:
    plan = await plan_of(ask(tools=[WEATHER], tool_choice=choice), weather_tool())
    plain = await sent_for(plan)
    assert plain.get("tool_choice") == expected
    assert len(plain["tools"]) == 1


async def test_without_tools_no_choice_is_sent() -> None:
    assert "tool_choice" not in await sent_for(await plan_of(ask(tool_choice="required")))


@pytest.mark.proves("FR-005", "EN-023", "MISTAKE-20")
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
        (
            {"type": "mcp", "server_label": "depot", "name": "price"},
            {"type": "function", "function": {"name": "depot_price"}},
        ),
        ({"type": "mcp", "server_label": "depot"}, "required"),
    ],
)
async def test_a_forced_tool_goes_out_in_the_backends_shape_and_only_once(choice: Any, expected: Any) -> None:
    plan = await plan_of(ask(tools=[WEATHER, SERVER], tool_choice=choice), weather_tool(), depot())
    assert (await sent_for(plan))["tool_choice"] == expected
    assert "tool_choice" not in await sent_for(plan, called(1), ended(), result(1), ran(1))


@pytest.mark.proves("FR-006")
async def test_with_choice_none_the_tools_are_still_sent() -> None:
    plain = await sent_for(await plan_of(ask(tools=[WEATHER, CLOCK], tool_choice="none"), weather_tool()))
    assert (len(plain["tools"]), plain["tool_choice"]) == (2, "none")


@pytest.mark.proves("LIMIT-1")
async def test_over_the_limit_of_calls_the_model_is_asked_without_tools() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_tool_calls=1), weather_tool())
    plain = await sent_for(plan, called(1), ended(), result(1), over_limit(1))
    assert plain["tool_choice"] == "none"


@pytest.mark.proves("FR-008")
async def test_with_an_allowed_list_all_tools_are_sent_unmarked() -> None:
    allowed = await sent_for(await plan_of(ask(tools=[WEATHER, CLOCK], allowed_tools=["weather"])))
    assert allowed == await sent_for(await plan_of(ask(tools=[WEATHER, CLOCK])))


CHOICE_OF_TWO = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "weather"}, {"type": "mcp", "server_label": "depot", "name": "stock"}],
}


@pytest.mark.proves("FR-008", "EN-023")
async def test_a_backend_that_takes_the_allowed_list_gets_it() -> None:
    request = ask(tools=[WEATHER, CLOCK, SERVER], tool_choice=CHOICE_OF_TWO)
    plan = await plan_of(request, weather_tool(), depot(), capabilities=Capabilities(allowed_tools=True))
    named = [{"type": "function", "function": {"name": name}} for name in ("depot_stock", "weather")]
    first = await sent_for(plan)
    assert len(first["tools"]) == 4
    assert first["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    later = await sent_for(plan, called(1), ended(), result(1), ran(1))
    assert later["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}


@pytest.mark.proves("FR-006")
async def test_choice_none_goes_before_the_allowed_list() -> None:
    request = ask(tools=[WEATHER, CLOCK], allowed_tools=["weather"], tool_choice="none")
    plan = await plan_of(request, capabilities=Capabilities(allowed_tools=True))
    assert (await sent_for(plan))["tool_choice"] == "none"


async def test_a_list_that_names_none_of_the_tools_is_not_sent() -> None:
    """There is nothing to name in it; the filter here still refuses every call."""
    request = ask(tools=[WEATHER], allowed_tools=["dance"])
    plan = await plan_of(request, capabilities=Capabilities(allowed_tools=True))
    assert "tool_choice" not in await sent_for(plan)
