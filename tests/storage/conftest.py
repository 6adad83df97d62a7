"""The stores that one suite of behaviours runs against."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from antwort.storage.base import ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.migrations import upgrade
from antwort.storage.postgres import PostgresStore
from antwort.storage.sqlite import SqliteStore


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest revision: to copy it is faster than to migrate again."""
    path = tmp_path_factory.mktemp("migrated") / "antwort.db"
    upgrade(path)
    return path


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
