"""Write to the terminal: final lines above, and below them lines that still change. All text is sanitized.

Only lines that differ are written again, and each change is one write, so that nothing flickers. Lines that are final
belong to the terminal's own scrollback.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from antwort.chat.client import ChatError
from antwort.chat.formatting import format_seconds, sanitize
from antwort.chat.markdown import THEME
from antwort.chat.server import Report

FRAME_SECONDS = 0.08
_MIN_WIDTH, _MAX_WIDTH = 20, 100
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Glyphs(NamedTuple):
    prompt: str
    ran: str
    failed: str
    dot: str
    spinner: str

    def frame(self, seconds: float) -> str:
        """Return the spinner as it looks after that time."""
        return self.spinner[int(seconds * 10) % len(self.spinner)]


UNICODE = Glyphs("\u203a", "✓", "✗", "·", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
ASCII = Glyphs(">", "+", "x", "-", "|/-\\")


def glyphs_for(encoding: str) -> Glyphs:
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeError, LookupError):
        return ASCII
    return UNICODE


class Screen:
    def __init__(self, file: TextIO, console: Console | None = None) -> None:
        self._console = console or Console(
            file=file, theme=THEME, markup=False, highlight=False, emoji=False, soft_wrap=False, legacy_windows=False
        )
        self._file = file
        self.glyphs = glyphs_for(file.encoding or "ascii")
        self._can_move_cursor = self._console.is_terminal and not self._console.is_dumb_terminal
        self._changing: list[str] = []

    @property
    def height(self) -> int:
        """How many lines may change at once: lines that have scrolled out of the window cannot be written again."""
        return max(self._console.height - 4, 1)

    def lines(self, shown: RenderableType, *, indent: int = 0) -> list[str]:
        """Return the lines of a renderable, with styles and without trailing spaces, at most 100 columns wide."""
        width = max(min(self._console.width, _MAX_WIDTH) - indent, min(_MIN_WIDTH, self._console.width))
        lines = self._console.render_lines(_Sanitized(shown), self._console.options.update(width=width), pad=False)
        with self._console.capture() as captured:
            self._console.print(_Trimmed(lines), crop=False)
        return [f"{' ' * indent}{line}" for line in captured.get().split("\n")[:-1]]

    def paint(self, above: Sequence[str] = (), lines: Sequence[str] = ()) -> None:
        """Write `above` for good, and `lines` until the next call, if the cursor can be moved."""
        changing = list(lines) if self._can_move_cursor else []
        if above or changing != self._changing:
            self._file.write(repaint(self._changing, above, changing, self._console.width))
            self._file.flush()
            self._changing = changing

    def show(self, shown: RenderableType, *, indent: int = 0) -> None:
        """Write a renderable for good."""
        self.paint(self.lines(shown, indent=indent))

    def say(self, text: str, style: str = "dim") -> None:
        self.show(Text(sanitize(text), style=style))

    def blank(self) -> None:
        self.paint([""])

    async def wait(self, work: Callable[[Report], Coroutine[None, None, None]]) -> None:
        """Run `work` with a line below that shows its last report and the time."""
        started_at, reported = time.monotonic(), ""

        def report(line: str) -> None:
            nonlocal reported
            reported = line

        task = asyncio.create_task(work(report))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=FRAME_SECONDS)
                seconds = time.monotonic() - started_at
                text = f" {format_seconds(seconds)} {sanitize(reported)}"
                line = Text.assemble((self.glyphs.frame(seconds), "cyan"), (text, "dim"))
                self.paint([], self.lines(line)[:1] if seconds > FRAME_SECONDS else [])
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ChatError):
                await task
            self.paint()


class _Sanitized:
    """Sanitize what another renderable yields: a parser may decode control characters from entities."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            if not segment.control:
                yield Segment(sanitize(segment.text), segment.style)


class _Trimmed:
    """Lines without trailing spaces, which would be copied along, and wrap in a window that becomes narrower."""

    def __init__(self, lines: Sequence[Sequence[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            segments = list(line)
            while segments and not segments[-1].text.strip(" "):
                segments.pop()
            if segments:
                last = segments.pop()
                segments.append(Segment(last.text.rstrip(" "), last.style))
            yield from segments
            yield Segment.line()


def repaint(old: Sequence[str], above: Sequence[str], new: Sequence[str], width: int) -> str:
    """Return what replaces the lines `old` by `new`, with `above` written before them.

    The cursor is at the beginning of the line below the last one, before and after.
    """
    same = 0
    while not above and same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    written = [*above, *new[same:]]
    up = count_rows(old[same:], width)
    if not up:
        return "".join(f"{line}\n" for line in written)
    if above or len(new) < len(old) or up != len(old) - same:
        return f"\x1b[{up}A\r\x1b[J" + "".join(f"{line}\n" for line in written)
    return f"\x1b[{up}A\r" + "".join(f"\x1b[2K{line}\n" for line in written)


def count_rows(lines: Sequence[str], width: int) -> int:
    """Return how many rows the lines take: in a window that became narrower, some of them are wrapped."""
    return sum(max(1, -(-cell_len(_STYLES.sub("", line)) // max(width, 1))) for line in lines)


class Interrupts:
    """Handle Ctrl-C while it is `caught`: it cancels what `run` runs, and does nothing otherwise."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def interrupted(*_: object) -> None:
            loop.call_soon_threadsafe(self._cancel)

        former = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    async def run(self, work: Coroutine[None, None, None]) -> bool:
        """Return whether it ended by itself. Its exceptions are raised."""
        task = self._task = asyncio.create_task(work)
        try:
            await asyncio.wait({task})
        finally:
            self._cancel()
            await asyncio.wait({task})
        if task.cancelled():
            return False
        task.result()
        return True

    def _cancel(self) -> None:
        """Cancel once: a second Ctrl-C does not interrupt the cleanup."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
