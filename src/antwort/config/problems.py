"""Errors of the configuration, in words that repeat no secret: a slip of the finger may have put one anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from antwort.config.secrets import may_be_secret

_WORD = re.compile(r"[a-z_.]+")
_MAX_NAME_CHARS = 60


class CannotStart(Exception):
    """The server cannot start as it is set up; the message is one sentence for the operator, with the fix."""


class Problem(NamedTuple):
    """A fault of one setting. `what` follows the setting's path in the sentence, and holds no secret."""

    path: str
    what: str
    hint: str = ""
    origin: str = ""

    @property
    def is_usage(self) -> bool:
        """Whether it is a fault of the command line."""
        return self.origin.startswith("--")

    def __str__(self) -> str:
        by_flag = self.is_usage and self.origin != "--set"
        place = "" if by_flag or self.origin in ("", self.path) else f" ({self.origin})"
        hint = f"; {self.hint}" if self.hint else ""
        sentence = printable(f"{self.origin if by_flag else self.path} {self.what}{place}{hint}")
        return sentence if sentence.endswith("?") else f"{sentence}."


class BadSettings(CannotStart):
    """All faults of the settings. The message is about the first one; `problems` has them all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        more = len(problems) - 1
        rest = f" (`antwort config check` lists {more} more.)" if more else ""
        super().__init__(f"{problems[0]}{rest}")
        self.problems = tuple(problems)


def printable(text: str) -> str:
    """Return the text with all characters escaped that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def plausible(name: str) -> str:
    """Return the beginning of a name, up to the first character that no name has; empty if it may be a secret."""
    head = re.split(r"[^A-Za-z0-9_.-]", name, maxsplit=1)[0]
    return head[:_MAX_NAME_CHARS] if _WORD.fullmatch(head) or not may_be_secret(head) else ""


def missing_space(name: str) -> str:
    """Return a hint for a name that has run together with its value; empty if it has not."""
    return "a space is missing after the colon" if name[len(plausible(name)) :].startswith(":") else ""
