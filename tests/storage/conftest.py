"""The stores that one suite of behaviours runs against."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from antwort.storage.base import ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.migrations import upgrade
from antwort.storage.postgres import PostgresStore
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import SqliteStore
from postgres import Postgres


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest revision: to copy it is faster than to migrate again."""
    path = tmp_path_factory.mktemp("migrated") / "antwort.db"
    upgrade(path)
    return path


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def on_disk(runner: asyncio.Runner, migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    """One file for all examples of a property; each has a tenant of its own."""
    store = runner.run(SqliteStore.open(Path(shutil.copy(migrated, tmp_path_factory.mktemp("disk")))))
    yield store
    runner.run(store.close())


@pytest.fixture(scope="module")
def on_postgres(runner: asyncio.Runner, postgres: Postgres) -> Iterator[SqlStore]:
    """One database for all examples of a property; each has a tenant of its own."""
    dsn = postgres.migrated_database()
    store = runner.run(PostgresStore.open(dsn))
    yield store
    runner.run(store.close())
    postgres.drop_database(dsn)


@pytest.fixture
def path(migrated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(migrated, tmp_path / "antwort.db"))


@pytest.fixture
async def sqlite(path: Path) -> AsyncGenerator[SqliteStore, None]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncGenerator[ResponseStore, None]:
    store: ResponseStore
    match request.param:
        case "memory":
            store = MemoryStore()
        case "sqlite":
            store = await SqliteStore.open(request.getfixturevalue("path"))
        case _:
            store = await PostgresStore.open(request.getfixturevalue("migrated_database"))
    yield store
    await store.close()
