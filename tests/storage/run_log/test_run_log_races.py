"""Two processes at the same row of PostgreSQL at the same moment: one transaction is open while the other comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Semaphore
from typing import Any, TypeVar

import pytest

from antwort.storage.database import Connection, Operation
from antwort.storage.postgres import PostgresConnection, PostgresDatabase
from antwort.storage.run_log import Fenced, RunLog
from antwort.storage.sql_run_log import SqlRunLog
from database_kit import held
from runs_cases import ONE, TWO, begun, claim_one, finish, ids, new_run, said, to_end
from runs_home import PostgresHome, postgres_home
from storage_cases import ME

T = TypeVar("T")


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


class SteppingDatabase(PostgresDatabase):
    """The database as another process uses it. With `steps`, each of its writes waits inside its transaction: before it
    executes, and before it commits.
    """

    steps = False
    first_lock: str | None = None
    """A statement to execute in the transaction before anything else."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._waits, self._next = asyncio.Event(), Semaphore(0)

    async def write(self, operation: Operation[T]) -> T:
        if not self.steps:
            return await super().write(operation)
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(self._waits.set)
            assert self._next.acquire(timeout=4), "the test has not let it go on"

        def run_in_steps(connection: Connection) -> T:
            if self.first_lock is not None:
                connection.execute(self.first_lock)
            wait()
            found = operation(connection)
            wait()
            return found

        return await super().write(run_in_steps)

    async def wait(self) -> None:
        """Until a write waits for its next step."""
        await self._waits.wait()
        self._waits.clear()

    async def step(self) -> None:
        """Let the write execute, and wait until that is done. It holds its rows, and has not committed."""
        self._next.release()
        await self.wait()

    def commit(self) -> None:
        self._next.release()

    @asynccontextmanager
    async def uncommitted(self, work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T], None]:
        """Inside, the work was executed and not committed."""
        self.steps = True
        task = asyncio.create_task(work)
        await self.wait()
        await self.step()
        self.steps = False
        yield task
        self.commit()
        await task


@pytest.fixture
async def database(home: PostgresHome) -> AsyncGenerator[SteppingDatabase, None]:
    database = SteppingDatabase(home.dsn)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def elsewhere(database: SteppingDatabase) -> AsyncGenerator[SqlRunLog, None]:
    """The log of another process."""
    log = SqlRunLog(database)
    yield log
    await log.close()


@contextmanager
def transaction(dsn: str) -> Iterator[PostgresConnection]:
    """Any other transaction, which has not ended yet."""
    link = PostgresConnection(PostgresDatabase(dsn).connect())
    link.begin(b"BEGIN")
    try:
        yield link
    finally:
        link.roll_back()
        link.close()


async def test_a_run_whose_old_holder_is_just_writing_is_claimed_when_that_is_done(
    log: RunLog, elsewhere: RunLog, database: SteppingDatabase
) -> None:
    claimed = await begun(log)
    await log.leave(ONE.name)
    async with database.uncommitted(elsewhere.append(claimed.lease, said(1, 2, "last words"))):
        assert not await log.claim(TWO.name, 1)
        assert await log.take(TWO.name, ME, claimed.lease.run_id) is None
    taken = await claim_one(log, TWO)
    assert list(await log.records(taken.lease))[1:] == [said(1, 2, "last words")]


async def test_who_writes_while_the_run_is_being_claimed_comes_too_late(
    log: RunLog, elsewhere: SqlRunLog, database: SteppingDatabase, home: PostgresHome
) -> None:
    claimed = await begun(log)
    await log.leave(ONE.name)
    async with database.uncommitted(elsewhere.claim(TWO.name, 1)) as claiming:
        writing = asyncio.ensure_future(log.append(claimed.lease, said(1, 2, "too late")))
        await _until_somebody_waits(home)
    with pytest.raises(Fenced):
        await writing
    (taken,) = await claiming
    assert [record.at for record in await log.records(taken.lease)] == [0]


