"""What backends and keys may be called."""

from __future__ import annotations

import re

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
NAME_IN_WORDS = "a name of at most 64 letters, digits, `_`, `.` and `-`"


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None
