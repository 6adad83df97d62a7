"""When a response stops before the model has its answer, and what the model is told by then. Pure."""

from __future__ import annotations

from antwort.engine.budgets import last_tokens, tokens_spent
from antwort.engine.draft import Run
from antwort.engine.plan import Plan
from antwort.engine.stuck import Standstill, may_stand_still, standstill, turns_made

NO_MORE = "No tool can be called any more in this response."
_LAST = "No tool can be called any more: {}. Answer now, in words, with what you have."
_WHY = {
    "max_turns": "this is the last turn of the response",
    "max_tool_calls": "as many were called as may be",
    "token_budget": "the response has taken nearly all tokens that it may",
    "stuck": "the calls brought nothing new",
}


def stop_reason(run: Run, plan: Plan) -> str | None:
    """Why the model is not asked again, when all of its calls are answered."""
    if run.over_limit_turns and has_called_past_limit(run):
        return "max_tool_calls"
    budget = plan.budget
    if run.turns >= budget.turns:
        return "max_turns"
    if tokens_spent(run) >= budget.tokens:
        return "token_budget"
    found = _standstill(run, plan)
    return "stuck" if found is not None and found.was_told else None


def closing(run: Run, plan: Plan) -> str | None:
    """Why the next inference is the last one, made without tools; None: it is not, or there is none.

    With `final_answer` it is the last that the limits leave room for: the last turn, or with the tokens, the last that
    fits if it takes as many as the one before. The first turn of a response is never one.
    """
    if not plan.settings.final_answer or not run.turns:
        return None
    if run.turns >= plan.budget.turns or is_spent(run, plan):
        return None
    if has_called_past_limit(run):
        return "max_tool_calls"
    if (found := _standstill(run, plan)) is not None and found.was_told:
        return "stuck"
    if run.turns == plan.budget.turns - 1:
        return "max_turns"
    is_last_to_fit = tokens_spent(run) + 2 * last_tokens(run) > plan.budget.tokens
    return "token_budget" if is_last_to_fit else None


def notice(run: Run, plan: Plan) -> str | None:
    """What the model is told in the next inference beside what was said. It is no part of any item."""
    if plan.settings.final_answer and (reason := closing(run, plan)) is not None:
        return _LAST.format(_WHY[reason])
    found = _standstill(run, plan)
    return None if found is None else found.words


def is_spent(run: Run, plan: Plan) -> bool:
    """Whether all tokens are used up. It is seen when the model is to be asked; nothing is broken off for it."""
    return tokens_spent(run) >= plan.budget.tokens


def has_called_past_limit(run: Run) -> bool:
    """Whether the model was asked for a final answer, and called again."""
    return bool(run.over_limit_turns) and run.turns > run.over_limit_turns[0]


def _standstill(run: Run, plan: Plan) -> Standstill | None:
    if (after := plan.settings.stuck_after) is None or run.calls_ended < after:
        return None  # too few calls to tell
    known: tuple[Run, Standstill | None] | None = plan.memo.get("standstill")
    if known is None or known[0] is not run:  # it is asked for more than once before each inference
        known = plan.memo["standstill"] = run, _looked_at(run, plan, after)
    return known[1]


def _looked_at(run: Run, plan: Plan, after: int) -> Standstill | None:
    if not may_stand_still(run, after):
        return None
    others = {left.call.call_id for left in plan.leftovers}
    return standstill(turns_made(run, others), after)
