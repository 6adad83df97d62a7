"""What servers offer, as a response shows it: whole, or as much of it as fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, takewhile

import msgspec

from antwort.api.items import McpListTools, McpToolInfo
from antwort.api.wire import UNSET, replace

_LONGEST = 256 * 1024
"""Bytes of a list. It is sent twice with each response, and kept with it."""
_LONGEST_ABOUT = 200


def shortened(listing: McpListTools) -> McpListTools:
    """The list, without the schemas where it is too long with them; then without what is said of the tools. Of names
    alone, there are as many as fit.
    """
    for tools in _ways(listing.tools):
        if len(msgspec.json.encode(tools)) <= _LONGEST:
            return listing if tools is listing.tools else replace(listing, tools=tools)
    names = [_told(tool, "") for tool in listing.tools]
    ends = accumulate(len(msgspec.json.encode(name)) + 1 for name in names)
    return replace(listing, tools=tuple(names[: sum(1 for _ in takewhile(lambda end: end <= _LONGEST, ends))]))


def _ways(tools: tuple[McpToolInfo, ...]) -> Iterator[tuple[McpToolInfo, ...]]:
    yield tools
    yield tuple(_told(tool, "" if tool.description is UNSET else tool.description) for tool in tools)


def _told(tool: McpToolInfo, about: str) -> McpToolInfo:
    words = about if len(about) <= _LONGEST_ABOUT else f"{about[:_LONGEST_ABOUT]}…"
    return McpToolInfo(name=tool.name, input_schema={"type": "object"}, description=words or UNSET)
