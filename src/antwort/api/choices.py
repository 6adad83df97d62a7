"""Reading what a request says about the use of its tools: clients' shapes of the same thing become one."""

from __future__ import annotations

from typing import TypeAlias

from antwort.api.declarations import tool_steps
from antwort.api.faults import convert, kind_of, without_nulls
from antwort.api.standard import own_kind
from antwort.api.tools import (
    AllowedTools,
    ChoiceMode,
    ForcedCustom,
    ForcedFunction,
    ForcedHosted,
    ForcedServer,
    NamedTool,
    ToolChoice,
)
from antwort.api.wire import Plain
from antwort.errors import InvalidField

__all__ = ["read_allowed", "read_choice", "tool_steps"]

_Known: TypeAlias = ForcedFunction | ForcedCustom | ForcedServer | AllowedTools
_KNOWN = frozenset({"function", "custom", "mcp", "allowed_tools"})
_MOST_ALLOWED = 128
_MOST_LISTED = 10_000
"""Of the list that stands by itself, which may name all tools of large servers."""


def read_choice(value: object) -> ToolChoice:
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice: ToolChoice = convert(value, ChoiceMode, "tool_choice")
        return choice
    if isinstance(value, dict):
        return _read_choice_object(_typed(value))
    raise InvalidField("tool_choice", f"expected a string or an object, got {kind_of(value)}.")


def _read_choice_object(value: Plain) -> ToolChoice:
    kind = value.get("type")
    if isinstance(kind, str) and kind and kind not in _KNOWN:
        return ForcedHosted(type=kind)
    if kind in ("function", "custom") and isinstance(nested := value.get(kind), dict):
        value = {"type": kind, **without_nulls(nested)}
    if isinstance(value.get("tools"), list):
        value["tools"] = [_typed(entry) if isinstance(entry, dict) else entry for entry in value["tools"]]
    choice: _Known = convert(value, _Known, "tool_choice")
    if isinstance(choice, AllowedTools):
        if not 1 <= len(choice.tools) <= _MOST_ALLOWED:
            raise InvalidField("tool_choice.tools", f"must name 1 to {_MOST_ALLOWED} tools.", code="invalid_value")
        _check_named(choice.tools, "tool_choice.tools")
    return choice


def _typed(value: Plain) -> Plain:
    """The object without what is unset, and with its type as it is known here."""
    plain = without_nulls(value)
    if isinstance(kind := plain.get("type"), str):
        plain["type"] = own_kind(kind)
    return plain


def read_allowed(value: object, choice: ToolChoice) -> tuple[NamedTool, ...] | None:
    """The allowed list of either form, or what both allow. An empty top-level list allows all."""
    standard = choice.tools if isinstance(choice, AllowedTools) else None
    if not value:
        if value not in (None, []):
            raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
        return standard
    if not isinstance(value, list):
        raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > _MOST_LISTED:
        raise InvalidField("allowed_tools", f"must not name more than {_MOST_LISTED} tools.")
    entries = [_typed(entry) if isinstance(entry, dict) else entry for entry in value]
    named = [{"type": "function", "name": entry} if isinstance(entry, str) else entry for entry in entries]
    own: tuple[NamedTool, ...] = convert(named, tuple[NamedTool, ...], "allowed_tools")
    _check_named(own, "allowed_tools")
    return own if standard is None else tuple(entry for entry in own if entry in standard)


_NAMED = frozenset({"function", "custom", "namespace", "mcp"})
"""Types of which there are several tools; of any other there is one, and its type is its name."""


def _check_named(entries: tuple[NamedTool, ...], path: str) -> None:
    """An entry that names nothing would allow nothing, in silence."""
    for i, entry in enumerate(entries):
        is_named = isinstance(entry.name, str) or isinstance(entry.server_label, str)
        if not is_named and entry.type in _NAMED:
            raise InvalidField(f"{path}[{i}].name", "missing required field.", code="missing_required_parameter")
