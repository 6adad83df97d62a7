"""What comes next: a table of runs and plans, and the step each leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from antwort.api.events import Mark, TurnAbandoned
from antwort.api.items import OutputItem
from antwort.api.tools import ForcedFunction, ForcedServer
from antwort.engine.history.calls import PendingCall
from antwort.engine.history.refusals import OVER_LIMIT
from antwort.engine.loop.fold import Finish
from antwort.engine.loop.limits import tokens_left
from antwort.engine.loop.steps import Compact, Infer, Ready, Refused, RunTools, Step, choice_for, next_step
from antwort.engine.plan import Leftover
from antwort.testing import tokens
from antwort.tools.base import ToolExecutor
from antwort.tools.local import LocalExecutor
from engine_kit import CLOCK, SERVER, WEATHER, ask, weather_tool
from plan_kit import called, depot, ended, over_limit, plan_of, ran, result, run_of, said, server_called, thought

Told: TypeAlias = str | list[str]


def told(step: Step) -> Told:
    """The step in words: what is run and what refused, by the number of the call and the name it goes by."""
    match step:
        case Infer():
            return "infer"
        case Finish(status, None):
            return status
        case Finish(status, reason):
            return f"{status}: {reason}"
        case RunTools(calls):
            return [_told_call(call) for call in calls]
        case Compact():
            return "compact"


def _told_call(answer: Ready | Refused) -> str:
    number = answer.call.call_id.removeprefix("call_")
    if isinstance(answer, Ready):
        return f"run {number} {answer.call.name}"
    return f"{'over limit' if answer.outcome == 'over_limit' else 'refuse'} {number} {answer.call.name}"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """After this, with that offered, the step is `then`."""

    after: tuple[OutputItem | Mark, ...] = ()
    then: Told
    request: dict[str, Any] = {}
    executors: tuple[Callable[[], ToolExecutor], ...] = ()
    settings: dict[str, Any] = {}


def nothing_offered() -> ToolExecutor:
    """An executor of the program that has no tool which any request here declares."""

    async def unasked() -> str:
        raise AssertionError("never run")

    return LocalExecutor(unasked)


ALL = [WEATHER, CLOCK, SERVER]
LOCAL = (weather_tool,)
BOTH = (weather_tool, depot)
ABANDONED = TurnAbandoned(start=0)
ALLOWED = {"allowed_tools": ["weather"]}
NONE = {"tool_choice": "none"}

COURSE = {
    "a new run asks the model": Case(then="infer"),
    "an answer without calls is the end": Case(after=(said("Hi"), ended("stop")), then="completed"),
    "reasoning alone is an answer": Case(after=(thought("hm"), ended("stop")), then="completed"),
    "text beside a call does not end it": Case(
        after=(said("Hm."), called(1), ended()), executors=LOCAL, then=["run 1 weather"]
    ),
    "calls are run in their order": Case(
        after=(called(1), called(2), ended()), executors=LOCAL, then=["run 1 weather", "run 2 weather"]
    ),
    "the finish reason does not decide": Case(
        after=(called(1), ended("stop")), executors=LOCAL, then=["run 1 weather"]
    ),
    "with all results the model is asked again": Case(
        after=(called(1), ended(), result(1), ran(1)), executors=LOCAL, then="infer"
    ),
    "a failed tool does not end it": Case(
        after=(called(1), ended(), result(1, "It broke.", is_error=True), ran(1)), executors=LOCAL, then="infer"
    ),
    "a second turn without calls is the end": Case(
        after=(called(1), ended(), result(1), ran(1), said("Sunny."), ended("stop")), executors=LOCAL, then="completed"
    ),
    "a second turn with calls goes on": Case(
        after=(called(1), ended(), result(1), ran(1), called(2), ended()), executors=LOCAL, then=["run 2 weather"]
    ),
    "a run picked up in mid-turn answers what is open": Case(
        after=(called(1), called(2), ended(), result(1), ran(1)), executors=LOCAL, then=["run 2 weather"]
    ),
    "a server's call is run by the name the model uses": Case(
        after=(server_called(1), ended()), executors=BOTH, then=["run 1 depot_stock"]
    ),
    "functions and a server's tools run together, in order": Case(
        after=(server_called(1), called(2), server_called(3, "price"), ended()),
        executors=BOTH,
        then=["run 1 depot_stock", "run 2 weather", "run 3 depot_price"],
    ),
    "a server's results lead on": Case(
        after=(server_called(1, status="completed", output="3"), ended(), ran(1)), executors=BOTH, then="infer"
    ),
    "a server's failure leads on": Case(
        after=(server_called(1, status="failed", error="no"), ended(), ran(1)), executors=BOTH, then="infer"
    ),
    "a call that a takeover closed is not the last turn's": Case(
        after=(called(1, status="incomplete"), ABANDONED, said("Hi"), ended("stop")), executors=LOCAL, then="completed"
    ),
    "a server's call that a takeover closed is not the last turn's": Case(
        after=(server_called(1, status="incomplete"), ABANDONED, said("Hi"), ended("stop")),
        executors=BOTH,
        then="completed",
    ),
}

ENDS = {
    "an answer that was cut": Case(
        after=(said("Once", "incomplete"), ended("length")), then="incomplete: max_output_tokens"
    ),
    "an answer that a filter cut": Case(
        after=(said("Once", "incomplete"), ended("content_filter")), then="incomplete: content_filter"
    ),
    "a cut call is never run, nor those before it": Case(
        after=(called(1), called(2, status="incomplete"), ended("length")),
        executors=LOCAL,
        then="incomplete: max_output_tokens",
    ),
    "a whole call in a cut answer is not run either": Case(
        after=(called(1), said("and", "incomplete"), ended("length")),
        executors=LOCAL,
        then="incomplete: max_output_tokens",
    ),
    "nothing at all": Case(after=(ended("stop"),), executors=LOCAL, then="completed"),
    "nothing but a claim of calls": Case(after=(ended("tool_calls"),), executors=LOCAL, then="completed"),
    "no tokens left for another turn": Case(
        after=(called(1), ended(usage=tokens(9, 20)), result(1), ran(1)),
        executors=LOCAL,
        request={"max_output_tokens": 20},
        then="incomplete: max_output_tokens",
    ),
    "tokens left for another turn": Case(
        after=(called(1), ended(usage=tokens(9, 19)), result(1), ran(1)),
        executors=LOCAL,
        request={"max_output_tokens": 20},
        then="infer",
    ),
}

CLIENTS = {
    "without executors calls are the answer": Case(after=(called(1), ended()), then="completed"),
    "a call that nobody here can run is the client's": Case(
        after=(called(1, "clock"), ended()), executors=LOCAL, then="requires_action"
    ),
    "executors that have none of the tools": Case(
        after=(called(1), ended()), executors=(nothing_offered,), then="requires_action"
    ),
    "a mixed turn pauses whole": Case(
        after=(called(1), called(2, "clock"), server_called(3), ended()), executors=BOTH, then="requires_action"
    ),
    "a mixed turn pauses whole, but what is refused is told": Case(
        after=(called(1), called(2, "clock"), server_called(3, "dance", label="antwort"), ended()),
        executors=BOTH,
        then=["refuse 3 dance"],
    ),
    "a mixed turn under execute runs ours": Case(
        after=(called(1), called(2, "clock"), server_called(3), ended()),
        executors=BOTH,
        settings={"mixed_turns": "execute"},
        then=["run 1 weather", "run 3 depot_stock"],
    ),
    "a mixed turn under execute then waits for the client": Case(
        after=(called(1), called(2, "clock"), ended(), result(1), ran(1)),
        executors=LOCAL,
        settings={"mixed_turns": "execute"},
        then="requires_action",
    ),
    "an unknown name without executors is passed on": Case(after=(called(1, "dance"), ended()), then="completed"),
}

REFUSED = {
    "a call outside the list, beside one inside it": Case(
        after=(server_called(1, "clock", label="antwort"), called(2), ended()),
        executors=LOCAL,
        request=ALLOWED,
        then=["refuse 1 clock", "run 2 weather"],
    ),
    "a call outside the list without executors": Case(
        after=(server_called(1, "clock", label="antwort"), ended()), request=ALLOWED, then=["refuse 1 clock"]
    ),
    "refused and shown as a function": Case(
        after=(called(1, "clock"), ended()),
        request=ALLOWED,
        settings={"refused_calls": "function_call"},
        then=["refuse 1 clock"],
    ),
    "a server's tool outside the list": Case(
        after=(server_called(1), ended()), executors=BOTH, request=ALLOWED, then=["refuse 1 depot_stock"]
    ),
    "after a refusal alone the model is asked again": Case(
        after=(server_called(1, "clock", label="antwort", status="failed", error="no"), ended()),
        request=ALLOWED,
        then="infer",
    ),
    "without executors the rest goes to the client": Case(
        after=(server_called(1, "clock", label="antwort", status="failed", error="no"), called(2), ended()),
        request=ALLOWED,
        then="completed",
    ),
    "an empty list allows all": Case(
        after=(called(1), server_called(2), ended()),
        executors=BOTH,
        request={"allowed_tools": []},
        then=["run 1 weather", "run 2 depot_stock"],
    ),
    "a list that names none of the tools allows none": Case(
        after=(called(1), ended()), executors=LOCAL, request={"allowed_tools": ["dance"]}, then=["refuse 1 weather"]
    ),
    "a name that nobody offered": Case(
        after=(server_called(1, "dance", label="antwort"), ended()), executors=LOCAL, then=["refuse 1 dance"]
    ),
}

NOTHING_RUN = {
    "a function that could be run": Case(after=(called(1), ended()), executors=BOTH, request=NONE, then="completed"),
    "a server's tool": Case(after=(server_called(1), ended()), executors=BOTH, request=NONE, then="completed"),
    "an unknown name": Case(after=(called(1, "dance"), ended()), executors=BOTH, request=NONE, then="completed"),
    "a refused call is told, and that is the end": Case(
        after=(server_called(1, "clock", label="antwort", status="failed", error="no"), ended()),
        executors=BOTH,
        request=NONE | ALLOWED,
        then="completed",
    ),
}

_USED_UP = {"max_tool_calls": 1}
_ONE_TURN = (called(1), ended(), result(1), ran(1))
_OVER = (called(2), ended(), result(2, OVER_LIMIT, is_error=True), over_limit(2))

LIMITS = {
    "calls within the limit": Case(
        after=(called(1), called(2), ended()),
        executors=LOCAL,
        request={"max_tool_calls": 2},
        then=["run 1 weather", "run 2 weather"],
    ),
    "those beyond the limit get an error": Case(
        after=(called(1), called(2), called(3), ended()),
        executors=LOCAL,
        request=_USED_UP,
        then=["run 1 weather", "over limit 2 weather", "over limit 3 weather"],
    ),
    "calls of earlier turns count": Case(
        after=(*_ONE_TURN, called(2), ended()), executors=LOCAL, request=_USED_UP, then=["over limit 2 weather"]
    ),
    "refused calls do not count": Case(
        after=(server_called(1, "dance", label="antwort"), called(2), ended()),
        executors=LOCAL,
        request=_USED_UP,
        then=["refuse 1 dance", "run 2 weather"],
    ),
    "turns do not count": Case(after=_ONE_TURN, executors=LOCAL, request=_USED_UP, then="infer"),
    "once over it, the model is asked for its answer": Case(
        after=(*_ONE_TURN, *_OVER), executors=LOCAL, request=_USED_UP, then="infer"
    ),
    "two calls over it in one turn are one warning": Case(
        after=(called(1), called(2), ended(), result(1), over_limit(1), result(2), over_limit(2)),
        executors=LOCAL,
        request=_USED_UP,
        then="infer",
    ),
    "a model that keeps calling is ended": Case(
        after=(*_ONE_TURN, *_OVER, called(3), ended(), result(3), over_limit(3)),
        executors=LOCAL,
        request=_USED_UP,
        then="incomplete: max_tool_calls",
    ),
    "an answer after the limit is an answer": Case(
        after=(*_ONE_TURN, *_OVER, said("Sunny."), ended("stop")), executors=LOCAL, request=_USED_UP, then="completed"
    ),
    "the tools of the last turn are run": Case(
        after=(called(1), ended()), executors=LOCAL, settings={"max_turns": 1}, then=["run 1 weather"]
    ),
    "then the turns are over": Case(
        after=_ONE_TURN, executors=LOCAL, settings={"max_turns": 1}, then="incomplete: max_turns"
    ),
    "an answer in the last turn is an answer": Case(
        after=(said("Hi"), ended("stop")), executors=LOCAL, settings={"max_turns": 1}, then="completed"
    ),
    "the client's calls in the last turn are the client's": Case(
        after=(called(1, "clock"), ended()), executors=LOCAL, settings={"max_turns": 1}, then="requires_action"
    ),
    "nine turns are fine": Case(after=_ONE_TURN * 9, executors=LOCAL, settings={"stuck_after": None}, then="infer"),
    "ten turns are enough": Case(after=_ONE_TURN * 10, executors=LOCAL, then="incomplete: max_turns"),
}

PROVED = {
    "a new run asks the model": ("FR-011",),
    "an answer without calls is the end": ("FR-012",),
    "text beside a call does not end it": ("EDGE-3",),
    "calls are run in their order": ("FR-011", "FR-016"),
    "with all results the model is asked again": ("FR-011", "FR-016"),
    "a failed tool does not end it": ("FR-029", "FR-030", "FR-031"),
    "a second turn without calls is the end": ("FR-012",),
    "a cut call is never run, nor those before it": ("EDGE-5", "MISTAKE-07"),
    "nothing at all": ("EDGE-6",),
    "nothing but a claim of calls": ("EDGE-6",),
    "without executors calls are the answer": ("FR-004",),
    "a call that nobody here can run is the client's": ("FR-018", "FR-019"),
    "executors that have none of the tools": ("EDGE-1",),
    "a mixed turn pauses whole": ("MIXED-1",),
    "a mixed turn under execute runs ours": ("MIXED-3",),
    "a mixed turn under execute then waits for the client": ("MIXED-3",),
    "an unknown name without executors is passed on": ("EDGE-2",),
    "a call outside the list, beside one inside it": ("FR-008", "FR-009"),
    "a call outside the list without executors": ("FR-009", "MISTAKE-23"),
    "an empty list allows all": ("FR-010",),
    "a name that nobody offered": ("EDGE-2",),
    "a function that could be run": ("FR-006",),
    "a server's tool": ("FR-006",),
    "those beyond the limit get an error": ("LIMIT-1",),
    "turns do not count": ("LIMIT-1", "MISTAKE-19"),
    "a model that keeps calling is ended": ("LIMIT-1",),
    "the tools of the last turn are run": ("FR-013",),
    "then the turns are over": ("FR-013",),
    "ten turns are enough": ("FR-015",),
}


def cases(table: dict[str, Case]) -> pytest.MarkDecorator:
    params = [
        pytest.param(case, id=name, marks=pytest.mark.proves(*PROVED[name]) if name in PROVED else ())
        for name, case in table.items()
    ]
    return pytest.mark.parametrize("case", params)


@cases(COURSE)
async def test_the_course_of_the_loop(case: Case) -> None:
    assert await step_of(case) == case.then


@cases(ENDS)
async def test_answers_that_end_a_response(case: Case) -> None:
    assert await step_of(case) == case.then


@cases(CLIENTS)
async def test_calls_that_are_the_clients(case: Case) -> None:
    assert await step_of(case) == case.then


@cases(REFUSED)
async def test_calls_that_are_refused(case: Case) -> None:
    assert await step_of(case) == case.then


@cases(NOTHING_RUN)
async def test_with_tool_choice_none_nothing_is_run(case: Case) -> None:
    assert await step_of(case) == case.then


@cases(LIMITS)
async def test_limits_of_turns_and_calls(case: Case) -> None:
    assert await step_of(case) == case.then


async def step_of(case: Case) -> Told:
    executors = [make() for make in case.executors]
    offered = ALL if depot in case.executors else [WEATHER, CLOCK]
    plan = await plan_of(ask(tools=offered, **case.request), *executors, **case.settings)
    return told(next_step(run_of(plan, *case.after), plan))


def test_every_proof_belongs_to_a_case() -> None:
    """A case that is renamed would silently lose what it proves."""
    assert set(PROVED) <= {*COURSE, *ENDS, *CLIENTS, *REFUSED, *NOTHING_RUN, *LIMITS}


@pytest.mark.proves("FR-009")
async def test_a_refusal_says_why() -> None:
    plan = await plan_of(ask(tools=[WEATHER, CLOCK], **ALLOWED), weather_tool())
    run = run_of(plan, server_called(1, "clock", label="antwort"), server_called(2, "dance", label="antwort"), ended())
    step = next_step(run, plan)
    assert isinstance(step, RunTools)
    assert [call.message for call in step.calls if isinstance(call, Refused)] == [
        "The tool 'clock' is not allowed in this request.",
        "There is no tool named 'dance'.",
    ]


@pytest.mark.proves("LIMIT-1")
async def test_a_call_over_the_limit_is_told_to_answer_instead() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_tool_calls=1), weather_tool())
    step = next_step(run_of(plan, *_ONE_TURN, called(2), ended()), plan)
    assert isinstance(step, RunTools)
    (refused,) = step.calls
    assert isinstance(refused, Refused)
    assert refused.message == OVER_LIMIT


@pytest.mark.proves("FR-005")
async def test_a_required_call_that_was_not_made_is_not_asked_for_again() -> None:
    plan = await plan_of(ask(tools=[WEATHER], tool_choice="required"), weather_tool())
    assert next_step(run_of(plan, said("No."), ended("stop")), plan) == Finish("completed")


async def test_an_open_call_knows_its_place_and_its_item() -> None:
    plan = await plan_of(ask(tools=ALL), weather_tool(), depot())
    function, server = called(1, arguments='{"city":"Rome"}'), server_called(2, arguments='{"n":1}')
    step = next_step(run_of(plan, said("Hm."), function, server, ended()), plan)
    assert isinstance(step, RunTools)
    assert [answer.call for answer in step.calls] == [
        PendingCall("call_1", "weather", '{"city":"Rome"}', 1, function),
        PendingCall("call_2", "depot_stock", '{"n":1}', 2, server),
    ]
    for answer in step.calls:
        assert isinstance(answer, Ready)
        assert answer.definition is plan.toolbox.tools[answer.call.name]
        assert answer.executor in plan.toolbox.executors


# ---- what an earlier response left open ----


async def _with_leftovers(*numbers: int, **request: Any) -> tuple[Leftover, ...]:
    """Server's calls of an earlier response, made under tools of its own."""
    parent = await plan_of(ask(tools=[SERVER], **request), depot())
    items = [server_called(n, status="completed") for n in numbers]
    return tuple(
        Leftover(PendingCall(f"call_{n}", "depot_stock", "{}", None, item), parent.toolbox)
        for n, item in zip(numbers, items, strict=True)
    )


