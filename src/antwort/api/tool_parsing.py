"""Parse tools: those that a request declares, those of `additional_tools` items, `tool_choice` and `allowed_tools`.

Clients write the same thing in several shapes; each becomes one type. `additional_tools` items declare tools in the
middle of a conversation, from that item on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec
from msgspec import Raw

from antwort.api.decoding import (
    Limits,
    Steps,
    convert,
    kind_of,
    value_counts,
    value_steps,
    without_inner_nulls,
    without_nulls,
)
from antwort.api.items import OpaqueItem
from antwort.api.standard import own_kind
from antwort.api.tools import (
    SECRET,
    AllowedTools,
    ChoiceMode,
    CustomTool,
    ForcedCustom,
    ForcedFunction,
    ForcedHosted,
    ForcedServer,
    FunctionTool,
    McpTool,
    NamedTool,
    NamespaceTool,
    OpaqueTool,
    Tool,
    ToolChoice,
    shown_url,
)
from antwort.api.wire import UNSET, Plain, decode_object, encode, replace
from antwort.errors import InvalidField, TooManyValues, shown

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_LABEL = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


# ---- the tools of a request ----


def tool_steps(value: object, limits: Limits) -> Steps[tuple[Tool, ...]]:
    """Parse the declared tools, followed by entries of namespaces that are of other types than functions."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidField("tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > limits.tools:
        _refuse_number(len(value), limits.tools)
    for i, entry in enumerate(value):
        if isinstance(entry, Raw):
            value[i] = yield from value_steps(entry, f"tools[{i}]", limits)
            yield
    _check_number(value, limits.tools)
    foreign: list[OpaqueTool] = []
    tools = [read_tool(entry, f"tools[{i}]", foreign) for i, entry in enumerate(value)]
    seen: set[tuple[str | None, str]] = set()
    by_address: list[int] = []
    for i, declared in enumerate(tools):
        if isinstance(declared, McpTool):
            if declared.server_url is not UNSET:
                by_address.append(i)
            continue
        for path, namespace, tool in own_tools(declared, f"tools[{i}]"):
            key = (None if namespace is None else namespace.name, tool.name)
            if key in seen:
                raise InvalidField(f"{path}.name", f"{tool.name!r} is declared twice.", code="duplicate_tool")
            seen.add(key)
    if len(by_address) > limits.servers:  # each of which is asked before the model is
        problem = f"{len(by_address)} servers are named by address; at most {limits.servers} are allowed."
        raise InvalidField(f"tools[{by_address[limits.servers]}].server_url", problem, code="too_many_tools")
    return (*tools, *foreign)


def own_tools(tool: Tool, path: str) -> Iterator[tuple[str, NamespaceTool | None, FunctionTool | CustomTool]]:
    """Yield the client's tools of a declaration in order, each with its path and its namespace."""
    if isinstance(tool, FunctionTool | CustomTool):
        yield path, None, tool
    elif isinstance(tool, NamespaceTool):
        yield from ((f"{path}.tools[{j}]", tool, inner) for j, inner in enumerate(tool.tools))


def _check_number(value: Sequence[object], limit: int) -> None:
    """Check the number of undecoded tools. Those in namespaces count like others; an empty namespace counts as one."""
    number = len(value)
    for entry in value:
        match entry:
            case {"type": str(kind), "tools": list(inner)} if own_kind(kind) == "namespace":
                number += max(1, len(inner)) - 1
    if number > limit:
        _refuse_number(number, limit)


def _refuse_number(number: int, limit: int) -> NoReturn:
    raise InvalidField("tools", f"{number} tools; at most {limit} are allowed.", code="too_many_tools")


def read_tool(value: object, path: str, foreign: list[OpaqueTool]) -> Tool:
    """Parse one tool. Entries of a namespace that are of other types than functions are added to `foreign`."""
    plain, kind = _typed(value, path)
    match kind:
        case "mcp":
            return _read_server(without_nulls(plain), path)
        case "namespace":
            return _read_namespace(without_nulls(plain), path, foreign)
        case _:
            return _read_own(plain, kind, path)


def _typed(value: object, path: str) -> tuple[Plain, str]:
    """Return a declaration with its type under our name, and that type."""
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", "missing, or not a string.", code="missing_required_parameter")
    if not (known := own_kind(kind)):
        raise InvalidField(f"{path}.type", "must not be empty.")
    return (value if known == kind else {**value, "type": known}), known


def _read_server(plain: Plain, path: str) -> McpTool:
    if isinstance(wanted := plain.get("require_approval"), dict):
        plain["require_approval"] = without_inner_nulls(wanted)
    elif wanted is not None and wanted not in ("always", "never"):
        raise InvalidField(f"{path}.require_approval", "expected 'always', 'never', or an object of both.")
    server: McpTool = convert(plain, McpTool, path)
    if not _LABEL.fullmatch(server.server_label):
        raise InvalidField(f"{path}.server_label", "expected 1 to 64 letters, digits, '_', '-' or '.'.")
    return server


