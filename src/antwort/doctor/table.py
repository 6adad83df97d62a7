"""The findings for people: a line each, what was seen beside it, and what follows below that."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TextIO

from antwort.config.problems import printable
from antwort.config.shown import written
from antwort.doctor.findings import PROBES, UNASKED, Examination, Finding, Value, Verdict

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Where there is no terminal to ask for its own."""
_NARROW = 56
_NARROWEST = 16
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
        has_marks = _can_write(to.encoding, "✓\N{EN DASH}→·")
        self._marks = _MARKS if has_marks else _PLAIN_MARKS
        self._arrow, self._dot = ("→", " · ") if has_marks else ("->", ", ")
        self._mark_width = max(map(len, self._marks.values()))
        beside = self._mark_width + _TITLE + 4
        self._indent = beside if to.width >= _NARROW else self._mark_width + 2
        self._is_wide = to.width >= _NARROW

    def head(self, examined: Examination) -> None:
        told = [examined.url, examined.engine.title, *([examined.model] if examined.model else [])]
        self._say(printable(self._dot.join(told)), "bold")
        self._say("")

    def row(self, finding: Finding) -> None:
        from rich.text import Text

        seen, *rest = [*self._wrapped(finding.seen), *self._remedy(finding)]
        mark = Text(self._marks[finding.verdict].ljust(self._mark_width), _STYLES[finding.verdict])
        title = finding.title.ljust(_TITLE) if self._is_wide else finding.title
        if self._is_wide:
            self._to.print(Text.assemble(mark, f"  {title}  {seen}"), soft_wrap=True)
        else:
            self._to.print(Text.assemble(mark, f"  {title}"), soft_wrap=True)
            rest = [seen, *rest]
        for line in rest:
            self._say(f"{' ' * self._indent}{line}")

    def foot(self, examined: Examination, *, has_tried: bool) -> None:
        """`has_tried`: the findings were to be recorded."""
        self._say("")
        for sentence in conclusion(examined, has_tried=has_tried):
            self._say(textwrap.fill(sentence, self._to.width, break_on_hyphens=False, break_long_words=False))

    def _remedy(self, finding: Finding) -> Iterator[str]:
        lead = f"{self._arrow} "
        for at, line in enumerate(self._wrapped(finding.remedy, len(lead)) if finding.remedy else []):
            yield f"{' ' * len(lead) if at else lead}{line}"

    def _wrapped(self, text: str, lead: int = 0) -> list[str]:
        width = max(self._to.width - self._indent - lead, _NARROWEST)
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]

    def _say(self, line: str, style: str | None = None) -> None:
        self._to.print(line, style=style, soft_wrap=True)


def _can_write(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def conclusion(examined: Examination, *, has_tried: bool) -> Iterator[str]:
    fails = [finding for finding in examined.findings if finding.verdict == "fails"]
    if examined.outcome == "broken":
        blocking = [finding for finding in fails if finding.blocks]
        is_mended = not has_tried and all(finding.settings for finding in blocking)
        mended = ", which --write mends" if is_mended else ""
        yield f"Not fit as it is: {', '.join(finding.title for finding in blocking)}{mended}."
    elif any(finding.seen == UNASKED for finding in examined.findings):
        yield "What could be asked does not speak against it; ask the rest another time."
    elif fails:
        yield "antwort can work with it, in spite of what does not work by itself."
    else:
        yield "antwort can work with it."
    if examined.settings and not has_tried:
        yield f"--write records: {_listed(examined.settings)}."
    if examined.models > 1:
        asked = printable(examined.model or "none")
        yield (
            f"Of its {examined.models} models only {asked} was asked, and its settings hold for all of them: "
            "how the others call tools, and whether they see, is not known."
        )


def _listed(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{path}: {written(value)}" for path, value in settings.items() if path != "url") or "its address"
