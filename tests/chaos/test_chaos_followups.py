"""The verdict of the chaos suite on stories of several responses finds what it is there to find."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, Message, OutputItem, OutputText
from antwort.api.responses import Response
from antwort.api.wire import encode, replace
from antwort.engine.runs.replay import replay_events
from chaos.client import Seen
from chaos.fleet import Span
from chaos.followups import PLANS, Chain, Plan
from chaos.ledger import Execution, Inference
from chaos.story import CLIENTS, FUNCTIONS, LABEL, UNSAFE, Call, Scene, arguments_at, calls_of, last_words, turn_of
from chaos.verdict import Foreground, Rule, Verdict, judge

CUT = 0
"""A loop that was cut in its second turn."""
PAUSE = next(
    number for number in range(100) if any(call.kind not in (*UNSAFE, CLIENTS) for call in calls_of(number, "pause"))
)
"""A pause with a call that may be repeated."""


def run_of(call: Call) -> str:
    return f"run_{call.place}"


def shown(call: Call) -> Iterable[OutputItem]:
    """A call with its result, as a response shows it."""
    if call.kind in FUNCTIONS:
        key, arguments = f"call_{call.place}", arguments_at(call.place)
        yield FunctionCall(id=f"fc_{call.place}", call_id=key, name=call.kind, arguments=arguments)
        yield FunctionCallOutput(id=f"fco_{call.place}", call_id=key, output=run_of(call))
        return
    yield McpCall(
        id=f"mcp_{call.place}",
        server_label=LABEL,
        name=call.kind,
        arguments=arguments_at(call.place),
        output=run_of(call),
        call_id=f"call_{call.place}",
    )


def response(number: int, output: Iterable[OutputItem], status: str = "completed", **fields: Any) -> Response:
    made = Response(id=f"resp_{number}", created_at=1, status="completed", model="teller", output=tuple(output))
    return replace(made, status=status, **fields)


def said(story: int) -> Message:
    text = OutputText(text="".join(last_words(story)))
    return Message(id="msg_1", role="assistant", content=(text,), status="completed")


def chain(scene: Scene, finals: Sequence[Response], **fields: Any) -> Chain:
    made = Chain(
        story=CUT if scene == "loop" else PAUSE,
        scene=scene,
        streams={final.id: [] for final in finals},
        final={final.id: encode(final) for final in finals},
        is_done=True,
    )
    return msgspec.structs.replace(made, **fields)


def execution(call: Call, begun: float, **fields: Any) -> Execution:
    made = Execution(
        run=run_of(call),
        kind=call.kind,
        place=call.place,
        key=f"call_{call.place}",
        server="0.1",
        begun=begun,
        ended=begun + 1,
    )
    return msgspec.structs.replace(made, **fields)


def again(call: Call, begun: float, **fields: Any) -> Execution:
    return execution(call, begun, **{"run": "run_again", "key": "call_again", **fields})


def broken(verdict: Verdict) -> set[Rule]:
    return {breach.rule for breach in verdict.breaches}


# ---- loops in the foreground ----

FIRST, SECOND, THIRD = (turn_of(CUT, at, "loop").calls for at in range(3))
LOOP = [*FIRST, *SECOND, *THIRD]


def loop(**fields: Any) -> Chain:
    """Its first response shows the first turn, and was cut in the second; the next one told the rest."""
    rest = [item for call in (*SECOND, *THIRD) for item in shown(call)]
    finals = [
        response(1, (item for call in FIRST for item in shown(call)), "failed"),
        response(2, [*rest, said(CUT)], previous_response_id="resp_1"),
    ]
    return chain("loop", finals, **fields)


def loop_runs() -> list[Execution]:
    """Each turn takes ten seconds."""
    turns = (FIRST, SECOND, THIRD)
    return [execution(call, 1000.0 + 10 * at) for at, calls in enumerate(turns) for call in calls]


def loop_inferences() -> list[Inference]:
    """The model is asked at the end of each turn."""
    found = [Inference(CUT, {}, 999.0)]
    for at, calls in enumerate((FIRST, SECOND, THIRD)):
        found.append(Inference(CUT, found[-1].results | {call.place: run_of(call) for call in calls}, 1005.0 + 10 * at))
    return found


def judge_loop(made: Chain, executions: Sequence[Execution], *stood_still: Span) -> Verdict:
    return judge([], executions, stood_still, Foreground([made], loop_inferences(), stood_still))


def test_a_loop_that_goes_on_where_it_was_cut_is_good() -> None:
    verdict = judge_loop(loop(), loop_runs())
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["loops cut"] == 1
    assert verdict.counts["results shown by loops that were cut"] == len(FIRST)


def test_a_call_of_a_cut_turn_may_be_made_again() -> None:
    lost = again(SECOND[0], 1007.0, ended=None)
    verdict = judge_loop(loop(), [lost, *loop_runs()])
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["calls of cut turns made again"] == 1


@pytest.mark.parametrize("call", FIRST)
def test_a_call_of_a_finished_turn_that_runs_again_is_found(call: Call) -> None:
    late = again(call, 1006.0)
    assert broken(judge_loop(loop(), [*loop_runs(), late])) == {"call of a finished turn run again"}


def test_a_process_that_stood_still_may_run_what_it_had_in_hand() -> None:
    late = again(SECOND[0], 1021.0, server="1.1")
    assert broken(judge_loop(loop(), [*loop_runs(), late], Span("1.1", 1012.0, 1020.0))) == set()
    assert broken(judge_loop(loop(), [*loop_runs(), late], Span("1.2", 1012.0, 1020.0))) == {
        "call of a finished turn run again"
    }


def test_a_key_under_which_an_unsafe_call_ran_twice_is_found() -> None:
    call = next(call for call in SECOND if call.kind in UNSAFE)
    twice = again(call, 1007.0, key=f"call_{call.place}")
    assert broken(judge_loop(loop(), [twice, *loop_runs()])) == {"unsafe call run twice"}


def test_a_finished_turn_that_the_cut_response_does_not_show_is_found() -> None:
    forgetful = loop()
    forgetful.final["resp_1"] = encode(response(1, [], "failed"))
    told_again = [again(call, 1007.0 + at) for at, call in enumerate(FIRST)]
    assert broken(judge_loop(forgetful, [*loop_runs(), *told_again])) == {
        "call of a finished turn run again",
        "finished call left out of the record",
        "call of the story left out",
    }


def test_a_loop_that_did_not_come_to_its_end_is_lost() -> None:
    assert "lost" in broken(judge_loop(loop(is_done=False), loop_runs()))
    assert broken(judge_loop(loop(is_given_up=True, is_done=False), loop_runs())) == {"ended as it should not"}


@pytest.mark.parametrize("status", ["in_progress", "queued"])
def test_a_response_that_is_still_under_way_in_the_end_is_lost(status: str) -> None:
    left = loop()
    left.final["resp_1"] = encode(response(1, (item for call in FIRST for item in shown(call)), status))
    assert "lost" in broken(judge_loop(left, loop_runs()))


def test_a_response_of_which_nothing_is_known_is_lost() -> None:
    left = loop()
    left.streams["resp_3"] = []
    assert broken(judge_loop(left, loop_runs())) == {"lost"}


def test_a_result_that_no_tool_has_given_is_found() -> None:
    assert broken(judge_loop(loop(), loop_runs()[1:])) == {"result that no tool has given"}


def test_an_answer_that_no_client_should_see_is_told() -> None:
    assert broken(judge_loop(loop(troubles=["404"]), loop_runs())) == {"told something wrong"}


def stream(of: Response) -> list[Seen]:
    plain = [
        {**msgspec.json.decode(encode(event)), "sequence_number": at} for at, event in enumerate(replay_events(of))
    ]
    return [Seen(at, event["type"], encode(event), 1000.0 + at) for at, event in enumerate(plain)]


def test_a_stream_is_held_against_the_grammar_and_what_is_stored() -> None:
    whole = response(2, [said(CUT)])
    seen = stream(whole)

    def rules(seen: list[Seen], stored: Response = whole) -> set[Rule]:
        of_it = Chain(story=CUT, scene="loop", streams={"resp_2": seen}, final={"resp_2": encode(stored)}, is_done=True)
        return broken(judge([], [], [], Foreground([of_it]))) - {"call of the story left out"}

    assert rules(seen) == set()
    assert rules(seen[:4]) == set()  # it broke off
    assert rules([*seen[:2], *seen[3:]]) == {"stream against the grammar"}
    assert rules(seen, replace(whole, created_at=2)) == {"fold differs from what is stored"}


# ---- paused turns ----

CALLS = [call for call in calls_of(PAUSE, "pause") if call.kind != CLIENTS]
SAFE = next(call for call in CALLS if call.kind not in UNSAFE)
CONTINUED: Plan = (("result",), ("result",))


def pause(plan: Plan, **fields: Any) -> Chain:
    asked = FunctionCall(id="fc_1", call_id="call_1", name=CLIENTS, arguments=arguments_at(f"{PAUSE}.0.9"))
    finals = [
        response(1, [asked], "requires_action"),
        response(2, [said(PAUSE)], previous_response_id="resp_1"),
    ]
    return chain("pause", finals, plan=plan, paused="resp_1", **fields)


def pause_runs() -> list[Execution]:
    return [execution(call, 1000.0) for call in CALLS]


def judge_pause(made: Chain, executions: Sequence[Execution], *faults: Span) -> Verdict:
    told = [Inference(PAUSE, {call.place: run_of(call) for call in CALLS}, 1005.0)]
    return judge([], executions, [], Foreground([made], told, faults))


def test_a_paused_turn_whose_calls_ran_once_is_good() -> None:
    verdict = judge_pause(pause(CONTINUED), pause_runs())
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["calls of paused turns run"] == len(CALLS)
    assert verdict.counts["follow-ups of paused turns"] == 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("begun", [1000.5, 1003.0, 1010.0])
def test_a_call_of_a_paused_turn_that_runs_twice_is_found(call: Call, begun: float) -> None:
    twice = [*pause_runs(), again(call, begun)]
    assert broken(judge_pause(pause(CONTINUED), twice)) == {"call of a paused turn run twice"}


@pytest.mark.parametrize("fault", [Span("0.1", 1000.5, math.inf), Span("0.1", 999.0, 1000.5), Span("", 1001.0, 1002.0)])
def test_a_call_that_may_be_repeated_runs_again_where_its_outcome_was_lost(fault: Span) -> None:
    verdict = judge_pause(pause(CONTINUED), [*pause_runs(), again(SAFE, 1003.0)], fault)
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["calls of paused turns run again, of tools that may be"] == 1
    unsafe = next(call for call in CALLS if call.kind in UNSAFE)
    for other in (again(unsafe, 1003.0), again(SAFE, 1006.0)):  # the model was told at 1005
        assert broken(judge_pause(pause(CONTINUED), [*pause_runs(), other], fault)) == {
            "call of a paused turn run twice"
        }


@pytest.mark.parametrize(
    "fault", [Span("0.2", 1000.5, math.inf), Span("0.1", 1004.0, math.inf), Span("", 990.0, 999.0)]
)
def test_a_fault_elsewhere_or_at_another_time_excuses_nothing(fault: Span) -> None:
    verdict = judge_pause(pause(CONTINUED), [*pause_runs(), again(SAFE, 1003.0)], fault)
    assert broken(verdict) == {"call of a paused turn run twice"}


def test_a_call_that_may_be_repeated_runs_again_where_it_was_broken_off_or_its_client_left() -> None:
    cut = [execution(call, 1000.0, **({"ended": None} if call == SAFE else {})) for call in CALLS]
    later = again(SAFE, 1003.0, run=run_of(SAFE))
    assert judge_pause(pause(CONTINUED), [*cut, later]).is_good
    hasty = pause((("hasty",), ("result",)))
    assert judge_pause(hasty, [*pause_runs(), again(SAFE, 1003.0)]).is_good


@pytest.mark.parametrize("plan", [plan for plan in PLANS if pause(plan).is_declined])
def test_a_call_that_runs_although_it_was_declined_is_found(plan: Plan) -> None:
    verdict = judge_pause(pause(plan), [])
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["calls declined"] == len(CALLS)
    assert broken(judge_pause(pause(plan), [execution(CALLS[0], 1000.0)])) == {"declined call run"}


def test_every_way_to_decline_comes_first_in_some_plan_and_is_followed_by_the_result() -> None:
    declining = [plan for plan in PLANS if pause(plan).is_declined]
    assert {move for plan in declining for move in plan[0]} == {"message", "none", "allowed", "cancel"}
    assert all("result" in plan[-1] or "late result" in plan[-1] for plan in declining)
    assert not pause((("result", "message"),)).is_declined


def test_a_call_of_a_paused_turn_that_never_ran_is_found_unless_something_came_between() -> None:
    assert broken(judge_pause(pause(CONTINUED), pause_runs()[1:])) == {"call of the story left out"}
    assert judge_pause(pause(CONTINUED, breaks=Counter({"TimeoutError": 1})), pause_runs()[1:]).is_good
    assert judge_pause(pause((("result", "message"),)), []).is_good


def test_a_paused_response_that_has_changed_its_status_is_found() -> None:
    changed = pause(CONTINUED)
    changed.final["resp_1"] = encode(response(1, [], "cancelled"))
    assert broken(judge_pause(changed, pause_runs())) == {"ended as it should not"}


def test_calls_of_background_stories_are_judged_apart() -> None:
    other = Execution(run="run_1", kind="pay", place="99.0.0", key="call_1", server="0.1", begun=1.0, ended=2.0)
    verdict = judge_pause(pause(CONTINUED), [*pause_runs(), other])
    assert broken(verdict) == {"call run that is not on record"}


# ---- when a loop is cut ----

WORDS = "response.output_text.delta"
MCP, FUNCTION = "response.mcp_call_arguments.delta", "response.function_call_arguments.delta"


@pytest.mark.parametrize(
    ("types", "is_second"),
    [
        ([], False),
        ([WORDS, WORDS, MCP, "response.mcp_call.completed", FUNCTION], False),
        ([WORDS, MCP, WORDS], True),
        ([WORDS, FUNCTION, "response.output_item.done", WORDS, WORDS, MCP, FUNCTION], True),
        ([WORDS, MCP, WORDS, MCP, WORDS], False),
    ],
)
def test_a_loop_is_in_its_second_turn_from_its_first_words_to_its_last_call(types: list[str], is_second: bool) -> None:
    seen = [Seen(at, type_, b"", 0.0) for at, type_ in enumerate(types)]
    chain = Chain(story=1, scene="loop", port=8080, is_streaming=True, streams={"resp_1": seen})
    assert chain.is_in_second_turn(8080) is is_second
    assert not chain.is_in_second_turn(8081)
    chain.is_streaming = False
    assert not chain.is_in_second_turn(8080)
