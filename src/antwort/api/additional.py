"""`additional_tools` items: tools that are declared in the middle of a conversation, from that item on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import msgspec

from antwort.api.declarations import read_tool
from antwort.api.faults import kind_of
from antwort.api.items import OpaqueItem
from antwort.api.limits import Limits
from antwort.api.logins import KEY, SECRET
from antwort.api.standard import own_kind
from antwort.api.steps import Steps
from antwort.api.tools import CustomTool, FunctionTool, McpTool, NamespaceTool, OpaqueTool, Tool
from antwort.api.values import value_counts
from antwort.api.wire import UNSET, Plain, encode
from antwort.errors import InvalidField, TooManyValues

ADDITIONAL = "additional_tools"
_ROLE = "developer"
_MOST_AGAIN = 64
"""How often as many tools as are allowed may be declared in one input: each of them takes a moment."""

Name: TypeAlias = tuple[str, str]
"""Which declarations take the place of each other: the kind, and the name, label or type."""


class Declaration(msgspec.Struct, frozen=True):
    """A tool, and where it is declared."""

    tool: Tool
    path: str
    """Of one that came before the request, the field that says what it continues."""
    is_inherited: bool = False
    """Whether it came before the request: nobody is to blame now for what is wrong with it."""


class Declared(msgspec.Struct, frozen=True):
    """The tools of one item, as they came."""

    entries: Sequence[Any]
    path: str
    is_inherited: bool = False
    locked: frozenset[str] = frozenset()
    """The labels of servers that are left out: what they were logged in to with cannot be opened any more."""


def is_additional(item: object) -> TypeGuard[OpaqueItem]:
    return isinstance(item, OpaqueItem) and item.type == ADDITIONAL


def checked_item(item: OpaqueItem, entry: Plain, path: str) -> OpaqueItem:
    """The item as a client sent it in `entry`, with what its servers bring to log in apart from it."""
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
    """The tools of an item, with what its servers bring to log in."""
    tools = item.fields.get("tools")
    entries = tools if isinstance(tools, list) else []
    return [{**entry, **item.brought[at]} if at in item.brought else entry for at, entry in enumerate(entries)]


def declared_steps(declared: Sequence[Declared], most: int) -> Steps[tuple[Declaration, ...]]:
    """The tools of these items, the oldest first, at most so many. Of two with one name the later counts, in the place
    of the first: what the model was told before stays in its order. An inherited one that is wrong is left out.
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
    """What a request offers with its own `tools`, which count before others of the same name."""
    own = [Declaration(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
    if not additional:
        return own
    taken = {name_of(tool) for tool in tools}
    return [*own, *(each for each in additional if name_of(each.tool) not in taken)]


def check_steps(offer: Sequence[Declaration], limits: Limits) -> Steps[None]:
    """Check that there are not too many, and that they do not hold too much together."""
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
    """Tools within namespaces count like others."""
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
    """None: it is no tool."""
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
