"""The schema has a history from its first day."""

from __future__ import annotations

import importlib.util
import io
import sqlite3
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory

from antwort.errors import StoreFault
from antwort.storage import migrations
from antwort.storage.sqlite import SqliteStore
from storage_cases import ME, tell

TABLES = {"responses", "items", "turns", "tool_intents", "idempotency_keys", "run_events"}


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_the_known_revisions_are_those_of_the_files() -> None:
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert script.get_current_head() == migrations.HEAD
    assert [found.revision for found in reversed(list(script.walk_revisions()))] == list(migrations.REVISIONS)


async def test_a_new_file_gets_all_tables(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "100% new" / "antwort.db")
    response = await tell(store, "hello")
    assert await store.get(ME, response.id) == response
    await store.close()
    assert tables(tmp_path / "100% new" / "antwort.db") == TABLES | {"alembic_version"}


def test_the_first_revision_can_be_taken_back(path: Path) -> None:
    migrations.downgrade(path, "base")
    assert tables(path) == {"alembic_version"}
    migrations.upgrade(path)
    assert tables(path) == TABLES | {"alembic_version"}


async def test_data_of_a_newer_version_is_left_alone(path: Path) -> None:
    execute(path, "UPDATE alembic_version SET version_num = '9999'")
    execute(path, "DROP TABLE run_events")
    with pytest.raises(StoreFault, match="written by a newer version of antwort"):
        await SqliteStore.open(path)
    assert tables(path) == TABLES - {"run_events"} | {"alembic_version"}


async def test_an_upgrade_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    execute(path, "CREATE TABLE turns (of_somebody_else TEXT)")
    with pytest.raises(StoreFault):
        await SqliteStore.open(path)
    assert tables(path) == {"turns"}
    execute(path, "DROP TABLE turns")
    store = await SqliteStore.open(path)  # the lock was given back, too
    await store.close()


def test_postgresql_can_take_the_same_revision() -> None:
    folder = Path(migrations.__file__).parent / "versions"
    spec = importlib.util.spec_from_file_location("first_tables", folder / "0001_first_tables.py")
    assert spec is not None
    assert spec.loader is not None
    revision = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(revision)
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written})
    with Operations.context(context):
        revision.upgrade()
    statements = written.getvalue()
    assert statements.count("CREATE TABLE") == len(TABLES)
    assert "key BIGSERIAL NOT NULL" in statements
    assert "request BYTEA NOT NULL" in statements
    assert "WHERE status IN ('queued', 'in_progress')" in statements
