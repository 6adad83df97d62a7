"""Two processes at the same row of PostgreSQL at the same moment: one transaction is open while the other comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from antwort.runs import claiming
from antwort.runs.appending import Append, write_appends
from antwort.runs.writing import End, to_row
from antwort.runs.writing import finish as finish_run
from antwort.storage.database import Connection
from antwort.storage.postgres import PostgresConnection as PostgresLink
from antwort.storage.postgres import PostgresDatabase
from antwort.storage.run_log import Fenced, Lease, Record, RunLog
from antwort.storage.sql_responses import to_update_rows as to_finishing
from database_kit import held
from runs_cases import ONE, TWO, begun, claim_one, finish, ids, new_run, said, to_end
from runs_home import PostgresHome, postgres_home
from storage_cases import ME


@pytest.fixture
async def home(migrated_database: str) -> AsyncGenerator[PostgresHome, None]:
    home = await postgres_home(migrated_database)
    yield home
    await home.close()


@pytest.fixture
async def log(home: PostgresHome) -> RunLog:
    log = await home.open()
    await log.join(ONE)
    await log.join(TWO)
    return log


class Open:
    """A transaction of another process that has not ended yet."""

    def __init__(self, link: PostgresLink) -> None:
        self.link = link

    def append(self, lease: Lease, record: Record) -> set[int]:
        append = Append(lease.key, lease.run_id, lease.fence, *to_row(record))
        return write_appends(self.link, [append], "elsewhere")


@contextmanager
def another(dsn: str) -> Iterator[Open]:
    link = PostgresLink(PostgresDatabase(dsn).connect())
    link.begin(b"BEGIN")
    try:
        yield Open(link)
    finally:
        link.roll_back()
        link.close()


async def test_a_run_whose_old_holder_is_just_writing_is_claimed_when_that_is_done(
    log: RunLog, home: PostgresHome
) -> None:
    claimed = await begun(log)
    await log.leave(ONE.name)
    with another(home.dsn) as other:
        assert other.append(claimed.lease, said(1, 2, "last words")) == {0}
        assert not await log.claim(TWO.name, 1)
        assert await log.take(TWO.name, ME, claimed.lease.run_id) is None
        other.link.commit()
    taken = await claim_one(log, TWO)
    assert list(await log.records(taken.lease))[1:] == [said(1, 2, "last words")]


async def test_who_writes_while_the_run_is_being_claimed_comes_too_late(log: RunLog, home: PostgresHome) -> None:
    claimed = await begun(log)
    await log.leave(ONE.name)
    with another(home.dsn) as other:
        chosen = claiming.choose(other.link, TWO.name, 1, None)
        (taken,) = claiming.claim(other.link, TWO.name, chosen, 1)
        writing = asyncio.ensure_future(log.append(claimed.lease, said(1, 2, "too late")))
        await _until_somebody_waits(home)
        other.link.commit()
    with pytest.raises(Fenced):
        await writing
    assert [record.at for record in await log.records(taken.lease)] == [0]


async def _until_somebody_waits(home: PostgresHome) -> None:
    """For a lock, in this database."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not await home.database.read(lambda connection: connection.execute(waiting).fetchone()[0]):
        pass


async def test_cancels_do_not_wait_for_those_who_write(log: RunLog, home: PostgresHome) -> None:
    claimed = await begun(log)
    with another(home.dsn) as other:
        assert other.append(claimed.lease, said(1, 2, "meanwhile")) == {0}
        assert await log.cancel(ME, claimed.lease.run_id)
        assert (await log.renew(ONE, [claimed.lease])).cancelled == {claimed.lease.run_id}
        other.link.commit()
    assert [record.at for record in await log.records(claimed.lease)] == [0, 1]


async def test_a_cancel_that_has_to_wait_holds_up_no_other(log: RunLog, home: PostgresHome) -> None:
    taken, free = await begun(log), await begun(log)
    with another(home.dsn) as other:
        other.link.execute("SELECT 1 FROM runs WHERE id = ? FOR UPDATE", (taken.lease.run_id,))
        waiting = asyncio.ensure_future(log.cancel(ME, taken.lease.run_id))
        assert await log.cancel(ME, free.lease.run_id)
        assert not waiting.done()
        other.link.commit()
    assert await waiting
    cancelled = (await log.renew(ONE, [taken.lease, free.lease])).cancelled
    assert cancelled == {taken.lease.run_id, free.lease.run_id}


