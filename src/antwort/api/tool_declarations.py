"""Read the tools that a request declares, its `tool_choice` and its `allowed_tools`.

Clients write the same thing in several shapes; each becomes one type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NoReturn, TypeAlias

from msgspec import Raw

from antwort.api.bodies import value_steps
from antwort.api.credentials import bared
from antwort.api.limits import Limits
from antwort.api.standard import own_kind
from antwort.api.steps import Steps
from antwort.api.tools import (
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
)
from antwort.api.validation import convert, kind_of, without_inner_nulls, without_nulls
from antwort.api.wire import UNSET, Plain, encode, replace
from antwort.errors import InvalidField, shown

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_LABEL = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def tool_steps(value: object, limits: Limits) -> Steps[tuple[Tool, ...]]:
    """Read the declared tools, followed by entries of namespaces that are of other types than functions."""
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
    own = [tool for tool in tools if type(tool) is not McpTool]
    if own:
        _check_names(tools)
    if len(tools) - len(own) > limits.servers:  # each of which is asked before the model is
        _check_servers(tools, limits.servers)
    return (*tools, *foreign)


def own_tools(tool: Tool, path: str) -> Iterator[tuple[str, NamespaceTool | None, FunctionTool | CustomTool]]:
    """Yield the client's tools of a declaration in order, each with its path and its namespace."""
    if isinstance(tool, FunctionTool | CustomTool):
        yield path, None, tool
    elif isinstance(tool, NamespaceTool):
        yield from ((f"{path}.tools[{j}]", tool, inner) for j, inner in enumerate(tool.tools))


def _check_number(value: Sequence[object], limit: int) -> None:
    """Check the number of tools. Those in namespaces count like others; an empty namespace counts as one."""
    number = len(value)
    for entry in value:
        if isinstance(entry, dict) and "tools" in entry and _is_namespace(entry.get("type")):
            inner = entry["tools"]
            number += max(1, len(inner)) - 1 if isinstance(inner, list) else 0
    if number > limit:
        _refuse_number(number, limit)


def _refuse_number(number: int, limit: int) -> NoReturn:
    raise InvalidField("tools", f"{number} tools; at most {limit} are allowed.", code="too_many_tools")


def _is_namespace(kind: object) -> bool:
    return isinstance(kind, str) and own_kind(kind) == "namespace"


def _check_servers(tools: Sequence[Tool], limit: int) -> None:
    by_address = [i for i, tool in enumerate(tools) if isinstance(tool, McpTool) and tool.server_url is not UNSET]
    if len(by_address) > limit:
        problem = f"{len(by_address)} servers are named by address; at most {limit} are allowed."
        raise InvalidField(f"tools[{by_address[limit]}].server_url", problem, code="too_many_tools")


def _check_names(tools: Sequence[Tool]) -> None:
    seen: set[tuple[str | None, str]] = set()
    for i, declared in enumerate(tools):
        for path, namespace, tool in own_tools(declared, f"tools[{i}]"):
            key = (None if namespace is None else namespace.name, tool.name)
            if key in seen:
                raise InvalidField(f"{path}.name", f"{tool.name!r} is declared twice.", code="duplicate_tool")
            seen.add(key)


def read_tool(value: object, path: str, foreign: list[OpaqueTool]) -> Tool:
    """Read one tool. Entries of a namespace that are of other types than functions are added to `foreign`."""
    plain, kind = _typed(value, path)
    if kind == "mcp":
        return _read_server(without_nulls(plain), path)
    return _read_namespace(plain, path, foreign) if kind == "namespace" else _read_own(plain, kind, path)


def _read_server(plain: Plain, path: str) -> McpTool:
    if isinstance(wanted := plain.get("require_approval"), dict):
        plain["require_approval"] = without_inner_nulls(wanted)
    elif wanted is not None and wanted not in ("always", "never"):
        raise InvalidField(f"{path}.require_approval", "expected 'always', 'never', or an object of both.")
    server: McpTool = convert(plain, McpTool, path)
    if not _LABEL.fullmatch(server.server_label):
        raise InvalidField(f"{path}.server_label", "expected 1 to 64 letters, digits, '_', '-' or '.'.")
    return server


def _typed(value: object, path: str) -> tuple[Plain, str]:
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", "missing, or not a string.", code="missing_required_parameter")
    if not (known := own_kind(kind)):
        raise InvalidField(f"{path}.type", "must not be empty.")
    return (value if known == kind else {**value, "type": known}), known