@pytest.mark.proves("MIXED-2", "RULING-3", "FR-021")
async def test_what_was_left_open_is_run_before_the_model_is_asked_with_the_tools_of_its_time() -> None:
    leftovers = await _with_leftovers(1, 2)
    plan = await plan_of(ask(), leftovers=leftovers)
    step = next_step(run_of(plan), plan)
    assert told(step) == ["run 1 depot_stock", "run 2 depot_stock"]
    assert isinstance(step, RunTools)
    for ready, left in zip(step.calls, leftovers, strict=True):
        assert isinstance(ready, Ready)
        assert ready.definition is left.toolbox.tools["depot_stock"]
        assert ready.executor in left.toolbox.executors


@pytest.mark.proves("MIXED-2")
async def test_when_it_is_run_the_model_is_asked() -> None:
    plan = await plan_of(ask(), leftovers=await _with_leftovers(1, 2))
    first = server_called(1, status="completed", output="3 left")
    second = server_called(2, status="failed", error="It broke.")
    assert told(next_step(run_of(plan, first, ran(1)), plan)) == ["run 2 depot_stock"]
    assert told(next_step(run_of(plan, first, ran(1), second, ran(2)), plan)) == "infer"


@pytest.mark.proves("MIXED-2", "FR-012")
async def test_a_run_of_what_was_left_open_is_not_a_call_of_the_first_turn() -> None:
    plan = await plan_of(ask(), leftovers=await _with_leftovers(1))
    again = server_called(1, status="completed", output="3 left")
    assert told(next_step(run_of(plan, again, ran(1), said("Three."), ended("stop")), plan)) == "completed"


