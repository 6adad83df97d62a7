"""Print findings as a table: a line for each, what was seen beside it, and what follows below."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import TextIO

from antwort.config.problems import printable
from antwort.config.shown import written
from antwort.doctor.findings import NOT_ASKED, PROBES, Examination, Finding, Verdict

WIDTH = 100
"""Columns where the output is not a terminal."""
_NARROW = 56
_MIN_TEXT_WIDTH = 16
_TITLE_WIDTH = max(map(len, PROBES.values()))
_MARKS: Mapping[Verdict, str] = {"works": "✓", "fails": "\N{EN DASH}", "unknown": "?"}
_ASCII_MARKS: Mapping[Verdict, str] = {"works": "ok", "fails": "no", "unknown": "?"}
_BOLD = 1
_COLOURS: Mapping[Verdict, int] = {"works": 32, "fails": 31, "unknown": 33}


class FindingsTable:
    """Print findings to `file` as they come. On a terminal, `progress` shows on its last line what is asked."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_terminal = file.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colours = self._is_terminal and not os.environ.get("NO_COLOR")
        self._has_progress = False
        self._width = _width(file)
        self._encoding = file.encoding or "ascii"
        has_marks = _can_encode("✓\N{EN DASH}→·…", self._encoding)
        self._marks = _MARKS if has_marks else _ASCII_MARKS
        self._arrow, self._dot, self._ellipsis = ("→ ", " · ", "…") if has_marks else ("-> ", ", ", "...")
        self._mark_width = max(map(len, self._marks.values()))
        self._is_wide = self._width >= _NARROW
        self._indent = self._mark_width + 2 + (_TITLE_WIDTH + 2 if self._is_wide else 0)

    def progress(self, probe: str) -> None:
        """Show which probe is running, until the next line is printed."""
        if self._is_terminal:
            self._has_progress = True
            self._file.write(f"\r\x1b[2K{PROBES[probe]} {self._ellipsis}")
            self._file.flush()

    def end_progress(self) -> None:
        if self._has_progress:
            self._has_progress = False
            self._file.write("\r\x1b[2K")
            self._file.flush()

    def head(self, examined: Examination) -> None:
        parts = [examined.url, examined.engine.title, *([examined.model] if examined.model else [])]
        self._print(self._styled(printable(self._dot.join(parts)), _BOLD), "")

    def row(self, finding: Finding) -> None:
        mark = self._styled(self._marks[finding.verdict].ljust(self._mark_width), _COLOURS[finding.verdict])
        lines = self._wrap(finding.seen)
        for at, line in enumerate(self._wrap(finding.remedy, len(self._arrow)) if finding.remedy else []):
            lines.append(f"{' ' * len(self._arrow) if at else self._arrow}{line}")
        title = finding.title
        if self._is_wide:
            title = f"{title.ljust(_TITLE_WIDTH)}  {lines.pop(0)}"
        self._print(f"{mark}  {title}", *(f"{' ' * self._indent}{line}" for line in lines))

    def foot(self, examined: Examination, *, has_tried: bool) -> None:
        """Print the conclusion. `has_tried`: whether recording the findings was tried."""
        sentences = conclusion(examined, has_tried=has_tried)
        wrapped = (
            textwrap.fill(each, self._width, break_on_hyphens=False, break_long_words=False) for each in sentences
        )
        self._print("", *wrapped)

    def _wrap(self, text: str, lead: int = 0) -> list[str]:
        width = max(self._width - self._indent - lead, _MIN_TEXT_WIDTH)
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]

    def _styled(self, text: str, style: int) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._has_colours else text

    def _print(self, *lines: str) -> None:
        self.end_progress()
        text = "".join(f"{line}\n" for line in lines)
        self._file.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))
        self._file.flush()


def _width(file: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and 20 <= int(columns) <= 1000:
        return int(columns)
    try:
        return os.get_terminal_size(file.fileno()).columns or WIDTH
    except (OSError, ValueError):  # not a terminal, or closed
        return WIDTH


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True


def conclusion(examined: Examination, *, has_tried: bool) -> Iterator[str]:
    failed = [finding for finding in examined.findings if finding.verdict == "fails"]
    if examined.outcome == "broken":
        blocking = [finding for finding in failed if finding.blocks]
        is_mended = not has_tried and all(finding.settings for finding in blocking)
        titles = ", ".join(finding.title for finding in blocking)
        yield f"Not fit as it is: {titles}{', which --write mends' if is_mended else ''}."
    elif any(finding.seen == NOT_ASKED for finding in examined.findings):
        yield "What could be asked does not speak against it; ask the rest another time."
    elif failed:
        yield "antwort can work with it, in spite of what does not work by itself."
    else:
        yield "antwort can work with it."
    if examined.settings and not has_tried:
        settings = [f"{path}: {written(value)}" for path, value in examined.settings.items() if path != "url"]
        yield f"--write records: {', '.join(settings) or 'its address'}."
    if examined.models > 1:
        asked = printable(examined.model or "none")
        yield (
            f"Of its {examined.models} models only {asked} was asked, and its settings hold for all of them: "
            "how the others call tools, and whether they see, is not known."
        )
