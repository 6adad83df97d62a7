"""What the model calls the tools: no two alike, and every name one that backends take."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

from msgspec.structs import replace

from antwort.tools.base import ToolDefinition, ToolKind

_LONGEST = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
OWN = frozenset({ToolKind.FUNCTION, ToolKind.CUSTOM})
"""Tools that the request declares itself, in a namespace or outside of any."""


def named_apart(found: Iterable[ToolDefinition]) -> dict[str, ToolDefinition]:
    """The tools by the names that the model sees.

    The tools that the request declares itself keep theirs, and those in a namespace go by `namespace__name`, numbered
    where that is another's. A server's tool keeps its own unless another has it too; then each of them goes by
    `label__name`, in whatever order they were declared.
    """
    tools = _without_repeats(found)
    own = _own_names([tool for tool in tools if tool.kind in OWN])
    wanted = Counter([*own, *(legal_name(tool.name) for tool in tools if tool.kind not in OWN)])
    taken = set(wanted)
    names = iter(own)
    named: dict[str, ToolDefinition] = {}
    for tool in tools:
        name = next(names) if tool.kind in OWN else legal_name(tool.name)
        if wanted[name] > 1 and tool.kind not in OWN:
            name = free_name(labelled_name(tool.server_label or "", tool.own_name), taken)
            taken.add(name)
        named[name] = tool if name == tool.name else replace(tool, name=name, server_tool=tool.own_name)
    return named


def _own_names(tools: Sequence[ToolDefinition]) -> list[str]:
    """Of the request's own tools. A name that was made up here makes way for one that was not."""
    taken = {tool.name for tool in tools if tool.name == tool.own_name}
    names: list[str] = []
    for tool in tools:
        name = tool.name
        if name != tool.own_name:
            name = free_name(legal_name(name), taken)
            taken.add(name)
        names.append(name)
    return names


def labelled_name(label: str, name: str) -> str:
    """The name of a server's tool that no other server's has; the same for namespaces."""
    return legal_name(f"{label}__{name}")


@lru_cache(maxsize=16_384)
def legal_name(name: str) -> str:
    """The name itself if backends take it, or one like it that they take."""
    legal = _ILLEGAL.sub("_", name)
    if legal == name and 0 < len(name) <= _LONGEST:
        return name
    # What is cut off or replaced may be all that told two names apart.
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{legal[: _LONGEST - len(mark) - 1]}_{mark}"


def free_name(name: str, taken: Container[str]) -> str:
    """The name, numbered where it is taken."""
    number = 2
    free = name
    while free in taken:
        free = f"{name[: _LONGEST - len(str(number)) - 1]}_{number}"
        number += 1
    return free


def _without_repeats(found: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """A server may be declared twice; it still has each of its tools once."""
    return list({(tool.kind in OWN, tool.namespace, tool.server_label, tool.own_name): tool for tool in found}.values())