@pytest.mark.proves("MIXED-2")
async def test_what_was_left_open_is_run_by_the_policy_it_was_asked_under() -> None:
    plan = await plan_of(ask(max_tool_calls=1), leftovers=await _with_leftovers(1, 2))
    assert told(next_step(run_of(plan), plan)) == ["run 1 depot_stock", "run 2 depot_stock"]


# ---- what the model is told ----


@pytest.mark.proves("FR-005", "MISTAKE-20")
@pytest.mark.parametrize(
    ("choice", "first", "later"),
    [
        ("auto", "auto", "auto"),
        ("required", "required", "auto"),
        ("none", "none", "none"),
        ({"type": "function", "name": "weather"}, ForcedFunction(name="weather"), "auto"),
        ({"type": "mcp", "server_label": "depot"}, ForcedServer(server_label="depot"), "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            "required",
            "auto",
        ),
    ],
)
async def test_a_choice_that_forces_holds_for_the_first_inference_only(choice: Any, first: Any, later: Any) -> None:
    plan = await plan_of(ask(tools=ALL, tool_choice=choice), weather_tool(), depot())
    assert choice_for(run_of(plan), plan) == first
    assert choice_for(run_of(plan, *_ONE_TURN), plan) == later


@pytest.mark.proves("LIMIT-1")
async def test_after_the_limit_of_calls_the_model_may_not_call() -> None:
    plan = await plan_of(ask(tools=[WEATHER], max_tool_calls=1), weather_tool())
    assert choice_for(run_of(plan, *_ONE_TURN), plan) == "auto"
    assert choice_for(run_of(plan, *_ONE_TURN, *_OVER), plan) == "none"


@pytest.mark.parametrize(
    ("limit", "spent", "left"),
    [(None, [], None), (None, [5], None), (50, [], 50), (50, [None], 50), (50, [20], 30), (50, [20, 40], 0)],
)
async def test_the_limit_of_tokens_is_the_responses_and_not_the_turns(
    limit: int | None, spent: list[int | None], left: int | None
) -> None:
    plan = await plan_of(ask(max_output_tokens=limit))
    marks = [ended(usage=None if count is None else tokens(7, count)) for count in spent]
    assert tokens_left(run_of(plan, *marks), plan) == left
