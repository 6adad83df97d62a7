"""One file, one writer, one reader: what is batched, what fails alone, what fails together."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import NoneType

import pytest

from antwort.db import lanes
from antwort.db import sqlite as db
from antwort.db.sqlite import SqliteDatabase
from antwort.errors import StoreFault

INSERT = "INSERT INTO notes (note) VALUES (?)"


def note(text: str) -> Callable[[sqlite3.Connection], None]:
    def insert(connection: sqlite3.Connection) -> None:
        connection.execute(INSERT, (text,))

    return insert


def read_notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT note FROM notes ORDER BY rowid")]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[SqliteDatabase, None]:
    database = SqliteDatabase(tmp_path / "folder" / "notes.db")
    await database.open()
    await database.write(lambda connection: connection.execute("CREATE TABLE notes (note TEXT UNIQUE)"))
    yield database
    await database.close()


@asynccontextmanager
async def held(database: SqliteDatabase) -> AsyncGenerator[None, None]:
    """The writer is busy inside, so that all that is queued becomes one transaction afterwards."""
    entered, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(30)

    holding = asyncio.create_task(database.write(hold))
    await entered.wait()
    try:
        yield
        await asyncio.sleep(0)  # lets tasks that were just made put their operations into the queue
    finally:
        release.set()
    await holding


async def together(database: SqliteDatabase, *operations: Callable[[sqlite3.Connection], None]) -> list[type[object]]:
    """What became of operations that stood in the queue together: `NoneType`, or the type of the error."""
    async with held(database):
        tasks = [asyncio.create_task(database.write(operation)) for operation in operations]
    await asyncio.wait(tasks)
    return [type(task.exception()) for task in tasks]


async def test_a_read_finds_what_was_written_before(database: SqliteDatabase) -> None:
    for number in range(50):
        await database.write(note(str(number)))
        assert len(await database.read(read_notes)) == number + 1


async def test_an_operation_returns_its_value(database: SqliteDatabase) -> None:
    assert await database.write(lambda connection: 41 + 1) == 42
    assert await database.read(lambda connection: 41 + 1) == 42


async def test_all_that_is_queued_is_one_transaction_and_one_wake_up(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    settled: list[int] = []
    settle = lanes._settle

    def counted(jobs: list[lanes.Job[object]]) -> None:
        settled.append(len(jobs))
        settle(jobs)

    await database.write(lambda connection: connection.set_trace_callback(seen.append))
    async with held(database):
        tasks = [asyncio.create_task(database.write(note(str(number)))) for number in range(200)]
        monkeypatch.setattr(lanes, "_settle", counted)
    await asyncio.gather(*tasks)
    assert settled == [1, 200]
    assert (seen.count("BEGIN IMMEDIATE"), seen.count("COMMIT")) == (2, 3)
    assert await database.read(read_notes) == [str(number) for number in range(200)]


async def test_an_operation_that_fails_does_not_fail_its_neighbours(database: SqliteDatabase) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute(INSERT, ("half done",))
        raise ValueError("no")

    outcomes = await together(database, note("a"), fail, note("b"), note("a"), note("c"))
    assert outcomes == [NoneType, ValueError, NoneType, StoreFault, NoneType]
    assert await database.read(read_notes) == ["a", "b", "c"]


async def test_a_commit_that_fails_fails_every_waiter(database: SqliteDatabase) -> None:
    def break_commit(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE child (parent TEXT REFERENCES notes(note) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO child VALUES ('nobody')")

    assert await together(database, note("a"), break_commit, note("b")) == [StoreFault] * 3
    assert await database.read(read_notes) == []
    await database.write(note("later"))
    assert await database.read(read_notes) == ["later"]


async def test_an_operation_that_was_accepted_is_run_though_nobody_waits(database: SqliteDatabase) -> None:
    async with held(database):
        left = asyncio.create_task(database.write(note("left")))
        stays = asyncio.create_task(database.write(note("stays")))
        await asyncio.sleep(0)
        left.cancel()
    await stays
    assert left.cancelled()
    assert await database.read(read_notes) == ["left", "stays"]


async def test_a_loop_that_is_closed_meanwhile_does_not_stop_the_writer(database: SqliteDatabase) -> None:
    def leave() -> None:
        async def submit() -> None:
            database._lane(0).submit(note("from a loop that is gone"))

        asyncio.run(submit())

    async with held(database):
        await asyncio.to_thread(leave)
        stays = asyncio.create_task(database.write(note("stays")))
    await stays
    assert await database.read(read_notes) == ["from a loop that is gone", "stays"]


async def test_all_queries_of_one_read_see_the_same_state(database: SqliteDatabase) -> None:
    loop = asyncio.get_running_loop()
    between, go_on = asyncio.Event(), threading.Event()

    def read_twice(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
        before = read_notes(connection)
        loop.call_soon_threadsafe(between.set)
        go_on.wait(30)
        return before, read_notes(connection)

    reading = asyncio.create_task(database.read(read_twice))
    await between.wait()
    await database.write(note("meanwhile"))
    go_on.set()
    assert await reading == ([], [])


async def test_the_reader_cannot_write(database: SqliteDatabase) -> None:
    with pytest.raises(StoreFault, match="may not be written"):
        await database.read(note("no"))


async def test_what_was_accepted_is_written_before_the_end(database: SqliteDatabase) -> None:
    async with held(database):
        tasks = [asyncio.create_task(database.write(note(str(number)))) for number in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(database.close())
    await asyncio.gather(closing, *tasks)
    assert [path.name for path in sorted(database.path.parent.iterdir())] == ["notes.db", "notes.db.lock"]
    await database.open()
    assert await database.read(read_notes) == ["0", "1", "2"]


async def test_a_closed_database_says_so(database: SqliteDatabase) -> None:
    lane = database._lane(0)
    await database.close()
    await database.close()
    with pytest.raises(StoreFault, match="closed"):
        await database.write(note("late"))
    with pytest.raises(StoreFault, match="closed"):
        await database.read(read_notes)
    with pytest.raises(StoreFault, match="closed"):
        lane.submit(note("later still"))


@pytest.mark.skipif(sys.platform == "win32", reason="rights are of another kind there")
async def test_nobody_else_can_read_what_is_stored(database: SqliteDatabase) -> None:
    await database.write(note("a secret"))
    rights = {path.name: path.stat().st_mode & 0o777 for path in database.path.parent.iterdir()}
    assert rights == dict.fromkeys(("notes.db", "notes.db-wal", "notes.db-shm", "notes.db.lock"), 0o600)


# ---- faults ----


def open_elsewhere(path: Path) -> str:
    """What a second process says that opens the same file."""
    script = (
        "import asyncio, pathlib, sys\n"
        "from antwort.db.sqlite import SqliteDatabase\n"
        "from antwort.errors import StoreFault\n"
        "try:\n"
        "    asyncio.run(SqliteDatabase(pathlib.Path(sys.argv[1])).open())\n"
        "    print('opened')\n"
        "except StoreFault as fault:\n"
        "    print(fault.message)\n"
    )
    found = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    return found.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock file")
async def test_a_second_process_is_told_that_the_folder_is_in_use(database: SqliteDatabase) -> None:
    path = database.path
    assert await asyncio.to_thread(open_elsewhere, path) == "Another antwort process uses this data folder."
    await database.close()
    assert await asyncio.to_thread(open_elsewhere, path) == "opened"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock file")
async def test_a_file_can_be_opened_only_once_in_one_process_too(database: SqliteDatabase) -> None:
    with pytest.raises(StoreFault, match="uses this data folder"):
        await SqliteDatabase(database.path).open()
    await database.write(note("the first goes on"))


async def test_a_foreign_lock_is_a_clear_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.01)
    database = SqliteDatabase(tmp_path / "notes.db")
    await database.open()
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFault, match="locked by another process"):
        await database.write(lambda connection: None)
    other.execute("ROLLBACK")
    await database.write(lambda connection: None)
    other.close()
    await database.close()


async def test_a_file_of_another_kind_is_a_clear_fault(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"this is no database " * 100)
    database = SqliteDatabase(path)
    with pytest.raises(StoreFault, match="damaged or of another kind") as caught:
        await database.open()
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    path.unlink()
    await database.open()  # the lock was given back
    await database.close()


async def test_a_folder_that_cannot_be_made_is_a_fault_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(StoreFault) as caught:
        await SqliteDatabase(tmp_path / "folder" / "inner" / "notes.db").open()
    assert "folder" not in caught.value.message
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "/secret/path"), "The store is full: its disk has no room left."),
        (PermissionError(13, "denied", "/secret/path"), "The store's files may not be written."),
        (sqlite3.OperationalError("near /secret/path"), "The store could not be read or written."),
        (sqlite3.ProgrammingError("of the module itself"), "The store could not be read or written."),
        (OSError("without a number"), "The store could not be read or written."),
    ],
)
def test_a_fault_is_told_without_paths_and_statements(error: Exception, message: str) -> None:
    fault = db.store_fault(error)
    assert (fault.message, fault.__cause__) == (message, error)
