"""The turn, given anything: how deltas are batched changes nothing, nothing is lost, and the grammar holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from antwort.api.events import Batch, ResponseCreated, ResponseInProgress, TurnEnded
from antwort.api.items import CustomToolCall, FunctionCall, LogProb, McpCall, Message, OutputText, Reasoning, Refusal
from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.engine.loop.custom_input import InputReader, input_of
from antwort.engine.loop.fold import Finish, Run, ending, fold, interrupted, settled
from antwort.engine.loop.item_builders import reopened_items
from antwort.errors import BackendCut
from antwort.providers.base import CUT, CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.testing import StreamChecker, tokens
from plan_kit import STEADY
from turn_kit import Style, play, play_in, shown

RESPONSE = Response(id="resp_1", created_at=0, status="in_progress", model="m")

FREE_FORM = ["patch", "editor__sum"]

_texts = st.sampled_from(["", "a", "b ", "…", "{}"])
_arguments = st.sampled_from(["", "a", "1", "{}", '{"input": "', '{"in', 'put":"', "\\ud83d", "\\ude00", '"}', '"'])
_deltas: st.SearchStrategy[Delta] = st.one_of(
    st.builds(TextDelta, _texts, st.sampled_from([(), (LogProb(token="a", logprob=-1.0),)])),
    st.builds(ReasoningDelta, _texts),
    st.builds(RefusalDelta, _texts),
    st.builds(CallDelta, st.integers(0, 3), st.sampled_from(["", "weather", "stock", *FREE_FORM]), _arguments),
)
_finishes = st.builds(
    Finished, st.sampled_from(["stop", "tool_calls", *sorted(CUT)]), st.sampled_from([None, tokens(1, 2)])
)
_styles = st.sampled_from(["text", "summary"])
_ways = st.fixed_dictionaries({"style": _styles, "aborted": st.booleans(), "may_be_resumed": st.booleans()})


def only_first_names(deltas: Iterable[Delta]) -> list[Delta]:
    """A provider says the name of a call once."""
    kept: list[Delta] = []
    named: set[int] = set()
    for delta in deltas:
        if isinstance(delta, CallDelta) and delta.name:
            kept.append(CallDelta(delta.index, "", delta.arguments) if delta.index in named else delta)
            named.add(delta.index)
        else:
            kept.append(delta)
    return kept


_answers = st.lists(_deltas, max_size=12).map(only_first_names)


@STEADY
@given(answer=_answers, finish=_finishes, how=_ways, data=st.data())
def test_how_deltas_are_batched_changes_nothing(
    answer: list[Delta], finish: Finished, how: dict[str, Any], data: st.DataObject
) -> None:
    deltas = [*answer, finish]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(deltas)))))
    reads = [deltas[start:end] for start, end in zip([0, *cuts], [*cuts, len(deltas)], strict=True)]
    batches = play_in(reads, may_be_malformed=True, **how)
    whole = play(*deltas, may_be_malformed=True, **how)
    assert [event for batch in batches for event in batch] == whole


@STEADY
@given(answer=_answers, finish=_finishes, how=_ways)
def test_any_deltas_make_a_grammatical_stream(answer: list[Delta], finish: Finished, how: dict[str, Any]) -> None:
    run = Run(RESPONSE)
    opening: Batch = [ResponseCreated(response=run.response), ResponseInProgress(response=run.response)]
    events = [*opening, *play(*answer, finish, may_be_malformed=True, **how)]
    aborted = not any(isinstance(event, TurnEnded) for event in events)
    events += _closing(fold(run, events), aborted=aborted)
    checker = StreamChecker()
    for number, event in enumerate(event for event in events if not isinstance(event, TurnEnded)):
        checker.feed(number, event)
    assert checker.finish() == fold(run, events).response


def _closing(run: Run, *, aborted: bool) -> Batch:
    """As the loop ends it."""
    closing = settled(run, "incomplete" if aborted else "completed")
    after = fold(run, closing)
    if aborted:
        return [*closing, interrupted(after, BackendCut("It broke off."))]
    cut = run.last_turn is not None and run.last_turn.finish in CUT
    return [*closing, ending(after, Finish("incomplete", "max_output_tokens") if cut else Finish("completed"))]


@STEADY
@given(answer=_answers, finish=_finishes, style=_styles)
def test_nothing_that_came_is_lost(answer: list[Delta], finish: Finished, style: Style) -> None:
    run = fold(Run(RESPONSE), play(*answer, finish, style=style, may_be_malformed=True))
    assume(run.turns == 1)  # else it was malformed
    said = [part for item in run.output if isinstance(item, Message) for part in item.content]
    assert "".join(_words(run)) == "".join(delta.text for delta in answer if isinstance(delta, TextDelta))
    refusals = "".join(part.refusal for part in said if isinstance(part, Refusal))
    assert refusals == "".join(delta.text for delta in answer if isinstance(delta, RefusalDelta))
    assert _thought(run) == "".join(delta.text for delta in answer if isinstance(delta, ReasoningDelta))
    assert _called(run) == _asked(answer, is_cut=finish.finish in CUT)


def _words(run: Run) -> list[str]:
    said = (part for item in run.output if isinstance(item, Message) for part in item.content)
    return [part.text for part in said if isinstance(part, OutputText)]


def _thought(run: Run) -> str:
    items = [item for item in run.output if isinstance(item, Reasoning)]
    summaries = (part.text for item in items for part in item.summary)
    contents = (part.text for item in items if item.content is not UNSET for part in item.content)
    return "".join((*summaries, *contents))


def _called(run: Run, *, is_stripped: bool = False) -> Counter[tuple[str, str]]:
    items = (item for item in run.output if isinstance(item, FunctionCall | CustomToolCall | McpCall))
    calls = [_what_was_called(item) for item in items]
    return Counter((name, arguments.strip() if is_stripped else arguments) for name, arguments in calls)


def _what_was_called(item: FunctionCall | CustomToolCall | McpCall) -> tuple[str, str]:
    if isinstance(item, CustomToolCall):
        return item.name, item.input
    name = item.name.removeprefix("editor__")
    return name, input_of(item.arguments) if name == "sum" else item.arguments


def _asked(answer: list[Delta], *, is_cut: bool) -> Counter[tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for delta in answer:
        if isinstance(delta, CallDelta):
            name, arguments = calls.get(delta.index, ("", ""))
            calls[delta.index] = (name or delta.name, arguments + delta.arguments)
    read = [_read(*call, is_cut=is_cut) for call in calls.values()]
    return Counter(call for call in read if call[0] or (call[1] and not is_cut))


def _read(name: str, arguments: str, *, is_cut: bool) -> tuple[str, str]:
    """What a call asks for. Of a free-form tool's that was cut, only what is certain."""
    if name not in FREE_FORM:
        return shown(name).name, arguments
    return shown(name).name, InputReader().feed(arguments) if is_cut else input_of(arguments)


