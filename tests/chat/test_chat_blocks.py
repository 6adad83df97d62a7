"""Markdown that is still being written, cut into blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.chat.markdown import split

PIECES = [
    *(
        "# ",
        "- ",
        "* ",
        "1. ",
        "10) ",
        "> ",
        "```",
        "```py\n",
        "~~~\n",
        "\n",
        "\n\n",
        "**",
        "`",
        "word ",
        "-",
        "#",
        "=",
    ),
    *("|a|b|\n", "|-|-|\n", "|x|", "    code\n", "---\n", "===\n", "[x]: http://u\n", "<b>", "\\", "  ", "&amp;"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def kinds(text: str, *, is_whole: bool = True) -> list[tuple[str, bool]]:
    return [(block.kind, block.is_finished) for block in split(text, is_whole=is_whole)]


def test_every_kind_of_block_stands_for_itself() -> None:
    text = "# One\n\nTwo\nlines.\n\n- a\n  - b\n- c\n\n1. d\n\n```py\ne\n```\n\n|f|g|\n|-|-|\n|h|i|\n\n> j\n\n---\n"
    assert [kind for kind, _ in kinds(text)] == [
        *("heading", "paragraph", "bullet", "bullet", "number", "fence", "table", "blockquote", "hr"),
    ]


def test_the_last_block_is_finished_when_the_text_is() -> None:
    assert kinds("One\n\nTwo\n", is_whole=False) == [("paragraph", True), ("paragraph", False)]
    assert kinds("One\n\nTwo\n") == [("paragraph", True), ("paragraph", True)]


@pytest.mark.parametrize("text", ["- a\n-", "- a\n*", "a\n#", "a\n>", "a\n```"])
def test_a_line_that_is_not_whole_finishes_nothing_before_it(text: str) -> None:
    """`- a` and then `-b` is one item of two lines: it is not known before the line is."""
    assert not any(is_finished for _, is_finished in kinds(text, is_whole=False))


def test_items_of_a_list_stand_together_and_all_else_apart() -> None:
    first, second, third = split("- a\n- b\n\nc\n", is_whole=True)
    assert second.joins(first.kind)
    assert not third.joins(second.kind)
    assert not first.joins("paragraph")


def test_nothing_but_white_space_is_no_block() -> None:
    assert split(" \n\n", is_whole=True) == []


@given(TEXTS)
def test_the_blocks_together_are_the_text(text: str) -> None:
    blocks = split(text, is_whole=True)
    assert "".join(block.source for block in blocks) == (text if blocks else "")


@given(TEXTS, st.integers(0, 100))
def test_a_finished_block_stays_as_it_is_whatever_comes(text: str, cut: int) -> None:
    finished = [block for block in split(text[:cut], is_whole=False) if block.is_finished]
    whole = split(text, is_whole=True)
    assert [(block.kind, block.source) for block in finished] == [
        (block.kind, block.source) for block in whole[: len(finished)]
    ]


@given(TEXTS)
def test_the_rest_behind_a_block_reads_the_same_without_it(text: str) -> None:
    """So that what is written for good does not have to be read again."""
    whole = split(text, is_whole=True)
    if whole:
        rest = split(text[len(whole[0].source) :], is_whole=True)
        assert [block.source for block in rest] == [block.source for block in whole[1:]]
