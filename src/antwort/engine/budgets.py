"""How much one response may take: what the operator allows, or what the request asks for where that is less. Pure."""

from __future__ import annotations

import msgspec

from antwort.api.events import Compacted, TurnEnded
from antwort.api.requests import CreateRequest
from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.draft import Run
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
        seconds=request.deadline or settings.deadline,
    )


def most_calls(request: CreateRequest, settings: EngineSettings) -> int:
    return min(request.max_tool_calls or settings.max_tool_calls, settings.max_tool_calls)


def check_budget(request: CreateRequest, settings: EngineSettings) -> None:
    """Refuse a request that asks for more than there is: its client would count on it."""
    for field in ("max_turns", "deadline", "token_budget"):
        asked, most = getattr(request, field), getattr(settings, field)
        if asked is not None and asked > most:
            raise InvalidField(field, f"this server allows {most:.15g} at most, and a request may only ask for less.")


# ---- what was spent ----


def tokens_spent(run: Run) -> int:
    """By all inferences so far, those that wrote summaries too. What the backend does not tell is estimated."""
    told = 0 if run.response.usage is None else _sum(run.response.usage)
    untold = (mark.estimate for _, mark in run.marks if isinstance(mark, TurnEnded | Compacted))
    return told + sum(each for each in untold if each is not UNSET)


def last_tokens(run: Run) -> int:
    """What the last turn took."""
    ended = last_turn(run)
    return 0 if ended is None else _of(ended.usage, ended.estimate)


def last_turn(run: Run) -> TurnEnded | None:
    """How the last turn ended, if there is one."""
    return next((mark for _, mark in reversed(run.marks) if isinstance(mark, TurnEnded)), None)


def _of(usage: Usage | UnsetType, estimate: int | UnsetType) -> int:
    return (0 if usage is UNSET else _sum(usage)) + (0 if estimate is UNSET else estimate)


def _sum(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
