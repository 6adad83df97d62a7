"""`additional_tools` items: tools that are declared in the middle of a conversation, from that item on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import msgspec

from antwort.api.credentials import KEY, SECRET
from antwort.api.items import OpaqueItem
from antwort.api.json_text import value_counts
from antwort.api.limits import Limits
from antwort.api.standard import own_kind
from antwort.api.steps import Steps
from antwort.api.tool_declarations import read_tool
from antwort.api.tools import CustomTool, FunctionTool, McpTool, NamespaceTool, OpaqueTool, Tool
from antwort.api.validation import kind_of
from antwort.api.wire import UNSET, Plain, encode
from antwort.errors import InvalidField, TooManyValues

ADDITIONAL = "additional_tools"
_ROLE = "developer"
_MOST_AGAIN = 64
"""One input may declare this many times as many tools as are allowed at once: reading each takes time."""

Name: TypeAlias = tuple[str, str]
"""The kind of a declaration, and its name, label or type. A later declaration replaces one with an equal name."""


class Declaration(msgspec.Struct, frozen=True):
    """A tool, and the field that declares it."""

    tool: Tool
    path: str
    """For an inherited tool, the field that names what the request continues."""
    is_inherited: bool = False
    """Whether it was declared before this request. A fault in it is not an error of this request."""


class Declared(msgspec.Struct, frozen=True):
    """The tools of one item, undecoded."""

    entries: Sequence[Any]
    path: str
    is_inherited: bool = False
    locked: frozenset[str] = frozenset()
    """Labels of servers that are left out because their sealed credentials cannot be opened any more."""


def is_additional(item: object) -> TypeGuard[OpaqueItem]:
    return isinstance(item, OpaqueItem) and item.type == ADDITIONAL


def checked_item(item: OpaqueItem, entry: Plain, path: str) -> OpaqueItem:
    """Check an item that a client sent as `entry`, and return it with the credentials of its servers kept apart."""
    role, tools = entry.get("role"), entry.get("tools")
    if role != _ROLE:
        code = "missing_required_parameter" if role is None else None
        raise InvalidField(f"{path}.role", f"expected {_ROLE!r}: only the developer declares tools.", code=code)
    if not isinstance(tools, list):
        code = "missing_required_parameter" if tools is None else None
        raise InvalidField(f"{path}.tools", f"expected a list, got {kind_of(tools)}.", code=code)
    fields = {name: value for name, value in item.fields.items() if name != KEY}
    shown = fields["tools"]
    brought = {
        at: {name: given[name] for name in (*SECRET, "server_url") if name in given}
        for at, given in enumerate(tools)
        if given is not shown[at] and _is_server(given) and given != shown[at]
    }
    return OpaqueItem(item.type, item.id, fields, brought)


def entries_of(item: OpaqueItem) -> list[Any]:
    """Return the tools of an item with the credentials of its servers."""
    tools = item.fields.get("tools")
    entries = tools if isinstance(tools, list) else []
    return [{**entry, **item.brought[at]} if at in item.brought else entry for at, entry in enumerate(entries)]


def declared_steps(declared: Sequence[Declared], most: int) -> Steps[tuple[Declaration, ...]]:
    """Read the tools of these items, the oldest first, at most `most`. Of two with one name the later counts, at the
    position of the first, so that the order that the model has seen stays. An inherited one with a fault is left out.
    """
    latest: dict[Name, tuple[Declared, int]] = {}
    before: Sequence[Any] = ()
    count = 0
    for item in declared:
        if item.entries == before:
            continue  # some clients send the same again with each turn
        before = item.entries
        for at, entry in enumerate(item.entries):
            latest[_name(entry) or ("", f"{item.path}[{at}]")] = item, at
        count += 0 if item.is_inherited else len(item.entries)
        if len(latest) > most or count > _MOST_AGAIN * most:  # before any of them is read
            raise _too_many(item.path, most)
    found: list[Declaration] = []
    for item, at in latest.values():
        path, foreign = f"{item.path}[{at}]", list[OpaqueTool]()
        try:
            tools = [read_tool(item.entries[at], path, foreign), *foreign]
        except InvalidField:
            if not item.is_inherited:
                raise
            continue
        found += [Declaration(tool, item.path if item.is_inherited else path, item.is_inherited) for tool in tools]
        yield
    return tuple(found)


def offered(tools: Sequence[Tool], additional: Sequence[Declaration]) -> list[Declaration]:
    """Return what a request offers: its own `tools`, and additional ones that have other names."""
    own = [Declaration(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
    if not additional:
        return own
    taken = {name_of(tool) for tool in tools}
    return [*own, *(each for each in additional if name_of(each.tool) not in taken)]


def check_steps(offer: Sequence[Declaration], limits: Limits) -> Steps[None]:
    """Check the number of tools, and how many JSON values they hold together."""
    _check_number(offer, limits.tools, limits.servers)
    texts: list[bytes] = []
    for each in offer:
        texts.append(encode(each.tool))
        yield
    if sum(map(len, texts)) <= limits.item_values:
        return
    total = 0
    for each, text in zip(offer, texts, strict=True):
        before = total
        for number in value_counts(text, 0):
            total = before + number
            yield
        if total > limits.item_values:
            raise TooManyValues(limits.item_values, param=each.path, is_last_tool=True)


def _check_number(offer: Sequence[Declaration], limit: int, servers: int) -> None:
    """Check the number of tools; those in namespaces count like others."""
    number = by_address = 0
    for each in offer:
        number += max(1, len(each.tool.tools)) if isinstance(each.tool, NamespaceTool) else 1
        by_address += isinstance(each.tool, McpTool) and each.tool.server_url is not UNSET
        if number > limit:
            raise _too_many(each.path, limit)
        if by_address > servers:
            problem = f"with it, more than {servers} servers are named by address; 'limits.servers' allows no more."
            raise InvalidField(each.path, problem, code="too_many_tools")


def _too_many(path: str, limit: int) -> InvalidField:
    problem = f"with it, there are more than {limit} tools; 'limits.tools' allows no more, wherever they are declared."
    return InvalidField(path, problem, code="too_many_tools")


# ---- names ----


def _name(entry: object) -> Name | None:
    """Return the name of an undecoded declaration; None if it is not a tool."""
    if not isinstance(entry, dict) or not isinstance(kind := entry.get("type"), str):
        return None
    kind = own_kind(kind)
    if kind in ("function", "custom"):
        nested = entry.get(kind)
        name = nested.get("name") if "name" not in entry and isinstance(nested, dict) else entry.get("name")
        return ("function", name) if isinstance(name, str) else None
    if kind in ("namespace", "mcp"):
        name = entry.get("name" if kind == "namespace" else "server_label")
        return (kind, name) if isinstance(name, str) else None
    return ("type", kind)


def name_of(tool: Tool) -> Name:
    match tool:
        case FunctionTool() | CustomTool():
            return "function", tool.name
        case NamespaceTool():
            return "namespace", tool.name
        case McpTool():
            return "mcp", tool.server_label
        case OpaqueTool():
            return "type", tool.type


def _is_server(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(kind := entry.get("type"), str) and own_kind(kind) == "mcp"
