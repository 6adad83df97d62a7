"""Names of tools for the model: unique, legal for backends, and mapped to the names of clients and servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from antwort.api.items import CustomToolCall, FunctionCall
from antwort.api.wire import UNSET
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Toolbox

Tools: TypeAlias = Mapping[str, ToolDefinition]
"""The tools of a request, by the names that the model sees."""

_LONGEST = 64
_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
OWN = frozenset({ToolKind.FUNCTION, ToolKind.CUSTOM})
"""Tools that the request declares itself, in a namespace or outside of any."""


def named_apart(found: Iterable[ToolDefinition]) -> dict[str, ToolDefinition]:
    """Return the tools by the names that the model sees.

    The tools that the request declares itself keep theirs, and those in a namespace go by `namespace__name`, numbered
    where that is another's. A server's tool keeps its own unless another has it too; then each of them goes by
    `label__name`, in whatever order they were declared.
    """
    tools = {_origin_of(tool): tool for tool in found}.values()  # each once, even where its server is declared twice
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
    """Return the names of the request's own tools. A generated name gives way to one that the client chose."""
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
    """Return the name of a tool of a server or a namespace that no other one has."""
    return legal_name(f"{label}__{name}")


def legal_name(name: str) -> str:
    """Return the name itself if backends take it, or one like it that they take."""
    if _LEGAL.fullmatch(name):
        return name
    # Two names may differ only in what is cut off or replaced.
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL.sub('_', name)[: _LONGEST - len(mark) - 1]}_{mark}"


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if it is taken."""
    number = 2
    free = name
    while free in taken:
        free = f"{name[: _LONGEST - len(str(number)) - 1]}_{number}"
        number += 1
    return free


Origin: TypeAlias = tuple[bool, str | None, str]
"""Where a tool comes from: whether the request declares it itself, its namespace or server, and its name there."""


def _origin_of(tool: ToolDefinition) -> Origin:
    is_own = tool.kind in OWN
    return is_own, tool.namespace if is_own else tool.server_label, tool.own_name


# ---- tools by the names that clients and servers use ----


def find_own(tools: Tools, namespace: str | None, name: str) -> ToolDefinition | None:
    """Return the tool that the request declares itself under that name."""
    return _find(tools, (True, namespace, name), name if namespace is None else labelled_name(namespace, name))


def _find(tools: Tools, origin: Origin, *likely: str) -> ToolDefinition | None:
    """Return the tool that comes from there. Its `likely` names are tried first, then all tools are searched."""
    for name in likely:
        if (tool := tools.get(name)) is not None and _origin_of(tool) == origin:
            return tool
    return next((tool for tool in tools.values() if _origin_of(tool) == origin), None)


def called_name(toolbox: Toolbox, call: FunctionCall | CustomToolCall) -> str:
    """Return the model's name for the tool that the client knows by this name and namespace."""
    namespace = None if call.namespace is UNSET else call.namespace
    if (own := find_own(toolbox.tools, namespace, call.name)) is not None:
        return own.name
    if namespace is None:
        return call.name
    # Not declared any more; its old name must not mean another tool now.
    return free_name(labelled_name(namespace, call.name), toolbox.tools)


def model_name(toolbox: Toolbox, label: str, name: str) -> str:
    """Return the model's name for the tool that its server calls `name`."""
    tool = toolbox.tools.get(name)
    if tool is not None and tool.server_label == label and name == (tool.server_tool or tool.name):
        return name
    if (tool := _find(toolbox.tools, (False, label, name), legal_name(name), labelled_name(label, name))) is not None:
        return tool.name
    if label == HOUSE_LABEL:
        return name  # as the model wrote it
    # A tool of a server that this request does not name; its old name must not mean another tool now.
    return labelled_name(label, name) if name in toolbox.tools else legal_name(name)
