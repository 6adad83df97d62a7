"""The homes of a run log that are measured, each with what its server costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import psycopg

from antwort.storage.memory import MemoryStore
from antwort.storage.migrations import migrate
from antwort.storage.postgres import PostgresDatabase
from antwort.storage.run_log import RunLog
from antwort.storage.sql_run_log import SqlRunLog
from antwort.storage.sqlite import SqliteDatabase
from postgres import Postgres

Home: TypeAlias = Literal["memory", "sqlite", "postgres"]
HOMES: tuple[Home, ...] = ("memory", "sqlite", "postgres")
_TICKS = os.sysconf("SC_CLK_TCK")
_QUEUE = 1_000_000


class Place:
    """A log, and what it takes on this machine."""

    def __init__(self, home: Home, log: RunLog, folder: Path, postgres: Postgres | None, dsn: str | None) -> None:
        self.home, self.log = home, log
        self.dsn = dsn
        self._folder, self._postgres = folder, postgres

    def client_cpu(self) -> float:
        """Seconds that this process has used, all of its threads."""
        return time.process_time()

    def server_cpu(self) -> float:
        return 0.0 if self._postgres is None else sum(_cpu_of(pid) for pid in self._postgres.pids())

    def disk(self) -> int:
        """Bytes that are kept."""
        if self.dsn is not None:
            return _size_of(self.dsn)
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())

    def live(self) -> int:
        """Bytes of them that hold something: the rest of a PostgreSQL's are used again by what comes next."""
        if self.dsn is None:
            return self.disk()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("VACUUM FULL")
        return self.disk()


@asynccontextmanager
async def place(home: Home) -> AsyncIterator[Place]:
    """An empty log in a home of its own; PostgreSQL forces what is committed to the disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        postgres = Postgres(is_durable=True) if home == "postgres" else None
        try:
            dsn = None
            if postgres is not None:
                postgres.start()
                dsn = postgres.fresh_database()
            async with opened(home, folder, dsn) as log:
                yield Place(home, log, folder, postgres, dsn)
        finally:
            if postgres is not None:
                postgres.remove()


@asynccontextmanager
async def opened(home: Home, folder: Path, dsn: str | None) -> AsyncIterator[RunLog]:
    """As a server opens it, but that as many runs may wait as are asked for."""
    if home == "memory":
        yield SqlRunLog(MemoryStore().database, queue=_QUEUE)
        return
    database = _database(folder, dsn)
    await database.open()
    await migrate(database)
    log = SqlRunLog(database, queue=_QUEUE)
    try:
        yield log
    finally:
        await log.close()
        await database.close()


def _database(folder: Path, dsn: str | None) -> SqliteDatabase | PostgresDatabase:
    return SqliteDatabase(folder / "antwort.db") if dsn is None else PostgresDatabase(dsn)


def _size_of(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])


def _cpu_of(pid: int) -> float:
    """Seconds, with those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
