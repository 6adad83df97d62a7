"""The contract of a database, and the SQL that SQLite and PostgreSQL both run.

An operation is a plain function that works inside a transaction, on a thread. Its statements are written as SQLite
reads them, with `:name` or `?` where a value goes; `to_postgres` translates them. Where the two need different
statements, `per_dialect` makes one for each.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from antwort.errors import StoreFault

T = TypeVar("T")

Dialect: TypeAlias = Literal["sqlite", "postgresql"]
Value: TypeAlias = str | int | float | bytes | list[int] | list[str] | list[bytes] | None
"""A value of a column. A truth value is passed as `bool` and tested by its name alone (`AND is_on`). Lists are for
PostgreSQL only.
"""
Values: TypeAlias = Mapping[str, Value] | Sequence[Value]

UNKNOWN_FAULT = "The store could not be read or written."
"""The message of a fault that has no more specific one."""

_LOOKUP_DELAYS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to find out whether a transaction was committed."""


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    def execute(self, statement: str, values: Values = ..., /) -> Cursor: ...

    def executemany(self, statement: str, values: Sequence[Values], /) -> object: ...


Operation: TypeAlias = Callable[[Connection], T]
"""Runs inside a transaction, and may be run again after a rollback."""


class Database(Protocol):
    """`open` it before use and `close` it at the end. Every failure of the database is a `StoreFault`."""

    @property
    def dialect(self) -> Dialect: ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Write what was accepted, then refuse everything."""
        ...

    async def write(self, operation: Operation[T]) -> T:
        """Return the result of `operation` once its changes are committed.

        An operation that raises is rolled back alone, not with the others of its transaction. One that was accepted is
        run even when its caller was cancelled.
        """
        ...

    async def write_urgent(self, operation: Operation[T]) -> T:
        """Do what `write` does, for short operations that must not wait for long ones: on a second connection where the
        database takes several writers. An urgent operation must not wait for a row that `write` has locked, nor the
        reverse: use `{skip_locked}`.
        """
        ...

    async def read(self, operation: Operation[T]) -> T:
        """Return the result of `operation`. All its queries see the same state, with every write awaited before."""
        ...


async def write_once(database: Database, operation: Operation[T], is_done: Callable[[Connection, T], bool]) -> T:
    """Commit an operation that must not be committed twice, and return its result. When the answer to a commit is
    lost, look up whether it was written, for some seconds, and write it if not.

    `is_done` gets the result of the operation in that transaction. The transaction may still be open: `is_done` should
    wait for it by a row that both lock.
    """
    results: list[T] = []

    def write(connection: Connection) -> T:
        results[:] = [operation(connection)]
        return results[0]

    def write_if_missing(connection: Connection) -> T:
        return results[0] if results and is_done(connection, results[0]) else write(connection)

    try:
        return await database.write(write)
    except StoreFault as fault:
        if not fault.is_ambiguous:
            raise
    for delay in _LOOKUP_DELAYS:
        try:
            return await database.write(write_if_missing)
        except StoreFault:
            await asyncio.sleep(delay)
    return await database.write(write_if_missing)


# ---- SQL ----

_COMMON_PARTS: dict[Dialect, dict[str, str]] = {
    "sqlite": {"lock": "", "skip_locked": ""},  # it has one writer
    "postgresql": {"lock": "FOR UPDATE", "skip_locked": "FOR UPDATE SKIP LOCKED"},
}


def per_dialect(
    statement: str, *, sqlite: Mapping[str, str] | None = None, postgresql: Mapping[str, str] | None = None
) -> dict[Dialect, str]:
    """Fill the `{parts}` of a statement for each dialect: `{lock}`, `{skip_locked}` and those that are given."""
    given: dict[Dialect, Mapping[str, str]] = {"sqlite": sqlite or {}, "postgresql": postgresql or {}}
    return {dialect: statement.format(**_COMMON_PARTS[dialect], **parts) for dialect, parts in given.items()}


_TOKENS = re.compile(
    r"""
      (?P<string> '(?:[^']|'')*' )
    | (?P<cast> :: )
    | (?P<is> \bIS \s+ (?= [:?] ) )
    | \bCROSS \s+ (?P<join> JOIN \s+ \w+ (?: \s+ AS \s+ \w+ )? \s+ ON \b )
    | :(?P<name> [a-z_]\w* )
    | (?P<placeholder> \? )
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1000)
def to_postgres(statement: str) -> bytes:
    """Return the statement as psycopg takes it."""

    def translate(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "name":
                return f"%({found['name']})s"
            case "placeholder":
                return "%s"
            case "is":  # also true for two nulls
                return "IS NOT DISTINCT FROM "
            case "join":  # CROSS keeps SQLite from reordering the loops
                return found["join"]
            case _:
                return found[0]

    return _TOKENS.sub(translate, statement.replace("%", "%%")).encode()
