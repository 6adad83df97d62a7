"""The terminal: what is shown goes through here, and nothing that was said elsewhere can give it orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from antwort.chat.markdown import THEME
from antwort.chat.region import Region
from antwort.chat.scrub import scrub

_LEAST_WIDTH, _WIDEST = 20, 100


class Glyphs(NamedTuple):
    prompt: str
    ran: str
    failed: str
    dot: str
    spinner: str


FINE = Glyphs("\u203a", "✓", "✗", "·", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
PLAIN = Glyphs(">", "+", "x", "-", "|/-\\")


def glyphs_for(encoding: str) -> Glyphs:
    try:
        "".join(FINE).encode(encoding)
    except (UnicodeError, LookupError):
        return PLAIN
    return FINE


class Scrubbed:
    """Looks as what it wraps, less what a terminal would obey: escapes may come back in what a parser has decoded."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            if not segment.control:
                yield Segment(scrub(segment.text), segment.style)


class Screen:
    def __init__(self, file: TextIO, console: Console | None = None) -> None:
        self._console = console or Console(
            file=file, theme=THEME, markup=False, highlight=False, emoji=False, soft_wrap=False, legacy_windows=False
        )
        self._file = file
        self.glyphs = glyphs_for(file.encoding or "ascii")
        is_still = self._console.is_dumb_terminal or not self._console.is_terminal
        self._region = Region(self._write, lambda: self._console.width, is_still=is_still)

    @property
    def room(self) -> int:
        """How many lines may change at once: what has left the terminal at its top cannot be reached any more."""
        return max(self._console.height - 4, 1)

    def lines(self, shown: RenderableType, *, indent: int = 0) -> list[str]:
        """The lines that it takes, styled, each as short as it can be. Long lines of text would be hard to read."""
        width = max(min(self._console.width, _WIDEST) - indent, min(_LEAST_WIDTH, self._console.width))
        options = self._console.options.update(width=width)
        with self._console.capture() as captured:
            self._console.print(_Trimmed(self._console.render_lines(Scrubbed(shown), options, pad=False)), crop=False)
        return [f"{' ' * indent}{line}" for line in captured.get().split("\n")[:-1]]

    def show(self, shown: RenderableType, *, indent: int = 0) -> None:
        """Write it for good."""
        self._region.show(self.lines(shown, indent=indent))

    def say(self, text: str, style: str = "dim") -> None:
        self.show(Text(scrub(text), style=style))

    def paint(self, above: Sequence[str], lines: Sequence[str]) -> None:
        """Write `above` for good, and `lines` until the next time."""
        self._region.show(above, lines)

    def blank(self) -> None:
        self._region.show([""])

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _Trimmed:
    """Lines without the blanks at their ends: they would be copied along, and break where a window gets narrower."""

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
