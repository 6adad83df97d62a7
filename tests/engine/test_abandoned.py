"""An inference of which nobody saw the end: it is made anew from what came before it. What it had said is shown, and no
model is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from antwort.api.events import (
    Compacted,
    OutputItemAdded,
    OutputItemDone,
    ResponseCreated,
    RunEvent,
    TurnAbandoned,
)
from antwort.api.items import OutputItem
from antwort.api.wire import replace
from antwort.engine.context.compaction import _was_compacted
from antwort.engine.history.calls import run_ids, shown_id
from antwort.engine.loop.fold import fold
from antwort.engine.loop.steps import choice_for
from antwort.engine.plan import Plan
from antwort.engine.runs.live import count_untold
from antwort.engine.runs.recovery import pick_up
from antwort.identity import ANONYMOUS
from antwort.ids import new_id
from antwort.testing import Answer, ScriptedProvider, answer, call, say, think
from antwort.tools.base import HOUSE_LABEL
from antwort.tools.search import SEARCH
from conversation_kit import begun, said, words
from engine_kit import CLOCK, ask, function_calls, kinds, sent, server_calls, text_of
from plan_kit import called, ended, plan_of, result, run_of, server_called, thought
from plan_kit import said as spoken
from takeover_kit import DEPOT, Depot, Log, Watched, engine_on


def half() -> Answer:
    """Reasoning and a message that are whole, a call that is not, and no end."""
    return answer(think("hm"), say("I will look."), call("look", n=1), asyncio.Event())


async def shows(log: Log, response_id: str, count: int) -> None:
    """Until so many items of it are on record."""
    async with aclosing(log.read(ANONYMOUS, response_id, follow=True)) as reading:
        async for records in reading:
            count -= sum(isinstance(event, OutputItemAdded) for record in records for event in record.events)
            if count <= 0:
                return


async def lose(log: Log) -> None:
    """Whoever holds a run is dead, and others know."""
    await log.kill()
    await log.bury()


@asynccontextmanager
async def left_by(
    how: str,
    log: Log,
    depot: Depot,
    provider: ScriptedProvider,
    said: Answer | None = None,
    count: int = 4,
    **fields: Any,
) -> AsyncGenerator[tuple[Watched, str], None]:
    """An engine that goes on with a response which another has left in the middle of its first inference."""
    async with engine_on(log, ScriptedProvider(said or half()), depot) as one:
        queued = await one.create(ask(background=True, stream=False, **{"tools": [DEPOT], **fields}))
        await shows(log, queued.id, count)
        if how == "drained":
            await one.drain(0)
        else:
            await lose(log)
        if how == "cancelled":
            await log.cancel(ANONYMOUS, queued.id)
        async with engine_on(log, provider, depot) as other:
            yield other, queued.id


def told(provider: ScriptedProvider) -> list[tuple[str, Any]]:
    return [(each["role"], each.get("content")) for each in sent(provider.requests[-1])["messages"]]


@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_it_is_made_anew_from_what_came_before_it(how: str) -> None:
    provider = ScriptedProvider(answer(say("It is there.")))
    async with left_by(how, Log(), Depot(), provider) as (engine, response_id):
        response = await engine.ended(response_id)
    assert told(provider) == [("user", "Hello")]
    assert kinds(response) == ["mcp_list_tools", "reasoning", "message", "mcp_call", "message"]
    assert text_of(response) == "I will look.It is there."


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_the_client_gets_each_call_to_run_once(how: str) -> None:
    """Calls that were whole in an inference which is made anew are not done: the client would run them twice."""
    calls = [call("clock", zone="UTC"), say("And"), call("clock", zone="CET")]
    provider = ScriptedProvider(answer(*calls))
    half_called = answer(*calls, asyncio.Event())
    tools = [DEPOT, CLOCK]
    async with left_by(how, Log(), Depot(), provider, half_called, 2, tools=tools) as (engine, response_id):
        response = await engine.ended(response_id)
    assert response.status == "requires_action"
    assert [item.status for item in function_calls(response)] == ["incomplete", "completed", "completed"]


@pytest.mark.proves("RULING-3b")
async def test_a_servers_call_that_waits_for_its_result_is_closed_with_the_inference_that_is_made_anew() -> None:
    provider = ScriptedProvider(answer(say("It is there.")))
    half_called = answer(call("look", n=1), call("look", n=2), asyncio.Event())
    async with left_by("killed", Log(), Depot(), provider, half_called, 3) as (engine, response_id):
        response = await engine.ended(response_id)
    assert (response.status, text_of(response)) == ("completed", "It is there.")
    assert [(item.status, item.output, item.error) for item in server_calls(response)] == [
        ("incomplete", None, None)
    ] * 2


async def test_a_later_response_reads_only_what_was_said_anew() -> None:
    provider = ScriptedProvider(answer(say("It is there.")), answer(say("Yes.")))
    async with left_by("killed", Log(), Depot(), provider) as (engine, response_id):
        await engine.ended(response_id)
        await engine.create(ask("Sure?", previous_response_id=response_id))
    assert told(provider) == [("user", "Hello"), ("assistant", "It is there."), ("user", "Sure?")]


async def test_a_conversation_keeps_only_what_was_said_anew() -> None:
    log, depot = Log(), Depot()
    provider = ScriptedProvider(answer(say("It is there.")))
    async with engine_on(log, ScriptedProvider(), depot, at_once=0) as front:
        conversation = await begun(front)
        async with left_by("killed", log, depot, provider, conversation=conversation) as (engine, response_id):
            await engine.ended(response_id)
        kept = words(await said(log.store, conversation))
    assert "assistant: It is there." in kept
    assert not any("I will look." in each for each in kept)


async def test_one_that_is_left_twice_is_made_anew_twice() -> None:
    log, depot = Log(), Depot()
    provider = ScriptedProvider(half())
    async with left_by("killed", log, depot, provider) as (_, response_id):
        await shows(log, response_id, 7)
        await lose(log)
        last = ScriptedProvider(answer(say("It is there.")))
        async with engine_on(log, last, depot) as engine:
            response = await engine.ended(response_id)
    assert told(provider) == told(last) == [("user", "Hello")]
    assert text_of(response) == "I will look.I will look.It is there."


async def test_the_words_of_one_that_is_not_made_anew_are_the_last_of_the_response() -> None:
    """As in any other response that ends while the model speaks."""
    provider = ScriptedProvider(answer(say("Yes.")))
    async with left_by("cancelled", Log(), Depot(), provider) as (engine, response_id):
        response = await engine.ended(response_id)
        assert response.status == "cancelled"
        await engine.create(ask("Sure?", previous_response_id=response_id))
    assert told(provider) == [("user", "Hello"), ("assistant", "I will look."), ("user", "Sure?")]


# ---- by what is on record alone ----


def recorded(plan: Plan, *items: OutputItem) -> list[RunEvent]:
    events: list[RunEvent] = [ResponseCreated(response=plan.response)]
    for at, item in enumerate(items):
        events += [OutputItemAdded(output_index=at, item=item), OutputItemDone(output_index=at, item=item)]
    return events


def abandoned_in(plan: Plan, *items: OutputItem) -> list[RunEvent]:
    _, closing_events = pick_up(plan.response, recorded(plan, *items), None)
    return [each for each in closing_events if isinstance(each, TurnAbandoned)]


async def test_it_begins_behind_the_results_of_the_turn_before() -> None:
    plan = await plan_of(ask())
    events = [*recorded(plan, called(1)), ended()]
    later: list[OutputItem] = [result(1), thought("hm"), spoken("Let m", "incomplete")]
    events += [OutputItemAdded(output_index=at, item=item) for at, item in enumerate(later, 1)]
    assert pick_up(plan.response, events, None)[1][-1] == TurnAbandoned(start=2)


async def test_it_begins_behind_the_runs_of_calls_that_an_earlier_response_asked_for() -> None:
    plan = await plan_of(ask())
    call_id = new_id("call")
    item_id, shown = run_ids(call_id)
    run = replace(server_called(1, status="completed", output="3 left"), id=item_id, call_id=shown)
    own = replace(run, id=shown_id(call_id), call_id=call_id, status="incomplete")
    assert abandoned_in(plan, run) == []
    assert abandoned_in(plan, run, spoken("Let m", "incomplete")) == [TurnAbandoned(start=1)]
    assert abandoned_in(plan, run, own) == [TurnAbandoned(start=1)]


async def test_nothing_is_abandoned_between_two_steps() -> None:
    plan = await plan_of(ask())
    assert pick_up(plan.response, [*recorded(plan, called(1)), ended()], None)[1] == []


async def test_a_call_in_it_was_never_made() -> None:
    """Where a tool must be called, that some were looked for is not enough, and half of a call is nothing."""
    plan = await plan_of(ask(tools=[DEPOT], tool_choice="required"), Depot(), max_in_prompt=1)
    looked = server_called(1, SEARCH, label=HOUSE_LABEL, status="completed", output="look")
    half_called = server_called(2, "look", status="incomplete")
    run = run_of(plan, looked, ended(), half_called, TurnAbandoned(start=1))
    assert choice_for(run, plan) == "required"


async def test_what_it_cost_is_not_known() -> None:
    plan = await plan_of(ask())
    run = run_of(plan, spoken("Let m"), TurnAbandoned(start=0), spoken("Hi"), ended("stop"))
    assert count_untold(run) == 2  # the kit's turn does not tell either


async def test_what_could_not_be_compacted_is_not_tried_again_for_it() -> None:
    plan = await plan_of(ask())
    run = run_of(plan, Compacted(is_missing=True), spoken("Let m"), TurnAbandoned(start=0))
    assert _was_compacted(run)
    assert not _was_compacted(fold(run, [ended("stop")]))
