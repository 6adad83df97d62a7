"""A response is deleted between two operations of one call, and another tenant's begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from antwort.errors import StoreFault
from antwort.storage.base import ResponseStore
from antwort.storage.database import Database, Operation
from antwort.storage.sql_run_log import SqlRunLog
from antwort.storage.sql_store import SqlStore
from runs_cases import ONE, begun, everything, finish, new_run, said
from storage_cases import ME, STRANGER, asked, tell

T = TypeVar("T")
SECRET = "the secret of another tenant"


class Interrupted(Database):
    """A database over another one; something happens after one of its reads."""

    def __init__(self, database: Database, meanwhile: Callable[[], Awaitable[None]], *, after_reads: int) -> None:
        super().__init__()
        self._database, self.dialect, self.durability = database, database.dialect, database.durability
        self._meanwhile, self._reads_left = meanwhile, after_reads

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def connect(self) -> object:
        raise StoreFault("notifications are not needed here")

    async def write(self, operation: Operation[T]) -> T:
        return await self._database.write(operation)

    async def read(self, operation: Operation[T]) -> T:
        result = await self._database.read(operation)
        self._reads_left -= 1
        if self._reads_left == 0:
            await self._meanwhile()
        return result


@pytest.fixture
def database(store: ResponseStore) -> Database:
    assert isinstance(store, SqlStore)
    return store.database


@pytest.mark.parametrize("reads", [1, 2])
async def test_a_chain_has_no_response_of_another_tenant(store: ResponseStore, database: Database, reads: int) -> None:
    await tell(store, "x" * 3_000_000, response_id="one")  # larger than one piece of a chain together with the next
    await tell(store, "x" * 3_000_000, response_id="two", after="one")

    async def meanwhile() -> None:
        await store.delete(ME, "two")
        await store.begin(asked(SECRET, response_id="other", identity=STRANGER))

    links = await SqlStore(Interrupted(database, meanwhile, after_reads=reads)).chain(ME, "two")
    assert links == ()


@pytest.mark.parametrize("reads", [1, 2])
async def test_a_log_that_is_packed_does_not_become_the_log_of_another_tenant(
    store: ResponseStore, database: Database, reads: int
) -> None:
    async def meanwhile() -> None:
        await store.delete(ME, "one")
        other = await begun(log, new_run("other", identity=STRANGER))
        await log.append(other.lease, said(1, 2, "of another"))
        await finish(log, other, 2, 3)

    log = SqlRunLog(database, poll=3600)
    sweeping = SqlRunLog(Interrupted(database, meanwhile, after_reads=reads), poll=3600)
    await log.join(ONE)
    claimed = await begun(log, new_run("one"))
    await log.append(claimed.lease, said(1, 2, SECRET))
    await finish(log, claimed, 2, 3)
    await sweeping.sweep()
    records = await everything(log, "other", identity=STRANGER)
    assert SECRET not in repr(records)
    assert "of another" in repr(records)
    await sweeping.close()
    await log.close()
