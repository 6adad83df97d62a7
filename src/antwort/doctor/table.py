"""The findings for people: a line each, what was seen beside it, and what follows below that."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from antwort.config.repeating import printable
from antwort.config.shown import written
from antwort.doctor.findings import PROBES, Examination, Finding, Value, Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH = 100
"""Where there is no terminal to ask for its own."""
_NARROW = 56
_TITLE = max(map(len, PROBES.values()))
_MARKS: Mapping[Verdict, str] = {"works": "✓", "fails": "\N{EN DASH}", "unknown": "?"}
_PLAIN_MARKS: Mapping[Verdict, str] = {"works": "ok", "fails": "no", "unknown": "?"}
_STYLES: Mapping[Verdict, str] = {"works": "green", "fails": "red", "unknown": "yellow"}


def console(file: TextIO, width: int | None = None) -> Console:
    from rich.console import Console

    if width is None and not file.isatty():
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and 20 <= int(columns) <= 1000 else WIDTH
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


class Table:
    """Prints what is found as it is found."""

    def __init__(self, to: Console) -> None:
        self._to = to
        is_rich = _can_write(to.encoding, "✓\N{EN DASH}→")
        self._marks = _MARKS if is_rich else _PLAIN_MARKS
        self._arrow = "→" if is_rich else "->"
        self._mark_width = max(map(len, self._marks.values()))

    def head(self, examined: Examination) -> None:
        told = [examined.url, examined.engine.title, *([examined.model] if examined.model else [])]
        self._to.print(printable(" · ".join(told) if self._arrow == "→" else ", ".join(told)), style="bold")
        self._to.print()

    def row(self, finding: Finding) -> None:
        self._to.print(self._narrow(finding) if self._to.width < _NARROW else self._wide(finding))

    def foot(self, examined: Examination, *, is_written: bool) -> None:
        self._to.print()
        for line in conclusion(examined, is_written=is_written):
            self._to.print(line)

    def _wide(self, finding: Finding) -> RenderableType:
        from rich.table import Table as Grid

        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=self._mark_width)
        grid.add_column(width=_TITLE)
        grid.add_column(overflow="fold")
        grid.add_row(self._mark(finding), finding.title, finding.seen)
        if finding.remedy:
            grid.add_row("", "", self._remedy(finding))
        return grid

    def _narrow(self, finding: Finding) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        head = Text.assemble(self._mark(finding), " ", finding.title)
        rest: list[RenderableType] = [Text(finding.seen), *([self._remedy(finding)] if finding.remedy else [])]
        return Group(head, *(Padding(each, (0, 0, 0, self._mark_width + 1)) for each in rest))

    def _mark(self, finding: Finding) -> Text:
        from rich.text import Text

        return Text(self._marks[finding.verdict], _STYLES[finding.verdict])

    def _remedy(self, finding: Finding) -> RenderableType:
        from rich.table import Table as Grid

        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_row(self._arrow, finding.remedy)
        return grid


def _can_write(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def conclusion(examined: Examination, *, is_written: bool) -> Iterable[str]:
    blocking = [finding.title for finding in examined.findings if finding.blocks]
    made_up = [finding for finding in examined.findings if finding.verdict == "fails" and not finding.blocks]
    if examined.outcome == "broken":
        yield f"Not fit as it is: {', '.join(blocking)}."
    elif made_up or blocking:
        yield "antwort can work with it, in spite of what does not work by itself."
    else:
        yield "antwort can work with it."
    if examined.settings and not is_written:
        yield f"--write would record: {_listed(examined.settings)}."


def _listed(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{path}: {written(value)}" for path, value in settings.items() if path != "url") or "its address"
