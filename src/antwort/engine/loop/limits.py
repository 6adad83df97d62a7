"""Count what a response has spent, and decide when it stops before the model has its answer. Pure.

A turn repeats the one before it when all its calls and their results are the same; their order does not matter. Turns
of nothing but errors count too. Polling is ordinary, so a repeated turn is no failure by itself: the settings say after
how many turns the model gets a notice, and after how many the response ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from antwort.api.events import Compacted
from antwort.api.items import FunctionCall, FunctionCallOutput, McpApprovalRequest, McpCall
from antwort.api.wire import UNSET, encode
from antwort.engine.history.calls import call_id_of, result_of, value_key
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan

_LAST = "No tool can be called any more: {}. Answer now, in words, with what you have."
_WHY = {
    "max_turns": "this is the last turn of the response",
    "max_tool_calls": "as many were called as may be",
    "token_budget": "the response has taken nearly all tokens that it may",
    "stuck": "the calls brought nothing new",
}
_REPEATED = (
    "The last {} turns made the same calls and got the same results. Unless you wait for a result to change, do "
    "something else, or answer with what you have."
)
_FAILED = "The last {} turns have brought nothing but errors. Do something else, or answer with what you have."
_WILL_END = " After {} such turns in a row the response ends."


# ---- what was spent ----


def tokens_spent(run: Run) -> int:
    """Return the tokens of all inferences so far, summaries included. Where the backend reports none, they are
    estimated.
    """
    usage = run.response.usage
    return run.estimated + (0 if usage is None else usage.input_tokens + usage.output_tokens)


def last_tokens(run: Run) -> int:
    """Return the tokens of the last turn."""
    if (last := run.last_turn) is None:
        return 0
    usage = last.usage
    return (0 if usage is UNSET else usage.input_tokens + usage.output_tokens) + (last.estimate or 0)


def tokens_left(run: Run, plan: Plan) -> int | None:
    """Return what `max_output_tokens` leaves for the next inference: it bounds the response, not the turn."""
    if (limit := plan.request.max_output_tokens) is None or (usage := run.response.usage) is None:
        return limit
    summaries = (mark.usage for _, mark in run.marks if isinstance(mark, Compacted))
    spent = usage.output_tokens - sum(each.output_tokens for each in summaries if each is not UNSET)
    return max(0, limit - spent)


def calls_left(run: Run, plan: Plan) -> int:
    """Return how many calls the run may still make. Calls that wait for approval count as made."""
    asked = [*map(type, run.response.output)].count(McpApprovalRequest)
    return max(0, plan.budget.calls - run.calls_run - asked)


# ---- when a response stops ----


def stop_reason(run: Run, plan: Plan) -> str | None:
    """Return why the model is not asked again when all of its calls are answered."""
    if run.over_limit_turns and run.turns > run.over_limit_turns[0]:  # it was asked for an answer, and called again
        return "max_tool_calls"
    if run.turns >= plan.budget.turns:
        return "max_turns"
    if tokens_spent(run) >= plan.budget.tokens:
        return "token_budget"
    limit = plan.settings.stuck_limit
    if plan.settings.stuck_after is None or not limit or run.turns < limit:
        return None
    return "stuck" if max(turns_without_news(run, plan)) >= limit else None


def closing(run: Run, plan: Plan) -> str | None:
    """Return why the next inference is the last one, made without tools; None: it is not, or there is none.

    With `final_answer` it is the last that the limits leave room for: the last turn, or with the tokens, the last that
    fits if it takes as many as the one before. The first turn of a response is never one.
    """
    budget = plan.budget
    if not plan.settings.final_answer or not run.turns:
        return None
    if run.turns >= budget.turns or tokens_spent(run) >= budget.tokens:
        return None
    if (reason := stop_reason(run, plan)) is not None:
        return reason
    if run.turns == budget.turns - 1:
        return "max_turns"
    return "token_budget" if tokens_spent(run) + 2 * last_tokens(run) > budget.tokens else None


def notice(run: Run, plan: Plan) -> str | None:
    """Return what the model reads in the next inference beside the conversation. It is no part of any item."""
    settings = plan.settings
    if settings.final_answer and (reason := closing(run, plan)) is not None:
        return _LAST.format(_WHY[reason])
    if settings.stuck_after is None or run.turns < settings.stuck_after:
        return None
    repeated, failed = turns_without_news(run, plan)
    if max(repeated, failed) < settings.stuck_after:
        return None
    words = _REPEATED.format(repeated) if repeated >= failed else _FAILED.format(failed)
    return words + (_WILL_END.format(settings.stuck_limit) if settings.stuck_limit else "")


# ---- turns that brought nothing new ----


class AnsweredCall(NamedTuple):
    """A call with its result, in a form in which equal calls are equal."""

    server: str
    name: str
    arguments: bytes
    result: bytes
    is_error: bool


_Turn: TypeAlias = list[AnsweredCall]


def turns_without_news(run: Run, plan: Plan) -> tuple[int, int]:
    """Return how many turns in a row, up to the last, repeat each other (0 for no repeat), and how many brought nothing
    but errors. Calls of earlier responses belong to no turn.
    """
    earlier = {left.call.call_id for left in plan.history.leftovers}
    last: _Turn | None = None
    equal = failed = 0
    is_equal = has_failed = True
    for turn in _turns_backwards(run, earlier):
        last = turn if last is None else last
        is_equal = is_equal and bool(last) and turn == last
        has_failed = has_failed and bool(last) and bool(turn) and all(call.is_error for call in turn)
        if not (is_equal or has_failed):
            break
        equal += is_equal
        failed += has_failed
    return equal if equal > 1 else 0, failed


def _turns_backwards(run: Run, earlier: Collection[str]) -> Iterator[_Turn]:
    """Yield the answered calls of each turn, the last turn first."""
    results = {item.call_id: item for item in run.response.output if isinstance(item, FunctionCallOutput)}
    ends = (0, *run.turn_ends)
    for at in range(run.turns, 0, -1):
        turn: _Turn = []
        for item in run.said(ends[at - 1], ends[at]):
            if isinstance(item, McpCall):
                call_id, result, is_error = call_id_of(item), result_of(item), item.error is not None
                server = item.server_label
            elif isinstance(item, FunctionCall) and (found := results.get(item.call_id)) is not None:
                call_id, result, is_error = item.call_id, found.output, found.is_error is True
                server = ""
            else:
                continue
            if result is None or item.status == "incomplete" or call_id in earlier:
                continue
            told = result.encode(errors="surrogatepass") if isinstance(result, str) else encode(result)
            turn.append(AnsweredCall(server, item.name, value_key(item.arguments), told, is_error))
        yield sorted(turn)
