"""Reading tools, and what a request says about their use: clients' shapes of the same thing become one."""

from __future__ import annotations

import re

from antwort.api.faults import convert, kind_of, without_nulls
from antwort.api.tools import (
    AllowedTools,
    ChoiceMode,
    ForcedFunction,
    ForcedServer,
    FunctionTool,
    McpTool,
    NamedTool,
    OpaqueTool,
    Tool,
    ToolChoice,
)
from antwort.api.wire import Plain
from antwort.errors import InvalidField


def read_tools(value: object, limit: int) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidField("tools", f"expected a list, got {kind_of(value)}.")
    if len(value) > limit:
        raise InvalidField("tools", f"{len(value)} tools; at most {limit} are allowed.", code="too_many_tools")
    tools = tuple(_read_tool(entry, f"tools[{i}]") for i, entry in enumerate(value))
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            if tool.name in seen:
                raise InvalidField(f"tools[{i}].name", f"{tool.name!r} is declared twice.", code="duplicate_tool")
            seen.add(tool.name)
    return tools


def _read_tool(value: object, path: str) -> Tool:
    if not isinstance(value, dict):
        raise InvalidField(path, f"expected an object, got {kind_of(value)}.")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{path}.type", "missing, or not a string.", code="missing_required_parameter")
    if kind == "function":
        return _read_function(value, path)
    if kind == "mcp":
        server: McpTool = convert(without_nulls(value), McpTool, path)
        return server
    return OpaqueTool(kind, value)


def _read_function(value: Plain, path: str) -> FunctionTool:
    # Some clients nest the function as Chat Completions does.
    nested = value.get("function")
    if isinstance(nested, dict) and "name" not in value:
        value, path = {"type": "function", **nested}, f"{path}.function"
    tool: FunctionTool = convert(value, FunctionTool, path)
    if not _NAME.fullmatch(tool.name):
        problem = f"{tool.name!r} is not a name of 1 to 128 letters, digits, '_', '-' or '.'."
        raise InvalidField(f"{path}.name", problem)
    return tool


_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def read_choice(value: object) -> ToolChoice:
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice: ToolChoice = convert(value, ChoiceMode, "tool_choice")
        return choice
    if isinstance(value, dict):
        return _read_choice_object(without_nulls(value))
    raise InvalidField("tool_choice", f"expected a string or an object, got {kind_of(value)}.")


def _read_choice_object(value: Plain) -> ToolChoice:
    if value.get("type") == "function" and isinstance(value.get("function"), dict):
        value = {"type": "function", **value["function"]}
    if isinstance(value.get("tools"), list):
        value["tools"] = [without_nulls(entry) if isinstance(entry, dict) else entry for entry in value["tools"]]
    choice: ForcedFunction | ForcedServer | AllowedTools = convert(
        value, ForcedFunction | ForcedServer | AllowedTools, "tool_choice"
    )
    if isinstance(choice, AllowedTools):
        if not 1 <= len(choice.tools) <= 128:
            raise InvalidField("tool_choice.tools", "must name 1 to 128 tools.", code="invalid_value")
        _check_named(choice.tools, "tool_choice.tools")
    return choice


def read_allowed(value: object, choice: ToolChoice) -> tuple[NamedTool, ...] | None:
    """The allowed list of either form, or what both allow. An empty top-level list allows all."""
    standard = choice.tools if isinstance(choice, AllowedTools) else None
    if not value:
        if value not in (None, []):
            raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
        return standard
    if not isinstance(value, list):
        raise InvalidField("allowed_tools", f"expected a list, got {kind_of(value)}.")
    entries = [without_nulls(entry) if isinstance(entry, dict) else entry for entry in value]
    named = [{"type": "function", "name": entry} if isinstance(entry, str) else entry for entry in entries]
    own: tuple[NamedTool, ...] = convert(named, tuple[NamedTool, ...], "allowed_tools")
    _check_named(own, "allowed_tools")
    return own if standard is None else tuple(entry for entry in own if entry in standard)


def _check_named(entries: tuple[NamedTool, ...], path: str) -> None:
    """An entry that names nothing would allow nothing, in silence."""
    for i, entry in enumerate(entries):
        if not isinstance(entry.name, str) and not isinstance(entry.server_label, str):
            raise InvalidField(f"{path}[{i}].name", "missing required field.", code="missing_required_parameter")
