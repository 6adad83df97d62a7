"""What a run has come to, for those who count."""

from __future__ import annotations

import msgspec

from antwort.api.events import CallEnded, Compacted, TurnAbandoned, TurnEnded
from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.engine.control import Control
from antwort.engine.plan import Plan


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a run that has ended, for those who count."""

    plan: Plan
    response: Response
    turns: int
    seconds: float
    first: float | None = None
    """Seconds from the start to the first piece of what the model said, where it said anything."""
    untold: int = 0
    """Inferences whose usage is not in that of the response: the backend does not tell it, or they were cut before."""
    truncated: int = 0
    """Inferences from which something was left out, so that they fit into the context."""


def account_of(plan: Plan, control: Control, seconds: float, first: float | None) -> Ended:
    run = control.run
    untold = [mark for _, mark in run.marks if not isinstance(mark, CallEnded) and not _is_told(mark)]
    return Ended(
        plan=plan,
        response=run.response,
        turns=run.turns,
        seconds=seconds,
        first=first,
        untold=len(untold) + control.is_asking,
        truncated=control.truncated,
    )


def _is_told(mark: TurnEnded | Compacted | TurnAbandoned) -> bool:
    """Whether the usage of the inference that it marks is known."""
    if isinstance(mark, TurnAbandoned):
        return False
    return mark.usage is not UNSET or (isinstance(mark, Compacted) and mark.is_missing is not UNSET)
