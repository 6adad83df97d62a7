"""The last lines of the terminal, which still change; all above them is written for good.

Only lines that differ are written again, and all of a change in one piece: nothing flickers, and what has gone up is
the terminal's to scroll.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.cells import cell_len

_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def rows(lines: Sequence[str], width: int) -> int:
    """How many rows the lines take in a terminal of this width; one that was made narrower has broken some of them."""
    return sum(max(1, -(-cell_len(_STYLES.sub("", line)) // max(width, 1))) for line in lines)


def repaint(old: Sequence[str], above: Sequence[str], new: Sequence[str], width: int) -> str:
    """What turns the lines `old` into `new`, with `above` written for good before them.

    The cursor stands at the beginning of the line below the last one, before and after.
    """
    same = 0 if above else _same(old, new)
    written = [*above, *new[same:]]
    up = rows(old[same:], width)
    if not up:
        return "".join(f"{line}\n" for line in written)
    if above or len(new) < len(old) or up != len(old) - same:
        return f"\x1b[{up}A\r\x1b[J" + "".join(f"{line}\n" for line in written)
    return f"\x1b[{up}A\r" + "".join(f"\x1b[2K{line}\n" for line in written)


def _same(old: Sequence[str], new: Sequence[str]) -> int:
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return same


class Region:
    """`is_still`: the terminal cannot move its cursor, so only what is final is written."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int], *, is_still: bool = False) -> None:
        self._write, self._width, self._is_still = write, width, is_still
        self._lines: list[str] = []

    def show(self, above: Sequence[str] = (), lines: Sequence[str] = ()) -> None:
        lines = [] if self._is_still else list(lines)
        if above or lines != self._lines:
            self._write(repaint(self._lines, above, lines, self._width()))
            self._lines = lines
