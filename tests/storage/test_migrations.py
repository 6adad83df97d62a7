"""The schema has a history from its first day."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory

from antwort.api.wire import encode
from antwort.errors import StoreFault
from antwort.storage import migrations
from antwort.storage.base import Decision
from antwort.storage.migrations import migrate
from antwort.storage.postgres import PostgresDatabase, PostgresStore
from antwort.storage.sqlite import SqliteDatabase, SqliteStore
from storage_cases import ME, asked, open_conversation, said_in, tell

TABLES = {
    "calls",
    "responses",
    "items",
    "turns",
    "idempotency_keys",
    "workers",
    "runs",
    "seals",
    "run_events",
    "run_logs",
    "conversations",
    "conversation_items",
    "approvals",
    "writing_tools",
}


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def execute(path: Path, statement: str, values: tuple[int | bytes, ...] = ()) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
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


async def test_a_new_file_has_the_same_tables_as_one_that_was_migrated(path: Path, tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path / "new.db")).close()
    assert schema(tmp_path / "new.db") == schema(path)


def schema(path: Path) -> dict[str, str]:
    """Each statement without white space."""
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    connection.close()
    return {name: "".join(statement.split()) for name, statement in found.items()}


async def test_two_that_open_a_new_file_at_once_make_its_tables_once(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "new.db")
    await database.open()
    await asyncio.gather(migrate(database), migrate(database))
    assert tables(database.path) >= TABLES
    await database.close()


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


async def test_responses_from_before_the_models_had_a_column_are_listed_by_them(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    migrations.upgrade(path, "0001")
    for key, body in enumerate(
        (b'{"model": "small"}', b"damaged", b'{"model": null}', b"\xff\x00", b'{"no": "model"}')
    ):
        execute(
            path,
            "INSERT INTO responses (key, tenant, owner, id, thread_key, depth, status, background, created_at, "
            "schema_version, request, body) VALUES (?1, 'acme', 'ann', 'r' || ?1, ?1, 0, 'failed', 0, 1, 1, '', ?2)",
            (key, body),
        )
    await (await SqliteStore.open(path)).close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT model FROM responses ORDER BY key").fetchall() == [("small",), *[("",)] * 4]
    connection.close()


async def test_a_database_from_before_there_were_conversations_gets_them_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    migrations.upgrade(path, "0002")
    execute(
        path,
        "INSERT INTO responses (key, tenant, owner, id, thread_key, depth, model, status, background, created_at, "
        "schema_version, request, body) VALUES (1, 'acme', 'ann', 'r', 1, 0, 'm', 'failed', 0, 1, 1, '', ?)",
        (encode(asked("old", response_id="r").response),),
    )
    store = await SqliteStore.open(path)
    assert await store.get(ME, "r") is not None
    conversation = await open_conversation(store, "Hello")
    assert await said_in(store, conversation.id) == ["Hello"]
    await store.close()


async def test_a_file_from_before_runs_were_kept_gets_their_tables_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    migrations.upgrade(path, "0005")
    execute(
        path,
        "INSERT INTO responses (key, tenant, owner, id, thread_key, depth, model, status, background, created_at, "
        "schema_version, request, body) VALUES (1, 'acme', 'ann', 'r', 1, 0, 'm', 'failed', 0, 1, 1, '', ?)",
        (encode(asked("old", response_id="r").response),),
    )
    store = await SqliteStore.open(path)
    assert await store.get(ME, "r") is not None
    await store.close()
    assert tables(path) == TABLES | {"alembic_version"}


async def test_approvals_from_before_tools_had_a_digest_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    migrations.upgrade(path, "0007")
    execute(
        path,
        "INSERT INTO approvals (tenant, owner, id, response_id, status, created_at, expires_at, server_label, name, "
        "arguments) VALUES ('acme', 'ann', 'mcpr_1', 'r', 'pending', 1, 2, 'depot', 'ship', '{}')",
    )
    store = await SqliteStore.open(path)
    found = (await store.find_approvals(ME, ["mcpr_1"]))["mcpr_1"]
    assert (found.tool_digest, found.replaces) == ("", None)
    await store.decide(ME, "resp_1", [Decision(id="mcpr_1", status="outdated")])
    await store.close()


# ---- PostgreSQL ----


def tables_of(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


async def test_postgresql_takes_the_same_revisions(postgres_database: str) -> None:
    store = await PostgresStore.open(postgres_database)
    response = await tell(store, "hello")
    assert await store.get(ME, response.id) == response
    await store.close()
    assert tables_of(postgres_database) == TABLES | {"alembic_version"}


async def test_replicas_that_start_at_once_find_one_another_no_hindrance(postgres_database: str) -> None:
    stores = await asyncio.gather(*[PostgresStore.open(postgres_database) for _ in range(4)])
    response = await tell(stores[0], "hello")
    for store in stores:
        assert await store.get(ME, response.id) == response
        await store.close()


async def test_a_database_of_a_newer_version_is_left_alone(migrated_database: str) -> None:
    with psycopg.connect(migrated_database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    try:
        with pytest.raises(StoreFault, match="database was written by a newer version of antwort"):
            await PostgresStore.open(migrated_database)
        with pytest.raises(StoreFault, match="database was written by a newer version of antwort"):
            migrations.upgrade(PostgresDatabase(migrated_database))  # whoever was faster was newer
    finally:
        with psycopg.connect(migrated_database) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [migrations.HEAD])


async def test_an_upgrade_of_postgresql_that_breaks_off_leaves_it_as_it_was(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        connection.execute("CREATE TABLE turns (of_somebody_else TEXT)")
    with pytest.raises(StoreFault):
        await PostgresStore.open(postgres_database)
    assert tables_of(postgres_database) == {"turns"}
