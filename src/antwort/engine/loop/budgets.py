"""How much one response may take: what the operator allows, or what the request asks for where that is less. Pure."""

from __future__ import annotations

import msgspec

from antwort.api.requests import CreateRequest
from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.loop.fold import Run
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    calls: int
    """That are run here."""
    tokens: int
    """Read and written, of all inferences."""
    seconds: float


def budget_of(request: CreateRequest, settings: EngineSettings) -> Budget:
    """Of a number of calls that is higher than the operator's, the operator's holds: it is the standard's own field,
    and clients set it without knowing whom they ask.
    """
    return Budget(
        turns=request.max_turns or settings.max_turns,
        calls=most_calls(request, settings),
        tokens=request.token_budget or settings.token_budget,
        seconds=seconds_of(request, settings),
    )


def seconds_of(request: CreateRequest, settings: EngineSettings) -> float:
    return request.deadline or settings.deadline


def most_calls(request: CreateRequest, settings: EngineSettings) -> int:
    return min(request.max_tool_calls or settings.max_tool_calls, settings.max_tool_calls)


def check_budget(request: CreateRequest, settings: EngineSettings) -> None:
    """Refuse a request that asks for more than there is: its client would count on it."""
    if request.max_turns is None and request.deadline is None and request.token_budget is None:
        return
    for field in ("max_turns", "deadline", "token_budget"):
        asked, most = getattr(request, field), getattr(settings, field)
        if asked is not None and asked > most:
            raise InvalidField(field, f"this server allows {most:.15g} at most, and a request may only ask for less.")


# ---- what was spent ----


def tokens_spent(run: Run) -> int:
    """By all inferences so far, those that wrote summaries too. What the backend does not tell is estimated."""
    usage = run.response.usage
    return run.estimated + (0 if usage is None else usage.input_tokens + usage.output_tokens)


def last_tokens(run: Run) -> int:
    """What the last turn took."""
    ended = run.last_turn
    return 0 if ended is None else _of(ended.usage, ended.estimate)


def _of(usage: Usage | UnsetType, estimate: int | UnsetType) -> int:
    return (0 if usage is UNSET else usage.input_tokens + usage.output_tokens) + (estimate or 0)
