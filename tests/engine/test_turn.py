"""The turn: deltas in, the whole list of events compared."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.events import (
    Batch,
    ContentPartAdded,
    ContentPartDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
    TurnEnded,
)
from antwort.api.items import (
    FunctionCall,
    LogProb,
    OutputText,
    Reasoning,
    Refusal,
    SummaryText,
)
from antwort.api.wire import UNSET
from antwort.engine.held import Shown
from antwort.engine.turn import CUT, Turn
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.testing import tokens
from turn_kit import (
    call_closed,
    call_fed,
    call_opened,
    in_content,
    message,
    message_closed,
    message_opened,
    play,
    play_in,
    reasoning,
    refusal_part,
    server_call,
    server_call_written,
    text_part,
)

STOP = Finished("stop")
CALLS = Finished("tool_calls")
LENGTH = Finished("length")
ENDED = TurnEnded(finish="stop")
ENDED_WITH_CALLS = TurnEnded(finish="tool_calls")
ENDED_BY_LENGTH = TurnEnded(finish="length")


# ---- text ----


def test_text_opens_a_message_and_each_delta_goes_on_as_it_came() -> None:
    assert play(TextDelta("Hel"), TextDelta("lo"), STOP) == [*message(0, "msg_1", "Hel", "lo"), ENDED]


@pytest.mark.proves("MISTAKE-10")
def test_the_whole_text_is_said_once_and_is_the_sum_of_its_deltas() -> None:
    events = play(TextDelta("a"), TextDelta(" b"), CallDelta(0, "weather", "{}"), CALLS)
    assert [event.text for event in events if isinstance(event, OutputTextDone)] == ["a b"]


@pytest.mark.proves("MISTAKE-09", "RULING-13")
def test_output_indices_go_on_from_where_the_response_stands() -> None:
    assert play(TextDelta("x"), STOP, first=3) == [*message(3, "msg_1", "x"), ENDED]
    assert play(TextDelta("x"), STOP)[0] == message_opened(0, "msg_1")[0]


@pytest.mark.proves("EDGE-6")
def test_an_empty_answer_has_no_items() -> None:
    assert play(STOP) == [ENDED]


def test_empty_deltas_open_and_send_nothing() -> None:
    assert play(TextDelta(""), ReasoningDelta(""), RefusalDelta(""), STOP) == [ENDED]
    assert play(TextDelta("a"), TextDelta(""), TextDelta("b"), STOP) == [*message(0, "msg_1", "a", "b"), ENDED]


class Voiced(TextDelta, frozen=True):
    """Text of a provider that knows more of it."""

    seconds: float = 0.0


def test_what_a_provider_makes_of_a_delta_is_one_and_what_nobody_knows_says_nothing() -> None:
    unknown: Any = object()
    assert play(Voiced("a", seconds=0.5), unknown, STOP) == play(TextDelta("a"), STOP)


@pytest.mark.proves("MISTAKE-08")
def test_an_empty_first_delta_opens_no_message_beside_a_call() -> None:
    events = play(TextDelta(""), CallDelta(0, "weather", "{}"), CALLS)
    assert events == [
        *call_opened(0, 1, "weather"),
        *call_fed(0, 1, "{}"),
        *call_closed(0, 1, "weather", "{}"),
        ENDED_WITH_CALLS,
    ]


def test_logprobs_go_with_their_delta_and_add_up_in_the_whole() -> None:
    one, two = LogProb(token="a", logprob=-0.1), LogProb(token="b", logprob=-0.2)
    events = play(TextDelta("a", (one,)), TextDelta("-"), TextDelta("b", (two,)), STOP)
    where = in_content("msg_1", 0)
    part = OutputText(text="a-b", logprobs=(one, two))
    assert events == [
        *message_opened(0, "msg_1"),
        ContentPartAdded(**where, part=OutputText(text="")),
        OutputTextDelta(**where, delta="a", logprobs=(one,)),
        OutputTextDelta(**where, delta="-"),
        OutputTextDelta(**where, delta="b", logprobs=(two,)),
        OutputTextDone(**where, text="a-b", logprobs=(one, two)),
        ContentPartDone(**where, part=part),
        *message_closed(0, "msg_1", part),
        ENDED,
    ]


def test_logprobs_of_one_part_do_not_reach_the_next() -> None:
    prob = LogProb(token="a", logprob=-0.1)
    events = play(TextDelta("a", (prob,)), RefusalDelta("no"), TextDelta("b"), STOP)
    assert [event.logprobs for event in events if isinstance(event, OutputTextDone)] == [(prob,), ()]


def test_a_refusal_after_text_is_a_second_part_of_the_same_message() -> None:
    events = play(TextDelta("Well, "), RefusalDelta("I can"), RefusalDelta("not."), STOP)
    assert events == [
        *message_opened(0, "msg_1"),
        *text_part("msg_1", 0, "Well, "),
        *refusal_part("msg_1", 0, "I can", "not.", part=1),
        *message_closed(0, "msg_1", OutputText(text="Well, "), Refusal(refusal="I cannot.")),
        ENDED,
    ]


def test_text_after_a_refusal_is_a_part_of_its_own() -> None:
    events = play(RefusalDelta("No."), TextDelta("But"), STOP)
    assert events == [
        *message_opened(0, "msg_1"),
        *refusal_part("msg_1", 0, "No."),
        *text_part("msg_1", 0, "But", part=1),
        *message_closed(0, "msg_1", Refusal(refusal="No."), OutputText(text="But")),
        ENDED,
    ]


# ---- reasoning ----


def test_reasoning_is_closed_before_the_answer_opens() -> None:
    events = play(ReasoningDelta("Let me"), ReasoningDelta(" think"), TextDelta("Yes"), STOP)
    assert events == [*reasoning(0, "rs_1", "Let me", " think"), *message(1, "msg_1", "Yes"), ENDED]


def test_reasoning_between_texts_makes_three_items() -> None:
    events = play(TextDelta("a"), ReasoningDelta("hm"), TextDelta("b"), STOP)
    assert events == [*message(0, "msg_1", "a"), *reasoning(1, "rs_1", "hm"), *message(2, "msg_2", "b"), ENDED]


@pytest.mark.proves("MISTAKE-11")
def test_reasoning_that_comes_again_has_an_item_of_its_own() -> None:
    events = play(ReasoningDelta("one"), TextDelta("a"), ReasoningDelta("two"), STOP)
    assert events == [*reasoning(0, "rs_1", "one"), *message(1, "msg_1", "a"), *reasoning(2, "rs_2", "two"), ENDED]


def test_reasoning_before_a_call_is_closed_by_it() -> None:
    events = play(ReasoningDelta("hm"), CallDelta(0, "weather", "{}"), CALLS)
    assert events == [
        *reasoning(0, "rs_1", "hm"),
        *call_opened(1, 1, "weather"),
        *call_fed(1, 1, "{}"),
        *call_closed(1, 1, "weather", "{}"),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("RULING-14")
def test_a_summary_is_the_raw_reasoning_in_summary_events() -> None:
    where: dict[str, Any] = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    part = SummaryText(text="hm, so")
    assert play(ReasoningDelta("hm,"), ReasoningDelta(" so"), STOP, style="summary") == [
        OutputItemAdded(output_index=0, item=Reasoning(id="rs_1", status="in_progress")),
        SummaryPartAdded(**where, part=SummaryText(text="")),
        SummaryTextDelta(**where, delta="hm,"),
        SummaryTextDelta(**where, delta=" so"),
        SummaryTextDone(**where, text="hm, so"),
        SummaryPartDone(**where, part=part),
        OutputItemDone(output_index=0, item=Reasoning(id="rs_1", summary=(part,), content=UNSET)),
        ENDED,
    ]


# ---- calls ----


@pytest.mark.proves("MISTAKE-15", "EDGE-3")
def test_text_and_a_call_in_one_read_are_both_kept() -> None:
    events = play(TextDelta("Let me look."), CallDelta(0, "weather", '{"city":'), CallDelta(0, "", '"Rome"}'), CALLS)
    assert events == [
        *message(0, "msg_1", "Let me look."),
        *call_opened(1, 1, "weather"),
        *call_fed(1, 1, '{"city":'),
        *call_fed(1, 1, '"Rome"}'),
        *call_closed(1, 1, "weather", '{"city":"Rome"}'),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("MISTAKE-15")
def test_a_call_in_the_read_that_finishes_is_kept() -> None:
    first, last, end = play_in([[TextDelta("Hm.")], [CallDelta(0, "weather", "{}"), CALLS]])
    assert first == message(0, "msg_1", "Hm.")[:3]
    assert last == [*message(0, "msg_1", "Hm.")[3:], *call_opened(1, 1, "weather"), *call_fed(1, 1, "{}")]
    assert end == [*call_closed(1, 1, "weather", "{}"), ENDED_WITH_CALLS]


def test_text_after_calls_has_its_own_item_behind_them() -> None:
    events = play(CallDelta(0, "weather", "{}"), TextDelta("Wait."), CALLS)
    assert events == [
        *call_opened(0, 1, "weather"),
        *call_fed(0, 1, "{}"),
        *message(1, "msg_1", "Wait.")[:3],
        *call_closed(0, 1, "weather", "{}"),
        *message(1, "msg_1", "Wait.")[3:],
        ENDED_WITH_CALLS,
    ]


def test_text_that_came_after_a_call_is_closed_behind_it() -> None:
    events = play(CallDelta(0, "a", "{}"), TextDelta("and"), CallDelta(1, "b", "{}"), CALLS)
    opened, part, delta, *closed = message(1, "msg_1", "and")
    assert events == [
        *call_opened(0, 1, "a"),
        *call_fed(0, 1, "{}"),
        *(opened, part, delta),
        *call_opened(2, 2, "b"),
        *call_fed(2, 2, "{}"),
        *call_closed(0, 1, "a", "{}"),
        *closed,
        *call_closed(2, 2, "b", "{}"),
        ENDED_WITH_CALLS,
    ]


def test_what_was_said_after_a_call_that_is_cut_is_cut_with_it() -> None:
    answer = (CallDelta(0, "a", "{"), ReasoningDelta("hm"), TextDelta("and"), CallDelta(0, "", "}"))
    events = play(*answer, Finished("length", None))
    done = [event.item for event in events if isinstance(event, OutputItemDone)]
    assert [item.status for item in done] == ["incomplete"] * 3


@pytest.mark.proves("MISTAKE-09")
def test_interleaved_calls_keep_their_own_index_and_arguments() -> None:
    events = play(
        CallDelta(0, "a", '{"x":'),
        CallDelta(1, "b", '{"y":'),
        CallDelta(0, "", "1}"),
        CallDelta(1, "", "2}"),
        CALLS,
    )
    assert events == [
        *call_opened(0, 1, "a"),
        *call_fed(0, 1, '{"x":'),
        *call_opened(1, 2, "b"),
        *call_fed(1, 2, '{"y":'),
        *call_fed(0, 1, "1}"),
        *call_fed(1, 2, "2}"),
        *call_closed(0, 1, "a", '{"x":1}'),
        *call_closed(1, 2, "b", '{"y":2}'),
        ENDED_WITH_CALLS,
    ]


def test_a_call_without_arguments_is_shown_with_none() -> None:
    events = play(CallDelta(0, "clock"), CALLS)
    assert events == [*call_opened(0, 1, "clock"), *call_closed(0, 1, "clock", ""), ENDED_WITH_CALLS]


def test_arguments_that_come_before_the_name_wait_for_it() -> None:
    events = play(CallDelta(0, "", '{"x"'), CallDelta(0, "", ":1"), CallDelta(0, "a", "}"), CALLS)
    assert events == [
        *call_opened(0, 1, "a"),
        *call_fed(0, 1, '{"x":1}'),
        *call_closed(0, 1, "a", '{"x":1}'),
        ENDED_WITH_CALLS,
    ]


def test_a_call_whose_name_never_comes_is_shown_without_one() -> None:
    events = play(TextDelta("Hm."), CallDelta(0, "", '{"x":1}'), CALLS)
    assert events == [
        *message(0, "msg_1", "Hm."),
        *call_opened(1, 1, ""),
        *call_fed(1, 1, '{"x":1}'),
        *call_closed(1, 1, "", '{"x":1}'),
        ENDED_WITH_CALLS,
    ]


def test_a_call_cut_before_its_name_came_is_not_shown() -> None:
    assert play(CallDelta(0, "", '{"x"'), LENGTH) == [ENDED_BY_LENGTH]
    assert play(CallDelta(0, "", '{"x"'), aborted=True) == []


def test_how_a_call_shows_is_asked_once_for_each_call() -> None:
    asked: list[str] = []

    def noted(name: str) -> Shown:
        asked.append(name)
        return Shown(name)

    turn = Turn(0, noted)
    for delta in (CallDelta(0, "a", "{"), CallDelta(1, "a", "{}"), CallDelta(0, "", "}"), CALLS):
        turn.feed(delta)
    turn.finish()
    assert asked == ["a", "a"]


@pytest.mark.proves("RULING-2")
def test_two_calls_to_one_tool_have_ids_of_their_own() -> None:
    turn = Turn(0, Shown)
    for delta in (CallDelta(0, "a", "{}"), CallDelta(1, "a", "{}"), CALLS):
        turn.feed(delta)
    turn.finish()
    calls = [event.item for event in turn.take() if isinstance(event, OutputItemDone)]
    assert len({call.id for call in calls}) == 2
    assert len({call.call_id for call in calls if isinstance(call, FunctionCall)}) == 2


@pytest.mark.proves("RULING-1")
def test_a_servers_call_shows_under_the_servers_names_and_stays_open_for_its_result() -> None:
    events = play(CallDelta(0, "stock", '{"n":'), CallDelta(0, "", "1}"), CALLS)
    assert events == [
        *server_call_written(0, '{"n":', "1}"),
        ENDED_WITH_CALLS,
    ]


# ---- the end ----


def test_usage_and_the_reason_go_with_the_end_of_the_turn() -> None:
    spent = tokens(5, 2)
    assert play(TextDelta("x"), Finished("stop", spent))[-1] == TurnEnded(finish="stop", usage=spent)
    assert play(TextDelta("x"), STOP)[-1] == TurnEnded(finish="stop", usage=UNSET)


@pytest.mark.parametrize("finish", sorted(CUT))
def test_text_that_was_cut_is_incomplete(finish: str) -> None:
    events = play(ReasoningDelta("hm"), TextDelta("Once upon"), Finished(finish))
    assert events == [
        *reasoning(0, "rs_1", "hm"),
        *message(1, "msg_1", "Once upon", status="incomplete"),
        TurnEnded(finish=finish),
    ]


@pytest.mark.parametrize("finish", sorted(CUT))
def test_reasoning_that_was_cut_is_incomplete(finish: str) -> None:
    events = play(ReasoningDelta("hm"), Finished(finish))
    assert events == [*reasoning(0, "rs_1", "hm", status="incomplete"), TurnEnded(finish=finish)]


@pytest.mark.proves("EDGE-5", "MISTAKE-07")
def test_a_call_that_was_cut_is_incomplete_and_what_came_before_it_is_not() -> None:
    events = play(TextDelta("Hm."), CallDelta(0, "a", "{}"), CallDelta(1, "b", '{"x'), LENGTH)
    assert events == [
        *message(0, "msg_1", "Hm."),
        *call_opened(1, 1, "a"),
        *call_fed(1, 1, "{}"),
        *call_opened(2, 2, "b"),
        *call_fed(2, 2, '{"x'),
        *call_closed(1, 1, "a", "{}"),
        *call_closed(2, 2, "b", '{"x', "incomplete"),
        ENDED_BY_LENGTH,
    ]


@pytest.mark.proves("EDGE-5")
def test_a_servers_call_that_was_cut_is_closed_as_incomplete() -> None:
    events = play(CallDelta(0, "stock", '{"n'), LENGTH)
    assert events == [
        *server_call_written(0, '{"n'),
        OutputItemDone(output_index=0, item=server_call('{"n', "incomplete")),
        ENDED_BY_LENGTH,
    ]


def test_a_turn_knows_whether_the_backend_has_said_all() -> None:
    turn = Turn(0, Shown)
    turn.feed(TextDelta("x"))
    assert not turn.is_finished
    turn.feed(STOP)
    assert turn.is_finished


def test_the_end_without_a_finish_is_a_defect_of_the_provider() -> None:
    with pytest.raises(AssertionError, match="ends with Finished"):
        play(TextDelta("x"))


def test_what_was_taken_is_not_given_again() -> None:
    first, second, end = play_in([[TextDelta("a")], [TextDelta("b"), STOP]])
    whole = message(0, "msg_1", "a", "b")
    assert (first, second, end) == (whole[:3], whole[3:4], [*whole[4:], ENDED])


# ---- broken off ----


@pytest.mark.proves("RULING-11")
@pytest.mark.parametrize(
    ("deltas", "events"),
    [
        ([], []),
        ([TextDelta("a")], message(0, "msg_1", "a", status="incomplete")),
        ([ReasoningDelta("hm")], reasoning(0, "rs_1", "hm", status="incomplete")),
        (
            [RefusalDelta("no")],
            [
                *message_opened(0, "msg_1"),
                *refusal_part("msg_1", 0, "no"),
                *message_closed(0, "msg_1", Refusal(refusal="no"), status="incomplete"),
            ],
        ),
        (
            [CallDelta(0, "a")],
            [*call_opened(0, 1, "a"), *call_closed(0, 1, "a", "", "incomplete")],
        ),
        (
            [CallDelta(0, "stock", "{}")],
            [
                *server_call_written(0, "{}"),
                OutputItemDone(output_index=0, item=server_call("{}", "incomplete")),
            ],
        ),
        (
            [CallDelta(0, "a", "{}"), CallDelta(1, "b", "{"), TextDelta("x")],
            [
                *call_opened(0, 1, "a"),
                *call_fed(0, 1, "{}"),
                *call_opened(1, 2, "b"),
                *call_fed(1, 2, "{"),
                *message(2, "msg_1", "x")[:3],
                *call_closed(0, 1, "a", "{}", "incomplete"),
                *call_closed(1, 2, "b", "{", "incomplete"),
                *message(2, "msg_1", "x", status="incomplete")[3:],
            ],
        ),
    ],
    ids=["nothing", "text", "reasoning", "refusal", "a call", "a server's call", "all at once"],
)
def test_what_is_open_when_it_breaks_off_is_closed_as_incomplete_in_order(deltas: list[Delta], events: Batch) -> None:
    assert play(*deltas, aborted=True) == events


def test_a_turn_that_broke_off_after_its_finish_has_not_ended_either() -> None:
    assert play(TextDelta("a"), STOP, aborted=True) == message(0, "msg_1", "a", status="incomplete")
