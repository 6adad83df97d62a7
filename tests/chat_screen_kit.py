"""A terminal that is only thought of: what is written to it, and what can be read on it then."""

from __future__ import annotations

import io

import pyte
from rich.console import Console

from antwort.chat.answer import ChatAnswer, Part
from antwort.chat.answer_view import AnswerView
from antwort.chat.markdown import THEME
from antwort.chat.screen import Screen


class ThoughtOf:
    def __init__(self, width: int = 80, height: int = 24) -> None:
        self._bytes, self._width = io.BytesIO(), width
        self.paper = io.TextIOWrapper(self._bytes, encoding="utf-8", newline="\n")
        console = Console(
            file=self.paper,
            theme=THEME,
            force_terminal=True,
            color_system=None,
            width=width,
            height=height,
            legacy_windows=False,
        )
        self.screen = Screen(self.paper, console)
        self._seen = pyte.HistoryScreen(width, height, history=100_000)
        self._stream = pyte.Stream(self._seen)
        self._read = 0

    @property
    def written(self) -> str:
        return self._bytes.getvalue().decode()

    def lines(self) -> list[str]:
        """All lines, those that have scrolled away among them, without the empty ones at the end."""
        new = self.written[self._read :]
        self._read += len(new)
        self._stream.feed(new.replace("\n", "\r\n"))
        past = ["".join(line[column].data for column in range(self._width)) for line in self._seen.history.top]
        return "\n".join(line.rstrip() for line in [*past, *self._seen.display]).rstrip("\n").split("\n")


def view_of(terminal: ThoughtOf, *parts: Part) -> tuple[AnswerView, ChatAnswer]:
    answer = ChatAnswer(began=0.0, parts=list(parts))
    return AnswerView(terminal.screen, answer), answer