async def test_a_response_is_deleted_when_whoever_ends_its_run_is_done(log: RunLog, home: PostgresHome) -> None:
    claimed = await begun(log)
    ending, record = to_end(claimed, 1, 2)
    finishing = to_finishing(ending.identity, ending.response, ending.marks)
    with another(home.dsn) as other:
        other.link.execute("SELECT 1 FROM runs WHERE id = ? FOR UPDATE", (claimed.lease.run_id,))
        deleting = asyncio.ensure_future(home.store.delete(ME, claimed.lease.run_id))
        await _until_somebody_waits(home)
        assert finish_run(other.link, End(claimed.lease, finishing, to_row(record)), "elsewhere")
        other.link.commit()
    assert await deleting


async def test_appends_take_their_rows_in_one_order(log: RunLog, home: PostgresHome) -> None:
    first, second = await begun(log), await begun(log)
    with another(home.dsn) as holder, another(home.dsn) as other:
        holder.link.execute("SELECT 1 FROM runs WHERE id = ? FOR UPDATE", (first.lease.run_id,))
        given = [(second.lease, said(1, 2, "b")), (first.lease, said(1, 2, "a"))]
        appends = [Append(lease.key, lease.run_id, lease.fence, *to_row(record)) for lease, record in given]
        writing = asyncio.ensure_future(asyncio.to_thread(write_appends, other.link, appends, "elsewhere"))
        await _until_somebody_waits(home)
        free = "SELECT id FROM runs FOR UPDATE SKIP LOCKED"
        assert holder.link.execute(free).fetchall() == [(first.lease.run_id,), (second.lease.run_id,)]
        holder.link.commit()
        assert await writing == {0, 1}


async def test_a_lease_is_renewed_and_a_run_cancelled_while_the_writer_is_busy(log: RunLog, home: PostgresHome) -> None:
    claimed = await begun(log)
    async with held(home.database):
        assert await log.cancel(ME, claimed.lease.run_id)
        assert (await log.renew(ONE, [claimed.lease])).cancelled == {claimed.lease.run_id}


async def test_what_is_being_ended_is_not_told_to_be_lost(log: RunLog, home: PostgresHome) -> None:
    claimed = await begun(log)
    async with held(home.database):
        ending = asyncio.ensure_future(finish(log, claimed, 1, 2))
        await asyncio.sleep(0)
        with another(home.dsn) as other:
            other.link.execute("DELETE FROM runs WHERE id = ?", (claimed.lease.run_id,))
            other.link.commit()
        assert not (await log.renew(ONE, [claimed.lease])).lost
    with pytest.raises(Fenced):
        await ending
    assert (await log.renew(ONE, [claimed.lease])).lost == {claimed.lease}


async def test_what_two_have_chosen_one_gets(log: RunLog, home: PostgresHome) -> None:
    await log.submit(new_run("resp_1"))
    await log.submit(new_run("resp_2"))
    chosen = await home.database.read(partial(claiming.choose, worker=TWO.name, count=2, per_owner=None))
    (first,) = await log.claim(ONE.name, 1)
    with another(home.dsn) as other:
        (second,) = claiming.claim(other.link, TWO.name, chosen, 2)
        assert not await log.claim(ONE.name, 5)  # the other one holds it, and is not done
        other.link.commit()
    assert {first.lease.run_id, second.lease.run_id} == {"resp_1", "resp_2"}


async def test_two_that_see_different_runs_of_a_conversation_make_one_at_a_time(
    log: RunLog, home: PostgresHome
) -> None:
    await log.submit(new_run("resp_late", conversation="conv_1"))
    with another(home.dsn) as other:
        chosen = claiming.choose(other.link, TWO.name, 1, None)
        (taken,) = claiming.claim(other.link, TWO.name, chosen, 1)
        await log.submit(new_run("resp_early", conversation="conv_1"))
        await home.database.write(_queue_first)
        assert not await log.claim(ONE.name, 5)  # the other is about to take the one that it has seen
        other.link.commit()
    assert not await log.claim(ONE.name, 5)
    await finish(log, taken, 1, 2)
    assert ids(await log.claim(ONE.name, 5)) == ["resp_early"]


def _queue_first(connection: Connection) -> None:
    """It was on its way before the other one, and got here behind it."""
    connection.execute("UPDATE runs SET queued_at = queued_at - 60 WHERE id = 'resp_early'")


async def test_processes_that_claim_at_once_give_no_owner_more_places_than_it_has(home: PostgresHome) -> None:
    here, there = await home.open(per_owner=2), await home.other(per_owner=2)
    await here.join(ONE)
    await there.join(TWO)
    for _ in range(6):
        await here.submit(new_run())
    made = 0
    while made < 6:
        both = await asyncio.gather(here.claim(ONE.name, 5), there.claim(TWO.name, 5))
        claimed = [each for one in both for each in one]
        assert (await here.load()).running == len(claimed) <= 2
        for each in claimed:
            await finish(here, each, 1, 2)
        made += len(claimed)
