"""How a block of Markdown looks: quiet, without frames, nothing hidden behind words."""

from __future__ import annotations

from typing import ClassVar

from markdown_it.token import Token
from rich import box, markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from antwort.chat.blocks import PARSER

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
    """In the terminal's own colours, on its own ground."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(syntax, _INDENT)


class _Heading(markdown.Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Item(markdown.ListItem):
    """With a dot behind its number."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        sign = f"{number}. ".rjust(len(str(last_number)) + 2)
        lines = console.render_lines(self.elements, options.update(width=options.max_width - len(sign)))
        style = console.get_style("markdown.item.number")
        for at, line in enumerate(lines):
            yield Segment(" " * len(sign) if at else sign, style)
            yield from line
            yield Segment.line()


class _Table(markdown.TableElement):
    """A word that is longer than its column is broken, not cut off."""

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
    """Links show where they lead, in plain sight; the terminal is not told to make them clickable."""

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
    """A line that the model ends is one, as in a poem: few models break the lines of a paragraph otherwise. A picture
    is told in words, among the others, and nothing of an address is kept back.
    """
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


def rendered(source: str) -> RenderableType:
    return Markdown(source)