def _read_own(value: Plain, kind: str, path: str) -> FunctionTool | CustomTool | OpaqueTool:
    """Read a tool that may be in a namespace. A namespace or a server inside one is of unknown type."""
    if kind not in _CLASSES:
        return OpaqueTool(kind, bared(value, encode(value)), path)
    # Some clients nest the function as Chat Completions does.
    nested = value.get(kind)
    if isinstance(nested, dict) and "name" not in value:
        value, path = {"type": kind, **nested}, f"{path}.{kind}"
    if kind == "custom":
        value = _with_flat_format(without_nulls(value))
    tool: FunctionTool | CustomTool = convert(value, _CLASSES[kind], path)
    _check_name(tool.name, path)
    return tool


def _with_flat_format(value: Plain) -> Plain:
    """Return a custom tool whose grammar is not nested, as Chat Completions nests it."""
    form = value.get("format")
    nested = form.get("grammar") if isinstance(form, dict) and form.get("type") == "grammar" else None
    return {**value, "format": {"type": "grammar", **nested}} if isinstance(nested, dict) else value


_CLASSES: dict[str, type[FunctionTool | CustomTool]] = {"function": FunctionTool, "custom": CustomTool}


def _read_namespace(value: Plain, path: str, foreign: list[OpaqueTool]) -> NamespaceTool:
    plain = without_nulls(value)
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


def _check_name(name: str, path: str) -> None:
    if not _NAME.fullmatch(name):
        problem = f"{shown(name)} is not a name of 1 to 128 letters, digits, '_', '-' or '.'."
        raise InvalidField(f"{path}.name", problem)


# ---- tool_choice and allowed_tools ----

_Known: TypeAlias = ForcedFunction | ForcedCustom | ForcedServer | AllowedTools
_KNOWN = frozenset({"function", "custom", "mcp", "allowed_tools"})
_MOST_ALLOWED = 128
_MOST_LISTED = 10_000
"""Entries of the top-level `allowed_tools`, which may name all tools of large servers."""


def read_choice(value: object) -> ToolChoice:
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice: ToolChoice = convert(value, ChoiceMode, "tool_choice")
        return choice
    if isinstance(value, dict):
        return _read_choice_object(_with_own_type(value))
    raise InvalidField("tool_choice", f"expected a string or an object, got {kind_of(value)}.")


def _read_choice_object(value: Plain) -> ToolChoice:
    kind = value.get("type")
    if isinstance(kind, str) and kind and kind not in _KNOWN:
        return ForcedHosted(type=kind)
    if kind in ("function", "custom") and isinstance(nested := value.get(kind), dict):
        value = {"type": kind, **without_nulls(nested)}
    if isinstance(value.get("tools"), list):
        value["tools"] = [_with_own_type(entry) if isinstance(entry, dict) else entry for entry in value["tools"]]
    choice: _Known = convert(value, _Known, "tool_choice")
    if isinstance(choice, AllowedTools):
        if not 1 <= len(choice.tools) <= _MOST_ALLOWED:
            raise InvalidField("tool_choice.tools", f"must name 1 to {_MOST_ALLOWED} tools.", code="invalid_value")
        _check_named(choice.tools, "tool_choice.tools")
    return choice


def _with_own_type(value: Plain) -> Plain:
    """Return the object without nulls, and with its type under our name for it."""
    plain = without_nulls(value)
    if isinstance(kind := plain.get("type"), str):
        plain["type"] = own_kind(kind)
    return plain


def read_allowed(value: object, choice: ToolChoice) -> tuple[NamedTool, ...] | None:
    """Read the allowed list of either form; of two, return what both allow. An empty top-level list allows all."""
    standard = choice.tools if isinstance(choice, AllowedTools) else None
    if not value:
        if value not in (None, []):
            raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
        return standard
    if not isinstance(value, list):
        raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > _MOST_LISTED:
        raise InvalidField("allowed_tools", f"must not name more than {_MOST_LISTED} tools.")
    entries = [_with_own_type(entry) if isinstance(entry, dict) else entry for entry in value]
    named = [{"type": "function", "name": entry} if isinstance(entry, str) else entry for entry in entries]
    own: tuple[NamedTool, ...] = convert(named, tuple[NamedTool, ...], "allowed_tools")
    _check_named(own, "allowed_tools")
    return own if standard is None else tuple(entry for entry in own if entry in standard)


_NAMED = frozenset({"function", "custom", "namespace", "mcp"})
"""Types whose tools have names. Of any other type there is one tool, and its type is its name."""


def _check_named(entries: tuple[NamedTool, ...], path: str) -> None:
    """Raise for an entry without a name, which would silently allow nothing."""
    for i, entry in enumerate(entries):
        is_named = isinstance(entry.name, str) or isinstance(entry.server_label, str)
        if not is_named and entry.type in _NAMED:
            raise InvalidField(f"{path}[{i}].name", "missing required field.", code="missing_required_parameter")
