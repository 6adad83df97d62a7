"""Hosted tools, which only OpenAI runs, and the toolsets that the operator has put in their place."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from antwort.api.tools import McpTool, OpaqueTool, Tool
from antwort.api.wire import UNSET
from antwort.engine.settings import EngineSettings, HostedPolicy
from antwort.errors import InvalidField, shown
from antwort.notes import note
from antwort.tools.base import ToolDefinition
from antwort.tools.search import SEARCH

_log = logging.getLogger("antwort.engine")

_ODD = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST_TYPE, _MOST_TYPES = 64, 8
"""How much of the client's words a line of the log takes."""


def policy_for(kind: str, settings: EngineSettings) -> HostedPolicy:
    """Return the policy of the type, or of the longest prefix that ends in `*`; else that of `unknown_tools`."""
    if (exact := settings.hosted.get(kind)) is not None:
        return exact
    prefixes = [word for word in settings.hosted if word.endswith("*") and kind.startswith(word[:-1])]
    return settings.hosted[max(prefixes, key=len)] if prefixes else HostedPolicy(do=settings.unknown_tools)


def asks_to_search(tool: Tool, settings: EngineSettings) -> bool:
    """Return whether the tool only allows the model to search for tools, which it may do in any case. Not where the
    client searches, nor where the operator has a policy for it.
    """
    if not isinstance(tool, OpaqueTool) or tool.type != SEARCH or tool.fields.get("execution") == "client":
        return False
    return tool.type not in settings.hosted


def stand_in(tool: OpaqueTool, settings: EngineSettings) -> McpTool | None:
    """Return the toolset in place of the tool; None: it is dropped. Raises `InvalidField` where it is refused."""
    policy = policy_for(tool.type, settings)
    if policy.do == "refuse":
        problem = f"tools of type {shown(tool.type)} are not offered here."
        raise InvalidField(f"{tool.path}.type", problem, code="unsupported_tool")
    if policy.do == "drop" or policy.toolset is None:
        return None
    return McpTool(server_label=policy.toolset, allowed_tools=UNSET if policy.tools is None else policy.tools)


def stands_in(definition: ToolDefinition, kind: str, settings: EngineSettings) -> bool:
    """Return whether the tool stands in for hosted tools of that type."""
    policy = policy_for(kind, settings)
    if policy.do != "run" or policy.toolset is None or definition.server_label != policy.toolset:
        return False
    return policy.tools is None or definition.own_name in policy.tools


def in_force(tools: Sequence[Tool], settings: EngineSettings) -> list[Tool]:
    """Return the tools without those that are dropped; one that a toolset stands in for stays as it was declared."""
    return [
        tool
        for tool in tools
        if not isinstance(tool, OpaqueTool)
        or asks_to_search(tool, settings)
        or policy_for(tool.type, settings).do == "run"
    ]


def note_dropped(kinds: Iterable[str]) -> None:
    """Log one line for a request, whatever it declares."""
    cleaned = list(dict.fromkeys(_ODD.sub("?", kind[:_LONGEST_TYPE]) for kind in kinds))
    if not cleaned:
        return
    more = len(cleaned) - _MOST_TYPES
    types = ", ".join(cleaned[:_MOST_TYPES]) + (f" and {more} more" if more > 0 else "")
    note(_log, logging.INFO, f"dropped tools of types that nobody here runs: {types}", said={"types": types})


def check_hosted(hosted: Mapping[str, HostedPolicy], labels: Collection[str]) -> None:
    """Raise `ValueError` for a policy that names no toolset, or one that is not there."""
    for kind, policy in hosted.items():
        if policy.do == "run" and policy.toolset not in labels:
            there = f"known are {', '.join(sorted(labels))}" if labels else "there is none"
            named = "names no toolset" if policy.toolset is None else f"names the toolset {policy.toolset!r}"
            raise ValueError(f"The policy for tools of type {kind!r} {named}; {there}.")
