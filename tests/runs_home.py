"""Where a run log keeps its runs, for tests: opened, seen by another process, closed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from antwort import MemoryStore, SqliteStore
from antwort.storage.base import ResponseStore
from antwort.storage.database import Database
from antwort.storage.run_log import RunLog
from antwort.storage.sql_run_log import SqlRunLog

if TYPE_CHECKING:
    from antwort.storage.postgres import PostgresStore


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
    """Over a store of ours; each process has its own connections."""

    def __init__(self, store: MemoryStore | SqliteStore | PostgresStore) -> None:
        self.store = store
        self.database = store.database
        self._stores: list[ResponseStore] = [store]
        self._logs: list[RunLog] = []

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
        for store in self._stores:
            await store.close()


def memory_home() -> SqlHome:
    return SqlHome(MemoryStore())


async def sqlite_home(path: Path) -> SqlHome:
    return SqlHome(await SqliteStore.open(path))


class PostgresHome(SqlHome):
    def __init__(self, store: PostgresStore, dsn: str) -> None:
        super().__init__(store)
        self.dsn = dsn

    async def other(self, **options: Unpack[Options]) -> RunLog:
        from antwort.storage.postgres import PostgresStore

        self._stores.append(store := await PostgresStore.open(self.dsn))
        return self._add(store.database, options)


async def postgres_home(dsn: str, **options: Any) -> PostgresHome:
    """Open a database; the options are those of `PostgresDatabase`."""
    from antwort.storage.postgres import PostgresDatabase, PostgresStore

    return PostgresHome(await PostgresStore.open_database(PostgresDatabase(dsn, **options)), dsn)
