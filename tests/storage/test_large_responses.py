"""Large responses are written in pieces: short ones go between, and no half of one is ever seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from antwort.api.events import ResponseCompleted, ResponseCreated
from antwort.api.wire import replace
from antwort.errors import KeyInUse, QueueFull, StoreFault
from antwort.storage.base import KeyClaim, NewResponse, Page, Wanted
from antwort.storage.database import Operation
from antwort.storage.run_log import ClaimedRun, EventRecord, RunEnding
from antwort.storage.sql_run_log import SqlRunLog
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import LOG_BYTES, SqliteDatabase, SqliteStore
from runs_cases import ONE, TWO, begun, claim_one, everything, new_run
from storage_cases import ME, STOPPED, STRANGER, asked, ended, message

T = TypeVar("T")

_PIECE = 2_200_000


def large(response_id: str | None = None) -> NewResponse:
    """Five items, each a piece of its own."""
    return asked([{"role": "user", "content": letter * _PIECE} for letter in "abcde"], response_id=response_id)


class DyingDatabase(SqliteDatabase):
    """One whose process ends after so many more writes: whoever waits for a later one waits in vain."""

    left: int | None = None

    async def write(self, operation: Operation[T]) -> T:
        if self.left == 0:
            raise StoreFault("The process is gone.")
        if self.left is not None:
            self.left -= 1
        return await super().write(operation)


@asynccontextmanager
async def dying(path: Path) -> AsyncGenerator[tuple[SqlStore, DyingDatabase], None]:
    await (await SqliteStore.open(path)).close()
    database = DyingDatabase(path)
    await database.open()
    yield SqlStore(database), database
    await database.close()


async def test_a_short_response_begins_while_a_large_one_is_written(sqlite: SqliteStore) -> None:
    new, short = large(), asked("hello", identity=STRANGER)
    writing = asyncio.create_task(sqlite.begin(new))
    await asyncio.create_task(sqlite.begin(short))
    assert not writing.done()
    await writing
    assert (await sqlite.chain(ME, new.response.id))[0].input == new.input


async def test_a_short_response_ends_while_a_large_one_does(sqlite: SqliteStore) -> None:
    new, short = asked("hello"), asked("hello", identity=STRANGER)
    output = [message(letter * _PIECE) for letter in "abcde"]
    await sqlite.begin(new)
    await sqlite.begin(short)
    ending = asyncio.create_task(sqlite.finish(ME, ended(new, *output), STOPPED))
    await asyncio.create_task(sqlite.finish(STRANGER, ended(short, message("hi")), STOPPED))
    assert not ending.done()
    await ending
    assert await sqlite.get(ME, new.response.id) == ended(new, *output)


@pytest.mark.parametrize("count", [1, 4])
async def test_a_large_response_that_was_cut_off_before_it_began_leaves_nothing(path: Path, count: int) -> None:
    new = large("resp_1")
    async with dying(path) as (store, database):
        database.left = count
        with pytest.raises(StoreFault):
            await store.begin(new)
        assert await store.get(ME, "resp_1") is None
        assert not (await store.responses(ME, Page(), Wanted())).responses
    store = await SqliteStore.open(path)
    await store.begin(new)
    assert (await store.chain(ME, "resp_1"))[0].input == new.input
    await store.close()


async def test_a_large_response_that_is_refused_leaves_nothing(sqlite: SqliteStore) -> None:
    claim = KeyClaim(key="key", request_hash=b"1", now=1, expires_at=2**40)
    await sqlite.begin(msgspec.structs.replace(asked("hello"), claim=claim))
    new = large("resp_1")
    with pytest.raises(KeyInUse):
        await sqlite.begin(msgspec.structs.replace(new, claim=claim))
    assert await sqlite.get(ME, "resp_1") is None
    await sqlite.begin(new)
    assert (await sqlite.chain(ME, "resp_1"))[0].input == new.input


def large_end(claimed: ClaimedRun, letters: str) -> tuple[RunEnding, EventRecord]:
    output = tuple(message(letter * _PIECE) for letter in letters)
    response = replace(claimed.response, status="completed", completed_at=1_700_000_005, output=output)
    last = EventRecord(1, 2, [ResponseCompleted(response=response)])
    return RunEnding(identity=claimed.identity, response=response, marks=STOPPED), last


async def test_a_run_that_was_cut_off_at_its_end_ends_with_what_the_next_one_makes(path: Path) -> None:
    async with dying(path) as (_, database):
        log = SqlRunLog(database)
        await log.join(ONE)
        claimed = await begun(log, new_run("resp_1"))
        database.left = 2
        with pytest.raises(StoreFault):
            await log.finish(claimed.lease, *large_end(claimed, "abcd"))
        await log.close()
    store = await SqliteStore.open(path)
    log = SqlRunLog(store.database)
    await log.join(TWO)
    assert (found := await store.get(ME, "resp_1")) is not None
    assert found.status == "in_progress"
    claimed = await claim_one(log, TWO)
    ending, last = large_end(claimed, "xy")
    await log.finish(claimed.lease, ending, last)
    await log.finish(claimed.lease, ending, last)  # as one whose answer was lost
    assert await store.get(ME, "resp_1") == ending.response
    for _ in range(2):
        assert (await everything(log, "resp_1"))[-1].events[-1:] == last.events
        await log.sweep()
    await log.close()
    await store.close()


async def test_the_write_ahead_log_begins_anew_after_large_writes(sqlite: SqliteStore, path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    fill = "CREATE TABLE large AS SELECT zeroblob(:size) AS value"
    await sqlite.database.write(lambda connection: connection.execute(fill, {"size": LOG_BYTES}))
    assert log.stat().st_size > LOG_BYTES
    async with asyncio.timeout(20):
        while log.stat().st_size > LOG_BYTES:
            await sqlite.check()


async def test_of_several_large_responses_one_piece_is_in_a_transaction(path: Path) -> None:
    most = under_way = 0

    class Counting(SqliteDatabase):
        """Counts the large writes that wait at the same time: the writer puts them into one transaction."""

        async def write(self, operation: Operation[T]) -> T:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            try:
                return await super().write(operation)
            finally:
                under_way -= 1

    await (await SqliteStore.open(path)).close()
    database = Counting(path)
    await database.open()
    store, responses = SqlStore(database), [large() for _ in range(3)]
    await asyncio.gather(*map(store.begin, responses))
    assert most == 1
    assert all([await store.get(ME, new.response.id) for new in responses])
    await database.close()


async def test_a_run_that_is_given_up_keeps_the_turns_on_record(sqlite: SqliteStore) -> None:
    log, new, said = SqlRunLog(sqlite.database), asked("hello"), message("on record")
    await log.join(ONE)
    await sqlite.begin(new)
    await sqlite.record_turn(ME, replace(new.response, output=(said,)), STOPPED, 0)
    lease = await log.adopt(ONE.name, ME, new.response.id)
    await log.append(lease, EventRecord(0, 0, [ResponseCreated(response=new.response)]))
    assert lease is not None
    await log.release(lease, is_lost=True)
    claimed = await claim_one(log)
    failed = replace(claimed.response, status="failed", output=())
    await log.give_up(claimed.lease, RunEnding(identity=ME, response=failed, marks=()))
    found = await sqlite.get(ME, new.response.id)
    assert found is not None
    assert (found.status, found.output) == ("failed", (said,))
    await log.close()


async def test_a_large_run_for_which_there_is_no_room_is_refused_before_it_is_written(path: Path) -> None:
    async with dying(path) as (_, database):
        log, run = SqlRunLog(database, queue=0), new_run("resp_1")
        database.left = 0
        with pytest.raises(QueueFull):
            await log.submit(msgspec.structs.replace(run, new=large("resp_1")))
        database.left = None
        await log.close()
