"""When a backend that fails is left alone for a while. Pure, but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIAL_WAIT = 1.0
"""What those are asked to wait who find another one's trial under way."""


class Breaker:
    """Closed, all may pass. After `failures` in a row it is open: nobody may, for `open_for` seconds. Then one at a
    time is let through on trial: a trial that is answered closes it, one that fails opens it for as long again.
    """

    __slots__ = ("_clock", "_failed", "_is_on_trial", "_limit", "_open_for", "_open_until")

    def __init__(
        self, failures: int = 5, open_for: float = 10.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._open_for = open_for
        self._clock = clock
        self._failed = 0
        self._open_until: float | None = None
        self._is_on_trial = False

    @property
    def is_closed(self) -> bool:
        return self._open_until is None

    def wait(self) -> float:
        """Seconds until the next inference may pass; 0: now."""
        if self._open_until is None:
            return 0.0
        if self._is_on_trial:
            return TRIAL_WAIT
        return max(0.0, self._open_until - self._clock())

    def enter(self) -> bool:
        """An inference passes; whether it is on trial. It must `leave`, whatever becomes of it."""
        if self._open_until is None:
            return False
        self._is_on_trial = True
        return True

    def begun(self, *, is_trial: bool) -> None:
        """The first delta has come: that is enough to trust the backend again, and the rest may take minutes."""
        if is_trial:
            self._open_until = None
            self._failed = 0

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, *, is_trial: bool) -> None:
        """What was under way when it opened, and fails only then, tells nothing new."""
        if is_trial and not self.is_closed:
            self._open()
        elif self.is_closed:
            self._failed += 1
            if self._failed >= self._limit:
                self._open()

    def leave(self, *, is_trial: bool) -> None:
        if is_trial:
            self._is_on_trial = False

    def invite(self) -> None:
        """Somebody has seen the backend well: the next inference need not wait out the time, and is a trial."""
        if self._open_until is not None:
            self._open_until = min(self._open_until, self._clock())

    def _open(self) -> None:
        self._failed = 0
        self._open_until = self._clock() + self._open_for