@STEADY
@given(answer=_answers, style=_styles)
def test_what_another_process_left_reopened_items_is_closed_as_it_would_have_closed_it(
    answer: list[Delta], style: Style
) -> None:
    said, expected = play_in([answer], style=style, aborted=True, may_be_malformed=True)
    closing: Batch = []
    for _, item in sorted(reopened_items(said).items()):
        item.close("incomplete", closing)
    assert closing == expected


# ---- backends that interleave ----

_OBJECTS = ["{}", '{"input": "a"}', '{"input": "}{", "n": {"m": [1, {}]}}', '{"input":"\\"}"}']


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[Delta]]:
    """Calls, each of a name and a JSON object, and an answer in which their pieces come in any order of the calls, with
    words between them; and empty pieces and space behind a call.
    """
    calls = draw(st.lists(st.tuples(st.sampled_from(["weather", "stock", *FREE_FORM]), st.sampled_from(_OBJECTS))))
    queues: list[list[Delta]] = []
    for at, (name, arguments) in enumerate(calls):
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(arguments) - 1)), max_size=4)))
        pieces = [arguments[start:end] for start, end in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        pieces += draw(st.lists(st.sampled_from(["", " ", "\n"]), max_size=2))
        queues.append([CallDelta(at, name if first else "", piece) for first, piece in _with_first(pieces)])
    queues.append(draw(st.lists(st.sampled_from([TextDelta("x"), ReasoningDelta("hm"), RefusalDelta("no")]))))
    answer: list[Delta] = []
    while waiting := [queue for queue in queues if queue]:
        answer.append(draw(st.sampled_from(waiting)).pop(0))
    return calls, answer


def _with_first(pieces: list[str]) -> list[tuple[bool, str]]:
    return [(at == 0, piece) for at, piece in enumerate(pieces)]


@pytest.mark.proves("RULING-3b")
@STEADY
@given(interleaved(), _styles, st.booleans())
def test_any_interleaving_of_whole_calls_shows_each_of_them_whole_and_one_after_the_other(
    said: tuple[list[tuple[str, str]], list[Delta]], style: Style, may_be_resumed: bool
) -> None:
    calls, answer = said
    run = fold(Run(RESPONSE), play(*answer, Finished("tool_calls"), style=style, may_be_resumed=may_be_resumed))
    assert _called(run, is_stripped=True) == Counter(_read(*call, is_cut=False) for call in calls)
    assert {item.status for item in run.output if not isinstance(item, McpCall)} <= {"completed"}
    words = [delta.text for delta in answer if isinstance(delta, TextDelta)]
    assert "".join(_words(run)) == "".join(words)


@pytest.mark.proves("RULING-3b")
@STEADY
@given(interleaved(), st.integers(0, 40))
def test_a_call_that_is_done_has_all_of_its_arguments_wherever_the_answer_breaks_off(
    said: tuple[list[tuple[str, str]], list[Delta]], end: int
) -> None:
    calls, answer = said
    run = fold(Run(RESPONSE), play(*answer[:end], aborted=True))
    for item in run.output:
        if isinstance(item, FunctionCall) and item.status == "completed":
            assert (item.name, item.arguments.strip()) in calls
        assert item.status in ("completed", "incomplete")
