"""Calls that somebody has begun who is gone: which of them are run again, by what is on record alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from antwort.api.events import CallBegun, McpCallProgress
from antwort.api.responses import Response
from antwort.engine.history.refusals import OVER_LIMIT, PROCESS_LOST
from antwort.engine.loop.fold import Finish, Run, fold
from antwort.engine.loop.steps import Infer, Ready, Refused, RunTools, next_step
from antwort.engine.plan import Plan
from antwort.engine.settings import EngineSettings
from antwort.identity import ANONYMOUS
from antwort.testing import Answer, ScriptedProvider, answer, call, say
from antwort.tools.base import Progress, ToolCall, ToolContext
from antwort.tools.local import LocalExecutor
from engine_kit import CLOCK, WEATHER, ask, function_calls, outputs, server_calls
from jumping_time import jumping_time
from plan_kit import called, ended, plan_of, ran, run_of, server_called
from takeover_kit import DEPOT, Depot, Log, Story, Watched, check_log, engine_on, records_of


def begun(run: Run, *numbers: int) -> Run:
    return fold(run, [CallBegun(call_id=f"call_{n}") for n in numbers])


def test_a_call_is_lost_from_its_beginning_to_its_end() -> None:
    run = Run(Response(id="resp_1", created_at=0, status="in_progress", model="m"))
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
    assert (lost.message, lost.is_lost) == (PROCESS_LOST, True)


async def test_a_lost_call_counts_as_one_that_was_run() -> None:
    """It may have: the response may run only so many."""
    plan = await plan_of(ask(tools=[DEPOT], max_tool_calls=1), Depot())
    run = begun(run_of(plan, server_called(1, "sell"), server_called(2, "sell"), ended()), 1)
    step = next_step(run, plan)
    assert isinstance(step, RunTools)
    assert [each.message for each in step.calls if isinstance(each, Refused)] == [PROCESS_LOST, OVER_LIMIT]


async def test_one_that_was_closed_with_an_inference_that_was_cut_is_nobodys_any_more() -> None:
    plan = await plan_of(ask(tools=[DEPOT]), Depot())
    run = begun(run_of(plan, server_called(1, "look", status="incomplete"), called(2, status="incomplete")), 1)
    assert isinstance(next_step(run, plan), Infer)


async def test_how_far_tools_say_they_are_is_in_the_log_with_numbers_of_its_own() -> None:
    async def tells(_: ToolCall, context: ToolContext) -> str:
        context.progress(Progress(done=1, total=2, message="half"))
        return "looked"

    log, depot = Log(), Depot(look=tells)
    async with engine_on(log, Story(answer(call("look", n=1)), answer(say("Done."))), depot, eager=False) as engine:
        run = await engine.start(ask(background=True, stream=True, tools=[DEPOT], include=["mcp_call.progress"]))
        records = await records_of(log, run.response_id, follow=True)
        response = await engine.ended(run.response_id)
        await run.close()
    told = [event for event in check_log(records, response) if isinstance(event, McpCallProgress)]
    assert [event.message for event in told] == ["half"]


# ---- whatever has become of the tool ----


async def test_one_whose_tool_is_gone_is_lost() -> None:
    plan = await plan_of(ask(tools=[DEPOT]), Depot(without=["sell"]))
    assert answers(begun(run_of(plan, server_called(1, "sell"), ended()), 1), plan) == [PROCESS_LOST]


async def test_one_that_would_have_to_be_approved_by_now_is_lost() -> None:
    plan = await plan_of(ask(tools=[DEPOT | {"require_approval": "always"}]), Depot())
    run = run_of(plan, server_called(1, "sell"), server_called(2, "sell"), ended())
    assert answers(begun(run, 1), plan) == [PROCESS_LOST, OVER_LIMIT]


async def test_one_that_only_reads_is_lost_where_it_may_not_be_run_again() -> None:
    plan = await plan_of(ask(tools=[DEPOT], max_tool_calls=1), Depot())
    done = server_called(1, "look", status="completed", output="seen")
    run = run_of(plan, done, ended(), ran(1), server_called(2, "look"), server_called(3, "look"), ended())
    assert answers(begun(run, 2), plan) == [PROCESS_LOST, OVER_LIMIT]


async def test_a_function_that_nobody_runs_here_any_more_is_lost_and_not_the_clients() -> None:
    plan = await plan_of(ask(tools=[WEATHER, CLOCK]))
    run = run_of(plan, called(1, "weather"), called(2, "clock"), ended())
    assert answers(begun(run, 1), plan) == [PROCESS_LOST]
    assert next_step(run, plan) == Finish("completed")


def answers(run: Run, plan: Plan) -> list[str | None]:
    step = next_step(run, plan)
    assert isinstance(step, RunTools)
    return [each.message if isinstance(each, Refused) else None for each in step.calls]


# ---- functions that an earlier response has asked for ----


class House:
    """A response that waits for the client's clock, and one that goes on from it in the background: whoever made that
    was lost when it had begun the weather.
    """

    def __init__(self) -> None:
        self.log, self.ran = Log(), list[str]()
        self._is_asked, self._may_end = asyncio.Event(), asyncio.Event()
        self.tools = [WEATHER, CLOCK]

    async def weather(self, city: str) -> str:
        self.ran.append(city)
        self._is_asked.set()
        await self._may_end.wait()
        return "sunny"

    def engine(self, *answers: Answer, **options: Any) -> Watched:
        executors = [] if options.pop("bare", False) else [LocalExecutor(self.weather)]
        return engine_on(self.log, ScriptedProvider(*answers), *executors, **options)

    @asynccontextmanager
    async def left(self) -> AsyncGenerator[str, None]:
        async with self.engine(answer(call("weather", city="Rome"), call("clock"))) as engine:
            first = await engine.create(ask(tools=self.tools))
            [clock] = [each for each in function_calls(first) if each.name == "clock"]
            noon = {"type": "function_call_output", "call_id": clock.call_id, "output": "12:00"}
            queued = await engine.create(ask([noon], background=True, previous_response_id=first.id, tools=self.tools))
            await self._is_asked.wait()
            await self.log.kill()
            await self.log.bury()
            self._may_end.set()
            yield queued.id

    async def check_once(self, engine: Watched, response_id: str) -> Response:
        """It says that the call was lost; nobody who goes on from it makes that again."""
        response = await engine.ended(response_id)
        assert [output.output for output in outputs(response)] == [PROCESS_LOST]
        later = await engine.create(ask("And?", previous_response_id=response_id, tools=self.tools))
        assert outputs(later) == []
        assert self.ran == ["Rome"]
        return response


async def test_a_function_that_an_earlier_response_asked_for_is_not_run_twice_where_the_run_is_cancelled() -> None:
    house = House()
    async with house.left() as response_id:
        await house.log.cancel(ANONYMOUS, response_id)
        async with house.engine(answer(say("Ok."))) as engine:
            response = await house.check_once(engine, response_id)
    assert response.status == "cancelled"


async def test_nor_where_the_run_was_tried_too_often() -> None:
    house = House()
    async with house.left() as response_id:
        await house.log.query(f"UPDATE runs SET attempt = {EngineSettings().background.attempts} RETURNING 1")
        async with house.engine(answer(say("Ok."))) as engine:
            response = await house.check_once(engine, response_id)
    assert response.error is not None
    assert response.error.code == "attempts_exhausted"


async def test_nor_where_whoever_goes_on_does_not_have_it() -> None:
    house = House()
    async with house.left() as response_id:
        async with house.engine(answer(say("Ok.")), bare=True) as engine:
            assert (await engine.ended(response_id)).status == "completed"
        async with house.engine(answer(say("Ok."))) as engine:
            await house.check_once(engine, response_id)


@jumping_time
async def test_one_that_is_told_to_stop_says_what_was_lost_and_begins_nothing() -> None:
    log, depot = Log(), Depot()
    depot.gate = asyncio.Event()
    mixed = ScriptedProvider(answer(call("sell", n=1), call("sell", n=2), call("clock")))
    async with engine_on(log, mixed, depot) as one:
        first = await one.create(ask(tools=[DEPOT, CLOCK], parallel_tool_calls=False))
        (clock,) = function_calls(first)
        noon = {"type": "function_call_output", "call_id": clock.call_id, "output": "noon"}
        run = await one.start(ask([noon], previous_response_id=first.id, stream=True), on_disconnect="continue")
        await depot.asked.wait()
        await log.kill()
        assert await log.cancel(ANONYMOUS, run.response_id)
        await log.bury()
        async with engine_on(log, ScriptedProvider(), depot) as other:
            response = await other.ended(run.response_id)
    assert response.status == "cancelled"
    assert [(item.arguments, item.error_text) for item in server_calls(response)] == [('{"n":1}', PROCESS_LOST)]
    assert len(depot.ran) == 1
