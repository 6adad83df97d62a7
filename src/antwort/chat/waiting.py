"""What takes a moment: a line says so, and Ctrl-C ends it and nothing else."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress

from rich.text import Text

from antwort.chat.calls import seconds_shown
from antwort.chat.client import ChatFault
from antwort.chat.screen import Screen
from antwort.chat.scrub import scrub
from antwort.chat.server import Report

FRAME = 0.08
"""Seconds between two looks at what has come."""


async def awaited(screen: Screen, doing: Callable[[Report], Coroutine[None, None, None]]) -> None:
    """Do it, with a line below that tells how long it has been going on."""
    began, said = time.monotonic(), ""

    def report(line: str) -> None:
        nonlocal said
        said = line

    task = asyncio.create_task(doing(report))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=FRAME)
            passed = time.monotonic() - began
            frame = screen.glyphs.spinner[int(passed * 10) % len(screen.glyphs.spinner)]
            line = Text.assemble((frame, "cyan"), (f" {seconds_shown(passed)} {scrub(said)}", "dim"))
            screen.paint([], screen.lines(line)[:1] if passed > FRAME else [])
        await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ChatFault):
            await task
        screen.paint([], [])


class Interrupts:
    """Ctrl-C, as long as it is `caught`: it ends what is run here, and means nothing otherwise."""

    def __init__(self) -> None:
        self._under_way: asyncio.Task[None] | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def interrupted(*_: object) -> None:
            loop.call_soon_threadsafe(self._stop)

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    async def run(self, doing: Coroutine[None, None, None]) -> bool:
        """Whether it came to its end; what it raises is raised."""
        task = self._under_way = asyncio.create_task(doing)
        try:
            await asyncio.wait({task})
        finally:
            self._stop()
            await asyncio.wait({task})
        if task.cancelled():
            return False
        task.result()
        return True

    def _stop(self) -> None:
        """Once: what has to be put in order then is left in peace."""
        task, self._under_way = self._under_way, None
        if task is not None:
            task.cancel()
