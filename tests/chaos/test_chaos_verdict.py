"""The verdict of the chaos suite finds what it is there to find."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from antwort.api.events import CallBegun, CallEnded, TurnEnded
from antwort.api.items import McpCall, Message, OutputItem, OutputText
from antwort.api.responses import Response, Usage
from antwort.api.wire import encode, replace
from antwort.engine.runs.replay import replay_events
from chaos.client import Seen, Told
from chaos.fleet import Span
from chaos.ledger import Execution
from chaos.story import LABEL, Call, arguments_at, calls_of, last_words
from chaos.verdict import Rule, judge

STORY = 3
CALLS = calls_of(STORY, "story")
PAID = next(place for place, call in enumerate(CALLS) if call.kind == "pay")
READ = next(place for place, call in enumerate(CALLS) if call.kind != "pay")


def item(at: int, call: Call) -> McpCall:
    return McpCall(
        id=f"mcp_{at}",
        server_label=LABEL,
        name=call.kind,
        arguments=arguments_at(call.place),
        output=f"run_{at}",
        call_id=f"call_{at}",
    )


def response(**changes: Any) -> Response:
    said = OutputText(text="".join(last_words(STORY)))
    end = Message(id="msg_1", role="assistant", content=(said,), status="completed")
    output: tuple[OutputItem, ...] = (*(item(at, call) for at, call in enumerate(CALLS)), end)
    made = Response(id="resp_1", created_at=1, completed_at=2, status="completed", model="teller", output=output)
    return replace(made, **changes)


def stream(of: Response) -> list[Seen]:
    """Each event a second after the one before."""
    found = []
    for number, event in enumerate(replay_events(of)):
        plain = {**msgspec.json.decode(encode(event)), "sequence_number": number}
        found.append(Seen(number, plain["type"], encode(plain), 1000.0 + number))
    return found


def told(of: Response | None = None, **changes: Any) -> Told:
    final = of or response()
    seen = stream(final)
    made = Told(
        story=STORY,
        manner="follow",
        response_id=final.id,
        seen=seen,
        replay=list(seen),
        rest=(4, seen[5:]),
        log=[*replay_events(final)],
        final=encode(final),
    )
    return msgspec.structs.replace(made, **changes)


def run_once() -> list[Execution]:
    return [
        Execution(
            run=f"run_{at}",
            kind=call.kind,
            place=call.place,
            key=f"call_{at}",
            server="0.1",
            begun=900.0 + at,
            ended=901.0 + at,
        )
        for at, call in enumerate(CALLS)
    ]


def again(at: int, **changes: Any) -> Execution:
    changes = {"run": "run_again", "begun": 950.0, **changes}
    return msgspec.structs.replace(run_once()[at], **changes)


def rules(run: Told, executions: list[Execution], *stood_still: Span) -> set[Rule]:
    return {breach.rule for breach in judge([run], executions, stood_still).breaches}


def done_at(at: int) -> float:
    """When the client saw the end of a call."""
    ends = [event.at for event in told().seen if event.type == "response.output_item.done"]
    return ends[at]


# ---- what is good ----


def test_a_run_of_which_all_was_kept_is_good() -> None:
    verdict = judge([told()], run_once(), [])
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["completed"] == 1
    assert verdict.counts["results on record"] == len(CALLS)


def test_a_call_that_may_be_repeated_and_was_lost_may_run_twice() -> None:
    lost = again(READ, run="run_lost", begun=800.0, ended=None)
    verdict = judge([told()], [lost, *run_once()], [])
    assert verdict.is_good, verdict.breaches
    assert verdict.counts["calls run again"] == 1


def test_a_process_that_stood_still_may_begin_what_it_had_in_hand() -> None:
    woke = done_at(READ) + 2
    late = again(READ, begun=woke + 1, server="1.1")
    span = Span("1.1", woke - 10, woke)
    assert rules(told(), [*run_once(), late], span) == set()
    assert rules(told(), [*run_once(), late]) == {"finished call run again"}
    assert rules(told(), [*run_once(), late], Span("1.2", woke - 10, woke)) == {"finished call run again"}


def test_who_cancelled_may_find_it_cancelled() -> None:
    cancelled = response(status="cancelled", completed_at=None)
    assert rules(told(cancelled, has_asked=True), run_once()) == set()
    assert rules(told(cancelled), run_once()) == {"ended as it should not"}


# ---- what is not ----


@pytest.mark.parametrize(
    "changes",
    [
        {"final": None},
        {"final": encode(response(status="in_progress", completed_at=None))},
        {"replay": []},
    ],
)
def test_a_run_of_which_no_end_is_known_is_lost(changes: dict[str, Any]) -> None:
    assert "lost" in rules(told(**changes), run_once())


def test_a_run_that_failed_has_not_ended_as_it_should() -> None:
    failed = response(status="failed", completed_at=None, error={"code": "server_error", "message": "No."})
    assert "ended as it should not" in rules(told(msgspec.convert(msgspec.to_builtins(failed), Response)), run_once())


def test_an_answer_that_no_client_should_see_is_told() -> None:
    assert rules(told(troubles=["404"]), run_once()) == {"told something wrong"}


def test_a_number_that_is_left_out_is_a_gap() -> None:
    whole = told().seen
    assert "gap in the numbers" in rules(told(seen=[*whole[:3], *whole[4:]]), run_once())


def test_a_number_that_comes_again_is_seen_twice() -> None:
    whole = told().seen
    assert "event seen twice" in rules(told(seen=[*whole[:3], *whole[2:]]), run_once())


def test_events_that_read_otherwise_later_are_found() -> None:
    whole = told().seen
    other = msgspec.structs.replace(whole[5], data=whole[5].data.replace(b"mcp_0", b"mcp_9"))
    changed = [*whole[:5], other, *whole[6:]]
    assert "replay differs from what was seen" in rules(told(seen=changed), run_once())
    assert rules(told(rest=(4, changed[5:])), run_once()) == {"replay from the middle differs"}


def test_a_stream_that_breaks_a_rule_is_found() -> None:
    whole = told().seen
    cut = [msgspec.structs.replace(event, number=at) for at, event in enumerate([*whole[:4], *whole[5:]])]
    assert "stream against the grammar" in rules(told(seen=cut, replay=cut, rest=None), run_once())


def test_a_stored_response_that_is_not_what_was_said_is_found() -> None:
    output = response().output
    first = output[0]
    assert isinstance(first, McpCall)
    other = response(output=(replace(first, output="run_9"), *output[1:]))
    assert "fold differs from what is stored" in rules(told(final=encode(other)), run_once())


def test_a_log_that_is_not_what_was_sent_is_found() -> None:
    log = replay_events(response())
    assert rules(told(log=[*log[:4], *log[5:]]), run_once()) == {"log differs from the stream"}
    assert rules(told(log=[]), run_once()) == {"log differs from the stream"}


def test_a_log_whose_marks_come_to_something_else_is_found() -> None:
    *log, end = replay_events(response())
    spent = TurnEnded(finish="stop", usage=Usage(input_tokens=3, total_tokens=3))
    assert rules(told(log=[*log, spent, end]), run_once()) == {"fold differs from what is stored"}


def test_a_call_that_begins_again_on_record_is_found() -> None:
    *log, end = replay_events(response())
    begun, over = CallBegun(call_id="call_0"), CallEnded(call_id="call_0", outcome="ran")
    assert rules(told(log=[*log, begun, begun, over, end]), run_once()) == set()
    assert rules(told(log=[*log, begun, over, begun, end]), run_once()) == {"call begun on record after its end"}
    assert rules(told(log=[*log, begun, over, over, end]), run_once()) == {"call begun on record after its end"}


def test_a_call_that_the_story_has_and_the_run_has_not_is_found() -> None:
    shorter = response(output=response().output[1:])
    assert rules(told(shorter), run_once()[1:]) == {"call of the story left out"}


def test_an_unsafe_call_that_ran_twice_is_found_whatever_its_key() -> None:
    assert "unsafe call run twice" in rules(told(), [*run_once(), again(PAID)])
    assert "unsafe call run twice" in rules(told(), [*run_once(), again(PAID, key="call_other")])


def test_a_finished_call_that_runs_again_is_found() -> None:
    late = again(READ, begun=done_at(READ) + 1)
    assert rules(told(), [*run_once(), late]) == {"finished call run again"}


def test_a_call_whose_outcome_is_not_known_may_still_be_on_its_way_once() -> None:
    output = response().output
    first = output[READ]
    stopped = response(
        output=(*output[:READ], replace(first, output=None, error="Stopped.", status="failed"), *output[READ + 1 :])
    )
    late = msgspec.structs.replace(run_once()[READ], begun=done_at(READ) + 1)
    others = [each for each in run_once() if each.key != late.key]
    assert rules(told(stopped), [*others, late]) == set()
    assert rules(told(stopped), [*others, late, again(READ, begun=late.begun + 1)]) == {"finished call run again"}


def test_a_call_that_no_record_knows_is_found() -> None:
    assert rules(told(), [*run_once(), again(READ, key="call_other")]) == {"call run that is not on record"}


def test_a_result_that_no_tool_has_given_is_found() -> None:
    assert rules(told(), run_once()[1:]) == {"result that no tool has given"}
    broken_off = [msgspec.structs.replace(run_once()[0], ended=None), *run_once()[1:]]
    assert rules(told(), broken_off) == {"result that no tool has given"}


def test_what_a_call_failed_with_is_counted() -> None:
    output = response().output
    failed = replace(output[0], output=None, error="Nobody knows.", status="failed")
    verdict = judge([told(response(output=(failed, *output[1:])))], run_once(), [])
    assert verdict.is_good, verdict.breaches
    assert verdict.counts == verdict.counts | Counter({"error: Nobody knows.": 1})
