"""The calls that wait for a result, as the fold keeps them: what would be read off the items, whatever has happened."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import Batch, CallEnded, CallOutcome, OutputItemAdded, OutputItemDone, TurnAbandoned
from antwort.api.items import CustomToolCall, FunctionCall, McpCall, OutputItem
from antwort.api.wire import replace
from antwort.engine.loop.fold import Run, fold
from antwort.engine.loop.steps import open_calls, waiting_calls
from engine_kit import ask
from plan_kit import STEADY, called, ended, plan_of, result, said, server_called

_OUTCOMES: tuple[CallOutcome, ...] = ("ran", "searched", "refused", "over_limit")
_KINDS = st.sampled_from(["function", "custom", "server", "words"])
_TURNS = st.lists(st.lists(st.tuples(_KINDS, st.booleans()), max_size=4), max_size=4)


def _item(kind: str, n: int, *, is_whole: bool) -> OutputItem:
    status: Literal["completed", "incomplete"] = "completed" if is_whole else "incomplete"
    if kind == "server":
        return server_called(n, status="in_progress" if is_whole else "incomplete")
    if kind == "custom":
        return CustomToolCall(id=f"ctc_{n}", call_id=f"call_{n}", name="dial", input="1", status=status)
    return called(n, status=status) if kind == "function" else said("Hm.", status)


def _shown(items: list[OutputItem], start: int) -> Batch:
    return [OutputItemAdded(output_index=at, item=item) for at, item in enumerate(items, start)]


def _answered(item: OutputItem, at: int, end: int, outcome: CallOutcome) -> Batch:
    assert isinstance(item, FunctionCall | CustomToolCall | McpCall)
    if isinstance(item, McpCall):
        mark = CallEnded(call_id=f"call_{item.id.removeprefix('mcp_')}", outcome=outcome)
        return [OutputItemDone(output_index=at, item=replace(item, status="completed", output="3 left")), mark]
    mark = CallEnded(call_id=item.call_id, outcome=outcome)
    if outcome == "handed":
        return [mark]
    return [OutputItemAdded(output_index=end, item=result(int(item.call_id.removeprefix("call_")))), mark]


@STEADY
@given(_TURNS, st.data())
async def test_what_is_kept_of_the_calls_is_what_the_items_say(
    turns: list[list[tuple[str, bool]]], data: st.DataObject
) -> None:
    plan = await plan_of(ask())
    run, number, batches = Run(plan.response, is_announced=True), 0, list[Batch]()

    def happens(batch: Batch) -> None:
        nonlocal run
        batches.append(batch)
        run = fold(run, batch)

    for turn in turns:
        if data.draw(st.booleans(), label="one before it is made anew"):
            start, number = len(run.output), number + 3
            begun: list[OutputItem] = [called(number - 3), called(number - 2), server_called(number - 1)]
            happens(_shown([said("Hm.", "incomplete"), called(99, status="incomplete"), *begun], start))
            if data.draw(st.booleans(), label="what came of one that began early is on record"):
                happens(_answered(begun[0], start + 2, start + 5, "ran"))
            happens([TurnAbandoned(start=start)])
            assert not run.turns or waiting_calls(run, plan.toolbox) == open_calls(run, plan.toolbox)
        items = [_item(kind, number + at, is_whole=is_whole) for at, (kind, is_whole) in enumerate(turn)]
        number += len(items)
        happens([*_shown(items, len(run.output)), ended()])
        assert run.has_called == any(kind != "words" for kind, _ in turn) or run.abandoned
        for call_id in data.draw(st.permutations([*run.waiting]), label="answered in this order"):
            at = run.waiting[call_id]
            is_function = isinstance(run.output[at], FunctionCall)
            outcomes: tuple[CallOutcome, ...] = (*_OUTCOMES, "handed") if is_function else _OUTCOMES
            outcome = data.draw(st.sampled_from(outcomes))
            happens(_answered(run.output[at], at, len(run.output), outcome))
            assert (call_id in run.waiting) == (outcome == "handed")
            assert waiting_calls(run, plan.toolbox) == open_calls(run, plan.toolbox)
    new = Run(plan.response, is_announced=True)
    assert [*accumulate(batches, fold, initial=new)][-1] == fold(new, [event for each in batches for event in each])
