"""What the model calls the tools of servers: no two alike, and every name one that backends take."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable

from msgspec.structs import replace

from antwort.tools.base import ToolDefinition, ToolKind

_LONGEST = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def named_apart(found: Iterable[ToolDefinition]) -> dict[str, ToolDefinition]:
    """The tools by the names that the model sees.

    The functions that the request declares keep theirs. A server's tool keeps its own unless another has it too; then
    each of them goes by `label__name`, in whatever order they were declared.
    """
    tools = _without_repeats(found)
    wanted = Counter(_wanted(tool) for tool in tools)
    taken = set(wanted)
    named: dict[str, ToolDefinition] = {}
    for tool in tools:
        name = _wanted(tool)
        if wanted[name] > 1 and tool.kind is not ToolKind.FUNCTION:
            name = _free(labelled_name(tool.server_label or "", tool.own_name), taken)
            taken.add(name)
        named[name] = tool if name == tool.name else replace(tool, name=name, server_tool=tool.own_name)
    return named


def _wanted(tool: ToolDefinition) -> str:
    return tool.name if tool.kind is ToolKind.FUNCTION else legal_name(tool.name)


def labelled_name(label: str, name: str) -> str:
    """The name of a server's tool that no other server's has."""
    return legal_name(f"{label}__{name}")


def legal_name(name: str) -> str:
    """The name itself if backends take it, or one like it that they take."""
    legal = _ILLEGAL.sub("_", name)
    if legal == name and len(name) <= _LONGEST:
        return name
    # What is cut off or replaced may be all that told two names apart.
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{legal[: _LONGEST - len(mark) - 1]}_{mark}"


def _without_repeats(found: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """A server may be declared twice; it still has each of its tools once."""
    return list({(tool.kind is ToolKind.FUNCTION, tool.server_label, tool.own_name): tool for tool in found}.values())


def _free(name: str, taken: Container[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free = f"{name[: _LONGEST - len(str(number)) - 1]}_{number}"
        number += 1
    return free
