"""What keeps a server from starting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antwort.config.repeating import printable


class CannotStart(Exception):
    """The server cannot start as it is set up; the message is one sentence for the operator, with the fix."""


class Problem(NamedTuple):
    """Something wrong with one setting. `what` goes on after the setting's path, and holds no secret."""

    path: str
    what: str
    hint: str = ""
    origin: str = ""

    @property
    def is_usage(self) -> bool:
        """Whether it came from the command line."""
        return self.origin.startswith("--")

    def __str__(self) -> str:
        by_flag = self.is_usage and self.origin != "--set"
        place = "" if by_flag or self.origin in ("", self.path) else f" ({self.origin})"
        sentence = f"{self.origin if by_flag else self.path} {self.what}{place}"
        if self.hint:
            sentence = f"{sentence}; {self.hint}"
        sentence = printable(sentence)
        return sentence if sentence.endswith("?") else f"{sentence}."


class BadSettings(CannotStart):
    """What is wrong with the settings. The message is about the first problem; `problems` are all that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        more = len(problems) - 1
        rest = f" (`antwort config check` lists {more} more.)" if more else ""
        super().__init__(f"{problems[0]}{rest}")
        self.problems = tuple(problems)
