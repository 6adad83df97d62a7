"""The tools that an MCP server lists, as the model may be offered them. Pure; the server may have sent anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antwort.api.tools import McpTool
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.mcp.base import ServerTool, ServerTools
from antwort.tools.mcp.servers import Approval, McpPolicy, McpServer, McpToolPolicy

_LONGEST_NAME = 256
_LONGEST_ABOUT = 16 * 1024
_LONGEST_INSTRUCTIONS = 16 * 1024
_AS_LISTED = McpToolPolicy()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the tools of a server beside what it says of them itself."""

    allowed: tuple[str, ...] | None = None
    tools: Mapping[str, McpToolPolicy] = {}
    require_approval: Approval = "never"
    default: bool | None = False
    """Of tools that need none by the rule before: as `ToolDefinition.needs_approval`."""


def rules_for(server: McpServer) -> Rules:
    return Rules(allowed=server.allowed_tools, tools=server.tools, require_approval=server.require_approval)


def strangers_rules(policy: McpPolicy) -> Rules:
    """Of a server that a request names by its address."""
    if policy.require_approval == "never":
        return Rules()
    return Rules(require_approval="always") if policy.force_approval else Rules(default=None)


def define(listed: ServerTools, declared: McpTool, rules: Rules) -> tuple[ToolDefinition, ...]:
    """Each tool once, by the first of its name. One without a usable name is left out."""
    first: dict[str, ServerTool] = {}
    for tool in listed.tools:
        if _is_usable(tool.name) and (rules.allowed is None or tool.name in rules.allowed):
            first.setdefault(tool.name, tool)
    return tuple(_define(tool, declared, rules) for tool in first.values())


def unknown_names(listed: ServerTools, server: McpServer) -> tuple[str, ...]:
    """The tools that the operator names and the server has not: what is said of them holds for nothing."""
    there = {tool.name for tool in listed.tools}
    return tuple(name for name in dict.fromkeys((*(server.allowed_tools or ()), *server.tools)) if name not in there)


def instructions_of(listed: ServerTools, declared: McpTool, server: McpServer | None) -> str | None:
    """What the model is told: in the request's words, the operator's, or the server's own."""
    if isinstance(declared.server_description, str) and declared.server_description.strip():
        return declared.server_description
    if server is not None and server.description is not None:
        return server.description
    return listed.instructions[:_LONGEST_INSTRUCTIONS] if listed.instructions else None


def _is_usable(name: str) -> bool:
    return bool(name.strip()) and len(name) <= _LONGEST_NAME and name.isprintable()


def _define(tool: ServerTool, declared: McpTool, rules: Rules) -> ToolDefinition:
    own = rules.tools.get(tool.name, _AS_LISTED)
    hints = tool.annotations if isinstance(tool.annotations, Mapping) else {}
    read_only = hints.get("readOnlyHint") is True if own.read_only is None else own.read_only
    is_idempotent = hints.get("idempotentHint") is True if own.idempotent is None else own.idempotent
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.MCP,
        description=_about(tool, hints),
        parameters=_schema(tool.input_schema),
        server_label=declared.server_label,
        read_only=read_only,
        idempotent=is_idempotent or (read_only and own.idempotent is None),
        annotations={name: hint for name, hint in hints.items() if hint is not None} or None,
        declared=declared,
        needs_approval=_needs_approval(own, rules, read_only=read_only),
        is_serial=not own.parallel,
    )


def _about(tool: ServerTool, hints: Mapping[str, Any]) -> str | None:
    """A title is better than nothing, unless it is the name once more."""
    for said in (tool.description, tool.title, hints.get("title")):
        if isinstance(said, str) and said.strip() and said != tool.name:
            return said[:_LONGEST_ABOUT]
    return None


def _schema(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object", "properties": {}}
    return schema if isinstance(schema, dict) else dict(schema)  # the same one for all: what is made of it is kept


def _needs_approval(own: McpToolPolicy, rules: Rules, *, read_only: bool) -> bool | None:
    if own.require_approval is not None:
        return own.require_approval
    if rules.require_approval == "always" or (rules.require_approval == "writes" and not read_only):
        return True
    return rules.default
