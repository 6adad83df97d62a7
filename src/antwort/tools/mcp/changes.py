"""When a list that has changed is asked for again: soon, not too often, and whether or not anybody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """An event loop, as far as it is needed."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


class Changes:
    """`ask` begins to ask for the list. `between`: seconds from one time to the next."""

    def __init__(self, ask: Callable[[], object], between: float, clock: Clock | None = None) -> None:
        self._ask = ask
        self._between = between
        self._own_clock = clock
        self._begun_at = float("-inf")
        self._is_busy = self._has_come = False
        self._timer: asyncio.TimerHandle | None = None

    def hear(self) -> None:
        """The list has changed, or may have."""
        self._has_come = True
        self._follow()

    def begin(self) -> None:
        """The list is asked for, for whatever reason."""
        self._is_busy = True
        self._begun_at = self._clock.time()
        self.cover()

    def cover(self) -> None:
        """What has changed up to here will be in the list that is asked for."""
        self._has_come = False
        self.stop()

    def end(self) -> None:
        """It has come, or not."""
        self._is_busy = False
        self._follow()

    def stop(self) -> None:
        """Ask no more by itself, until the next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _clock(self) -> Clock:
        return self._own_clock or asyncio.get_running_loop()

    def _follow(self) -> None:
        if self._has_come and not self._is_busy and self._timer is None:
            wait = self._begun_at + self._between - self._clock.time()
            self._timer = self._clock.call_later(max(0.0, wait), self._go)

    def _go(self) -> None:
        self._timer = None
        self._ask()
