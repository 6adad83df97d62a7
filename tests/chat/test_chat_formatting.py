"""What is shown of a text that others wrote."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.chat.formatting import one_line, sanitize, shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ümläuts, 日本語 and 🙂", "plain, with ümläuts, 日本語 and 🙂"),
        ("two\nlines\r\nthree", "two\nlines\nthree"),
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("over\rwritten", "over␍written"),
        ("\x9b2J", "\ufffd2J"),
        ("\x7f", "␡"),
        ("safe\u202eevil", "safe\ufffdevil"),
        ("hid\U000e0041den", "hid\ufffdden"),
        ("half \ud800", "half \ufffd"),
        ("a\tb", "a   b"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_by_a_sign(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    left = {
        c for c in sanitize(text) if unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in BIDI
    }
    assert left <= {"\n"}
    sanitize(text).encode()


BIDI = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


@given(st.text(alphabet="ab \t\r\n\x1b"), st.integers(0, 20))
def test_what_is_shown_of_the_beginning_stays_when_more_comes(text: str, cut: int) -> None:
    """But for a CR at the very end, which may be half of a line's end; the length is the same."""
    begun, whole = sanitize(text[:cut]), sanitize(text)
    assert whole.startswith(begun.removesuffix("␍"))
    assert len(begun) <= len(whole)


def test_one_line_has_no_more_than_it_may() -> None:
    assert one_line("  a\n b\x1b  c ") == "a b␛ c"
    assert one_line("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"
