"""With `final_answer`, the last permitted turn is one without tools, in which the model says what it has."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.events import TurnEnded
from antwort.api.items import Message
from antwort.api.responses import Response
from antwort.engine.history.refusals import NO_MORE
from antwort.engine.loop.fold import Finish
from antwort.engine.loop.limits import closing
from antwort.engine.loop.steps import Infer, next_step
from antwort.testing import Answer, ScriptedProvider, answer, call, say, tokens
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    outputs,
    sent,
    sent_messages,
    server_calls,
    stream,
    text_of,
    weather_tool,
)
from plan_kit import called, depot, ended, over_limit, plan_of, ran, result, run_of

LAST = answer(say("It is sunny, as far as I know."), usage=tokens(1, 1))


def reason_of(response: Response) -> str:
    return "" if response.incomplete_details is None else response.incomplete_details.reason


def looks(number: int, cost: tuple[int, int] = (1, 1)) -> Answer:
    return answer(call("weather", city=f"city {number}"), usage=tokens(*cost))


def same(count: int) -> list[Answer]:
    return [answer(call("weather", city="Paris"), usage=tokens(1, 1)) for _ in range(count)]


STOPS: dict[str, tuple[list[Answer], dict[str, Any], str]] = {
    "max_turns": ([looks(1), looks(2)], {"max_turns": 3}, "this is the last turn of the response"),
    "max_tool_calls": ([looks(1), looks(2), looks(3)], {"max_tool_calls": 1}, "as many were called as may be"),
    "token_budget": (
        [looks(1, (10, 10)), looks(2, (10, 10)), looks(3, (20, 10))],
        {"token_budget": 120},
        "the response has taken nearly all tokens that it may",
    ),
    "stuck": (same(4), {}, "the calls brought nothing new"),
}


@pytest.mark.parametrize("reason", STOPS)
async def test_the_model_says_what_it_has_in_a_last_turn_without_tools(reason: str) -> None:
    script, fields, why = STOPS[reason]
    provider = ScriptedProvider(*script, LAST)
    engine = engine_of(provider, weather_tool(), final_answer=True, stuck_limit=4)
    outcome = await stream(engine, ask(tools=[WEATHER], **fields))
    response = outcome.response
    assert (response.status, reason_of(response)) == ("incomplete", reason)
    assert text_of(response) == "It is sunny, as far as I know."
    assert isinstance(response.output[-1], Message)
    assert {item.status for item in response.output} == {"completed"}
    plain = sent(provider.requests[-1])
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & plain.keys()
    assert str(plain["messages"][-1]["content"]).endswith(
        f"[Note of the server: No tool can be called any more: {why}. Answer now, in words, with what you have.]"
    )
    assert all("tools" in sent(each) for each in provider.requests[:-1])
    assert len(provider.requests) == len(script) + 1


@pytest.mark.parametrize("reason", STOPS)
async def test_it_is_off_unless_set(reason: str) -> None:
    script, fields, _ = STOPS[reason]
    if reason in ("max_turns", "token_budget"):  # which end the loop by themselves one turn later
        script = [*script, looks(9, (60, 60))]
    provider = ScriptedProvider(*script)
    response = await engine_of(provider, weather_tool(), stuck_limit=4).create(ask(tools=[WEATHER], **fields))
    assert (response.status, reason_of(response), text_of(response)) == ("incomplete", reason, "")


@pytest.mark.proves("FR-021", "RULING-1")
@pytest.mark.parametrize("refused", ["mcp_call", "function_call"])
async def test_what_the_model_calls_all_the_same_is_refused_and_shown_so_that_no_client_runs_it(refused: str) -> None:
    """A function that is run here, a client's, a server's, and one that there is not."""
    names = ("weather", "clock", "depot_stock", "dance")
    provider = ScriptedProvider(
        looks(1), answer(*(call(name) for name in names), usage=tokens(1, 1)), answer(say("Sorry."))
    )
    engine = engine_of(provider, weather_tool(), depot(), final_answer=True, refused_calls=refused)
    offered = [WEATHER, CLOCK, SERVER]
    outcome = await stream(engine, ask(tools=offered, max_turns=2))
    response = outcome.response
    assert (response.status, reason_of(response)) == ("incomplete", "max_turns")
    errors = [item.error_text for item in server_calls(response)] + [
        item.output for item in outputs(response) if item.is_error is True
    ]
    assert errors == [NO_MORE] * 4
    answered = {item.call_id for item in outputs(response)}
    assert all(item.call_id in answered for item in function_calls(response))
    if refused == "mcp_call":
        assert [(item.server_label, item.name) for item in server_calls(response)] == [
            ("antwort", "weather"),
            ("antwort", "clock"),
            ("depot", "stock"),
            ("antwort", "dance"),
        ]
    second = await engine.create(ask("Go on.", previous_response_id=response.id, tools=offered))
    assert text_of(second) == "Sorry."
    assert "No result was given" not in str(sent_messages(provider.requests[-1]))


async def test_a_last_turn_that_is_cut_keeps_the_reason_of_the_stop() -> None:
    provider = ScriptedProvider(looks(1), answer(say("It is"), finish="length"))
    engine = engine_of(provider, weather_tool(), final_answer=True)
    outcome = await stream(engine, ask(tools=[WEATHER], max_turns=2))
    assert reason_of(outcome.response) == "max_turns"
    assert outcome.response.output[-1].status == "incomplete"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
@pytest.mark.parametrize(("name", "tool"), [("depot_stock", SERVER), ("weather", WEATHER)])
async def test_a_call_in_a_last_turn_that_is_cut_is_refused_and_no_follow_up_runs_it(
    name: str, tool: dict[str, Any], finish: str
) -> None:
    first, second, half = call(name, city="1"), call(name, city="2"), call(name, '{"ci')
    provider = ScriptedProvider(answer(first), answer(second, half, finish=finish), answer(say("Ok.")))
    engine = engine_of(provider, depot(), weather_tool(), final_answer=True)
    response = (await stream(engine, ask(tools=[tool], max_turns=2))).response
    assert reason_of(response) == "max_turns"
    follow_up = await engine.create(ask("Go on.", previous_response_id=response.id, tools=[tool]))
    assert kinds(follow_up) == ["message"]
    told = [content for role, content in sent_messages(provider.requests[-1]) if role == "tool"]
    assert told[1:] == [NO_MORE]


async def test_a_call_in_a_last_turn_does_not_begin_early_either() -> None:
    ran_for: list[str] = []

    async def weather(city: str) -> str:
        ran_for.append(city)
        return "sunny"

    provider = ScriptedProvider(looks(1), answer(call("weather", city="late"), say("and"), call("weather", city="x")))
    engine = engine_of(provider, LocalExecutor(weather), final_answer=True)
    await stream(engine, ask(tools=[WEATHER], max_turns=2))
    assert ran_for == ["city 1"]


async def test_the_first_turn_of_a_response_has_its_tools_also_where_it_is_the_only_one() -> None:
    provider = ScriptedProvider(looks(1))
    engine = engine_of(provider, weather_tool(), final_answer=True)
    response = await engine.create(ask(tools=[WEATHER], max_turns=1))
    assert (reason_of(response), kinds(response)) == ("max_turns", ["function_call", "function_call_output"])


async def test_an_answer_before_the_last_turn_is_an_answer() -> None:
    provider = ScriptedProvider(looks(1), answer(say("Sunny.")))
    engine = engine_of(provider, weather_tool(), final_answer=True)
    assert (await engine.create(ask(tools=[WEATHER], max_turns=3))).status == "completed"


async def test_a_budget_of_tokens_that_is_used_up_has_no_last_turn() -> None:
    provider = ScriptedProvider(looks(1, (60, 60)))
    engine = engine_of(provider, weather_tool(), final_answer=True)
    response = await engine.create(ask(tools=[WEATHER], token_budget=120))
    assert (reason_of(response), len(provider.requests)) == ("token_budget", 1)


async def test_without_tokens_left_to_write_there_is_no_last_turn() -> None:
    provider = ScriptedProvider(*same(4))
    engine = engine_of(provider, weather_tool(), final_answer=True, stuck_limit=4)
    response = await engine.create(ask(tools=[WEATHER], max_output_tokens=4))
    assert (reason_of(response), len(provider.requests)) == ("stuck", 4)


# ---- the course, as a table ----

ONE = (called(1), ended(usage=tokens(10, 10)), result(1), ran(1))
TWO = (called(2, arguments='{"city": "b"}'), ended(usage=tokens(10, 10)), result(2), ran(2))


@pytest.mark.parametrize(
    ("budget", "after", "then"),
    [
        ({"max_turns": 3}, ONE, None),
        ({"max_turns": 3}, (*ONE, *TWO), "max_turns"),
        ({"token_budget": 60}, ONE, None),  # 20 spent; another turn and a last one fit
        ({"token_budget": 59}, ONE, "token_budget"),
        ({"token_budget": 80}, (*ONE, *TWO), None),
        ({"token_budget": 79}, (*ONE, *TWO), "token_budget"),
        ({"token_budget": 40}, (*ONE, *TWO), None),  # nothing is left
    ],
)
async def test_when_the_next_turn_is_the_last(budget: dict[str, int], after: Any, then: str | None) -> None:
    plan = await plan_of(ask(tools=[WEATHER], **budget), weather_tool(), final_answer=True)
    run = run_of(plan, *after)
    assert closing(run, plan) == then
    is_spent = budget.get("token_budget") == 40
    assert next_step(run, plan) == (Finish("incomplete", "token_budget") if is_spent else Infer())


async def test_a_run_that_is_picked_up_knows_that_its_last_turn_was_made() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_turns=9), weather_tool(), final_answer=True)
    run = run_of(plan, *ONE, TurnEnded(finish="stop", stop="stuck"))
    assert next_step(run, plan) == Finish("incomplete", "stuck")


async def test_calls_past_their_limit_earn_no_turn_beyond_the_last() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_turns=2, max_tool_calls=1), weather_tool(), final_answer=True)
    denied = result(2, "No more.", is_error=True)
    run = run_of(plan, called(1), ended(), over_limit(1), result(1), called(2), ended(), denied, over_limit(2))
    assert closing(run, plan) is None
    assert next_step(run, plan) == Finish("incomplete", "max_tool_calls")
