"""What a run has come to, for logs, metrics and rate limits."""

from __future__ import annotations

import msgspec

from antwort.api.events import Compacted, TurnAbandoned, TurnEnded
from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a run that has ended."""

    plan: Plan
    response: Response
    turns: int
    seconds: float
    first: float | None = None
    """Seconds from the start to the first delta of the model's output; None: there was none."""
    untold: int = 0
    """Inferences whose usage is not in that of the response: the backend does not report it, or they were cut."""
    truncated: int = 0
    """Inferences from which something was left out, so that they fit into the context."""
    is_read: bool = False
    """Whether a request waits for the run, and reports it in its own log line."""


def count_untold(run: Run) -> int:
    """Return how many inferences of the run have no known usage."""
    untold = 0
    for _, mark in run.marks:
        if isinstance(mark, TurnEnded):
            untold += mark.usage is UNSET
        elif isinstance(mark, Compacted):
            untold += mark.usage is UNSET and mark.is_missing is UNSET
        else:
            untold += isinstance(mark, TurnAbandoned)
    return untold
