"""What a run and those who watch it share."""

from __future__ import annotations

from collections.abc import Callable

from antwort.api.events import Batch
from antwort.concurrency import Signal
from antwort.engine.draft import Run
from antwort.errors import AntwortError


def _nobody_asks() -> None:
    """Nobody waits for this sign."""


class Control:
    """The signal to stop, the run as it stands, why it failed, and the signs it gives on its way."""

    def __init__(self, run: Run, deadline: float | None = None, half_said: Batch | None = None) -> None:
        self.signal = Signal()
        self.run = run
        self.deadline = deadline
        self.half_said = half_said or []
        self.error: AntwortError | None = None
        self.is_recorded = True
        """Whether the record says what the terminal event says; False after a commit that failed."""
        self.on_answer: Callable[[], None] = _nobody_asks
        """The backend has answered the first inference with its headers."""
        self.on_progress: Callable[[], None] = _nobody_asks
        """A tool reports that it is getting on."""
