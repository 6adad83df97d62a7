"""antwort: an agentic execution engine that speaks the Responses API in front of any Chat Completions backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from antwort.version import __version__

if TYPE_CHECKING:
    from antwort.api.events import StreamEvent
    from antwort.api.requests import CreateRequest
    from antwort.api.responses import Response
    from antwort.asgi import create_app
    from antwort.config.loading import load
    from antwort.config.problems import CannotStart
    from antwort.config.settings import Settings
    from antwort.crypto import Vault
    from antwort.engine.engine import Engine
    from antwort.engine.request_fields import RequestFields
    from antwort.engine.settings import EngineSettings, HostedPolicy
    from antwort.errors import AntwortError, InvalidField, NotAuthenticated, NotPermitted
    from antwort.identity import Identity
    from antwort.local.provider import LocalProvider
    from antwort.providers.base import Provider
    from antwort.providers.chat import ChatProvider
    from antwort.providers.fleet import Retrying
    from antwort.providers.tool_emulation.emulation import Constrained
    from antwort.storage.base import ResponseStore
    from antwort.storage.memory import MemoryStore
    from antwort.storage.sqlite import SqliteStore
    from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult
    from antwort.tools.local import LocalExecutor, tool
    from antwort.tools.mcp.executor import McpExecutor
    from antwort.tools.mcp.servers import McpPolicy, McpServer
    from antwort.tools.toolset import Toolset

__all__ = [
    "AntwortError",
    "CannotStart",
    "ChatProvider",
    "Constrained",
    "CreateRequest",
    "Engine",
    "EngineSettings",
    "HostedPolicy",
    "Identity",
    "InvalidField",
    "LocalExecutor",
    "LocalProvider",
    "McpExecutor",
    "McpPolicy",
    "McpServer",
    "MemoryStore",
    "NotAuthenticated",
    "NotPermitted",
    "Provider",
    "RequestFields",
    "Response",
    "ResponseStore",
    "Retrying",
    "Settings",
    "SqliteStore",
    "StreamEvent",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolExecutor",
    "ToolKind",
    "ToolResult",
    "Toolset",
    "Vault",
    "__version__",
    "create_app",
    "load",
    "tool",
]

_HOMES = {
    "AntwortError": "antwort.errors",
    "CannotStart": "antwort.config.problems",
    "ChatProvider": "antwort.providers.chat",
    "Constrained": "antwort.providers.tool_emulation.emulation",
    "CreateRequest": "antwort.api.requests",
    "Engine": "antwort.engine.engine",
    "EngineSettings": "antwort.engine.settings",
    "HostedPolicy": "antwort.engine.settings",
    "Identity": "antwort.identity",
    "InvalidField": "antwort.errors",
    "LocalExecutor": "antwort.tools.local",
    "LocalProvider": "antwort.local.provider",
    "McpExecutor": "antwort.tools.mcp.executor",
    "McpPolicy": "antwort.tools.mcp.servers",
    "McpServer": "antwort.tools.mcp.servers",
    "MemoryStore": "antwort.storage.memory",
    "NotAuthenticated": "antwort.errors",
    "NotPermitted": "antwort.errors",
    "Provider": "antwort.providers.base",
    "RequestFields": "antwort.engine.request_fields",
    "Response": "antwort.api.responses",
    "ResponseStore": "antwort.storage.base",
    "Retrying": "antwort.providers.fleet",
    "Settings": "antwort.config.settings",
    "SqliteStore": "antwort.storage.sqlite",
    "StreamEvent": "antwort.api.events",
    "ToolCall": "antwort.tools.base",
    "ToolContext": "antwort.tools.base",
    "ToolDefinition": "antwort.tools.base",
    "ToolExecutor": "antwort.tools.base",
    "ToolKind": "antwort.tools.base",
    "ToolResult": "antwort.tools.base",
    "Toolset": "antwort.tools.toolset",
    "Vault": "antwort.crypto",
    "create_app": "antwort.asgi",
    "load": "antwort.config.loading",
    "tool": "antwort.tools.local",
}


def __getattr__(name: str) -> object:
    """The parts are imported when they are asked for: `antwort --version` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'antwort' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
