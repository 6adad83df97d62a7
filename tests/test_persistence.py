"""Where a server keeps its records: as the settings say, or it does not start and says why."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from antwort.app import App, build
from antwort.config import CannotStart, Secret, Settings
from antwort.config.checks import check
from antwort.config.settings import EncryptionSettings
from antwort.persistence import KEY_FILE, open_records
from antwort.storage.memory import MemoryStore
from antwort.storage.sql_store import SqlStore
from config_kit import Operator
from postgres import Postgres
from runs_cases import has_log
from storage_cases import ME, asked, tell

OLD, NEW = "an old secret of some length", "a new secret of some length"


def shared(dsn: str, folder: Path | None = None, *keys: str) -> Settings:
    return Settings(
        scripted=True,
        data=None if folder is None else str(folder),
        database=Secret(dsn),
        encryption=EncryptionSettings(keys=tuple(map(Secret, keys))),
    )


@asynccontextmanager
async def built(settings: Settings) -> AsyncGenerator[App, None]:
    app = await build(settings)
    try:
        yield app
    finally:
        await app.engine.close()


async def test_a_database_takes_the_place_of_the_data_folder(migrated_database: str, tmp_path: Path) -> None:
    records = await open_records(shared(migrated_database, tmp_path / "data", NEW))
    response = await tell(records.store, "hello")
    await records.runs.close()
    await records.store.close()
    assert not (tmp_path / "data").exists()
    with psycopg.connect(migrated_database) as connection:
        assert connection.execute("SELECT id FROM responses").fetchall() == [(response.id,)]


async def test_what_a_process_left_of_a_large_response_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """A new response is hidden until all of it is written."""
    settings = Settings(data=str(tmp_path))
    records = await open_records(settings)
    await records.store.begin(asked("hello", response_id="left"))
    await records.store.database.write(lambda connection: connection.execute("UPDATE responses SET deleted_at = 1"))
    await records.runs.close()
    await records.store.close()
    records = await open_records(settings)
    query = "SELECT (SELECT count(*) FROM responses), (SELECT count(*) FROM items)"
    assert await records.store.database.read(lambda connection: connection.execute(query).fetchone()) == (0, 0)
    await records.runs.close()
    await records.store.close()


async def test_a_run_log_is_over_the_records_of_the_store(tmp_path: Path) -> None:
    for settings, kind in ((Settings(memory=True), MemoryStore), (Settings(data=str(tmp_path)), SqlStore)):
        records = await open_records(settings)
        assert isinstance(records.store, kind)
        response = await tell(records.store, "hello")
        assert not await has_log(records.runs, ME, response.id)
        await records.runs.close()
        await records.store.close()


async def test_a_database_that_cannot_be_reached_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    settings = shared("postgresql://ann:hush@127.0.0.1:1/antwort", tmp_path)
    with pytest.raises(CannotStart, match=r"^The database cannot be used: .*127\.0\.0\.1.*refused") as caught:
        await build(settings)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_database_that_is_not_there_is_named(postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match='database "nowhere" does not exist'):
        await build(shared(postgres.dsn("nowhere"), tmp_path))


async def test_an_address_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(
        CannotStart, match=r"^The database cannot be used: The address of the database cannot be read\.$"
    ):
        await build(shared("postgresql://ann:hush@127.0.0.1/x?no=such", tmp_path))


async def test_without_a_driver_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "antwort.storage.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CannotStart, match=r"pip install 'antwort\[postgres\]'\.$"):
        await open_records(shared("postgresql://localhost/antwort"))


# ---- settings ----


def test_memory_and_a_database_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="memory and `database` exclude each other"):
        check(Settings(scripted=True, memory=True, database=Secret("postgresql://localhost/x")))


def test_whoever_names_a_database_keeps_responses_there_unless_memory_is_asked_for_as_well(tmp_path: Path) -> None:
    settings = Operator(tmp_path).gets("memory: true", {"ANTWORT_DATABASE": "postgresql://localhost/x"})
    assert not settings.memory
    assert settings.database == Secret("postgresql://localhost/x")


# ---- one key for all ----


async def test_processes_of_one_machine_share_the_key_of_its_data_folder(
    migrated_database: str, tmp_path: Path
) -> None:
    settings = shared(migrated_database, tmp_path / "data")
    async with built(settings), built(settings):
        assert (tmp_path / "data" / KEY_FILE).exists()


async def test_a_machine_with_another_key_is_refused(migrated_database: str, tmp_path: Path) -> None:
    async with built(shared(migrated_database, tmp_path / "one")):
        with pytest.raises(CannotStart, match=r"sealed with another key .* Set encryption\.keys to the same"):
            await build(shared(migrated_database, tmp_path / "other"))


async def test_who_is_refused_for_its_key_is_told_the_order_in_which_keys_change(migrated_database: str) -> None:
    async with built(shared(migrated_database, None, OLD)):
        with pytest.raises(CannotStart, match=r"to the old and the new one everywhere, then to the new and the old"):
            await build(shared(migrated_database, None, NEW))


async def test_keys_can_be_changed_one_after_the_other(migrated_database: str) -> None:
    for keys in ((OLD,), (OLD, NEW), (NEW, OLD), (OLD, NEW), (NEW, OLD), (NEW,)):
        async with built(shared(migrated_database, None, *keys)):
            pass
    with pytest.raises(CannotStart, match="sealed with another key"):
        await build(shared(migrated_database, None, OLD))


async def test_a_key_file_that_cannot_be_made_is_no_must(migrated_database: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"cannot be made or read: .*encryption\.keys can be set instead"):
        await build(shared(migrated_database, tmp_path / "file" / "data"))
    async with built(shared(migrated_database, tmp_path / "file" / "data", NEW)):
        pass
