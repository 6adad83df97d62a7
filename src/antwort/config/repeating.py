"""What of an operator's own words is repeated to them: a slip of the finger may have put a secret there."""

from __future__ import annotations

import re

from antwort.config.secrets import may_be_secret

_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_WORD = re.compile(r"[a-z_.]+")
_LONGEST = 60
SPACE = "a space is missing after the colon"


def printable(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def plausible(name: str) -> str:
    """As much of a name as may be one: up to the first character that no name has. Empty where it may be a secret."""
    found = _NAME.match(name)
    head = found[0] if found else ""
    is_shown = _WORD.fullmatch(head) or not may_be_secret(head)
    return head[:_LONGEST] if is_shown else ""


def slip(name: str) -> str:
    """What has gone wrong in a name that is none; empty where that is not known."""
    return SPACE if name[len(plausible(name)) :].startswith(":") else ""
