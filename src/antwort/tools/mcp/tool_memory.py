"""Remember which tools a server has listed as writing. They count as writing even when it lists them as read-only."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from time import monotonic
from typing import NamedTuple

from antwort.caching import Cache
from antwort.errors import StoreFault
from antwort.notes import note
from antwort.tools.base import NoteWritingTools
from antwort.tools.mcp.base import ServerSpec, ServerTools
from antwort.tools.mcp.conversion import Writing, read_only_names, writing_names

_log = logging.getLogger("antwort.tools.mcp")

SHARED = ""
"""The tenant under which a server is recorded if all tenants share its session."""
_MOST_SERVERS = 512
_RETRY_SECONDS = 5.0
"""Time after which a record that could not be read is read again."""
_MOST_LINES = 20
"""Most log lines about one list."""


class _EveryTool:
    """Contains all names."""

    def __contains__(self, _: object) -> bool:
        return True


_EVERY_TOOL = _EveryTool()


class _Server(NamedTuple):
    seen: frozenset[str] = frozenset()
    """The names of writing tools that this process knows."""
    is_all: bool = False
    """Whether every tool counts as writing, because there were too many to record."""
    is_read: bool = False
    """Whether the record was ever read."""
    stale_at: float = 0.0
    """When it is read again, because other processes may have added names."""

    @property
    def writing(self) -> Container[str]:
        return self.seen if self.is_read and not self.is_all else _EVERY_TOOL


_UNKNOWN = _Server()


class ToolMemory:
    """Cache the record of writing tools. It is read once for each list of a server, and after `list_age` seconds.

    Without a record (`note`), tools are remembered as long as the process lives. Until the record of a server could be
    read, all of its tools count as writing.
    """

    def __init__(self) -> None:
        self.note: NoteWritingTools | None = None
        self.version = 0
        """Changes when something was learned about any server."""
        self._servers = Cache[tuple[str, str], _Server](_MOST_SERVERS)

    def is_current(self, writing: Writing) -> bool:
        """Return whether `learn` would return the same for the same list, without a coroutine: each request asks."""
        return self.version == writing.version and monotonic() < writing.stale_at

    async def learn(self, spec: ServerSpec, tenants: Sequence[str], listed: ServerTools) -> Writing:
        """Record the writing tools of a list for the first of the `tenants`, and return the known ones of each."""
        first, *others = tenants
        version = self.version  # before the waits: what others learn meanwhile is not in the result
        known = [await self._learn(first, spec, writing_names(listed), listed)]
        known += [await self._learn(tenant, spec, frozenset(), listed) for tenant in others]
        return Writing(tuple(each.writing for each in known), version, min(each.stale_at for each in known))

    async def _learn(self, tenant: str, spec: ServerSpec, names: frozenset[str], listed: ServerTools) -> _Server:
        key = tenant, spec.server_id
        known = self._servers.get(key, _UNKNOWN)
        if monotonic() < known.stale_at and (known.is_all or names <= known.seen):
            return known
        seen = known.seen | names
        try:
            recorded = seen if self.note is None else await self.note(*key, seen)
        except StoreFault:
            recorded, is_read, age = frozenset[str](), False, _RETRY_SECONDS
        else:
            is_read, age = True, spec.list_age
        known = self._servers.get(key, _UNKNOWN)  # another request may have learned more meanwhile
        is_all = known.is_all or recorded is None
        # A set that would grow for ever is dropped: every tool counts as writing then.
        seen = frozenset() if is_all else seen | known.seen | (recorded or frozenset())
        if not known.is_read:
            _log_first_list(spec, read_only_names(listed) & seen, is_read=is_read)
        known = _Server(
            known.seen if known.seen == seen else seen,
            is_all=is_all,
            is_read=known.is_read or is_read,
            stale_at=monotonic() + age,
        )
        self._servers.put(key, known)
        self.version += 1
        return known


def _log_first_list(spec: ServerSpec, relisted: frozenset[str], *, is_read: bool) -> None:
    """Log what is remarkable about the first list of a server in this process. `relisted` are tools that it lists as
    read-only, and that are recorded as writing.
    """
    level = logging.WARNING if spec.owner is None else logging.INFO
    if not is_read:
        text = "The record of writing tools cannot be read: all tools of an MCP server count as writing."
        note(_log, level, text, server=spec.label)
    for name in sorted(relisted)[:_MOST_LINES]:
        text = "An MCP server lists a tool as read-only that it has listed as writing: it still counts as writing."
        note(_log, level, text, event="tool_changed", server=spec.label, tool=name)
