"""Markdown that is still being written, cut into blocks: those that nothing can change any more, and the last. Pure.

A list is cut into its items, so that a long one is written as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")
"""Nothing that is said gets lost: tags are text here, and so are definitions of links."""

_STRUCTURE = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["reference", "inline"])
"""Finds the same blocks, and spares itself what is in them: it is asked again with every piece that comes."""
_LISTS = {"bullet_list_open": "bullet", "ordered_list_open": "number"}


class Block(NamedTuple):
    kind: str
    """`bullet` and `number` are items of lists; the others are called as the parser calls them."""
    source: str
    """With the blank lines behind it."""
    is_finished: bool

    def joins(self, before: str) -> bool:
        """Whether no blank line stands between it and a block of the kind `before`."""
        return self.kind == before and self.kind in _LISTS.values()


def split(text: str, *, is_whole: bool) -> list[Block]:
    """The blocks of `text`, which begins with one. The last is finished when the text is whole.

    What Markdown makes of a line is known when the line is: a block is finished when a whole line behind it has begun
    the next.
    """
    lines = text.split("\n")
    whole = len(lines) - 1
    starts = list(_starts(_STRUCTURE.parse(text)))
    ends = [*(line for _, line in starts[1:]), len(lines)][: len(starts)]
    return [
        Block(kind, _source(lines, 0 if i == 0 else start, end), is_whole or (end < whole and i + 1 < len(starts)))
        for i, ((kind, start), end) in enumerate(zip(starts, ends, strict=True))
    ]


def _source(lines: list[str], start: int, end: int) -> str:
    """The lines as they stood, with the break behind them where there was one."""
    return "\n".join(lines[start:end]) + ("\n" if end < len(lines) else "")


def _starts(tokens: list[Token]) -> Iterator[tuple[str, int]]:
    """The kind of each block, and the line it begins with."""
    within = ""
    for token in tokens:
        if token.level == 0:
            within = _LISTS.get(token.type, "")
        if token.map is None or token.nesting == -1:
            continue
        if token.level == 0 and not within:
            yield token.type.removesuffix("_open"), token.map[0]
        elif token.level == 1 and within and token.type == "list_item_open":
            yield within, token.map[0]
