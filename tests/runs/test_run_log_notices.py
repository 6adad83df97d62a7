"""What processes that share a PostgreSQL tell one another. Nobody looks for itself here: it would take an hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import psycopg
import pytest

from antwort.runs.base import Record, RunLog
from runs_cases import ONE, TWO, begun, claim_one, finish, new_run, said
from runs_home import PostgresHome, postgres_home
from storage_cases import ME

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


async def _next(reading: AsyncGenerator[list[Record], None]) -> list[Record]:
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
