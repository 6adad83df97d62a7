"""antwort: an agentic execution engine that speaks the Responses API in front of any Chat Completions backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from antwort.version import __version__

if TYPE_CHECKING:
    from antwort.engine.engine import Engine
    from antwort.engine.settings import EngineSettings
    from antwort.identity import Identity
    from antwort.tools.base import ToolContext, ToolExecutor, ToolResult
    from antwort.tools.local import LocalExecutor, tool

__all__ = [
    "Engine",
    "EngineSettings",
    "Identity",
    "LocalExecutor",
    "ToolContext",
    "ToolExecutor",
    "ToolResult",
    "__version__",
    "tool",
]

_HOMES = {
    "Engine": "antwort.engine.engine",
    "EngineSettings": "antwort.engine.settings",
    "Identity": "antwort.identity",
    "LocalExecutor": "antwort.tools.local",
    "ToolContext": "antwort.tools.base",
    "ToolExecutor": "antwort.tools.base",
    "ToolResult": "antwort.tools.base",
    "tool": "antwort.tools.local",
}


def __getattr__(name: str) -> object:
    """The parts are imported when they are asked for: `antwort --version` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'antwort' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
