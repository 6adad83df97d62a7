"""Waiting in sight of a person: what for, and for how long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from antwort.cli.say import say

T = TypeVar("T")

_SILENT = 1.0
"""Seconds without a word where every word stays: most waits are shorter."""
_PAUSE = 10.0
"""Seconds between two words there."""


async def shown(work: Coroutine[None, None, T], what: str) -> T:
    """What comes of `work`. On a terminal a line counts the seconds, and goes when all is done; elsewhere there is a
    line now and then, if it takes long.
    """
    task = asyncio.create_task(work)
    line = _Changing(what) if sys.stdout is not None and sys.stdout.isatty() else _Staying(what)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=line.show())
    finally:
        task.cancel()  # which means nothing to one that is done
        line.clear()
    return await task


class _Line:
    def __init__(self, what: str) -> None:
        self._what, self._clock = what, asyncio.get_running_loop().time
        self._began = self._clock()

    @property
    def _seconds(self) -> float:
        return self._clock() - self._began

    def _text(self) -> str:
        return f"{self._what} ... {self._seconds:.0f} s"


class _Changing(_Line):
    """One line of a terminal, written anew every second."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._width = 0

    def show(self) -> float:
        """Seconds until it is to be shown again."""
        self._write(self._text())
        return 1.0 - self._seconds % 1.0

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        """Over what was there; what comes next, a line of the log perhaps, is written over it."""
        padding = " " * max(self._width - len(text), 0)
        self._width = len(text)
        with suppress(OSError):  # a terminal that is gone is no reason to stop
            print(f"{text}{padding}", end="\r", flush=True)


class _Staying(_Line):
    """Lines that stay: of a log, say."""

    def show(self) -> float:
        if self._seconds < _SILENT:
            return _SILENT - self._seconds
        say(self._text())
        return _PAUSE

    def clear(self) -> None:
        pass
