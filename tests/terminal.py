"""A program in a real pseudo-terminal, and what somebody who sits there would see."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pexpect
import pyte

from live_server import PATIENCE

PROMPT = "\u203a"
ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"


class Terminal:
    """Reads as long as the event loop turns. Lines are without the blanks at their ends."""

    def __init__(self, child: pexpect.spawn, width: int, height: int) -> None:
        self._child, self._width = child, width
        self._screen = pyte.HistoryScreen(width, height, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()
        self.received = b""
        """All that the program has written."""
        self.is_over = False
        asyncio.get_running_loop().add_reader(child.child_fd, self._read)

    @property
    def pid(self) -> int:
        number: int = self._child.pid
        return number

    @property
    def text(self) -> str:
        """What is on the screen, and what has scrolled away."""
        past = ["".join(line[column].data for column in range(self._width)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*past, *self._screen.display]).rstrip()

    def type(self, *keys: str) -> None:
        for key in keys:
            self._child.send(key)

    async def until(self, text: str, times: int = 1) -> str:
        """Wait until the text stands there that often; all that can be read then."""
        try:
            async with asyncio.timeout(PATIENCE):
                while self.text.count(text) < times:
                    if self.is_over:
                        raise AssertionError(f"it ended without {text!r}:\n{self.text}")
                    await self._change()
        except TimeoutError:
            raise AssertionError(f"there is no {text!r}:\n{self.text}") from None
        return self.text

    async def prompted(self, times: int) -> str:
        """Wait for the prompt, the so-manieth, with nothing typed at it yet."""
        async with asyncio.timeout(PATIENCE):
            while not (self.text.endswith(PROMPT) and self.text.count(PROMPT) == times):
                assert not self.is_over, self.text
                await self._change()
        return self.text

    async def ended(self) -> int:
        """The exit status; of a program that a signal ended, the negative number of it."""
        async with asyncio.timeout(PATIENCE):
            while not self.is_over:
                await self._change()
        self._child.wait()
        status = self._child.exitstatus
        return -int(self._child.signalstatus) if status is None else int(status)

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def close(self) -> None:
        if not self.is_over:
            asyncio.get_running_loop().remove_reader(self._child.child_fd)
        self._child.close(force=True)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _read(self) -> None:
        try:
            data = os.read(self._child.child_fd, 65536)
        except OSError:  # the program has closed its side
            data = b""
        if data:
            self.received += data
            self._stream.feed(data)
        else:
            self.is_over = True
            asyncio.get_running_loop().remove_reader(self._child.child_fd)
        self._changed.set()


@asynccontextmanager
async def terminal(
    *arguments: str, width: int = 90, height: int = 40, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Terminal]:
    """`antwort` with these arguments in a terminal of this size."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "antwort", *arguments],
        dimensions=(height, width),
        env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    opened = Terminal(child, width, height)
    try:
        yield opened
    finally:
        opened.close()
