"""Search tools: a function that the model gets when there are more tools than fit into the prompt.

The found tools are in the result of the search and nowhere else. The next prompt is built from it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from antwort.api.wire import encode
from antwort.schema.normalize import normalize_all
from antwort.tools.base import HOUSE_LABEL, BaseExecutor, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.ranking import index_of, is_indexed

SEARCH = "tool_search"
"""The name of the function, unless another tool has it."""
FOUND_AT_ONCE, MOST_FOUND = 5, 20
_LONGEST_ABOUT = 200
_LONG = 200
"""From this number of tools on, a thread indexes them."""
_PURPOSE = (
    "Find tools that you cannot see yet. There are more tools than those listed here; look for one by a few words on "
    "what it should do, and those that fit can be called from then on."
)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do, in a few words, or its name."},
        "limit": {
            "type": "integer",
            "description": f"How many tools to return at most; {FOUND_AT_ONCE} unless told.",
            "minimum": 1,
            "maximum": MOST_FOUND,
        },
    },
    "required": ["query"],
}
_NO_NUMBER = f"'limit' must be a number from 1 to {MOST_FOUND}, or be left out."
_WRONG = "The arguments must be a JSON object with 'query': a few words on what the tool should do."
_NOTHING = "No tool fits. Try other words, or answer without one."


class _Asked(msgspec.Struct):
    query: str
    limit: int | float | str | bool | None = None


class _Found(msgspec.Struct, omit_defaults=True):
    """A tool in a result, with the name to call it by. Its definition joins the prompt."""

    name: str
    server: str | None = None
    description: str | None = None


class _Result(msgspec.Struct, omit_defaults=True):
    tools: list[_Found]
    hint: str | None = None


class ToolSearch(BaseExecutor):
    """Searches a catalogue: the tools that are not in the prompt and may be called."""

    kind = ToolKind.MCP
    is_steady = True

    def __init__(self, name: str, catalogue: Sequence[ToolDefinition], hints: Sequence[str] = ()) -> None:
        """`hints` tell the model what it can find, a line each."""
        self.definition = ToolDefinition(
            name=name,
            kind=ToolKind.MCP,
            description="\n".join((_PURPOSE, *hints)),
            parameters=_PARAMETERS,
            server_label=HOUSE_LABEL,
            read_only=True,
            idempotent=True,
        )
        self._catalogue = tuple(catalogue)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.is_search and tool.name == self.definition.name

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        context.began()
        try:
            asked = msgspec.json.decode(call.arguments, type=_Asked)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return ToolResult(call.id, _WRONG, is_error=True)
        if not asked.query.strip():
            return ToolResult(call.id, _WRONG, is_error=True)
        if (limit := _limit(asked.limit)) is None:
            return ToolResult(call.id, _NO_NUMBER, is_error=True)
        return ToolResult(call.id, _told(await self._search(asked.query, limit)))

    async def _search(self, query: str, limit: int) -> list[ToolDefinition]:
        if len(self._catalogue) > _LONG and not is_indexed(self._catalogue):
            await asyncio.to_thread(index_of, self._catalogue)
        found = [self._catalogue[at] for at in index_of(self._catalogue).best(query, limit)]
        await normalize_all(tool.parameters for tool in found if tool.parameters is not None)  # they join the prompt
        return found


def _limit(said: float | str | None) -> int | None:
    """Return the limit, which models also write as text; None if it is no number."""
    if said is None or isinstance(said, bool):
        return FOUND_AT_ONCE if said is None else None
    try:
        number = float(said)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else int(min(max(number or FOUND_AT_ONCE, 1), MOST_FOUND))


# ---- what was found, written and read ----


def _told(tools: Sequence[ToolDefinition]) -> str:
    found = [
        _Found(tool.name, tool.server_label or tool.namespace, _shortened(tool.description or "")) for tool in tools
    ]
    return encode(_Result(found, None if found else _NOTHING)).decode()


def found_in(output: str) -> Iterator[str]:
    """Yield the names of the tools in the result of a search. Any other text has none."""
    try:
        result = _read(output)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    yield from (found.name for found in result.tools[:MOST_FOUND])


_read = partial(msgspec.json.decode, type=_Result)


def _shortened(text: str) -> str | None:
    words = " ".join(text[: 4 * _LONGEST_ABOUT].split())
    return (words or None) if len(words) <= _LONGEST_ABOUT else f"{words[:_LONGEST_ABOUT].rpartition(' ')[0]}…"
