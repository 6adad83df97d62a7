"""One file, one writer, one reader."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from antwort.errors import StoreFault
from antwort.storage import sqlite as db
from antwort.storage.database import Connection
from antwort.storage.sqlite import SqliteDatabase
from database_kit import held, impatient_sqlite, make_table, note, read_notes, together, trace


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[SqliteDatabase, None]:
    database = SqliteDatabase(tmp_path / "folder" / "notes.db")
    await database.open()
    await make_table(database)
    yield database
    await database.close()


async def test_all_that_is_queued_is_one_transaction_and_one_wake_up(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    woken: list[object] = []
    wake = asyncio.get_running_loop().call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        woken.append(callback)
        return wake(callback, *args)

    await trace(database, seen.append, "write")
    async with held(database):
        tasks = [asyncio.ensure_future(database.write(note(str(number)))) for number in range(200)]
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", counted)
    await asyncio.gather(*tasks)
    assert len(woken) == 2, "once for what the writer was busy with, and once for all 200"
    assert (seen.count("BEGIN IMMEDIATE"), seen.count("COMMIT")) == (2, 3)
    assert await database.read(read_notes) == [str(number) for number in range(200)]


async def test_a_commit_that_fails_fails_every_waiter(database: SqliteDatabase) -> None:
    def break_commit(connection: Connection) -> None:
        connection.execute("CREATE TABLE child (parent TEXT REFERENCES notes(note) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO child VALUES ('nobody')")

    assert await together(database, note("a"), break_commit, note("b")) == [StoreFault] * 3
    assert await database.read(read_notes) == []
    await database.write(note("later"))
    assert await database.read(read_notes) == ["later"]


async def test_what_was_accepted_is_written_before_the_end(database: SqliteDatabase) -> None:
    async with held(database):
        tasks = [asyncio.ensure_future(database.write(note(str(number)))) for number in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(database.close())
    await asyncio.gather(closing, *tasks)
    assert [path.name for path in sorted(database.path.parent.iterdir())] == ["notes.db", "notes.db.lock"]
    await database.open()
    assert await database.read(read_notes) == ["0", "1", "2"]


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
        "from antwort.storage.sqlite import SqliteDatabase\n"
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
    impatient_sqlite(monkeypatch)
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
