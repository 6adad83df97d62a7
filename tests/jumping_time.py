"""An event loop whose clock jumps: where nothing is left to do but wait for a timer, the timer is due at once."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, Unpack

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def jumping_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop that never waits for a timer.

    Time stands still while a thread of the loop's executor works (`asyncio.to_thread`). Other threads and processes are
    not waited for. What spins (`asyncio.sleep(0)`) has something to do, so that time does not jump.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class JumpingSelector(selectors.DefaultSelector):
    """Count the time that the loop would have waited, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_seconds = 0.0
        self.working_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self.working_threads:
            return super().select(timeout)
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

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.working_threads += 1
        future.add_done_callback(self._count_finished_thread)
        return future

    def _count_finished_thread(self, _: asyncio.Future[Any]) -> None:
        self._jumping.working_threads -= 1
