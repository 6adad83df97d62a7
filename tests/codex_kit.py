"""The tools that Codex sends with every request, in few words."""

from __future__ import annotations

from typing import Any

APPLY_PATCH_GRAMMAR = """start: "*** Begin Patch" LF file+ "*** End Patch" [LF]
file: "*** Add File: " /.+/ LF ("+" /.*/ LF)+
%import common.LF
"""
PATCH = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"

EXEC: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Tools for spawning and managing sub-agents.",
    "tools": [
        {
            "type": "function",
            "name": "spawn_agent",
            "description": "Spawns an agent.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"message": {"type": "string"}}},
        },
        {"type": "function", "name": "close_agent", "description": None, "strict": False, "parameters": {}},
    ],
}
WEB_SEARCH: dict[str, Any] = {"type": "web_search", "external_web_access": False}
APPLY_PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH_GRAMMAR},
}
TOOL_SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client", "description": "Finds tools."}

CODEX_TOOLS = [EXEC, AGENTS, WEB_SEARCH, APPLY_PATCH, TOOL_SEARCH]
