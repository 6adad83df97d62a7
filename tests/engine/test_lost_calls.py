"""Calls that somebody has begun who is gone: which of them are run again, by what is on record alone."""

from __future__ import annotations

from msgspec.structs import replace

from antwort.api.events import CallBegun, McpCallProgress
from antwort.engine.draft import Run, fold
from antwort.engine.steps import LOST, OVER_LIMIT, Infer, Ready, Refused, RunTools, next_step
from antwort.testing import answer, call, say
from antwort.tools.base import Progress, ToolCall, ToolContext
from engine_kit import ask
from plan_kit import called, ended, plan_of, ran, run_of, server_called
from takeover_kit import DEPOT, Depot, Log, Story, check_log, engine_on, records_of


def begun(run: Run, *numbers: int) -> Run:
    return fold(run, [CallBegun(call_id=f"call_{n}") for n in numbers])


def test_a_call_is_lost_from_its_beginning_to_its_end() -> None:
    run = Run(response=None)  # type: ignore[arg-type]  # nothing of the response is looked at
    assert begun(run, 1, 2).lost == {"call_1", "call_2"}


async def test_what_has_ended_is_not_lost() -> None:
    plan = await plan_of(ask(tools=[DEPOT]), Depot())
    run = begun(run_of(plan, server_called(1, "sell"), ended()), 1)
    assert fold(run, [ran(1)]).lost == frozenset()


async def test_only_what_is_harmless_is_run_again_and_the_rest_gets_an_error() -> None:
    plan = await plan_of(ask(tools=[DEPOT]), Depot())
    calls = [server_called(n, name) for n, name in enumerate(("look", "mark", "sell", "sell"))]
    step = next_step(begun(run_of(plan, *calls, ended()), 0, 1, 2), plan)
    assert isinstance(step, RunTools)
    assert [type(each) for each in step.calls] == [Ready, Ready, Refused, Ready]
    lost = step.calls[2]
    assert isinstance(lost, Refused)
    assert (lost.message, lost.is_lost) == (LOST, True)


async def test_a_lost_call_counts_as_one_that_was_run() -> None:
    """It may have: the response may run only so many."""
    plan = await plan_of(ask(tools=[DEPOT], max_tool_calls=1), Depot())
    run = begun(run_of(plan, server_called(1, "sell"), server_called(2, "sell"), ended()), 1)
    step = next_step(run, plan)
    assert isinstance(step, RunTools)
    assert [each.message for each in step.calls if isinstance(each, Refused)] == [LOST, OVER_LIMIT]


async def test_one_that_was_closed_with_an_inference_that_was_cut_is_nobodys_any_more() -> None:
    plan = await plan_of(ask(tools=[DEPOT]), Depot())
    run = begun(run_of(plan, server_called(1, "look", status="incomplete"), called(2, status="incomplete")), 1)
    assert isinstance(next_step(run, plan), Infer)


async def test_how_far_tools_say_they_are_is_in_the_log_with_numbers_of_its_own() -> None:
    log, depot = Log(), Depot()

    async def tells(_: ToolCall, context: ToolContext) -> str:
        context.progress(Progress(done=1, total=2, message="half"))
        return "looked"

    depot._tools["look"] = (replace(depot._tools["look"][0]), tells)
    async with engine_on(log, Story(answer(call("look", n=1)), answer(say("Done."))), depot, eager=False) as engine:
        run = await engine.enqueue(ask(background=True, stream=True, tools=[DEPOT], include=["mcp_call.progress"]))
        records = await records_of(log, run.response_id, follow=True)
        response = await engine.ended(run.response_id)
        await run.close()
    told = [event for event in check_log(records, response) if isinstance(event, McpCallProgress)]
    assert [event.message for event in told] == ["half"]