def _read_namespace(plain: Plain, path: str, foreign: list[OpaqueTool]) -> NamespaceTool:
    entries = plain.get("tools")
    if isinstance(entries, list):
        plain["tools"] = ()
    head: NamespaceTool = convert(plain, NamespaceTool, path)
    _check_name(head.name, path)
    own: list[FunctionTool | CustomTool] = []
    for j, entry in enumerate(entries or ()):
        tool = _read_own(*_typed(entry, f"{path}.tools[{j}]"), f"{path}.tools[{j}]")
        foreign.append(tool) if isinstance(tool, OpaqueTool) else own.append(tool)
    return replace(head, tools=tuple(own))


_OWN: dict[str, type[FunctionTool | CustomTool]] = {"function": FunctionTool, "custom": CustomTool}


def _read_own(value: Plain, kind: str, path: str) -> FunctionTool | CustomTool | OpaqueTool:
    """Parse a tool that may be in a namespace. A namespace or a server inside one is of unknown type."""
    if kind not in _OWN:
        return OpaqueTool(kind, bared(value, encode(value)), path)
    # Some clients nest the function, and the grammar of a custom tool, as Chat Completions does.
    nested = value.get(kind)
    if isinstance(nested, dict) and "name" not in value:
        value, path = {"type": kind, **nested}, f"{path}.{kind}"
    if kind == "custom":
        value = without_nulls(value)
        match value.get("format"):
            case {"type": "grammar", "grammar": {**grammar}}:
                value["format"] = {"type": "grammar", **grammar}
    tool: FunctionTool | CustomTool = convert(value, _OWN[kind], path)
    _check_name(tool.name, path)
    return tool


def _check_name(name: str, path: str) -> None:
    if not _NAME.fullmatch(name):
        problem = f"{shown(name)} is not a name of 1 to 128 letters, digits, '_', '-' or '.'."
        raise InvalidField(f"{path}.name", problem)


# ---- tool_choice and allowed_tools ----

_Choice: TypeAlias = ForcedFunction | ForcedCustom | ForcedServer | AllowedTools
_CHOICES = frozenset({"function", "custom", "mcp", "allowed_tools"})
_MAX_ALLOWED = 128
_MAX_LISTED = 10_000
"""Entries of the top-level `allowed_tools`, which may name all tools of large servers."""
_NAMED = frozenset({"function", "custom", "namespace", "mcp"})
"""Types whose tools have names. Of any other type there is one tool, and its type is its name."""


def read_choice(value: object) -> ToolChoice:
    """Parse a `tool_choice`."""
    if value is None:
        return "auto"
    if isinstance(value, str):
        mode: ToolChoice = convert(value, ChoiceMode, "tool_choice")
        return mode
    if not isinstance(value, dict):
        raise InvalidField("tool_choice", f"expected a string or an object, got {kind_of(value)}.")
    plain = _with_own_type(value)
    kind = plain.get("type")
    if isinstance(kind, str) and kind and kind not in _CHOICES:
        return ForcedHosted(type=kind)
    if kind in ("function", "custom") and isinstance(nested := plain.get(kind), dict):
        plain = {"type": kind, **without_nulls(nested)}
    if isinstance(plain.get("tools"), list):
        plain["tools"] = [_with_own_type(entry) if isinstance(entry, dict) else entry for entry in plain["tools"]]
    choice: _Choice = convert(plain, _Choice, "tool_choice")
    if isinstance(choice, AllowedTools):
        if not 1 <= len(choice.tools) <= _MAX_ALLOWED:
            raise InvalidField("tool_choice.tools", f"must name 1 to {_MAX_ALLOWED} tools.", code="invalid_value")
        _check_named(choice.tools, "tool_choice.tools")
    return choice


def read_allowed(value: object, choice: ToolChoice) -> tuple[NamedTool, ...] | None:
    """Parse the allowed list of either form; of two, return what both allow. An empty top-level list allows all."""
    standard = choice.tools if isinstance(choice, AllowedTools) else None
    if value is None or value == []:
        return standard
    if not isinstance(value, list):
        raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > _MAX_LISTED:
        raise InvalidField("allowed_tools", f"must not name more than {_MAX_LISTED} tools.")
    entries = [_with_own_type(entry) if isinstance(entry, dict) else entry for entry in value]
    named = [{"type": "function", "name": entry} if isinstance(entry, str) else entry for entry in entries]
    own: tuple[NamedTool, ...] = convert(named, tuple[NamedTool, ...], "allowed_tools")
    _check_named(own, "allowed_tools")
    return own if standard is None else tuple(entry for entry in own if entry in standard)


def _with_own_type(value: Plain) -> Plain:
    """Return the object without nulls, and with its type under our name for it."""
    plain = without_nulls(value)
    if isinstance(kind := plain.get("type"), str):
        plain["type"] = own_kind(kind)
    return plain


def _check_named(entries: tuple[NamedTool, ...], path: str) -> None:
    """Raise for an entry without a name, which would silently allow nothing."""
    for i, entry in enumerate(entries):
        is_named = isinstance(entry.name, str) or isinstance(entry.server_label, str)
        if not is_named and entry.type in _NAMED:
            raise InvalidField(f"{path}[{i}].name", "missing required field.", code="missing_required_parameter")


