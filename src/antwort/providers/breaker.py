"""When a backend that fails is left alone for a while. Pure, but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIAL_WAIT = 1.0
"""What those are asked to wait who find another one's trial under way."""
ONE_ABSENCE = 1.0
"""Seconds within which failures to reach a backend are one: whoever tries again at once learns nothing new."""


class Breaker:
    """Closed, all may pass. After `failures` in a row it is open: nobody may, for `open_for` seconds. Then one at a
    time is let through on trial: a trial that is answered closes it, one that fails opens it for as long again, and
    one that does neither keeps the others waiting no longer than that.

    Opened because the backend could not be reached, it closes as soon as somebody has `seen` that it can.
    """

    __slots__ = (
        "_absent_at",
        "_clock",
        "_failed",
        "_is_for_absence",
        "_limit",
        "_open_for",
        "_open_until",
        "_trial",
        "is_closed",
    )

    def __init__(
        self, failures: int = 5, open_for: float = 10.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._open_for = open_for
        self._clock = clock
        self._failed = 0
        self._absent_at = float("-inf")
        self._open_until: float | None = None
        self.is_closed = True
        """Whether nothing says until when it is open: that is asked of each inference."""
        self._is_for_absence = False
        self._trial: object | None = None

    def wait(self) -> float:
        """Seconds until the next inference may pass; 0: now."""
        if self._open_until is None:
            return 0.0
        left = max(0.0, self._open_until - self._clock())
        return left if self._trial is None else min(left, TRIAL_WAIT)

    def enter(self) -> object | None:
        """An inference passes. What it gets is its trial, if it is on one; it must `leave`, whatever becomes of it."""
        if self._open_until is None:
            return None
        self._trial = object()
        self._open_until = self._clock() + self._open_for
        return self._trial

    def answered(self, trial: object | None) -> None:
        """The backend has said something: that is enough to trust it again, and the rest may take minutes."""
        if trial is not None:
            self._close()

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, trial: object | None = None, *, is_absence: bool = False) -> None:
        """What was under way when it opened, and fails only then, tells nothing new. Nor does a trial of before."""
        if self._open_until is not None:
            if trial is not None and trial is self._trial:
                self._open(is_absence=is_absence)
        elif not is_absence or self._is_another_absence():
            self._failed += 1
            if self._failed >= self._limit:
                self._open(is_absence=is_absence)

    def leave(self, trial: object | None) -> None:
        """A trial that showed nothing makes room for the next."""
        if trial is not None and trial is self._trial:
            self._trial = None
            self._open_until = self._clock()

    def seen(self) -> None:
        """Somebody has looked, and the backend is there."""
        if self._is_for_absence:
            self._close()

    def _is_another_absence(self) -> bool:
        now = self._clock()
        is_another = now - self._absent_at >= ONE_ABSENCE
        if is_another:
            self._absent_at = now
        return is_another

    def _open(self, *, is_absence: bool) -> None:
        self._failed = 0
        self._is_for_absence = is_absence
        self._trial = None
        self._open_until = self._clock() + self._open_for
        self.is_closed = False

    def _close(self) -> None:
        self._failed = 0
        self._is_for_absence = False
        self._trial = None
        self._open_until = None
        self.is_closed = True
