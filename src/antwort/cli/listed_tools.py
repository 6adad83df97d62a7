"""Tools in lines for a person, and as JSON for programs. What servers say is shown without what a terminal obeys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antwort.config.problems import printable

if TYPE_CHECKING:
    from antwort.tools.base import ToolDefinition

_WIDEST = 56
_LONGEST = 160


def lines(tools: Sequence[ToolDefinition]) -> Iterator[str]:
    """One for each: `echo(text)  read-only  Give back the text.`"""
    heads = [printable(_call(tool)) for tool in tools]
    width = min(max(map(len, heads), default=0), _WIDEST)
    marked = [", ".join(marks(tool)) for tool in tools]
    widest = max(map(len, marked), default=0)
    for tool, head, mark in zip(tools, heads, marked, strict=True):
        about = _first_line(tool.description)
        yield (
            f"  {head:{width}}  {mark:{widest}}  {about}".rstrip() if widest else f"  {head:{width}}  {about}".rstrip()
        )


def marks(tool: ToolDefinition) -> list[str]:
    """What is special about it."""
    found = {
        "needs approval": tool.needs_approval is True,
        "read-only": tool.read_only,
        "idempotent": tool.idempotent and not tool.read_only,
        "one at a time": tool.is_serial,
        "looked for": tool.is_deferred,
    }
    return [mark for mark, is_so in found.items() if is_so]


def as_plain(tool: ToolDefinition) -> dict[str, Any]:
    """All that there is to say, for JSON."""
    return {
        "name": tool.name,
        "server_tool": tool.own_name,
        "description": tool.description,
        "parameters": tool.parameters,
        "annotations": tool.annotations,
        "read_only": tool.read_only,
        "idempotent": tool.idempotent,
        "needs_approval": tool.needs_approval,
        "parallel": not tool.is_serial,
        "deferred": tool.is_deferred,
    }


def _call(tool: ToolDefinition) -> str:
    """As one would write it: what may be left out is in brackets."""
    schema = tool.parameters or {}
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, Mapping) else []
    needed = set(required) if isinstance(required, list) else set()
    inside = ", ".join(name if name in needed else f"[{name}]" for name in names)
    called = tool.name if tool.name == tool.own_name else f"{tool.name} = {tool.own_name}"
    return f"{called}({inside})"


def _first_line(text: str | None) -> str:
    line = (text or "").strip().partition("\n")[0]
    return printable(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…")


def as_json(plain: object) -> str:
    """On a terminal in ASCII alone: servers may say what a terminal obeys."""
    is_seen = sys.stdout is not None and sys.stdout.isatty()
    return json.dumps(plain, indent=2, ensure_ascii=is_seen)
