"""Texts that are shortened say how much of them is missing, however often that is done."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.context.message_text import short_text
from plan_kit import STEADY

FILE = "".join(f"line {i} of the file\n" for i in range(10_000))
MARK = re.compile(r"\n\[… ([\d,]+) characters left out …\]\n")


def told(text: str) -> int:
    """How many characters are missing, by the marks."""
    return sum(int(number.replace(",", "")) for number in MARK.findall(text))


def whole(text: str) -> int:
    """How many characters there were, if the marks tell the truth."""
    return len(MARK.sub("", text)) + told(text)


def test_a_text_keeps_its_head_and_its_tail() -> None:
    text = short_text(FILE, 100)
    assert (text[:50], text[-50:]) == (FILE[:50], FILE[-50:])
    assert told(text) == len(FILE) - 100


def test_what_fits_or_would_gain_nothing_stays_as_it_is() -> None:
    assert short_text("abc", 3) == "abc"
    assert short_text("abc", 0) == "abc"


@STEADY
@given(st.lists(st.integers(0, 30_000), max_size=9))
def test_a_text_that_is_shortened_again_says_all_that_is_missing(sizes: list[int]) -> None:
    text = FILE
    for most in sizes:
        text = short_text(text, most)
        assert whole(text) == len(FILE)
        assert len(MARK.findall(text)) <= 1
        assert len(text) <= max(most, 0) + 100


@STEADY
@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(100, 3000), st.integers(0, 9000))
def test_no_mark_is_cut_in_two(before: int, behind: int, inner: int, most: int) -> None:
    """It may stand anywhere, in a text that others were put around."""
    text = "b" * before + short_text("x" * inner, 20) + "e" * behind
    text = short_text(text, min(most, len(text)))
    assert whole(text) == before + inner + behind
    assert text.count("characters left out") == text.count("…]") == text.count("[…")
