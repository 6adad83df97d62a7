"""`antwort tools`: what the model would be offered by a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from antwort.cli.listed_tools import as_json, as_plain, lines
from antwort.cli.mcp import UNREACHABLE, conclude, waited
from antwort.cli.mcp_servers import read_settings
from antwort.cli.say import tell
from antwort.cli.subjects import Misused
from antwort.config.problems import printable

if TYPE_CHECKING:
    from antwort.api.items import McpListTools
    from antwort.config.settings import Settings
    from antwort.engine.prompt.discovery import Discovery
    from antwort.identity import Identity
    from antwort.tools.base import ToolDefinition
    from antwort.tools.routing import Toolbox


def run(given: Mapping[str, object]) -> int:
    return conclude("antwort tools", _show, given)


async def _show(given: Mapping[str, object]) -> int:
    settings = read_settings(given)
    model = str(given.get("model") or settings.default_model or "")
    async with _discovery(settings, model, _identity(given)) as discovery:
        labels = _labels(given, discovery)
        if not labels:
            return tell(as_json({"servers": []}) if given.get("json") else "No tools are offered here.")
        toolbox, lists = await waited(_offered(labels, discovery), "asking for tools")
        standing = _standing(discovery)
    told = _Told(toolbox, lists, standing, settings)
    text = [as_json(told.plain())] if given.get("json") else told.lines()
    return tell(*text) or (UNREACHABLE if any(each.error for each in lists) else 0)


def _identity(given: Mapping[str, object]) -> Identity:
    """Whose request it is: what stands in it may be for some alone."""
    from antwort.identity import ANONYMOUS, Identity

    tenant, subject = given.get("tenant"), given.get("subject")
    return Identity(
        tenant=ANONYMOUS.tenant if tenant is None else str(tenant),
        owner=ANONYMOUS.owner if subject is None else str(subject),
    )


@asynccontextmanager
async def _discovery(settings: Settings, model: str, identity: Identity) -> AsyncIterator[Discovery]:
    """Everything that runs tools, as a server would have it; without a server."""
    from antwort.engine.prompt.discovery import Discovery
    from antwort.tools.limits import all_limited
    from antwort.toolsets import load_tools, make_mcp

    offered = settings.tools
    loaded = load_tools(offered.modules, entry_points=offered.entry_points, demo=offered.demo)
    servers = make_mcp(settings)
    executors = all_limited([*loaded.executors, servers])
    try:
        yield Discovery(executors, identity, settings.engine(), model=model)
    finally:
        await servers.close()


def _labels(given: Mapping[str, object], discovery: Discovery) -> Sequence[str]:
    from antwort.engine.prompt.discovery import check_labels

    try:
        known = check_labels(discovery.executors)
    except ValueError as exc:
        raise Misused(str(exc)) from exc
    asked = given.get("label")
    wanted = [str(each) for each in asked] if isinstance(asked, list) else list(known)
    for label in wanted:
        if label not in known:
            there = f"there are: {', '.join(known)}" if known else "there are none"
            raise Misused(f"Nothing is offered under the label {label!r}; {there}.")
    return wanted


def _standing(discovery: Discovery) -> frozenset[str]:
    from antwort.engine.prompt.discovery import standing

    return frozenset(tool.server_label for tool in standing(discovery))


async def _offered(labels: Sequence[str], discovery: Discovery) -> tuple[Toolbox, Sequence[McpListTools]]:
    """Of a request that names these labels. What stands in it beside them shows as well."""
    from antwort.api.requests import CreateRequest
    from antwort.api.tools import McpTool
    from antwort.engine.prompt.toolbox import build_toolbox

    request = CreateRequest(model=discovery.model, tools=tuple(McpTool(server_label=label) for label in labels))
    return await build_toolbox(request, discovery)


class _Told:
    """The toolbox of a request, server by server."""

    def __init__(
        self, toolbox: Toolbox, lists: Sequence[McpListTools], standing: frozenset[str], settings: Settings
    ) -> None:
        self._toolbox, self._lists, self._standing, self._settings = toolbox, lists, standing, settings

    def lines(self) -> list[str]:
        from antwort.tools.base import HOUSE_LABEL

        shown: list[str] = []
        for each in self._lists:
            shown.append(f"{each.server_label}{self._about(each)}")
            shown.extend(lines(self._tools(each)))
        if hidden := len(self._toolbox.deferred):
            count = sum(tool.server_label != HOUSE_LABEL for tool in self._toolbox.tools.values())
            shown.append(f"The model is told of {count - hidden} of these {count} tools, and looks for the others.")
        return shown

    def _about(self, listed: McpListTools) -> str:
        marks = [*self._kind(listed.server_label), *(["in every request"] if self._is_standing(listed) else [])]
        if isinstance(listed.error, str):
            marks.append(f"cannot be used: {printable(listed.error)}")
        return f" ({', '.join(marks)})" if marks else ""

    def _kind(self, label: str) -> list[str]:
        is_server = any(server.label == label for server in self._settings.mcp_servers)
        return ["MCP server"] if is_server else ["toolset"]

    def _is_standing(self, listed: McpListTools) -> bool:
        return listed.server_label in self._standing

    def _tools(self, listed: McpListTools) -> list[ToolDefinition]:
        """As the model meets them: which are kept back depends on how many there are."""
        from msgspec.structs import replace

        own = [tool for tool in self._toolbox.tools.values() if tool.server_label == listed.server_label]
        return [replace(tool, is_deferred=tool.name in self._toolbox.deferred) for tool in own]

    def plain(self) -> dict[str, Any]:
        servers = [
            {
                "label": each.server_label,
                "kind": "mcp" if self._kind(each.server_label) == ["MCP server"] else "toolset",
                "standing": self._is_standing(each),
                "problem": each.error if isinstance(each.error, str) else None,
                "tools": [as_plain(tool) for tool in self._tools(each)],
            }
            for each in self._lists
        ]
        return {"servers": servers, "instructions": list(self._toolbox.instructions)}
