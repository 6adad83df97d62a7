"""What a model or a tool says is shown, never obeyed. Pure."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # what moves the cursor, rings, renames windows, begins sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # line breaks and marks that terminals take each in their own way
    "\U000e0000-\U000e007f"  # letters that nobody sees
    "\ud800-\udfff]"  # halves of characters, which cannot be written
)
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What a terminal would obey if it were shown the file, and what cannot be written."""
_PICTURES = 0x2400
_TAB = "    "


def scrub(text: str) -> str:
    """The text with nothing in it that a terminal would obey. What was there is shown by a sign in its place.

    Lines end with LF alone, and tabs are blanks: how far a tab goes is known to the terminal only.
    """
    return _UNSEEN.sub(_sign, text.replace("\r\n", "\n").expandtabs(len(_TAB)))


def scrub_for_file(text: str) -> str:
    """The text as it was said, for a file or a program: tabs and directions of writing stay, and lines end with LF
    alone. Only what would begin an order to a terminal is shown by a sign.
    """
    return _ORDERS.sub(_sign, text.replace("\r\n", "\n"))


def in_one_line(text: str, longest: int = 200) -> str:
    """For a place that has one line: scrubbed, its white space closed up, its end cut off."""
    return shortened(" ".join(scrub(text[: longest * 4]).split()), longest)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == 0x7F else "\ufffd"
