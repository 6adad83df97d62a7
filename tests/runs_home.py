"""Where a run log keeps its runs, for tests: opened, seen by another process, closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

from antwort import MemoryStore
from antwort.storage.base import ResponseStore
from antwort.storage.database import Database
from antwort.storage.migrations import migrate
from antwort.storage.run_log import RunLog
from antwort.storage.sql_run_log import SqlRunLog
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import SqliteDatabase


class Options(TypedDict, total=False):
    queue: int
    per_owner: int | None
    keep_log: float
    poll: float


class Home(Protocol):
    """One set of data."""

    @property
    def store(self) -> ResponseStore: ...

    async def open(self, **options: Unpack[Options]) -> RunLog:
        """The log, with these settings. Once only."""
        ...

    async def other(self, **options: Unpack[Options]) -> RunLog:
        """The same data as another process sees it, where there can be another; else the same log."""
        ...

    async def close(self) -> None: ...


class SqlHome:
    """Over databases; each process has its own connections."""

    def __init__(self, database: Database) -> None:
        """`database` is open and migrated."""
        self.store = SqlStore(database)
        self.database = database
        self._databases = [database]
        self._logs: list[SqlRunLog] = []

    async def open(self, **options: Unpack[Options]) -> RunLog:
        assert not self._logs, "it is open already"
        return self._add(self.database, options)

    async def other(self, **options: Unpack[Options]) -> RunLog:
        return self._logs[0]

    def _add(self, database: Database, options: Options) -> RunLog:
        self._logs.append(log := SqlRunLog(database, **options))
        return log

    async def close(self) -> None:
        for log in self._logs:
            await log.close()
        for database in self._databases:
            await database.close()


def memory_home() -> SqlHome:
    return SqlHome(MemoryStore().database)


async def sqlite_home(path: Path) -> SqlHome:
    database = SqliteDatabase(path)
    await database.open()
    await migrate(database)
    return SqlHome(database)


class PostgresHome(SqlHome):
    def __init__(self, database: Database, dsn: str) -> None:
        super().__init__(database)
        self.dsn = dsn

    async def other(self, **options: Unpack[Options]) -> RunLog:
        from antwort.storage.postgres import PostgresDatabase

        database = PostgresDatabase(self.dsn)
        await database.open()
        self._databases.append(database)
        return self._add(database, options)


async def postgres_home(dsn: str, **options: Any) -> PostgresHome:
    """Open a database; the options are those of `PostgresDatabase`."""
    from antwort.storage.postgres import PostgresDatabase

    database = PostgresDatabase(dsn, **options)
    await database.open()
    await migrate(database)
    return PostgresHome(database, dsn)
