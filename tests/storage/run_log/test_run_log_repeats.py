"""News that come at a bad moment, or never: nothing is there twice, and nothing is missed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import pytest

from antwort.errors import StoreFault
from antwort.storage.database import Database, Operation
from antwort.storage.run_log import Unavailable
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import ONE, TWO, claim_one, everything, new_run, said, to_end
from runs_home import SqlHome
from storage_cases import ME, asked

T = TypeVar("T")


class Forgetful(Database):
    """A database whose answer comes late, or is lost, after the commit."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database, self.dialect = database, database.dialect
        self.is_forgetful = False
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Happens once, after something was read and before that is told."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def connect(self) -> object:
        raise StoreFault("nobody can be heard")

    async def write(self, operation: Operation[T]) -> T:
        result = await self._database.write(operation)
        if self.is_forgetful:
            self.is_forgetful = False
            raise StoreFault("The database was lost before it had confirmed a change.")
        return result

    async def write_urgent(self, operation: Operation[T]) -> T:
        return await self.write(operation)

    async def read(self, operation: Operation[T]) -> T:
        result = await self._database.read(operation)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return result


@pytest.fixture
def database(home: SqlHome) -> Forgetful:
    return Forgetful(home.database)


@pytest.fixture
async def log(database: Forgetful) -> AsyncGenerator[SqlRunLog, None]:
    log = SqlRunLog(database, poll=3600)
    await log.join(ONE)
    await log.join(TWO)
    yield log
    await log.close()


pytestmark = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)


async def test_to_submit_again_what_was_submitted(log: SqlRunLog, database: Forgetful) -> None:
    run = new_run("resp_1")
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.submit(run)
    await log.submit(run)
    assert (await log.load()).queued == 1
    assert len(await everything(log, "resp_1")) == 1


async def test_to_append_again_what_was_appended(log: SqlRunLog, database: Forgetful) -> None:
    await log.submit(new_run("resp_1"))
    claimed = await claim_one(log)
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.append(claimed.lease, said(1, 2, "a"))
    await log.append(claimed.lease, said(1, 2, "a"))
    await log.append(claimed.lease, said(2, 3, "b"))
    assert [record.at for record in await everything(log, "resp_1")] == [0, 1, 2]


async def test_to_end_again_what_has_ended(log: SqlRunLog, database: Forgetful, home: SqlHome) -> None:
    await log.submit(new_run("resp_1"))
    claimed = await claim_one(log)
    ending, last = to_end(claimed, 1, 2)
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.finish(claimed.lease, ending, last)
    await log.finish(claimed.lease, ending, last)
    assert await home.store.get(ME, "resp_1") == ending.response
    assert [record.at for record in await everything(log, "resp_1")] == [0, 1]


async def test_to_adopt_again_what_was_adopted(log: SqlRunLog, database: Forgetful, home: SqlHome) -> None:
    await home.store.begin(asked("hello", response_id="resp_1"))
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.adopt(ONE.name, ME, "resp_1")
    lease = await log.adopt(ONE.name, ME, "resp_1")
    await log.append(lease, said(0, 0, "a"))
    assert list(await log.records(lease)) == [said(0, 0, "a")]


async def test_to_release_again_what_was_released(log: SqlRunLog, database: Forgetful) -> None:
    await log.submit(new_run("resp_1"))
    first = await claim_one(log)
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.release(first.lease)
    second = await claim_one(log, TWO)
    await log.release(first.lease)
    assert not await log.claim(ONE.name, 1)
    assert not (await log.renew(TWO, [second.lease])).lost


async def test_a_claim_of_which_nobody_heard_is_told_with_the_next_sign_of_life(
    log: SqlRunLog, database: Forgetful
) -> None:
    await log.submit(new_run("resp_1"))
    database.is_forgetful = True
    with pytest.raises(Unavailable):
        await log.claim(ONE.name, 1)
    assert not await log.claim(TWO.name, 1)
    (stray,) = (await log.renew(ONE, [])).strays
    assert not (await log.renew(ONE, [stray])).strays
    await log.release(stray)
    again = await claim_one(log, TWO)
    assert (again.lease.run_id, again.attempt) == ("resp_1", 1)


async def test_what_is_written_while_a_reader_comes_is_not_missed(log: SqlRunLog, database: Forgetful) -> None:
    await log.submit(new_run("resp_1"))
    claimed = await claim_one(log)
    database.meanwhile = partial(log.append, claimed.lease, said(1, 2, "a"))
    async with aclosing(log.read(ME, "resp_1", 1, follow=True)) as reading:
        assert await anext(reading) == [said(1, 2, "a")]
        database.meanwhile = partial(log.append, claimed.lease, said(3, 4, "c"))
        await log.append(claimed.lease, said(2, 3, "b"))
        assert await anext(reading) == [said(2, 3, "b")]


async def test_a_log_whose_store_is_closed_is_unavailable(home: SqlHome) -> None:
    log = await home.open()
    await home.store.close()
    for operation in (log.cancel(ME, "resp_1"), log.outline(ME, "resp_1"), log.claim(ONE.name, 1)):
        with pytest.raises(Unavailable):
            await operation
