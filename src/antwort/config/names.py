"""What backends, keys and headers may be called."""

from __future__ import annotations

import re

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
NAME_IN_WORDS = "a name of at most 64 letters, digits, `_`, `.` and `-`"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def is_token(text: str) -> bool:
    """Whether it can be the name of a header."""
    return _TOKEN.fullmatch(text) is not None


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None
