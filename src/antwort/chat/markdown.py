"""Split Markdown into blocks, and render a block: without frames, and with the addresses of links in sight."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box, markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")
"""HTML and link definitions are text, so that nothing is lost."""
_STRUCTURE_PARSER = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["reference", "inline"])
"""Finds the same blocks without parsing their content: it runs again with every piece of text."""
_LISTS = {"bullet_list_open": "bullet", "ordered_list_open": "number"}
THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
_INDENT = (0, 0, 0, 2)


class _Code(markdown.CodeBlock):
    """With the terminal's own colours and background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(syntax, _INDENT)


class _Heading(markdown.Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Item(markdown.ListItem):
    """With a full stop after the number."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        sign = f"{number}. ".rjust(len(str(last_number)) + 2)
        lines = console.render_lines(self.elements, options.update(width=options.max_width - len(sign)))
        style = console.get_style("markdown.item.number")
        for at, line in enumerate(lines):
            yield Segment(" " * len(sign) if at else sign, style)
            yield from line
            yield Segment.line()


class _Table(markdown.TableElement):
    """Words that are longer than their column are wrapped, not cut off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE, pad_edge=False, style="markdown.table.border", collapse_padding=True)
        for cell in _cells(self.header.row if self.header else None):
            heading = cell.copy()
            heading.stylize("markdown.table.header")
            table.add_column(heading, overflow="fold")
        for row in self.body.rows if self.body else ():
            table.add_row(*_cells(row))
        yield table


def _cells(row: markdown.TableRowElement | None) -> list[Text]:
    return [cell.content for cell in row.cells] if row else []


class Markdown(markdown.Markdown):
    """Shows the addresses of links, and does not make them clickable."""

    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "table_open": _Table,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed: list[Token] = PARSER.parse(source)
        for token in self.parsed:
            token.children = token.children and [_inline(child) for child in token.children]


def _inline(token: Token) -> Token:
    """Keep the line breaks of the model, show pictures as text, and addresses with their titles."""
    match token.type:
        case "softbreak":
            token.type = "hardbreak"
        case "link_open":
            token.attrs["href"] = _address(token, "href")
        case "image":
            return Token("text", "", 0, content=f"[{token.content or 'image'}]({_address(token, 'src')})")
    return token


def _address(token: Token, name: str) -> str:
    address, title = (str(token.attrs.get(attribute, "")) for attribute in (name, "title"))
    return f'{address} "{title}"' if title else address


# ---- text that still grows ----


class Block(NamedTuple):
    kind: str
    """`bullet` and `number` for items of lists; others as the parser names them."""
    source: str
    """With the blank lines behind it."""
    is_finished: bool

    def joins(self, before: str) -> bool:
        """Return whether no blank line is between it and a block of the kind `before`."""
        return self.kind == before and self.kind in _LISTS.values()


def split(text: str, *, is_whole: bool) -> list[Block]:
    """Split text into blocks, and lists into their items. The last block is finished only if the text is whole.

    A block is finished when a complete line behind it has begun the next one.
    """
    lines = text.split("\n")
    complete = len(lines) - 1
    starts: list[tuple[str, int]] = []
    list_kind = ""
    for token in _STRUCTURE_PARSER.parse(text):
        if token.level == 0:
            list_kind = _LISTS.get(token.type, "")
        if token.map is None or token.nesting == -1:
            continue
        if token.level == 0 and not list_kind:
            starts.append((token.type.removesuffix("_open"), token.map[0]))
        elif token.level == 1 and list_kind and token.type == "list_item_open":
            starts.append((list_kind, token.map[0]))
    blocks = []
    for number, (kind, start) in enumerate(starts):
        is_last = number + 1 == len(starts)
        end = len(lines) if is_last else starts[number + 1][1]
        source = "\n".join(lines[start if number else 0 : end]) + ("\n" if end < len(lines) else "")
        blocks.append(Block(kind, source, is_whole or (end < complete and not is_last)))
    return blocks
