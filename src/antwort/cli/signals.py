"""Being told to stop: once in order, twice at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

STOPS = (signal.SIGTERM, signal.SIGINT)


def ends() -> list[signal.Signals]:
    """Those that end a process alone. A terminal that is closed is one, unless it was to be ignored, as by `nohup`."""
    closed: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if closed is None or signal.getsignal(closed) is signal.SIG_IGN:
        return [*STOPS]
    return [*STOPS, closed]


class Told:
    """Hears signals within its block."""

    def __init__(self) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self._ends = ends()

    def __enter__(self) -> Self:
        with suppress(NotImplementedError):  # as on Windows, where Ctrl-C ends it
            for each in self._ends:
                asyncio.get_running_loop().add_signal_handler(each, self._hear)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with suppress(NotImplementedError):
            for each in self._ends:
                asyncio.get_running_loop().remove_signal_handler(each)

    def _hear(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What comes of the work; None when it is broken off by the event."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, waiting):
            each.cancel()  # which means nothing to one that is done
    try:
        return await task
    except asyncio.CancelledError:
        return None
