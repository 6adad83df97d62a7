"""Whatever is done to runs, in whatever order: each log keeps the rules, and all tell the same story."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.errors import QueueFull
from antwort.identity import Identity
from antwort.storage.base import ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import ClaimedRun, EventRecord, Fenced, Gone, RunLog, WorkerInfo
from antwort.storage.sql_run_log import SqlRunLog
from postgres import Postgres
from runs_cases import everything, marked, mixed, new_run, numbered, said, to_end
from runs_home import SqlHome, postgres_home

KINDS = ["submit", "submit", "claim", "claim", "append", "append", "append", "finish", "release", "leave", "cancel"]
RARE = ["take", "delete", "sweep", "again"]
Act: TypeAlias = tuple[str, int, int]
NUMBER, HOW = st.integers(0, 30), st.integers(0, 3)
SUBMITS = st.lists(st.tuples(st.just("submit"), NUMBER, HOW), min_size=1, max_size=8)
ACTS = st.builds(
    lambda submits, acts: [*submits, ("claim", 0, 3), *acts],
    SUBMITS,
    st.lists(st.tuples(st.sampled_from(KINDS + RARE), NUMBER, HOW), max_size=50),
)
"""What is done, to which run or holder so far, and how."""
OWNERS = ("ann", "bob", "carol")
CONVERSATIONS = (None, None, "conv_a", "conv_b")
TENANTS = itertools.count()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(runner: asyncio.Runner, postgres: Postgres) -> Iterator[SqlHome]:
    """One database for all examples; each deletes what it has made."""
    dsn = postgres.migrated_database()
    home = runner.run(postgres_home(dsn))
    yield home
    runner.run(home.close())
    postgres.drop_database(dsn)


class Teller:
    """Does the same to any log, under the same names, and says what came of it."""

    def __init__(self, log: RunLog, store: ResponseStore, tenant: str) -> None:
        self.log, self.store, self.tenant = log, store, tenant
        self.names: list[tuple[Identity, str]] = []
        self.held: list[ClaimedRun] = []
        """Every claim there ever was, also of holders that have lost the run."""
        self.fences: dict[str, int] = {}
        self.written: dict[str, list[EventRecord]] = {}
        """What was acknowledged, by run."""
        self.workers = 0

    async def start(self) -> None:
        for number in range(2):
            await self.log.join(WorkerInfo(f"{self.tenant}_{number}"))

    async def act(self, act: Act) -> str:
        what, number, how = act
        try:
            match what:
                case "submit":
                    return await self._submit(number, how)
                case "claim":
                    return self._keep(await self.log.claim(self._worker(number), how + 1))
                case "take" | "cancel" | "delete" if self.names:
                    return await self._do(what, *self.names[number % len(self.names)])
                case "append" | "finish" | "release" | "again" if self.held:
                    return await self._write(what, self.held[number % len(self.held)], how)
                case "leave":
                    await self.log.leave(self._worker(number))
                    await self.log.join(WorkerInfo(self._worker(number)))
                case "sweep":
                    return str(await self.log.sweep())
        except (Fenced, QueueFull) as exc:
            return type(exc).__name__
        return "done"

    def _worker(self, number: int) -> str:
        return f"{self.tenant}_{number % 2}"

    async def _submit(self, number: int, how: int) -> str:
        identity = Identity(self.tenant, OWNERS[number % 3])
        name = f"resp_{len(self.names)}"
        run = new_run(name, identity=identity, conversation=CONVERSATIONS[how])
        await self.log.submit(run)
        self.names.append((identity, name))
        self.written[name] = [EventRecord(0, 0, run.events)]
        return name

    def _keep(self, claimed: list[ClaimedRun] | tuple[ClaimedRun, ...] | object) -> str:
        assert isinstance(claimed, list | tuple)
        for each in claimed:
            name = each.lease.run_id
            assert each.lease.fence > self.fences.get(name, 0), "a fence grows with every claim"
            self.fences[name] = each.lease.fence
        self.held += claimed
        return str([(each.lease.run_id, each.attempt, each.is_cancelled) for each in claimed])

    async def _do(self, what: str, identity: Identity, name: str) -> str:
        match what:
            case "take":
                taken = await self.log.take(self._worker(0), identity, name)
                return self._keep([] if taken is None else [taken])
            case "cancel":
                return str(await self.log.cancel(identity, name))
            case _:
                return str(await self.store.delete(identity, name))

    async def _write(self, what: str, claimed: ClaimedRun, how: int) -> str:
        name = claimed.lease.run_id
        log = self.written[name]
        at, first = len(log), log[-1].next
        match what:
            case "append":
                record = (said(at, first, "a"), said(at, first, "b", "c"), marked(at, first), mixed(at, first))[how]
                await self.log.append(claimed.lease, record)
                log.append(record)
            case "again" if at > 1:
                await self.log.append(claimed.lease, log[-1])
            case "finish":
                ending, record = to_end(claimed, at, first, "the end")
                await self.log.finish(claimed.lease, ending, record)
                log.append(record)
            case "release":
                await self.log.release(claimed.lease)
        return name

    async def everything(self) -> list[object]:
        """All that can be seen; each log is held against what was acknowledged."""
        load = await self.log.load()
        found: list[object] = [(load.queued, load.running)]
        for identity, name in self.names:
            response = await self.store.get(identity, name)
            found += [response, await self._logged(identity, name, is_there=response is not None)]
        return found

    async def _logged(self, identity: Identity, name: str, *, is_there: bool) -> object:
        try:
            read = numbered(await everything(self.log, name, identity=identity))
        except Gone:
            assert not is_there
            return None
        assert is_there
        assert read == numbered(self.written[name]), "what was acknowledged is there, and nothing else"
        assert [number for number, _ in read] == [*range(len(read))]
        assert (
            numbered(await everything(self.log, name, len(read) // 2, identity=identity)) == read[len(read) // 2 + 1 :]
        )
        return read

    async def end(self) -> None:
        for identity, name in self.names:
            await self.store.delete(identity, name)
        for number in range(2):
            await self.log.leave(self._worker(number))


async def tell_both(shared: SqlHome, acts: list[Act], per_owner: int | None) -> None:
    tenant, store = f"tenant-{next(TENANTS)}", MemoryStore()
    on_postgres = SqlRunLog(shared.database, queue=8, per_owner=per_owner)
    tellers = [
        Teller(SqlRunLog(store.database, queue=8, per_owner=per_owner), store, tenant),
        Teller(on_postgres, shared.store, tenant),
    ]
    try:
        await tell(tellers, acts)
    finally:
        for teller in tellers:
            await teller.end()


async def tell(tellers: list[Teller], acts: list[Act]) -> None:
    for teller in tellers:
        await teller.start()
    for act in acts:
        first, second = [await teller.act(act) for teller in tellers]
        assert first == second, act
    first_all, second_all = [await teller.everything() for teller in tellers]
    assert first_all == second_all


@settings(max_examples=50, deadline=None)
@given(acts=ACTS, per_owner=st.sampled_from([None, 1, 2]))
def test_both_logs_keep_the_rules_and_tell_the_same_story(
    acts: list[Act], per_owner: int | None, shared: SqlHome, runner: asyncio.Runner
) -> None:
    runner.run(tell_both(shared, acts, per_owner))
