"""What a run and those who watch it share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from antwort.api.events import Batch
from antwort.concurrency import Signal
from antwort.engine.draft import Run
from antwort.errors import AntwortError, HandedOver
from antwort.runs.base import Fenced
from antwort.tools.base import Progress


def nobody_asks() -> None:
    """Nobody waits for this sign."""


def _nobody_watches(_: str, __: str | Progress) -> None:
    """Nobody waits for this sign either."""


LEFT = (HandedOver, Fenced)
"""Why a run stops here that has not ended: another process goes on with it, or did already."""

CallEnd: TypeAlias = Literal["ok", "error", "arguments", "timeout", "refused", "handed", "cancelled"]
"""`arguments`: they did not fit, and the tool was not run; `handed`: to the client; `cancelled`: with the run."""


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a call that was answered, for those who count. Neither arguments nor output."""

    response_id: str
    call_id: str
    tool: str
    """As its server calls it; of a refused call, what the model wrote."""
    label: str | None
    """Of the server or toolset, where the tool has one."""
    is_local: bool
    """Whether a function of this process ran it: then its name is not the client's to choose."""
    end: CallEnd
    seconds: float


class Control:
    """The signal to stop, the run as it stands, why it failed, and the signs it gives on its way."""

    error: AntwortError | None = None
    is_recorded = True
    """Whether the record says what the terminal event says; False after a commit that failed."""
    is_asking = False
    """Whether an inference is under way, or was cut; not one that the backend never took up."""
    truncated = 0
    """Inferences from which something was left out, so that they fit into the context."""
    on_call: Sequence[Callable[[Called], None]] = ()
    """A call has been answered."""
    on_begin: Callable[[str], Awaitable[None]] | None = None
    """Where another process may pick the run up: awaited with the id of a call before a tool is asked. When it
    returns, that is on record."""
    on_turn: Callable[[Run], Awaitable[None]] | None = None
    """Awaited before the model is asked again. When it returns, the turns so far are on record."""
    is_leaving = False
    """It is to stop between two steps: another process goes on from there."""
    is_left = False
    """It has stopped here, and has not ended: another process goes on with it."""

    def __init__(self, run: Run, deadline: float | None = None, half_said: Batch | None = None) -> None:
        self.signal = Signal()
        self.last_call = Signal()
        """For the time that its end takes to be put on record: then that is not waited for any more."""
        self.run = run
        self.deadline = deadline
        self.half_said = half_said or []
        self.on_answer: Callable[[], None] = nobody_asks
        """The backend has answered the first inference with its headers."""
        self.has_acted = run.calls_run > 0
        """Whether a tool was started here: to make the response once more could do twice what it did."""
        self.running: set[str] = set()
        """The calls that tools work on, by their `call_id`."""
        self.begun: set[str] = set()
        """The calls that tools were asked for here, by their `call_id`, whatever came of them."""
        self.on_progress: Callable[[str, str | Progress], None] = _nobody_watches
        """The tool that works on this call reports that it is getting on, and how far it is."""

    def fall_silent(self) -> None:
        """No more signs come. Those who waited for them are held no longer, nor the frames that an error went through:
        with what they hold, such as the whole text, they would stay until somebody looked for circles.
        """
        for error in (self.signal.reason, self.error):
            if error is not None:
                error.__traceback__ = error.__context__ = None
        self.on_answer, self.on_progress, self.on_call = nobody_asks, _nobody_watches, ()
        self.on_begin = self.on_turn = None