# ---- additional_tools items ----

_ROLE = "developer"
_MAX_DECLARED = 64
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
    bare = fields["tools"]
    brought = {
        at: {name: given[name] for name in (*SECRET, "server_url") if name in given}
        for at, given in enumerate(tools)
        if isinstance(given, dict) and given != bare[at] and _is_mcp(given.get("type"))
    }
    return OpaqueItem(item.type, item.id, fields, brought)


def entries_of(item: OpaqueItem) -> list[Any]:
    """Return the tools of an item with the credentials of its servers."""
    tools = item.fields.get("tools")
    entries = tools if isinstance(tools, list) else []
    return [{**entry, **item.brought[at]} if at in item.brought else entry for at, entry in enumerate(entries)]


def declared_steps(declared: Sequence[Declared], most: int) -> Steps[tuple[Declaration, ...]]:
    """Parse the tools of these items, the oldest first, at most `most`. Of two with one name the later counts, at the
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
            latest[_undecoded_name(entry) or ("", f"{item.path}[{at}]")] = item, at
        count += 0 if item.is_inherited else len(item.entries)
        if len(latest) > most or count > _MAX_DECLARED * most:  # before any of them is read
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
    number = by_address = 0
    for each in offer:
        number += max(1, len(each.tool.tools)) if isinstance(each.tool, NamespaceTool) else 1
        by_address += isinstance(each.tool, McpTool) and each.tool.server_url is not UNSET
        if number > limits.tools:
            raise _too_many(each.path, limits.tools)
        if by_address > limits.servers:
            problem = f"with it, more than {limits.servers} servers are named by address; "
            raise InvalidField(each.path, f"{problem}'limits.servers' allows no more.", code="too_many_tools")
    texts: list[bytes] = []
    for each in offer:
        texts.append(encode(each.tool))
        yield
    if sum(map(len, texts)) <= limits.item_values:
        return
    total = 0
    for each, text in zip(offer, texts, strict=True):
        before = total
        for value_count in value_counts(text, 0):
            total = before + value_count
            yield
        if total > limits.item_values:
            raise TooManyValues(limits.item_values, param=each.path, is_last_tool=True)


def _too_many(path: str, limit: int) -> InvalidField:
    problem = f"with it, there are more than {limit} tools; 'limits.tools' allows no more, wherever they are declared."
    return InvalidField(path, problem, code="too_many_tools")


def _undecoded_name(entry: object) -> Name | None:
    """Return the name of an undecoded declaration; None if it is not a tool."""
    if not isinstance(entry, dict) or not isinstance(kind := entry.get("type"), str):
        return None
    kind = own_kind(kind)
    if kind in _OWN:
        nested = entry.get(kind)
        name = nested.get("name") if "name" not in entry and isinstance(nested, dict) else entry.get("name")
        return ("function", name) if isinstance(name, str) else None
    if kind in ("namespace", "mcp"):
        name = entry.get("name" if kind == "namespace" else "server_label")
        return (kind, name) if isinstance(name, str) else None
    return ("type", kind)


def name_of(tool: Tool) -> Name:
    """Return what a later declaration of the same tool has in common with this one."""
    match tool:
        case FunctionTool() | CustomTool():
            return "function", tool.name
        case NamespaceTool():
            return "namespace", tool.name
        case McpTool():
            return "mcp", tool.server_label
        case OpaqueTool():
            return "type", tool.type


# ---- credentials of tool servers ----

KEY = "antwort_credentials"
"""The field of a stored item that holds sealed credentials. What a client sends in it is not stored."""
_PIECE_BYTES = 4 * 2**20
_LONGEST = len("authorization")


def may_hold_logins(raw: bytes) -> bool:
    """Return whether JSON text may hold credentials. This is a cheap test: each text that holds some has one of these
    words, or an escape that may spell one.
    """
    return b"authorization" in raw or b"headers" in raw or b"server_url" in raw or b"\\u00" in raw


def login_steps(raw: bytes) -> Steps[bool]:
    """Do what `may_hold_logins` does for a long text, in pieces."""
    for start in range(0, len(raw), _PIECE_BYTES):
        if may_hold_logins(raw[start : start + _PIECE_BYTES + _LONGEST]):
            return True
        yield
    return False


def bared(plain: Plain, raw: bytes) -> Plain:
    """Return plain values without credentials; the same object if there are none. `raw` is their JSON."""
    if not may_hold_logins(raw):
        return plain
    copy: Plain = decode_object(raw)
    return copy if take_logins(copy) else plain


def take_logins(value: object) -> bool:
    """Remove credentials from plain values in place, at any depth, and return whether there were any."""
    taken = False
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            url = found.get("server_url")
            if _is_mcp(found.get("type")) or isinstance(url, str):
                before = dict(found)
                for field in SECRET:
                    found.pop(field, None)
                if isinstance(url, str):
                    found["server_url"] = shown_url(url)
                taken = taken or found != before
            waiting += found.values()
    return taken


def _is_mcp(kind: object) -> bool:
    return isinstance(kind, str) and own_kind(kind) == "mcp"
