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
    # What is cut off or replaced may be all that told two names apart.
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


def _without_repeats(found: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """Return each tool once, even where its server is declared twice."""
    return list({(tool.kind in OWN, tool.namespace, tool.server_label, tool.own_name): tool for tool in found}.values())


# ---- tools by the names that clients and servers use ----


def find_own(tools: Tools, namespace: str | None, name: str) -> ToolDefinition | None:
    """Return the tool that the request declares itself under that name."""
    likely = tools.get(name if namespace is None else labelled_name(namespace, name))
    if likely is not None and _is_own(likely, namespace, name):
        return likely
    return next((tool for tool in tools.values() if _is_own(tool, namespace, name)), None)


def _is_own(tool: ToolDefinition, namespace: str | None, name: str) -> bool:
    return tool.kind in OWN and tool.namespace == namespace and tool.own_name == name


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
    if (tool := _of_server(toolbox.tools, label, name)) is not None:
        return tool.name
    if label == HOUSE_LABEL:
        return name  # as the model wrote it
    # A tool of a server that this request does not name; its old name must not mean another tool now.
    return labelled_name(label, name) if name in toolbox.tools else legal_name(name)


def _of_server(tools: Tools, label: str, name: str) -> ToolDefinition | None:
    """Return the tool of a server. Its usual names are tried first, then all tools are searched."""
    tool = tools.get(legal_name(name))
    if tool is not None and tool.server_label == label and tool.own_name == name:
        return tool
    tool = tools.get(labelled_name(label, name))
    if tool is not None and tool.server_label == label and tool.own_name == name:
        return tool
    return next((tool for tool in tools.values() if tool.server_label == label and tool.own_name == name), None)
