"""What processes that share a PostgreSQL tell one another. Nobody looks for itself here: it would take an hour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.rows import TupleRow

from antwort.errors import StoreFault
from antwort.storage.database import Operation
from antwort.storage.notifications import NotificationListener
from antwort.storage.postgres import BoundedConnection, PostgresDatabase
from antwort.storage.run_log import EventRecord, RunLog
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import ONE, TWO, begun, claim_one, finish, new_run, said
from runs_home import PostgresHome, postgres_home
from storage_cases import ME

T = TypeVar("T")

LONG = 3600.0


@pytest.fixture
async def home(migrated_database: str) -> AsyncGenerator[PostgresHome, None]:
    home = await postgres_home(migrated_database)
    yield home
    await home.close()


@pytest.fixture
async def here(home: PostgresHome) -> RunLog:
    log = await home.open(poll=LONG)
    await log.join(ONE)
    return log


@pytest.fixture
async def there(home: PostgresHome) -> RunLog:
    """Another process, which listens by now."""
    log = await home.other(poll=LONG)
    await log.join(TWO)
    await log.wait_for_work(LONG)
    return log


async def test_who_reads_elsewhere_hears_of_every_append_and_of_the_end(here: RunLog, there: RunLog) -> None:
    claimed = await begun(here)
    async with aclosing(there.read(ME, claimed.lease.run_id, 1, follow=True)) as reading:
        for at in range(1, 4):
            coming = asyncio.ensure_future(_next(reading))
            await asyncio.sleep(0)
            await here.append(claimed.lease, said(at, at + 1, str(at)))
            assert await coming == [said(at, at + 1, str(at))]
        await finish(here, claimed, 4, 5)
        assert [record.at async for records in reading for record in records] == [4]


async def _next(reading: AsyncGenerator[list[EventRecord], None]) -> list[EventRecord]:
    return await anext(reading)


async def test_who_waits_for_work_elsewhere_hears_of_it(here: RunLog, there: RunLog) -> None:
    assert not await there.claim(TWO.name, 1)
    await here.submit(new_run("resp_1"))
    await there.wait_for_work(LONG)
    claimed = await claim_one(there, TWO)
    assert not await here.claim(ONE.name, 1)
    await there.release(claimed.lease)
    await here.wait_for_work(LONG)


async def test_a_cancel_from_elsewhere_is_heard_of(here: RunLog, there: RunLog) -> None:
    claimed = await begun(here)
    await here.renew(ONE, [claimed.lease])
    await there.cancel(ME, claimed.lease.run_id)
    await here.wait_for_cancels(LONG)
    assert (await here.renew(ONE, [claimed.lease])).cancelled == {claimed.lease.run_id}


async def test_a_listener_that_was_cut_off_comes_back_and_wakes_everybody(
    here: RunLog, there: RunLog, home: PostgresHome
) -> None:
    claimed = await begun(here)
    async with aclosing(there.read(ME, claimed.lease.run_id, 1, follow=True)) as reading:
        coming = asyncio.ensure_future(_next(reading))
        await asyncio.sleep(0)
        await _cut_off_listeners(home.dsn)
        await here.append(claimed.lease, said(1, 2, "a"))
        assert await coming == [said(1, 2, "a")]
        coming = asyncio.ensure_future(_next(reading))
        await asyncio.sleep(0)
        await here.append(claimed.lease, said(2, 3, "b"))
        assert await coming == [said(2, 3, "b")]


async def _cut_off_listeners(dsn: str) -> None:
    listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cut = await (await connection.execute(listening)).fetchall()
    assert len(cut) == 2


async def test_what_is_told_while_the_quiet_connection_is_tried_is_heard(home: PostgresHome) -> None:
    class Told(BoundedConnection):
        """Others tell something each time that the connection is tried, and before it answers."""

        def execute(self, query: Any, *args: Any, **options: Any) -> psycopg.Cursor[TupleRow]:
            if query == b"SELECT 1":
                with psycopg.connect(home.dsn, autocommit=True) as connection:
                    connection.execute("SELECT pg_notify('antwort_runs', 'after a silence')")
            return super().execute(query, *args, **options)

    heard: asyncio.Queue[str] = asyncio.Queue()
    missed = asyncio.Event()
    connect = partial(Told.connect, home.dsn, autocommit=True)
    listener = NotificationListener(connect, heard.put_nowait, missed.set, idle_seconds=0.01)
    try:
        await missed.wait()
        assert [await heard.get(), await heard.get()] == ["after a silence"] * 2
        assert listener.is_connected
    finally:
        await listener.close()


class Watched(PostgresDatabase):
    """Counts what is read. With `is_deaf`, nothing can be heard there of what others do."""

    looks = 0
    is_deaf = False

    async def read(self, operation: Operation[T]) -> T:
        self.looks += 1
        return await super().read(operation)

    def connect(self) -> BoundedConnection:
        if self.is_deaf:
            raise StoreFault("deaf")
        return super().connect()


@pytest.fixture
async def watched(home: PostgresHome) -> AsyncGenerator[Watched, None]:
    database = Watched(home.dsn)
    await database.open()
    yield database
    await database.close()


@asynccontextmanager
async def closing_log(log: SqlRunLog) -> AsyncGenerator[SqlRunLog, None]:
    try:
        yield log
    finally:
        await log.close()


async def test_who_hears_the_news_does_not_look_for_itself(here: RunLog, watched: Watched) -> None:
    claimed = await begun(here)
    async with closing_log(SqlRunLog(watched, keepalive_seconds=(LONG, 0.01))) as there:
        await there.join(TWO)
        await there.wait_for_work(LONG)
        before = watched.looks
        async with aclosing(there.read(ME, claimed.lease.run_id, 1, follow=True)) as reading:
            assert [await anext(reading) for _ in range(20)] == [[]] * 20
            assert watched.looks == before + 2  # when it comes, and once it is told of what comes
            await here.append(claimed.lease, said(1, 2, "a"))
            assert [each async for each in until_something(reading)] == [said(1, 2, "a")]


async def test_who_cannot_be_told_looks_for_itself(here: RunLog, watched: Watched) -> None:
    claimed = await begun(here)
    watched.is_deaf = True
    async with (
        closing_log(SqlRunLog(watched, keepalive_seconds=(0.01, LONG))) as there,
        aclosing(there.read(ME, claimed.lease.run_id, 1, follow=True)) as reading,
    ):
        assert [await anext(reading) for _ in range(20)] == [[]] * 20
        assert watched.looks >= 20


async def test_a_log_that_is_closed_listens_no_more(home: PostgresHome, here: RunLog) -> None:
    claimed = await begun(here)
    await here.close()
    before = threading.active_count()
    async with aclosing(here.read(ME, claimed.lease.run_id)) as reading:
        await anext(reading)
    assert threading.active_count() == before


async def until_something(reading: AsyncGenerator[list[EventRecord], None]) -> AsyncGenerator[EventRecord, None]:
    while not (records := await anext(reading)):
        pass
    for record in records:
        yield record
