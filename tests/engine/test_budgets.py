"""What one response may take: turns, calls, time and tokens; and what a request may say about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import TurnEnded
from antwort.api.responses import Response
from antwort.api.wire import UNSET, to_plain
from antwort.engine.engine import Engine
from antwort.engine.loop.limits import last_tokens, tokens_spent
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.plan import budget_of
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say, tokens
from antwort.tools.base import ToolCall, ToolContext
from compaction_kit import always
from engine_kit import (
    SERVER,
    WEATHER,
    ask,
    engine_of,
    outputs,
    sent_messages,
    server_calls,
    stream,
    text_of,
    weather_tool,
)
from plan_kit import called, ended, plan_of, ran, result, run_of


def reason_of(response: Response) -> str:
    return "" if response.incomplete_details is None else response.incomplete_details.reason


def looks(number: int, cost: tuple[int, int] = (1, 1)) -> Answer:
    """The model asks for the weather somewhere new."""
    return answer(call("weather", city=f"city {number}"), usage=tokens(*cost))


# ---- what a request may ask for ----


def test_the_defaults_are_what_the_settings_say() -> None:
    budget = budget_of(ask(), EngineSettings())
    assert (budget.turns, budget.calls, budget.tokens, budget.seconds) == (10, 256, 5_000_000, 600.0)


def test_a_request_may_ask_for_less() -> None:
    asked = ask(max_turns=2, max_tool_calls=3, token_budget=400, deadline=5.5)
    budget = budget_of(asked, EngineSettings())
    assert (budget.turns, budget.calls, budget.tokens, budget.seconds) == (2, 3, 400, 5.5)


@pytest.mark.parametrize(
    ("field", "too_much", "most"),
    [("max_turns", 11, "10"), ("deadline", 600.5, "600"), ("token_budget", 5_000_001, "5000000")],
)
async def test_more_than_the_operator_allows_is_refused_by_the_name_of_the_field(
    field: str, too_much: float, most: str
) -> None:
    provider = ScriptedProvider()
    with pytest.raises(InvalidField) as caught:
        await engine_of(provider).create(ask(**{field: too_much}))
    assert caught.value.param == field
    said = f"Invalid '{field}': this server allows {most} at most, and a request may only ask for less."
    assert caught.value.message == said
    assert provider.requests == []


@pytest.mark.parametrize("field", ["max_turns", "deadline", "token_budget"])
@pytest.mark.parametrize("wrong", [0, -1, "two", [1]])
def test_what_is_no_limit_is_refused_by_the_name_of_the_field(field: str, wrong: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        ask(**{field: wrong})
    assert caught.value.param == field


async def test_as_much_as_the_operator_allows_is_fine() -> None:
    asked = ask(max_turns=10, deadline=600, token_budget=5_000_000)
    assert (await engine_of(ScriptedProvider(answer(say("Hi")))).create(asked)).status == "completed"


async def test_limits_are_echoed_only_where_they_are_set() -> None:
    provider = ScriptedProvider(answer(say("Hi")), answer(say("Hi")))
    engine = engine_of(provider)
    plain = to_plain(await engine.create(ask()))
    assert not {"max_turns", "deadline", "token_budget"} & plain.keys()
    assert plain["max_tool_calls"] is None
    plain = to_plain(await engine.create(ask(max_turns=2, deadline=30, token_budget=900)))
    assert (plain["max_turns"], plain["deadline"], plain["token_budget"]) == (2, 30.0, 900)


@pytest.mark.proves("CP-022")
async def test_of_more_calls_than_the_operator_allows_so_many_hold_and_are_echoed() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="a"), call("weather", city="b")), answer(say("One will do."))
    )
    response = await engine_of(provider, weather_tool(), max_tool_calls=1).create(
        ask(tools=[WEATHER], max_tool_calls=1000)
    )
    assert response.max_tool_calls == 1
    assert [item.is_error is True for item in outputs(response)] == [False, True]


@pytest.mark.proves("LIMIT-1")
async def test_the_operators_number_of_calls_holds_for_requests_that_set_none() -> None:
    provider = ScriptedProvider(*[answer(call("weather", city=str(n))) for n in range(3)])
    response = await engine_of(provider, weather_tool(), max_tool_calls=1).create(ask(tools=[WEATHER]))
    assert (response.status, reason_of(response)) == ("incomplete", "max_tool_calls")
    assert response.max_tool_calls is None


@pytest.mark.proves("FR-013", "FR-015")
async def test_a_request_may_have_fewer_turns() -> None:
    provider = ScriptedProvider(*map(looks, range(3)))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_turns=2))
    assert (response.status, reason_of(response), len(outputs(response))) == ("incomplete", "max_turns", 2)


@pytest.mark.proves("FR-014")
async def test_a_request_may_have_less_time() -> None:
    async def hang(asked: ToolCall, context: ToolContext) -> str:
        await asyncio.Event().wait()
        return ""

    provider = ScriptedProvider(answer(call("hang")))
    outcome = await stream(engine_of(provider, ToolServerFake("depot", hang=hang)), ask(tools=[SERVER], deadline=0.05))
    assert (outcome.response.status, reason_of(outcome.response)) == ("incomplete", "deadline")
    assert [item.error_text for item in server_calls(outcome.response)] == [INTERRUPTED]


# ---- tokens ----


async def test_the_budget_of_tokens_is_for_all_inferences_and_looked_at_before_each() -> None:
    provider = ScriptedProvider(looks(1, (10, 20)), looks(2, (30, 39)), looks(3))
    engine = engine_of(provider, weather_tool())
    outcome = await stream(engine, ask(tools=[WEATHER], token_budget=99))
    response = outcome.response
    assert (response.status, reason_of(response)) == ("incomplete", "token_budget")
    assert len(outputs(response)) == len(provider.requests) == 2
    assert response.usage == tokens(40, 59)
    assert {item.status for item in response.output} == {"completed"}


async def test_a_budget_of_tokens_that_is_overdrawn_by_the_answer_itself_ends_nothing() -> None:
    provider = ScriptedProvider(answer(say("Sunny."), usage=tokens(500, 500)))
    response = await engine_of(provider).create(ask(token_budget=10))
    assert (response.status, text_of(response)) == ("completed", "Sunny.")


async def test_where_the_backend_tells_no_usage_the_tokens_are_estimated() -> None:
    silent = [answer(call("weather", city=f"city {n} " + "x" * 400)) for n in range(4)]
    provider = ScriptedProvider(*silent)
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], token_budget=500))
    assert (response.status, reason_of(response), response.usage) == ("incomplete", "token_budget", None)
    assert 1 < len(provider.requests) < 4


async def test_what_was_estimated_is_on_record_and_what_was_told_is_not_estimated() -> None:
    plan = await plan_of(ask(tools=[WEATHER]), weather_tool())
    told = (called(1), ended(usage=tokens(7, 3)), result(1), ran(1))
    guessed = (called(2), TurnEnded(finish="tool_calls", estimate=25), result(2), ran(2))
    run = run_of(plan, *told, *guessed)
    assert (tokens_spent(run), last_tokens(run)) == (35, 25)
    assert last_tokens(run_of(plan, *guessed, *told)) == 10
    assert (tokens_spent(run_of(plan)), last_tokens(run_of(plan))) == (0, 0)


def compacting(*answers: Answer) -> Engine:
    capabilities = Capabilities(context_length=8000)
    return Engine(
        ScriptedProvider(*answers, capabilities=capabilities, counts=always(5000)),
        executors=[weather_tool()],
        settings=EngineSettings(compaction_keep=0),
    )


TALK = [
    {"role": role, "content": f"{role} {number} " + "word " * 200}
    for number in range(6)
    for role in ("user", "assistant")
]
COMPACTS = {"context_management": [{"type": "compaction", "compact_threshold": 100}], "token_budget": 100}


async def test_what_a_compaction_takes_counts_before_the_first_turn_too() -> None:
    summed = answer(say("They talked."), usage=tokens(90, 10))
    response = await compacting(summed).create(ask([*TALK, {"role": "user", "content": "And?"}], **COMPACTS))
    assert (response.status, reason_of(response), response.usage) == ("incomplete", "token_budget", tokens(90, 10))


async def test_a_compaction_that_tells_no_usage_is_estimated() -> None:
    response = await compacting(answer(say("They talked."))).create(
        ask([*TALK, {"role": "user", "content": "And?"}], **COMPACTS)
    )
    assert (response.status, reason_of(response), response.usage) == ("incomplete", "token_budget", None)


# ---- a response that gets nowhere ----


def same(count: int) -> list[Answer]:
    return [answer(call("weather", city="Paris")) for _ in range(count)]


async def test_a_model_that_gets_nowhere_is_told_and_then_stopped() -> None:
    provider = ScriptedProvider(*same(5))
    outcome = await stream(engine_of(provider, weather_tool(), stuck_limit=4), ask(tools=[WEATHER]))
    response = outcome.response
    assert (response.status, reason_of(response)) == ("incomplete", "stuck")
    assert len(provider.requests) == len(outputs(response)) == 4
    seen = [[content for role, content in sent_messages(each) if role == "tool"] for each in provider.requests]
    assert seen[2] == ["sunny in Paris"] * 2
    assert seen[3][:2] == ["sunny in Paris"] * 2
    assert seen[3][2].startswith("sunny in Paris\n\n[Note of the server: The last 3 turns made the same calls ")
    assert {item.output for item in outputs(response)} == {"sunny in Paris"}  # what is told is no part of an item


async def test_a_model_that_listens_is_told_only_once() -> None:
    provider = ScriptedProvider(*same(3), looks(1), answer(say("Sunny.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert response.status == "completed"
    told = ["Note of the server" in str(sent_messages(each)) for each in provider.requests]
    assert told == [False, False, False, True, False]


async def test_a_tool_that_is_polled_until_it_says_something_else_is_fine() -> None:
    answers = iter(["waiting", "waiting", "40 %", "40 %", "90 %", "done"])

    async def status(asked: ToolCall, context: ToolContext) -> str:
        return next(answers)

    script = [answer(call("status")) for _ in range(6)]
    provider = ScriptedProvider(*script, answer(say("Done.")))
    response = await engine_of(provider, ToolServerFake("depot", status=status)).create(ask(tools=[SERVER]))
    assert (response.status, text_of(response)) == ("completed", "Done.")


async def test_turns_of_nothing_but_errors_are_told_and_then_stopped_refused_calls_too() -> None:
    provider = ScriptedProvider(*[answer(call(f"nobody_{n}")) for n in range(5)])
    response = await engine_of(provider, weather_tool(), stuck_limit=4).create(ask(tools=[WEATHER]))
    assert (response.status, reason_of(response), len(provider.requests)) == ("incomplete", "stuck", 4)
    assert "The last 3 turns have brought nothing but errors." in str(sent_messages(provider.requests[3]))


@pytest.mark.parametrize(("limit", "asked"), [(3, 3), (6, 6), (0, 10)])
async def test_after_how_many_is_a_setting(limit: int, asked: int) -> None:
    provider = ScriptedProvider(*same(10))
    response = await engine_of(provider, weather_tool(), stuck_limit=limit).create(ask(tools=[WEATHER]))
    assert len(provider.requests) == asked
    assert reason_of(response) == ("stuck" if limit else "max_turns")


# ---- whatever it was stopped for ----

STOPS: dict[str, tuple[list[Answer], dict[str, Any], dict[str, Any]]] = {
    "max_turns": ([looks(1), looks(2)], {"max_turns": 2}, {}),
    "max_tool_calls": ([looks(1), looks(2), looks(3)], {"max_tool_calls": 1}, {}),
    "token_budget": ([looks(1, (30, 30)), looks(2, (30, 30))], {"token_budget": 100}, {}),
    "stuck": (same(4), {}, {"stuck_limit": 4}),
}


@pytest.mark.proves("FR-013", "FR-021", "LIMIT-1")
@pytest.mark.parametrize("is_server", [False, True], ids=["functions", "a server's tools"])
@pytest.mark.parametrize("reason", STOPS)
async def test_a_follow_up_goes_on_without_loose_ends(reason: str, is_server: bool) -> None:
    script, fields, settings = STOPS[reason]
    provider = ScriptedProvider(*script, answer(say("Sunny.")))

    async def weather(asked: ToolCall, context: ToolContext) -> str:
        return "sunny"

    executor = ToolServerFake("depot", weather=weather) if is_server else weather_tool()
    engine = engine_of(provider, executor, **settings)
    offered = [SERVER if is_server else WEATHER]
    first = (await stream(engine, ask(tools=offered, **fields))).response
    assert (first.status, reason_of(first)) == ("incomplete", reason)
    assert all(item.status in ("completed", "failed") for item in first.output)
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=offered))
    assert (second.status, text_of(second)) == ("completed", "Sunny.")
    messages = provider.requests[-1].messages
    asked = [each.id for message in messages if message.tool_calls for each in message.tool_calls]
    assert [message.tool_call_id for message in messages if message.role == "tool"] == asked
    assert len(asked) == len(script)
    assert "No result was given" not in str(messages)
    assert "Note of the server" not in str(messages)


@pytest.mark.proves("FR-014", "FR-021")
async def test_a_follow_up_goes_on_after_the_deadline() -> None:
    async def hang(asked: ToolCall, context: ToolContext) -> str:
        await asyncio.Event().wait()
        return ""

    provider = ScriptedProvider(answer(call("hang")), answer(say("Never mind.")))
    engine = engine_of(provider, ToolServerFake("depot", hang=hang))
    first = await engine.create(ask(tools=[SERVER], deadline=0.05))
    assert reason_of(first) == "deadline"
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=[SERVER]))
    assert (second.status, text_of(second)) == ("completed", "Never mind.")
    assert [role for role, _ in sent_messages(provider.requests[1])] == ["user", "assistant", "tool", "user"]
    assert INTERRUPTED in str(sent_messages(provider.requests[1]))
    assert provider.requests[1].tools is not UNSET
