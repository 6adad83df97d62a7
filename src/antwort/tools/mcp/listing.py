"""The tools that an MCP server lists, as the model may be offered them. Pure; the server may have sent anything."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
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


def define(
    listed: ServerTools, declared: McpTool, *rules: Rules, writing: Collection[Container[str]] = ()
) -> tuple[ToolDefinition, ...]:
    """Each tool once, by the first of its name. One without a usable name is left out.

    Of several `rules` all hold: a tool must be allowed by each, and the strictest decides about approvals. Tools in one
    of `writing` were listed as writing before, and stay so unless the rules say otherwise.
    """
    first: dict[str, ServerTool] = {}
    for tool in listed.tools:
        if _is_usable(tool.name) and all(each.allowed is None or tool.name in each.allowed for each in rules):
            first.setdefault(tool.name, tool)
    return tuple(
        _define(tool, declared, rules, may_read=not any(tool.name in names for names in writing))
        for tool in first.values()
    )


def writing_names(listed: ServerTools) -> frozenset[str]:
    """The tools that the list does not call read-only."""
    return frozenset(tool.name for tool in listed.tools if _is_usable(tool.name) and not _reads(tool))


def read_only_names(listed: ServerTools) -> frozenset[str]:
    return frozenset(tool.name for tool in listed.tools if _is_usable(tool.name) and _reads(tool))


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


def _reads(tool: ServerTool) -> bool:
    return isinstance(tool.annotations, Mapping) and tool.annotations.get("readOnlyHint") is True


def _define(tool: ServerTool, declared: McpTool, rules: Iterable[Rules], *, may_read: bool) -> ToolDefinition:
    own = [(each, each.tools.get(tool.name, _AS_LISTED)) for each in rules]
    hints = tool.annotations if isinstance(tool.annotations, Mapping) else {}
    said = [policy.read_only for _, policy in own if policy.read_only is not None]
    read_only = all(said) if said else may_read and _reads(tool)
    said = [policy.idempotent for _, policy in own if policy.idempotent is not None]
    is_idempotent = all(said) if said else read_only or hints.get("idempotentHint") is True
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.MCP,
        description=_about(tool, hints),
        parameters=_schema(tool.input_schema),
        server_label=declared.server_label,
        read_only=read_only,
        idempotent=is_idempotent,
        annotations={name: hint for name, hint in hints.items() if hint is not None} or None,
        declared=declared,
        needs_approval=_strictest([_needs_approval(policy, each, read_only=read_only) for each, policy in own]),
        is_serial=not all(policy.parallel for _, policy in own),
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


def _strictest(demands: Collection[bool | None]) -> bool | None:
    """True before None before False, as `ToolDefinition.needs_approval` has them."""
    return True if True in demands else None if None in demands else False


def _needs_approval(own: McpToolPolicy, rules: Rules, *, read_only: bool) -> bool | None:
    if own.require_approval is not None:
        return own.require_approval
    if rules.require_approval == "always" or (rules.require_approval == "writes" and not read_only):
        return True
    return rules.default
