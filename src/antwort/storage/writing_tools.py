"""Which tools servers have ever listed as writing: in memory, and in a database."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from antwort.db import Connection, Database
from antwort.storage.base import SEEN_AGAIN_SECONDS, WRITING_TOOLS_PER_SERVER, WRITING_TOOLS_PER_TENANT
from antwort.storage.rows import Values

_ALL = ""
"""The name that stands for every tool of a server. No tool has it."""


class _Known(NamedTuple):
    names: frozenset[str]
    seen_at: int = 0

    def holds(self, names: Collection[str], now: int) -> bool:
        """Whether there is nothing to write."""
        is_old = bool(self.names) and now - self.seen_at >= SEEN_AGAIN_SECONDS
        return not is_old and (_ALL in self.names or self.names.issuperset(names))

    def with_names(self, names: Collection[str], now: int) -> _Known:
        more = self.names.union(names)
        if _ALL in self.names or len(more) > WRITING_TOOLS_PER_SERVER:
            more = frozenset({_ALL})
        return _Known(more, now)

    def counted(self) -> frozenset[str] | None:
        return None if _ALL in self.names else self.names


class MemoryWritingTools:
    """The part of the memory store that keeps them."""

    def __init__(self) -> None:
        self._writing: dict[tuple[str, str], _Known] = {}

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        known = self._writing.get((tenant, server), _Known(frozenset()))
        if not known.holds(names, now):
            known = self._writing[tenant, server] = known.with_names(names, now)
            self._make_room(tenant, server)
        return known.counted()

    def _make_room(self, tenant: str, noted: str) -> None:
        of_tenant = {key: known for key, known in self._writing.items() if key[0] == tenant}
        total = sum(len(known.names) for known in of_tenant.values())
        for key in sorted(of_tenant, key=lambda each: of_tenant[each].seen_at):
            if total <= WRITING_TOOLS_PER_TENANT:
                break
            if key[1] != noted:
                total -= len(self._writing.pop(key).names)


class SqlWritingTools:
    """The part of a database store that keeps them: a row for each name."""

    _database: Database

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        values: Values = {"tenant": tenant, "server": server, "now": now}
        known = await self._database.read(partial(_read, values=values))
        if not known.holds(names, now):
            known = await self._database.write(partial(_write, values=values, names=frozenset(names), now=now))
        return known.counted()


_FOUND = "SELECT name, seen_at FROM writing_tools WHERE tenant = :tenant AND server = :server"
_INSERT = """
    INSERT INTO writing_tools (tenant, server, name, seen_at) VALUES (:tenant, :server, :name, :now)
    ON CONFLICT DO NOTHING
"""
_SEEN = "UPDATE writing_tools SET seen_at = :now WHERE tenant = :tenant AND server = :server AND seen_at < :now"
_NAMES = "DELETE FROM writing_tools WHERE tenant = :tenant AND server = :server AND name <> ''"
_FORGET = "DELETE FROM writing_tools WHERE tenant = :tenant AND server = :forgotten"
_COUNT = "SELECT COUNT(*) FROM writing_tools WHERE tenant = :tenant"
_OLDEST = """
    SELECT server, COUNT(*) FROM writing_tools WHERE tenant = :tenant AND server <> :server
    GROUP BY server ORDER BY MAX(seen_at), server
"""


def _read(connection: Connection, values: Values) -> _Known:
    rows = connection.execute(_FOUND, values).fetchall()
    return _Known(frozenset(str(name) for name, _ in rows), max((int(seen_at) for _, seen_at in rows), default=0))


def _write(connection: Connection, values: Values, names: frozenset[str], now: int) -> _Known:
    """In the order of the names, so that two who write the same do not wait for each other."""
    before = _read(connection, values)
    after = before.with_names(names, now)
    connection.executemany(_INSERT, [values | {"name": name} for name in sorted(after.names - before.names)])
    connection.execute(_SEEN, values)
    if _ALL in after.names:
        connection.execute(_NAMES, values)
    _make_room(connection, values)
    return after


def _make_room(connection: Connection, values: Values) -> None:
    excess = int(connection.execute(_COUNT, values).fetchone()[0]) - WRITING_TOOLS_PER_TENANT
    if excess <= 0:
        return
    for server, count in connection.execute(_OLDEST, values).fetchall():
        connection.execute(_FORGET, values | {"forgotten": str(server)})
        excess -= int(count)
        if excess <= 0:
            return
