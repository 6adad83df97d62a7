"""One writer and its readers, whichever the database: what is batched, what fails alone, what fails together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from types import NoneType

import pytest

from antwort.errors import StoreFault
from antwort.storage.database import Connection, Database, TransactionQueue
from antwort.storage.postgres import PostgresDatabase
from antwort.storage.sqlite import SqliteDatabase
from database_kit import INSERT, held, make_table, note, read_notes, together


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database, None]:
    database: Database
    if request.param == "sqlite":
        database = SqliteDatabase(tmp_path / "folder" / "notes.db")
    else:
        database = PostgresDatabase(request.getfixturevalue("postgres_database"))
    await database.open()
    await make_table(database)
    yield database
    await database.close()


async def test_a_read_finds_what_was_written_before(database: Database) -> None:
    for number in range(50):
        await database.write(note(str(number)))
        assert len(await database.read(read_notes)) == number + 1


async def test_an_operation_returns_its_value(database: Database) -> None:
    assert await database.write(lambda connection: 41 + 1) == 42
    assert await database.read(lambda connection: 41 + 1) == 42


async def test_an_operation_that_fails_does_not_fail_its_neighbours(database: Database) -> None:
    def fail(connection: Connection) -> None:
        connection.execute(INSERT, ("half done",))
        raise ValueError("no")

    outcomes = await together(database, note("a"), fail, note("b"), note("a"), note("c"))
    assert outcomes == [NoneType, ValueError, NoneType, StoreFault, NoneType]
    assert await database.read(read_notes) == ["a", "b", "c"]


async def test_an_operation_that_was_accepted_is_run_though_nobody_waits(database: Database) -> None:
    async with held(database):
        left = asyncio.ensure_future(database.write(note("left")))
        stays = asyncio.ensure_future(database.write(note("stays")))
        await asyncio.sleep(0)
        left.cancel()
    await stays
    assert left.cancelled()
    assert await database.read(read_notes) == ["left", "stays"]


async def test_a_loop_that_is_closed_meanwhile_does_not_stop_the_writer(database: Database) -> None:
    def leave() -> None:
        async def submit() -> None:
            left = asyncio.ensure_future(database.write(note("from a loop that is gone")))
            await asyncio.sleep(0)
            assert not left.done()

        asyncio.run(submit())

    async with held(database):
        await asyncio.to_thread(leave)
        stays = asyncio.ensure_future(database.write(note("stays")))
    await stays
    assert await database.read(read_notes) == ["from a loop that is gone", "stays"]


async def test_all_queries_of_one_read_see_the_same_state(database: Database) -> None:
    loop = asyncio.get_running_loop()
    between, go_on = asyncio.Event(), threading.Event()

    def read_twice(connection: Connection) -> tuple[list[str], list[str]]:
        before = read_notes(connection)
        loop.call_soon_threadsafe(between.set)
        go_on.wait(30)
        return before, read_notes(connection)

    reading = asyncio.ensure_future(database.read(read_twice))
    await between.wait()
    await database.write(note("meanwhile"))
    go_on.set()
    assert await reading == ([], [])


async def test_the_reader_cannot_write(database: Database) -> None:
    with pytest.raises(StoreFault, match="may not be written"):
        await database.read(note("no"))


async def test_a_closed_database_says_so(database: Database) -> None:
    await database.close()
    await database.close()
    with pytest.raises(StoreFault, match="closed"):
        await database.write(note("late"))
    with pytest.raises(StoreFault, match="closed"):
        await database.read(read_notes)


async def test_a_queue_that_is_stopped_accepts_nothing_more() -> None:
    queue = TransactionQueue("test", [])
    assert queue.stop()
    with pytest.raises(StoreFault, match="closed"):
        queue.submit(note("late"))
