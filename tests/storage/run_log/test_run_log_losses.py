"""Processes and databases that go away: nothing that was acknowledged is lost, and nobody writes who has lost a run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from antwort.storage.run_log import ClaimedRun, Unavailable
from antwort.storage.sql_run_log import SqlRunLog
from postgres import Postgres
from runs_cases import ONE, TWO, begun, everything, finish, new_run, numbered, said
from runs_home import SqlHome, postgres_home, sqlite_home
from storage_cases import ME

TESTS = Path(__file__).resolve().parents[2]
LEASE = 0.5


class Holder:
    """A process of its own that holds a run."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, place: str) -> Holder:
        """It has claimed a run, and said three things."""
        command = [sys.executable, str(TESTS / "run_holder.py"), place, str(LEASE)]
        paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
        environment = {**os.environ, "PYTHONPATH": paths}
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
        holder = cls(process)
        assert (await holder._line()).isdecimal()
        return holder

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def go_on(self) -> str:
        """What comes of one thing more that it says."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")
        outcome = await self._line()
        await self._process.wait()
        return outcome

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


async def claim_as_soon_as_possible(log: SqlRunLog, worker: str) -> ClaimedRun:
    while not (claimed := await log.claim(worker, 1)):
        await log.wait_for_work(0.05)
    return claimed[0]


async def check_taken_over(log: SqlRunLog, taken: ClaimedRun) -> None:
    """All that was acknowledged is there, and the run goes on behind it."""
    assert (taken.lease.fence, taken.attempt) == (2, 2)
    assert [record.at for record in await log.records(taken.lease)] == [0, 1, 2, 3]
    await log.append(taken.lease, said(4, 5, "of another"))
    await finish(log, taken, 5, 6)
    whole = numbered(await everything(log, taken.lease.run_id))
    assert [getattr(event, "delta", None) for _, event in whole[2:-1]] == ["1", "2", "3", "of another"]
    assert [number for number, _ in whole] == [*range(7)]


async def test_a_run_in_sqlite_outlives_the_kill_of_its_process(path: Path) -> None:
    home = await sqlite_home(path)
    await SqlRunLog(home.database).submit(new_run("resp_1"))
    await home.close()
    holder = await Holder.start(str(path))
    await holder.kill()
    home = await sqlite_home(path)
    await home.store.fail_running("The server was stopped.")
    log = SqlRunLog(home.database)
    await log.join(ONE)
    (taken,) = await log.claim(ONE.name, 10)
    await check_taken_over(log, taken)
    await log.close()
    await home.close()


@pytest.fixture
async def home(migrated_database: str) -> AsyncGenerator[SqlHome, None]:
    home = await postgres_home(migrated_database)
    yield home
    await home.close()


@pytest.fixture
async def log(home: SqlHome) -> AsyncGenerator[SqlRunLog, None]:
    log = SqlRunLog(home.database, lease=30)
    await log.join(ONE)
    yield log
    await log.close()


async def test_a_run_in_postgresql_is_taken_over_after_the_kill_of_its_process(
    log: SqlRunLog, migrated_database: str
) -> None:
    await log.submit(new_run("resp_1"))
    holder = await Holder.start(migrated_database)
    await holder.kill()
    await check_taken_over(log, await claim_as_soon_as_possible(log, ONE.name))


async def test_a_process_that_was_stopped_for_too_long_writes_nothing_any_more(
    log: SqlRunLog, migrated_database: str
) -> None:
    await log.submit(new_run("resp_1"))
    holder = await Holder.start(migrated_database)
    holder.stop()
    taken = await claim_as_soon_as_possible(log, ONE.name)
    assert await holder.go_on() == "fenced"
    await check_taken_over(log, taken)


# ---- the database itself ----


@pytest.fixture
async def on_own(own_postgres: Postgres) -> AsyncGenerator[SqlRunLog, None]:
    home = await postgres_home(own_postgres.migrated_database(), answer_seconds=0.5)
    log = SqlRunLog(home.database, lease=60, poll=0.1)
    await log.join(ONE)
    await log.join(TWO)
    yield log
    await log.close()
    await home.close()


async def append(log: SqlRunLog, claimed: ClaimedRun, at: int, failed: asyncio.Event) -> None:
    """As often as it takes, until it is acknowledged."""
    while True:
        try:
            await log.append(claimed.lease, said(at, at + 1, str(at)))
        except Unavailable:
            failed.set()
            await asyncio.sleep(0.02)
        else:
            return


async def followed(log: SqlRunLog, response_id: str) -> list[int]:
    """The numbers that a reader sees who comes back as often as it takes."""
    numbers: list[int] = []
    while True:
        after = numbers[-1] if numbers else -1
        try:
            async with aclosing(log.read(ME, response_id, after, follow=True)) as reading:
                async for records in reading:
                    numbers += [number for number, _ in numbered(records)]
            return numbers
        except Unavailable:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_a_database_that_goes_away_for_a_while_loses_nothing_and_changes_no_holder(
    on_own: SqlRunLog, own_postgres: Postgres, how: str
) -> None:
    log = on_own
    runs = [await begun(log, new_run(f"resp_{number}")) for number in range(3)]
    readers = [asyncio.ensure_future(followed(log, run.lease.run_id)) for run in runs]
    for run in runs:
        await log.append(run.lease, said(1, 2, "1"))
    await asyncio.to_thread(own_postgres.pause if how == "paused" else own_postgres.kill)
    failed = asyncio.Event()
    writing = [asyncio.ensure_future(append(log, run, 2, failed)) for run in runs]
    await failed.wait()
    with pytest.raises(Unavailable):
        await log.renew(ONE, [run.lease for run in runs])
    await asyncio.to_thread(own_postgres.resume if how == "paused" else own_postgres.start)
    await asyncio.gather(*writing)
    assert not (await log.renew(ONE, [run.lease for run in runs])).lost
    for run in runs:
        await log.append(run.lease, said(3, 4, "3"))
        await finish(log, run, 4, 5)
    assert await asyncio.gather(*readers) == [[*range(6)]] * 3
