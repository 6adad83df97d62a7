"""A process that makes runs of a log: how many, for how long, and what it does about a log that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antwort.engine import worker as workers
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.errors import UnsupportedFeature
from antwort.identity import ANONYMOUS
from antwort.runs.base import Claimed, Lease, NewRun, Renewed, Traits, Unavailable, Worker
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from engine_kit import ask, engine_of, server_calls
from takeover_kit import DEPOT, Depot, Log, Rows, Story, check_log, engine_on, front_of, records_of


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a log that comes back at once."""
    monkeypatch.setattr(workers, "_AGAIN", 0.0)


LOOKS = answer(call("look", n=1))
DONE = answer(say("Done."))


# ---- how many ----


async def test_no_more_are_made_at_once_than_there_are_places() -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    async with engine_on(log, Story(LOOKS, DONE), server, at_once=2) as engine:
        queued = [await engine.create(ask(background=True, tools=[DEPOT])) for _ in range(5)]
        await server.asked.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (engine.live, (await log.load()).queued) == (2, 3)
        server.gate.set()
        assert {(await engine.ended(each.id)).status for each in queued} == {"completed"}


@pytest.mark.parametrize("settings", [BackgroundSettings(at_once=0), BackgroundSettings(enabled=False)])
async def test_who_has_no_places_claims_nothing(settings: BackgroundSettings) -> None:
    class Watched(Log):
        claims = 0

        async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
            self.claims += 1
            return await super().claim(worker, count)

    log = Watched()
    engine = Engine(
        ScriptedProvider(answer(say("Hi."))), store=log.store, runs=log, settings=EngineSettings(background=settings)
    )
    async with front_of(log) as front, engine:
        await front.create(ask(background=True))
        await engine.create(ask())
        for _ in range(20):
            await asyncio.sleep(0)
    assert log.claims == 0


async def test_background_that_is_off_is_a_400() -> None:
    engine = engine_of(ScriptedProvider(), background=BackgroundSettings(enabled=False))
    with pytest.raises(UnsupportedFeature):
        await engine.create(ask(background=True))


# ---- what is heard from elsewhere ----


async def test_a_run_is_cancelled_by_a_process_that_does_not_make_it_and_its_tool_is_stopped() -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    async with front_of(log, server) as front, engine_on(log, Story(LOOKS), server) as maker:
        queued = await front.create(ask(background=True, tools=[DEPOT]))
        await server.asked.wait()
        assert await log.cancel(ANONYMOUS, queued.id)
        response = await front.ended(queued.id)
    assert response.status == "cancelled"
    [stopped] = server_calls(response)
    assert stopped.error_text is not None
    assert stopped.error_text.startswith("The call was stopped")
    assert maker.live == 0


async def test_who_hears_that_another_has_its_run_stops_and_tells_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    async with engine_on(log, Story(LOOKS), server) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT]))
        await server.asked.wait()
        [run] = log._open.values()
        length = len(run.log)
        run.fence += 1  # as a claim of another does
        log._cancels.set()
        while one.live:  # noqa: ASYNC110 - nothing tells of it, and that is the point
            await asyncio.sleep(0)
        assert len(run.log) == length
        assert not one.told
        run.worker = None
        log._work.set()
        server.gate.set()
        async with engine_on(log, Story(LOOKS, DONE), server) as other:
            response = await other.ended(queued.id)
    assert response.status == "completed"
    assert len(one.told) + len(other.told) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# ---- a log that is away ----


