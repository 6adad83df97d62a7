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
    Message,
    OutputText,
    Reasoning,
    Refusal,
    SummaryText,
)
from antwort.api.wire import UNSET
from antwort.engine.loop.call_display import Shown
from antwort.engine.loop.turn import Turn
from antwort.errors import BackendError
from antwort.providers.base import CUT, CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.testing import tokens
from turn_kit import (
    a_call,
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
    shown,
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


@pytest.mark.proves("RULING-3b")
def test_text_after_a_call_has_its_own_item_and_the_call_is_done_before_it() -> None:
    events = play(CallDelta(0, "weather", "{}"), TextDelta("Wait."), CallDelta(1, "b", "{}"), CALLS)
    assert events == [
        *a_call(0, 1, "weather", "{}"),
        *message(1, "msg_1", "Wait."),
        *a_call(2, 2, "b", "{}"),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("RULING-3b")
def test_reasoning_between_calls_is_done_before_the_next_call() -> None:
    events = play(CallDelta(0, "a", "{}"), ReasoningDelta("hm"), CallDelta(1, "b", "{}"), CALLS)
    assert events == [
        *a_call(0, 1, "a", "{}"),
        *reasoning(1, "rs_1", "hm"),
        *a_call(2, 2, "b", "{}"),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("RULING-3b")
def test_a_call_is_done_as_soon_as_the_next_one_begins() -> None:
    first, second, end = play_in([[CallDelta(0, "a", "{}")], [CallDelta(1, "b", "{"), CallDelta(1, "", "}"), CALLS]])
    assert first == a_call(0, 1, "a", "{}")[:2]
    assert second == [*a_call(0, 1, "a", "{}")[2:], *a_call(1, 2, "b", "{", "}")[:3]]
    assert end == [*a_call(1, 2, "b", "{", "}")[3:], ENDED_WITH_CALLS]


@pytest.mark.proves("RULING-3b", "FR-016")
def test_the_arguments_of_a_servers_call_are_done_before_the_next_item_and_the_call_stays_open() -> None:
    events = play(CallDelta(0, "stock", "{}"), TextDelta("So."), CALLS)
    assert events == [*server_call_written(0, "{}"), *message(1, "msg_1", "So."), ENDED_WITH_CALLS]


@pytest.mark.proves("RULING-3b", "MISTAKE-09")
def test_of_interleaved_calls_the_later_one_is_held_back_until_the_first_is_complete() -> None:
    reads: list[list[Delta]] = [
        [CallDelta(0, "a", '{"x":'), CallDelta(1, "b", '{"y":')],
        [CallDelta(1, "", " [")],
        [CallDelta(0, "", "1}")],
        [CallDelta(1, "", "2]}"), CALLS],
    ]
    first, later = a_call(0, 1, "a", '{"x":', "1}"), a_call(1, 2, "b", '{"y": [', "2]}")
    assert play_in(reads) == [first[:2], [], [*first[2:], *later[:2]], later[2:3], [*later[3:], ENDED_WITH_CALLS]]


@pytest.mark.proves("RULING-3b")
def test_what_is_said_inside_a_call_is_held_back_until_the_call_is_complete() -> None:
    said = (CallDelta(0, "a", "{"), ReasoningDelta("hm"), TextDelta("an"), RefusalDelta("no"), CallDelta(1, "b", "{}"))
    events = play(*said, TextDelta("So"), CallDelta(0, "", "}"), TextDelta("."), CALLS)
    spoken = message(2, "msg_1", "an")
    assert events == [
        *a_call(0, 1, "a", "{", "}"),
        *reasoning(1, "rs_1", "hm"),
        *spoken[:-1],
        *refusal_part("msg_1", 2, "no", part=1),
        *message_closed(2, "msg_1", OutputText(text="an"), Refusal(refusal="no")),
        *a_call(3, 2, "b", "{}"),
        *message(4, "msg_2", "So", "."),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize("written", ["", "no JSON", "[1]", "12", "null", "{}{"])
def test_behind_a_call_that_may_yet_go_on_everything_waits_for_the_end(written: str) -> None:
    """There is no telling whether more of it comes: only an object has an end that shows."""
    reads: list[list[Delta]] = [
        [CallDelta(0, "a", written)],
        [CallDelta(1, "b", "{}"), TextDelta("So.")],
        [CallDelta(0, "", "1"), CallDelta(2, "a", "{}")],
        [CALLS],
    ]
    first = a_call(0, 1, "a", *filter(None, [written]), "1")
    rest = [*a_call(1, 2, "b", "{}"), *message(2, "msg_1", "So."), *a_call(3, 3, "a", "{}"), ENDED_WITH_CALLS]
    assert play_in(reads) == [first[:-3], [], first[-3:-2], [], [*first[-2:], *rest]]


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize("name", ["a", "stock", "patch"])
@pytest.mark.parametrize("behind", [CallDelta(1, "b", "{}"), TextDelta("So."), ReasoningDelta("hm")])
def test_a_piece_of_a_call_that_is_closed_is_a_malformed_answer(name: str, behind: Delta) -> None:
    turn = Turn(0, shown)
    turn.feed(CallDelta(0, name, '{"input": "1"}'))
    turn.feed(behind)
    with pytest.raises(BackendError, match="more of a call after it had gone on"):
        turn.feed(CallDelta(0, "", '{"input": "2"}'))


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize("piece", [CallDelta(0), CallDelta(0, "a"), CallDelta(0, "", " \n"), CallDelta(0, "a", " ")])
def test_an_empty_piece_of_a_call_that_is_closed_says_nothing(piece: CallDelta) -> None:
    events = play(CallDelta(0, "a", "{}"), CallDelta(1, "b", "{}"), piece, CALLS)
    assert events == [*a_call(0, 1, "a", "{}"), *a_call(1, 2, "b", "{}"), ENDED_WITH_CALLS]


def test_space_behind_the_arguments_of_the_last_call_is_a_part_of_them() -> None:
    assert play(CallDelta(0, "a", "{}"), CallDelta(0, "", " "), CALLS) == [
        *a_call(0, 1, "a", "{}", " "),
        ENDED_WITH_CALLS,
    ]


@pytest.mark.proves("EDGE-5", "RULING-3b")
@pytest.mark.parametrize("finish", sorted(CUT))
@pytest.mark.parametrize(
    ("last", "statuses"),
    [
        ("", ["incomplete", "incomplete", "incomplete"]),
        ("}", ["completed", "completed", "incomplete"]),
    ],
    ids=["inside the call", "behind it"],
)
def test_what_was_held_back_when_the_answer_was_cut_is_cut_with_the_call(
    finish: str, last: str, statuses: list[str]
) -> None:
    said = (CallDelta(0, "a", "{"), ReasoningDelta("hm"), TextDelta("and"), CallDelta(0, "", last))
    done = [event.item for event in play(*said, Finished(finish)) if isinstance(event, OutputItemDone)]
    assert [(type(item), item.status) for item in done] == [
        *zip((FunctionCall, Reasoning, Message), statuses, strict=True)
    ]


@pytest.mark.proves("EDGE-5", "RULING-3b")
def test_of_interleaved_calls_that_are_cut_none_is_complete_that_may_have_been_cut() -> None:
    events = play(CallDelta(0, "a", '{"x":'), CallDelta(1, "b", '{"y": 2}'), LENGTH)
    assert events == [
        *a_call(0, 1, "a", '{"x":', status="incomplete"),
        *a_call(1, 2, "b", '{"y": 2}', status="incomplete"),
        ENDED_BY_LENGTH,
    ]


@pytest.mark.proves("RULING-3b")
def test_in_a_run_that_may_be_resumed_a_functions_call_is_done_when_its_turn_has_ended() -> None:
    """Whoever picks the run up makes the inference anew; a client would run both calls if the first were done."""
    said: list[list[Delta]] = [[CallDelta(0, "a", "{}")], [TextDelta("So."), CallDelta(1, "b", "{}")], [CALLS]]
    first, rest = a_call(0, 1, "a", "{}"), [*message(1, "msg_1", "So."), *a_call(2, 2, "b", "{}")]
    assert play_in(said, may_be_resumed=True) == [first[:2], [], [], [*first[2:], *rest, ENDED_WITH_CALLS]]
    servers: list[list[Delta]] = [[CallDelta(0, "stock", "{}"), TextDelta("So.")]]
    assert play_in(servers, may_be_resumed=True, aborted=True)[0] == [
        *server_call_written(0, "{}"),
        *message(1, "msg_1", "So.")[:3],
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
        *a_call(1, 1, "a", "{}"),
        *a_call(2, 2, "b", '{"x', status="incomplete"),
        ENDED_BY_LENGTH,
    ]


@pytest.mark.proves("EDGE-5", "RULING-3b")
@pytest.mark.parametrize("last", ["", "{}"])
def test_what_came_before_a_call_that_was_cut_is_complete_also_where_the_run_may_be_resumed(last: str) -> None:
    said = (CallDelta(0, "a", "{}"), TextDelta("Hm."), CallDelta(1, "b", last), LENGTH)
    *_, end = play_in([said], may_be_resumed=True)
    pieces = [last] if last else []
    assert end == [
        *a_call(0, 1, "a", "{}")[2:],
        *message(1, "msg_1", "Hm."),
        *a_call(2, 2, "b", *pieces, status="incomplete"),
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
            [*a_call(0, 1, "a", "{}"), *a_call(1, 2, "b", "{", status="incomplete")],
        ),
        (
            [CallDelta(0, "stock", "{}"), TextDelta("x")],
            [
                *server_call_written(0, "{}"),
                *message(1, "msg_1", "x")[:3],
                OutputItemDone(output_index=0, item=server_call("{}", "incomplete")),
                *message(1, "msg_1", "x", status="incomplete")[3:],
            ],
        ),
    ],
    ids=["nothing", "text", "reasoning", "refusal", "a call", "a server's call", "what is held back", "text behind it"],
)
def test_what_is_open_when_it_breaks_off_is_closed_as_incomplete_in_order(deltas: list[Delta], events: Batch) -> None:
    assert play(*deltas, aborted=True) == events


def test_a_turn_that_broke_off_after_its_finish_has_not_ended_either() -> None:
    assert play(TextDelta("a"), STOP, aborted=True) == message(0, "msg_1", "a", status="incomplete")