async def _until_somebody_waits(home: PostgresHome) -> None:
    """For a lock, in this database."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not await home.database.read(lambda connection: connection.execute(waiting).fetchone()[0]):
        pass


async def test_cancels_do_not_wait_for_those_who_write(
    log: RunLog, elsewhere: RunLog, database: SteppingDatabase
) -> None:
    claimed = await begun(log)
    async with database.uncommitted(elsewhere.append(claimed.lease, said(1, 2, "meanwhile"))):
        assert await log.cancel(ME, claimed.lease.run_id)
        assert (await log.renew(ONE, [claimed.lease])).cancelled == {claimed.lease.run_id}
    assert [record.at for record in await log.records(claimed.lease)] == [0, 1]


async def test_a_cancel_that_has_to_wait_holds_up_no_other(log: RunLog, home: PostgresHome) -> None:
    taken, free = await begun(log), await begun(log)
    with transaction(home.dsn) as other:
        other.execute("SELECT 1 FROM runs WHERE id = ? FOR UPDATE", (taken.lease.run_id,))
        waiting = asyncio.ensure_future(log.cancel(ME, taken.lease.run_id))
        assert await log.cancel(ME, free.lease.run_id)
        assert not waiting.done()
        other.commit()
    assert await waiting
    cancelled = (await log.renew(ONE, [taken.lease, free.lease])).cancelled
    assert cancelled == {taken.lease.run_id, free.lease.run_id}


async def test_a_response_is_deleted_when_whoever_ends_its_run_is_done(
    log: RunLog, elsewhere: RunLog, database: SteppingDatabase, home: PostgresHome
) -> None:
    claimed = await begun(log)
    database.steps, database.first_lock = True, f"SELECT 1 FROM runs WHERE id = '{claimed.lease.run_id}' FOR UPDATE"
    finishing = asyncio.ensure_future(elsewhere.finish(claimed.lease, *to_end(claimed, 1, 2)))
    await database.wait()
    deleting = asyncio.ensure_future(home.store.delete(ME, claimed.lease.run_id))
    await _until_somebody_waits(home)
    await database.step()
    database.commit()
    await finishing
    assert await deleting


async def test_appends_take_their_rows_in_one_order(log: RunLog, elsewhere: RunLog, home: PostgresHome) -> None:
    first, second = await begun(log), await begun(log)
    with transaction(home.dsn) as holder:
        holder.execute("SELECT 1 FROM runs WHERE id = ? FOR UPDATE", (first.lease.run_id,))
        appends = [(second.lease, said(1, 2, "b")), (first.lease, said(1, 2, "a"))]
        writing = asyncio.gather(*(elsewhere.append(lease, record) for lease, record in appends))
        await _until_somebody_waits(home)
        free = "SELECT id FROM runs FOR UPDATE SKIP LOCKED"
        assert holder.execute(free).fetchall() == [(first.lease.run_id,), (second.lease.run_id,)]
        holder.commit()
        await writing
    for claimed in (first, second):
        assert [record.at for record in await log.records(claimed.lease)] == [0, 1]


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
        with transaction(home.dsn) as other:
            other.execute("DELETE FROM runs WHERE id = ?", (claimed.lease.run_id,))
            other.commit()
        assert not (await log.renew(ONE, [claimed.lease])).lost
    with pytest.raises(Fenced):
        await ending
    assert (await log.renew(ONE, [claimed.lease])).lost == {claimed.lease}


async def test_what_two_have_chosen_one_gets(log: RunLog, elsewhere: RunLog, database: SteppingDatabase) -> None:
    await log.submit(new_run("resp_1"))
    await log.submit(new_run("resp_2"))
    database.steps = True
    claiming = asyncio.ensure_future(elsewhere.claim(TWO.name, 2))
    await database.wait()  # it has chosen both
    (first,) = await log.claim(ONE.name, 1)
    await database.step()
    assert not await log.claim(ONE.name, 5)  # the other one holds it, and is not done
    database.commit()
    (second,) = await claiming
    assert {first.lease.run_id, second.lease.run_id} == {"resp_1", "resp_2"}


async def test_two_that_see_different_runs_of_a_conversation_make_one_at_a_time(
    log: RunLog, elsewhere: SqlRunLog, database: SteppingDatabase, home: PostgresHome
) -> None:
    await log.submit(new_run("resp_late", conversation="conv_1"))
    async with database.uncommitted(elsewhere.claim(TWO.name, 1)) as claiming:
        await log.submit(new_run("resp_early", conversation="conv_1"))
        await home.database.write(_queue_first)
        assert not await log.claim(ONE.name, 5)  # the other is about to take the one that it has seen
    (taken,) = await claiming
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
