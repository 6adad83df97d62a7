"""`antwort tools`: the tools that a request would offer the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool
from antwort.cli.mcp import STATUS_UNREACHABLE, as_json, as_lines, as_object, read_settings
from antwort.cli.output import UsageError, print_result, with_progress
from antwort.config.problems import printable
from antwort.config.settings import Settings
from antwort.engine.prompt.discovery import Discovery, check_labels, standing
from antwort.engine.prompt.toolbox import build_toolbox
from antwort.identity import ANONYMOUS, Identity
from antwort.tools.base import HOUSE_LABEL, ToolDefinition
from antwort.tools.limits import all_limited
from antwort.tools.routing import Toolbox
from antwort.toolsets import load_tools, make_mcp


async def run(given: Mapping[str, object]) -> int:
    settings = read_settings(given)
    async with _discovery(settings, given) as discovery:
        labels = _labels(given, discovery)
        if not labels:
            return print_result(as_json({"servers": []}) if given.get("json") else "No tools are offered here.")
        request = CreateRequest(model=discovery.model, tools=tuple(McpTool(server_label=label) for label in labels))
        work = build_toolbox(request, discovery)
        toolbox, listings = await with_progress(work, "asking for tools", only_on_terminal=True)
        standing_labels = {tool.server_label for tool in standing(discovery)}
    mcp_labels = {server.label for server in settings.mcp_servers}
    servers: list[dict[str, Any]] = [
        {
            "label": each.server_label,
            "kind": "mcp" if each.server_label in mcp_labels else "toolset",
            "standing": each.server_label in standing_labels,
            "problem": each.error if isinstance(each.error, str) else None,
            "tools": _tools_of(each, toolbox),
        }
        for each in listings
    ]
    if given.get("json"):
        objects = [{**each, "tools": [as_object(tool) for tool in each["tools"]]} for each in servers]
        lines = [as_json({"servers": objects, "instructions": list(toolbox.instructions)})]
    else:
        lines = _format(servers, toolbox)
    return print_result(*lines) or (STATUS_UNREACHABLE if any(each.error for each in listings) else 0)


@asynccontextmanager
async def _discovery(settings: Settings, given: Mapping[str, object]) -> AsyncIterator[Discovery]:
    """Open everything that runs tools, as a server does, for a request of the identity that is given."""
    tenant, subject = given.get("tenant"), given.get("subject")
    identity = Identity(
        tenant=ANONYMOUS.tenant if tenant is None else str(tenant),
        owner=ANONYMOUS.owner if subject is None else str(subject),
    )
    offered = settings.tools
    loaded = load_tools(offered.modules, entry_points=offered.entry_points, demo=offered.demo)
    servers = make_mcp(settings)
    model = str(given.get("model") or settings.default_model or "")
    try:
        yield Discovery(all_limited([*loaded.executors, servers]), identity, settings.engine(), model=model)
    finally:
        await servers.close()


def _labels(given: Mapping[str, object], discovery: Discovery) -> Sequence[str]:
    try:
        known = check_labels(discovery.executors)
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    asked = given.get("label")
    wanted = [str(each) for each in asked] if isinstance(asked, list) else list(known)
    for label in wanted:
        if label not in known:
            listed = f"there are: {', '.join(known)}" if known else "there are none"
            raise UsageError(f"Nothing is offered under the label {label!r}; {listed}.")
    return wanted


def _tools_of(listing: McpListTools, toolbox: Toolbox) -> list[ToolDefinition]:
    """Return the tools as the model sees them: whether one is deferred depends on how many there are."""
    tools = [tool for tool in toolbox.tools.values() if tool.server_label == listing.server_label]
    return [replace(tool, is_deferred=tool.name in toolbox.deferred) for tool in tools]


def _format(servers: Sequence[Mapping[str, Any]], toolbox: Toolbox) -> list[str]:
    lines: list[str] = []
    for each in servers:
        marks = ["MCP server" if each["kind"] == "mcp" else "toolset"]
        marks += ["in every request"] if each["standing"] else []
        marks += [f"cannot be used: {printable(each['problem'])}"] if each["problem"] is not None else []
        lines += [f"{each['label']} ({', '.join(marks)})", *as_lines(each["tools"])]
    if hidden := len(toolbox.deferred):
        count = sum(tool.server_label != HOUSE_LABEL for tool in toolbox.tools.values())
        lines.append(f"The model is told of {count - hidden} of these {count} tools, and looks for the others.")
    return lines
