"""A server's list of tools, as it comes in pages: what is a tool, and how much of it is taken. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from antwort.tools.mcp.base import ServerTool, ServerUnavailable
from antwort.tools.mcp.messages import NOT_AN_ANSWER

MOST_TOOLS = 5_000
MOST_PAGES = 500
MOST_BYTES = 32 * 2**20
STRANGERS_BYTES = 2**20
"""Of a server that a request has named by address: everybody can name many of those."""
STRANGERS_PAGE = 4 * 2**20
"""Bytes of one page of theirs, of which not all need be taken. Those of an operator's own are as other messages."""
_LONGEST_NAME = 256


class ToolList:
    """Takes pages until there are no more, or no more are taken. `usable` judges what a tool takes; all together take
    at most `most` bytes.
    """

    def __init__(self, usable: Callable[[object], bool], most: int | None = None) -> None:
        self._usable = usable
        self._most = MOST_BYTES if most is None else most
        self._found: dict[str, ServerTool] = {}
        self._cursors: set[str] = set()
        self._pages = self._seen = self._bytes = self._odd = 0
        self._is_cut = False

    @property
    def tools(self) -> tuple[ServerTool, ...]:
        return tuple(self._found.values())

    @property
    def size(self) -> int:
        """Bytes of what was taken, as JSON."""
        return self._bytes

    @property
    def left_out(self) -> str:
        """What was not taken, in words; empty where all was."""
        odd = f"{self._odd} in it are no tools" if self._odd else ""
        cut = "it is too long" if self._is_cut else ""
        return " and ".join(filter(None, (odd, cut)))

    def feed(self, page: object) -> str | None:
        """Take a page; gives the cursor of the next one to ask for. Raises `ServerUnavailable`."""
        if not isinstance(page, dict) or not isinstance(listed := page.get("tools"), list):
            raise ServerUnavailable(NOT_AN_ANSWER)
        self._pages += 1
        self._is_cut = self._is_cut or len(listed) > MOST_TOOLS
        for one in listed[:MOST_TOOLS]:
            size = _size(one)
            self._seen += size
            self._odd += not self._add(one, size)
        return self._next(page.get("nextCursor"))

    def _next(self, cursor: object) -> str | None:
        if not isinstance(cursor, str) or not cursor:
            return None
        taken = len(self._found) + self._odd
        is_full = taken >= MOST_TOOLS or self._pages >= MOST_PAGES or self._seen >= self._most
        if is_full or cursor in self._cursors:  # or it goes round in circles
            self._is_cut = True
            return None
        self._cursors.add(cursor)
        return cursor

    def _add(self, one: object, size: int) -> bool:
        tool = read_tool(one)
        if tool is None:
            return False
        if (first := self._found.get(tool.name)) is not None:
            if first.annotations != tool.annotations:  # nobody knows which of the two a call would run
                self._found[tool.name] = replace(first, annotations=None)
            return False
        if not self._usable(tool.input_schema):
            return False
        if len(self._found) < MOST_TOOLS and self._bytes + size <= self._most:
            self._found[tool.name] = tool
            self._bytes += size
        else:
            self._is_cut = True
        return True


def read_tool(one: object) -> ServerTool | None:
    """None for what is no tool."""
    if not isinstance(one, dict):
        return None
    name, schema = one.get("name"), one.get("inputSchema", {})
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not isinstance(schema, dict):
        return None
    return ServerTool(
        name=name,
        title=_text(one, "title"),
        description=_text(one, "description"),
        input_schema=schema,
        output_schema=_mapping(one, "outputSchema"),
        annotations=_mapping(one, "annotations"),
    )


def _text(one: Mapping[str, Any], field: str) -> str | None:
    return value if isinstance(value := one.get(field), str) else None


def _mapping(one: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    return value if isinstance(value := one.get(field), dict) else None


def _size(one: object) -> int:
    try:
        return len(msgspec.json.encode(one))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError):
        return 2 * MOST_BYTES  # nothing that could be sent on
