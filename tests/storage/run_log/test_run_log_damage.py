"""Records that cannot be read: what they belong to has failed, and nothing else suffers from it."""

from __future__ import annotations

import logging
from typing import Any, TypeVar, cast

import pytest

from antwort.api.payload import payload
from antwort.errors import Damaged
from antwort.storage.database import Connection, Database, Operation, Value
from antwort.storage.run_log import EventRecord, Fenced, Lease, RunLog
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import ONE, begun, everything, finish, has_log, ids, new_run, said, to_end, told
from runs_home import Home, SqlHome
from storage_cases import ME

T = TypeVar("T")

pytestmark = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)

NEWER = b'[{"type":"response.of_a_newer_version"}]'


async def change(home: Home, statement: str, *values: Value) -> None:
    assert isinstance(home, SqlHome)

    def operation(connection: Connection) -> None:
        assert connection.execute(statement, values).rowcount == 1

    await home.database.write(operation)


async def count(home: Home, rows: str, *values: Value) -> int:
    assert isinstance(home, SqlHome)
    statement = f"SELECT count(*) FROM {rows}"
    return int(await home.database.read(lambda connection: connection.execute(statement, values).fetchone()[0]))


async def damage(home: Home, lease: Lease) -> None:
    await change(home, "UPDATE run_events SET events = ? WHERE response_key = ? AND at = 1", NEWER, lease.key)


async def test_whoever_reads_a_damaged_log_hears_that_it_will_stay_so(log: RunLog, home: Home) -> None:
    held, ended = await begun(log), await told(log)
    await log.append(held.lease, said(1, 2, "a"))
    await damage(home, held.lease)
    await damage(home, ended.lease)
    with pytest.raises(Damaged):
        await log.records(held.lease)
    with pytest.raises(Damaged):
        await everything(log, ended.lease.run_id)


async def test_a_packed_log_that_is_damaged_will_stay_so(log: RunLog, home: Home) -> None:
    ended = await told(log)
    await log.sweep()
    await change(home, "UPDATE run_logs SET log = ? WHERE response_key = ?", b"nothing", ended.lease.key)
    with pytest.raises(Damaged):
        await everything(log, ended.lease.run_id)


async def test_a_damaged_log_is_told_once_and_keeps_no_other_from_being_packed(
    log: RunLog, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await told(log), await told(log)
    await damage(home, bad.lease)
    with caplog.at_level(logging.WARNING, "antwort.runs"):
        await log.sweep()
        await log.sweep()
    assert [bad.lease.run_id in record.getMessage() for record in caplog.records] == [True]
    assert await count(home, "run_logs WHERE log IS NOT NULL AND response_key = ?", good.lease.key) == 1
    assert await count(home, "run_events WHERE response_key = ?", bad.lease.key) > 0


async def test_a_damaged_log_goes_when_it_is_too_old(home: Home) -> None:
    log = await home.open(keep_log=0.0)
    await log.join(ONE)
    bad = await told(log)
    await damage(home, bad.lease)
    await change(home, "UPDATE run_logs SET ended_at = ended_at - 5")
    await log.sweep()
    assert await count(home, "run_logs") == await count(home, "run_events") == 0


class Measuring:
    """A database, and how much text of records each read has returned."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def read(self, operation: Operation[T]) -> T:
        found = await self._database.read(operation)
        if isinstance(found, list) and all(isinstance(each, EventRecord) for each in found):
            self.sizes.append(sum(payload(*record.events) for record in found))
        return found


async def test_logs_are_packed_one_by_one(log: RunLog, home: Home) -> None:
    assert isinstance(home, SqlHome)
    sizes = [length * 1024 * 1024 for length in (6, 6, 10, 1, 1)]
    for size in sizes:
        claimed = await begun(log)
        await log.append(claimed.lease, said(1, 2, "a" * size))
        await finish(log, claimed, 2, 3)
    database = Measuring(home.database)
    await SqlRunLog(cast("Database", database)).sweep()
    assert [size for size in database.sizes if size] == sizes
    assert await count(home, "run_logs WHERE log IS NULL") == 0


class Overtaken:
    """A database, and another process that packs all logs as soon as this one has found which are to be packed."""

    def __init__(self, database: Database, other: RunLog) -> None:
        self._database, self._other = database, other
        self._has_swept = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def read(self, operation: Operation[T]) -> T:
        found = await self._database.read(operation)
        if isinstance(found, list) and found and not self._has_swept:
            self._has_swept = True
            await self._other.sweep()
        return found


async def test_a_log_that_another_process_packs_meanwhile_is_not_taken_for_a_damaged_one(
    log: RunLog, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(home, SqlHome)
    claimed = await begun(log)
    await log.append(claimed.lease, said(1, 2, "a" * 2**19))
    await log.append(claimed.lease, said(2, 3, "b" * 2**19))
    await finish(log, claimed, 3, 4)
    with caplog.at_level(logging.WARNING, "antwort.runs"):
        await SqlRunLog(cast("Database", Overtaken(home.database, log))).sweep()
    assert caplog.records == []
    assert await count(home, "run_events WHERE response_key = ?", claimed.lease.key) > 1
    assert (await everything(log, claimed.lease.run_id))[-1].next == 5


async def test_a_run_whose_identity_is_damaged_fails_and_stands_in_nobodys_way(log: RunLog, home: Home) -> None:
    await log.submit(new_run("resp_1"))
    await log.submit(new_run("resp_2"))
    await change(home, "UPDATE runs SET identity = ? WHERE id = 'resp_1'", b"\0")
    assert ids(await log.claim(ONE.name, 10)) == ["resp_2"]
    failed = await home.store.get(ME, "resp_1")
    assert failed is not None
    assert failed.status == "failed"
    assert failed.error is not None
    assert "damaged" in failed.error.message
    assert not await has_log(log, ME, "resp_1")


async def test_of_a_run_that_cannot_go_on_nothing_is_left_behind(log: RunLog, home: Home) -> None:
    await log.submit(new_run("resp_1"))
    await change(home, "UPDATE responses SET body = ? WHERE id = 'resp_1'", b"{")
    assert not await log.claim(ONE.name, 10)
    assert await count(home, "runs") == await count(home, "run_events") == 0


async def test_of_a_run_whose_response_has_ended_otherwise_nothing_is_left_behind(log: RunLog, home: Home) -> None:
    claimed = await begun(log)
    await change(home, "UPDATE responses SET status = 'failed' WHERE id = ?", claimed.lease.run_id)
    ending, record = to_end(claimed, 1, 2)
    with pytest.raises(Fenced):
        await log.finish(claimed.lease, ending, record)
    assert await count(home, "runs") == await count(home, "run_events") == 0
    assert not await has_log(log, ME, claimed.lease.run_id)
