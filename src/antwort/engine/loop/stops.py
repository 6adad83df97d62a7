"""When a response stops before the model has its answer, and what the model is told by then. Pure."""

from __future__ import annotations

from antwort.engine.loop.budgets import last_tokens, tokens_spent
from antwort.engine.loop.fold import Run
from antwort.engine.loop.stuck import failed_turns, repeated_turns
from antwort.engine.plan import Plan

NO_MORE = "No tool can be called any more in this response."
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


def stop_reason(run: Run, plan: Plan) -> str | None:
    """Why the model is not asked again, when all of its calls are answered."""
    if run.over_limit_turns and has_called_past_limit(run):
        return "max_tool_calls"
    budget = plan.budget
    if run.turns >= budget.turns:
        return "max_turns"
    if tokens_spent(run) >= budget.tokens:
        return "token_budget"
    return "stuck" if _is_stuck(run, plan) else None


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
    if _is_stuck(run, plan):
        return "stuck"
    if run.turns == plan.budget.turns - 1:
        return "max_turns"
    is_last_to_fit = tokens_spent(run) + 2 * last_tokens(run) > plan.budget.tokens
    return "token_budget" if is_last_to_fit else None


def notice(run: Run, plan: Plan) -> str | None:
    """What the model is told in the next inference beside what was said. It is no part of any item."""
    if plan.settings.final_answer and (reason := closing(run, plan)) is not None:
        return _LAST.format(_WHY[reason])
    settings = plan.settings
    if settings.stuck_after is None or run.turns < settings.stuck_after:
        return None
    repeated, failed = _turns_without_news(run, plan)
    if max(repeated, failed) < settings.stuck_after:
        return None
    words = _REPEATED.format(repeated) if repeated >= failed else _FAILED.format(failed)
    return words + (_WILL_END.format(settings.stuck_limit) if settings.stuck_limit else "")


def is_spent(run: Run, plan: Plan) -> bool:
    """Whether all tokens are used up. It is seen when the model is to be asked; nothing is broken off for it."""
    return tokens_spent(run) >= plan.budget.tokens


def has_called_past_limit(run: Run) -> bool:
    """Whether the model was asked for a final answer, and called again."""
    return bool(run.over_limit_turns) and run.turns > run.over_limit_turns[0]


def _is_stuck(run: Run, plan: Plan) -> bool:
    """Return whether the response ends because its turns bring nothing new."""
    limit = plan.settings.stuck_limit
    if plan.settings.stuck_after is None or not limit or run.turns < limit:
        return False
    return max(_turns_without_news(run, plan)) >= limit


def _turns_without_news(run: Run, plan: Plan) -> tuple[int, int]:
    """Return how many turns in a row, up to the last, repeat each other, and how many brought only errors."""
    earlier = {left.call.call_id for left in plan.leftovers}
    return repeated_turns(run, earlier), failed_turns(run, earlier)
