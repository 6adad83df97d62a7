"""An event loop whose clock jumps: where nothing is left to do but wait for a timer, the timer is due at once.

A module of tests takes it by importing the fixture:

    from jumping_time import event_loop_policy  # noqa: F401

It is for code that waits in the event loop only. A thread or another process that works meanwhile is not waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest


class JumpingSelector(selectors.DefaultSelector):
    """Count the time that the loop would have waited, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.skipped_seconds += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.skipped_seconds


class JumpingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> Any:
        return JumpingLoop()


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return JumpingPolicy()
