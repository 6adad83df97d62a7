"""A database that many share, that hangs, and that comes and goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from types import NoneType
from typing import Any

import psycopg
import pytest

from antwort.errors import StoreFault, StoreUnavailable
from antwort.storage.database import Connection
from antwort.storage.postgres import TOO_SLOW, UNKNOWN, UNREACHABLE, PostgresDatabase, store_fault
from database_kit import INSERT, held, make_table, note, read_notes, together
from postgres import Postgres

SHORT = 0.3
"""Seconds that an answer may take here, so that no test waits for long."""


@pytest.fixture
async def database(postgres_database: str) -> AsyncGenerator[PostgresDatabase, None]:
    async with opened(postgres_database) as database:
        await make_table(database)
        yield database


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncGenerator[PostgresDatabase, None]:
    database = PostgresDatabase(dsn, **options)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def works_again(database: PostgresDatabase, text: str) -> list[str]:
    """As whoever calls does: once more, until it is written."""
    while True:
        try:
            await database.write(note(text))
            return await database.read(read_notes)
        except StoreFault:
            await asyncio.sleep(0.01)


# ---- what is queued together ----


async def test_a_commit_that_fails_fails_the_one_that_broke_it(database: PostgresDatabase) -> None:
    def break_commit(connection: Connection) -> None:
        connection.execute("CREATE TABLE child (parent TEXT REFERENCES notes(note) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO child VALUES ('nobody')")

    assert await together(database, note("a"), break_commit, note("b")) == [NoneType, StoreFault, NoneType]
    assert await database.read(read_notes) == ["a", "b"]


async def test_all_that_is_queued_is_one_transaction(database: PostgresDatabase) -> None:
    seen: list[int] = []

    def number(connection: Connection) -> None:
        (found,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        seen.append(found)

    assert await together(database, *[number] * 100) == [NoneType] * 100
    assert (len(seen), len(set(seen))) == (100, 1)


async def test_what_cannot_wait_is_written_while_the_writer_is_busy(database: PostgresDatabase) -> None:
    async with held(database):
        await database.write_urgent(note("at once"))
        assert await database.read(read_notes) == ["at once"]


async def test_an_error_that_an_operation_hides_is_no_success(database: PostgresDatabase) -> None:
    def hide(connection: Connection) -> None:
        with suppress(psycopg.Error):
            connection.execute("SELECT nonsense")

    with pytest.raises(StoreFault):
        await database.write(hide)
    await database.write(note("later"))


async def test_values_of_every_kind_come_back_as_they_were(database: PostgresDatabase) -> None:
    def keep(connection: Connection) -> object:
        connection.execute("CREATE TABLE kinds (a TEXT, b BYTEA, c BIGINT, d BOOLEAN, e DOUBLE PRECISION, f TEXT)")
        rows = [("a\0b ☃", b"\0\xff", 2**62, True, 0.5, None), ("", b"", -1, False, 1e300, "x")]
        connection.execute("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?)", rows[0])
        connection.executemany("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?)", rows)
        found = connection.execute("SELECT * FROM kinds WHERE a = :a AND d", {"a": "a\0b ☃"}).fetchall()
        return [*found, *connection.execute("SELECT * FROM kinds WHERE NOT d")] == [rows[0], *rows]

    assert await database.write(keep)


# ---- others at the same rows ----


async def test_who_comes_second_looks_again(database: PostgresDatabase, postgres_database: str) -> None:
    """Both look, and find nothing; both write. One of them is told that it is there, and not that it broke."""
    loop = asyncio.get_running_loop()
    looked, go_on = asyncio.Event(), threading.Event()
    tries: list[bool] = []

    def look_and_write(connection: Connection) -> str:
        tries.append(connection.execute("SELECT 1 FROM notes WHERE note = 'a'").fetchone() is not None)
        if tries[-1]:
            return "it is there"
        loop.call_soon_threadsafe(looked.set)
        go_on.wait(30)
        connection.execute(INSERT, ("a",))
        return "written"

    async with opened(postgres_database) as other:
        second = asyncio.ensure_future(other.write(look_and_write))
        await looked.wait()
        await database.write(note("a"))
        go_on.set()
        assert await second == "it is there"
    assert tries == [False, True]


async def test_two_that_wait_for_each_other_both_come_through(
    database: PostgresDatabase, postgres_database: str
) -> None:
    for text in "ab":
        await database.write(note(text))
    met = threading.Barrier(2)
    tries: list[str] = []

    def mark(first: str, then: str) -> Callable[[Connection], None]:
        def run(connection: Connection) -> None:
            is_first = first not in tries
            tries.append(first)
            connection.execute("SET LOCAL deadlock_timeout = '10ms'")
            connection.execute("UPDATE notes SET note = note WHERE note LIKE ?", (f"{first}%",))
            if is_first:
                met.wait(30)
            connection.execute("UPDATE notes SET note = note || '!' WHERE note LIKE ?", (f"{then}%",))

        return run

    async with opened(postgres_database) as other:
        await asyncio.gather(database.write(mark("a", "b")), other.write(mark("b", "a")))
    assert sorted(await database.read(read_notes)) == ["a!", "b!"]
    assert len(tries) >= 3


async def test_a_row_that_another_holds_is_not_waited_for_without_end(
    database: PostgresDatabase, postgres_database: str
) -> None:
    await database.write(note("a"))
    with psycopg.connect(postgres_database) as holder:
        holder.execute("SELECT 1 FROM notes FOR UPDATE")

        def wait(connection: Connection) -> None:
            connection.execute("SET LOCAL lock_timeout = '10ms'")
            connection.execute("DELETE FROM notes")

        with pytest.raises(StoreFault, match=TOO_SLOW) as caught:
            await database.write(wait)
    assert not caught.value.is_ambiguous
    assert await database.read(read_notes) == ["a"]


# ---- faults ----


async def test_a_connection_that_was_lost_long_ago_is_made_anew(database: PostgresDatabase, postgres: Postgres) -> None:
    await database.write(note("before"))
    await database.read(read_notes)
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'antwort'")
    await database.write(note("after"))
    assert await database.read(read_notes) == ["before", "after"]


async def test_an_operation_whose_connection_is_lost_is_run_again(database: PostgresDatabase) -> None:
    tries: list[int] = []

    def lose(connection: Connection) -> None:
        connection.execute(INSERT, ("once",))
        tries.append(1)
        if len(tries) == 1:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await database.write(lose)
    assert (len(tries), await database.read(read_notes)) == (2, ["once"])


async def test_a_commit_without_an_answer_says_that_nobody_knows(database: PostgresDatabase) -> None:
    """The server loses its connection while it commits."""
    await database.write(
        lambda connection: connection.execute("""
            CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$
        """)
    )
    await database.write(
        lambda connection: connection.execute("""
            CREATE CONSTRAINT TRIGGER late AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.note = 'fatal') EXECUTE FUNCTION lose()
        """)
    )
    async with held(database):
        writes = [asyncio.ensure_future(database.write(note(text))) for text in ("a", "fatal", "b")]
    await asyncio.wait(writes)
    faults = [write.exception() for write in writes]
    assert [type(fault) for fault in faults] == [StoreUnavailable] * 3
    assert [(fault.message, fault.is_ambiguous) for fault in faults if isinstance(fault, StoreFault)] == [
        (UNKNOWN, True)
    ] * 3
    await database.write(note("later"))
    assert await database.read(read_notes) == ["later"]


async def test_a_database_that_hangs_is_a_fault_and_works_when_it_goes_on(own_postgres: Postgres) -> None:
    async with opened(f"{own_postgres.fresh_database()}?connect_timeout=2", answer_seconds=SHORT) as database:
        await make_table(database)
        await database.read(read_notes)
        own_postgres.pause()
        writing, reading = database.write(note("lost")), database.read(read_notes)
        faults = await asyncio.gather(writing, reading, return_exceptions=True)
        assert [(type(fault), str(fault)) for fault in faults] == [(StoreUnavailable, TOO_SLOW)] * 2
        later = await asyncio.gather(*[database.write(note("lost")) for _ in range(50)], return_exceptions=True)
        assert {type(fault) for fault in later} == {StoreUnavailable}
        own_postgres.resume()
        assert await works_again(database, "found") == ["found"]


async def test_a_database_that_is_killed_is_a_fault_and_works_when_it_is_back(own_postgres: Postgres) -> None:
    async with opened(own_postgres.fresh_database()) as database:
        await make_table(database)
        await database.write(note("kept"))
        own_postgres.kill()
        with pytest.raises(StoreFault, match=UNREACHABLE) as caught:
            await database.write(note("lost"))
        assert not caught.value.is_ambiguous
        with pytest.raises(StoreFault, match=UNREACHABLE):
            await database.read(read_notes)
        own_postgres.start()
        assert await works_again(database, "again") == ["kept", "again"]


async def test_a_database_that_is_not_there_cannot_be_opened(postgres: Postgres) -> None:
    with pytest.raises(StoreFault, match=UNREACHABLE):
        await PostgresDatabase(postgres.dsn("nowhere")).open()


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:hush@127.0.0.1:1/db",
        "postgresql://ann:hush@127.0.0.1:port/db",
        "postgresql://ann:hush@127.0.0.1/db?no=such",
        "host=127.0.0.1 port=1 password=hush",
        "password=hush 'unfinished",
        "hush",
    ],
)
async def test_no_fault_repeats_the_password(dsn: str) -> None:
    with pytest.raises(StoreFault) as caught:
        await PostgresDatabase(dsn).open()
    told: BaseException | None = caught.value
    while told is not None:
        assert "hush" not in f"{told} {told!r} {told.args}"
        told = told.__cause__ or told.__context__


def test_a_fault_is_told_without_addresses_and_statements() -> None:
    error = psycopg.OperationalError("connection to server at 10.0.0.7 failed")
    fault = store_fault(error)
    assert (fault.message, fault.__cause__) == (UNREACHABLE, error)


@pytest.mark.parametrize("address", ["postgresql://me:pa@secret@127.0.0.1/db", "postgres://me:a@b@secret@h1,h2/db"])
def test_an_address_with_a_password_that_is_not_spelt_out_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(StoreFault, match="written %40") as caught:
        PostgresDatabase(address)
    assert "secret" not in str(caught.value)


async def test_where_one_gets_through_the_others_try_at_once(postgres: Postgres, postgres_database: str) -> None:
    def accept(*, connections: bool) -> None:
        with psycopg.connect(postgres.dsn(), autocommit=True) as other:
            name = postgres_database.rpartition("/")[2]
            other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {connections}".encode())

    async with opened(postgres_database, retry_seconds=(3600.0, 3600.0)) as database:
        await make_table(database)
        accept(connections=False)
        with pytest.raises(StoreFault):
            await database.write_urgent(note("never"))
        accept(connections=True)
        with pytest.raises(StoreFault):  # it will not try again for an hour
            await database.write_urgent(note("never"))
        await database.read(read_notes)
        await database.write_urgent(note("at once"))
        assert await database.read(read_notes) == ["at once"]