class Shaky(Log):
    """Away for a while, and once worse than that."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Exception] = [Unavailable(), ZeroDivisionError(), Unavailable()]
        self.renewals = [Unavailable(), ZeroDivisionError()]
        self.submits = [Unavailable(), Unavailable()]

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        if self.faults:
            raise self.faults.pop(0)
        return await super().claim(worker, count)

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        if self.renewals:
            raise self.renewals.pop(0)
        return await super().renew(worker, leases)

    async def submit(self, run: NewRun) -> None:
        if self.submits:
            raise self.submits.pop(0)
        await super().submit(run)


async def test_a_log_that_is_away_is_tried_again_and_again() -> None:
    log = Shaky()
    async with engine_on(log, Story(DONE)) as engine:
        response = await engine.ended((await engine.create(ask(background=True))).id)
    assert response.status == "completed"
    assert not log.faults
    assert not log.renewals
    assert not log.submits


class Lossy(Log):
    """The answer to the first claim is lost on its way."""

    is_lost = False

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        found = await super().claim(worker, count)
        if found and not self.is_lost:
            self.is_lost = True
            raise Unavailable
        return found


async def test_a_run_whose_claim_was_never_heard_of_is_handed_on() -> None:
    log = Lossy()
    engine = Engine(
        Story(DONE), store=log.store, runs=log, settings=EngineSettings(background=BackgroundSettings(lease=1.0))
    )
    async with engine:
        queued = await engine.create(ask(background=True))
        records = await records_of(log, queued.id, follow=True)
        check_log(records, await engine.retrieve(ANONYMOUS, queued.id))
    assert log.is_lost


# ---- others who share the log ----


class Shared(Log):
    traits = Traits(durability="disk", many=True)


class Kept(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[NewResponse] = []

    async def begin(self, new: NewResponse) -> None:
        self.begun.append(new)
        await super().begin(new)


@pytest.mark.parametrize("log", [Shared, Log], ids=["shared", "alone"])
async def test_rows_of_the_foreground_say_who_makes_them_where_others_have_to_know(log: type[Log]) -> None:
    rows = Kept()
    shared = log(rows)
    async with engine_on(shared, ScriptedProvider(DONE), at_once=0) as engine:
        await engine.create(ask())
        [name] = shared._workers
    [row] = rows.begun
    assert row.worker == (name if shared.traits.many else None)


async def test_who_leaves_is_not_there_any_more() -> None:
    log = Log()
    async with engine_on(log, ScriptedProvider()):
        assert len(log._workers) == 1
    assert not log._workers


async def test_where_others_reach_it_is_told_with_its_name() -> None:
    log = Log()
    async with Engine(ScriptedProvider(), store=log.store, runs=log, address="http://10.0.0.7:9000"):
        [worker] = log._workers.values()
    assert worker.address == "http://10.0.0.7:9000"
    assert worker.name.startswith("worker_")


# ---- what ends with the process ----


async def test_runs_that_nobody_could_go_on_with_end_with_the_engine() -> None:
    store, server = MemoryStore(), Depot()
    server.gate = asyncio.Event()
    engine = engine_of(Story(LOOKS), server, store=store)
    async with engine:
        queued = await engine.create(ask(background=True, tools=[DEPOT]))
        await server.asked.wait()
    response = await store.get(ANONYMOUS, queued.id)
    assert response is not None
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_shutting_down"


async def test_one_that_is_planned_while_the_process_leaves_is_left_to_the_next() -> None:
    log, planning = Log(), asyncio.Event()

    class Slow(Depot):
        async def discover(self, *_: object) -> None:
            planning.set()
            await asyncio.Event().wait()

    async with front_of(log, Depot()) as front:
        queued = await front.create(ask(background=True, tools=[DEPOT]))
        async with engine_on(log, ScriptedProvider(), Slow()) as one:
            await planning.wait()
            await one.drain(60)
        assert not one.told
        async with engine_on(log, Story(DONE), Depot()) as other:
            assert (await other.ended(queued.id)).status == "completed"


async def test_one_that_waits_for_its_conversation_while_the_process_leaves_is_left_to_the_next() -> None:
    log = Log()
    provider = ScriptedProvider(answer(say("Late."), asyncio.Event()))
    async with engine_on(log, provider) as one:
        conversation = (await one.conversations.create([])).id
        foreground = await one.start(ask("First", conversation=conversation, stream=True))
        queued = await one.create(ask("Second", conversation=conversation, background=True))
        while (await log.load()).running == 0:  # noqa: ASYNC110 - it is claimed, and that shows nowhere else
            await asyncio.sleep(0)
        await one.drain(0)
        assert (await foreground.result()).status == "failed"
    assert [ended.response.id for ended in one.told] == [foreground.response_id]
    async with engine_on(log, ScriptedProvider(DONE)) as other:
        assert (await other.ended(queued.id)).status == "completed"
