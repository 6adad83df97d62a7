"""A process that makes runs of a log: how many, for how long, and what it does about a log that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NoReturn

import pytest

from antwort.api.events import TERMINAL, CallBegun
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.errors import Damaged, HandedOver, UnsupportedFeature
from antwort.identity import ANONYMOUS
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import (
    ClaimedRun,
    EventRecord,
    Lease,
    NewRun,
    Renewed,
    RunEnding,
    Traits,
    Unavailable,
    WorkerInfo,
)
from antwort.testing import ScriptedProvider, answer, call, say
from engine_kit import ask, engine_of, server_calls
from jumping_time import jumping_time
from runs_cases import has_log
from serving import until
from takeover_kit import DEPOT, Depot, Log, Rows, Story, check_log, engine_on, front_of, records_of

LOOKS = answer(call("look", n=1))
DONE = answer(say("Done."))


# ---- how many ----


@jumping_time
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
@jumping_time
async def test_who_has_no_places_claims_nothing(settings: BackgroundSettings) -> None:
    class Watched(Log):
        claims = 0

        async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
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


@jumping_time
async def test_background_that_is_off_is_a_400() -> None:
    engine = engine_of(ScriptedProvider(), background=BackgroundSettings(enabled=False))
    with pytest.raises(UnsupportedFeature):
        await engine.create(ask(background=True))


# ---- what is heard from elsewhere ----


@jumping_time
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


@jumping_time
async def test_who_hears_that_another_has_its_run_stops_and_tells_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    async with engine_on(log, Story(LOOKS), server) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT]))
        await server.asked.wait()
        length = await log.query("SELECT count(*) FROM run_events")
        await log.query("UPDATE runs SET fence = fence + 1 RETURNING 1")  # as a claim of another does
        log.nudge()
        while one.live:  # noqa: ASYNC110 - nothing tells of it, and that is the point
            await asyncio.sleep(0)
        assert await log.query("SELECT count(*) FROM run_events") == length
        assert not one.told
        one.stop_claiming()  # the other one is to have it
        await log.query("UPDATE runs SET worker = NULL RETURNING 1")
        log.nudge()
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

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        if self.faults:
            raise self.faults.pop(0)
        return await super().claim(worker, count)

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        if self.renewals:
            raise self.renewals.pop(0)
        return await super().renew(worker, leases)

    async def submit(self, run: NewRun) -> None:
        if self.submits:
            raise self.submits.pop(0)
        await super().submit(run)


@jumping_time
async def test_a_log_that_is_away_is_tried_again_and_again() -> None:
    log = Shaky()
    async with engine_on(log, Story(DONE)) as engine:
        response = await engine.ended((await engine.create(ask(background=True))).id)
    assert response.status == "completed"
    assert not log.faults
    assert not log.renewals
    assert not log.submits


class Down(Log):
    """Away for some tries of each who asks."""

    def __init__(self) -> None:
        super().__init__()
        self.left = {"claim": 3, "renew": 3, "sweep": 3}

    def _fail(self, what: str) -> None:
        if self.left[what]:
            self.left[what] -= 1
            raise Unavailable("The database cannot be reached. (connection refused)")

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        self._fail("claim")
        return await super().claim(worker, count)

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        self._fail("renew")
        return await super().renew(worker, leases)

    async def sweep(self) -> int:
        self._fail("sweep")
        return await super().sweep()


@jumping_time
async def test_a_log_that_is_away_is_told_of_once_with_the_reason_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "antwort.runs")
    log = Down()
    async with engine_on(log, Story(DONE)) as engine:
        await engine.ended((await engine.create(ask(background=True))).id)
        await until(lambda: "can be used again" in caplog.text)
    said = [record.getMessage() for record in caplog.records if "the log of runs" in record.getMessage()]
    assert said == [
        "the log of runs cannot be used now: The database cannot be reached. (connection refused)",
        "the log of runs can be used again",
    ]


class Lossy(Log):
    """The answer to the first claim is lost on its way."""

    is_lost = False

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        found = await super().claim(worker, count)
        if found and not self.is_lost:
            self.is_lost = True
            raise Unavailable
        return found


@jumping_time
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


# ---- a log that does what nobody expects ----


class Odd(Log):
    """Raises what it should not, so often, when something is written from the record `at` on, or read."""

    def __init__(self, what: str, times: int, at: int = 0) -> None:
        super().__init__()
        self.what, self.times, self.at = what, times, at

    def _go_wrong(self, what: str) -> None:
        if self.what == what and self.times:
            self.times -= 1
            raise ZeroDivisionError(what)

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        self._go_wrong("records")
        return await super().records(lease)

    async def append(self, lease: Lease, record: EventRecord) -> None:
        if record.at >= self.at:
            self._go_wrong("append")
        if any(isinstance(event, CallBegun) for event in record.events):
            self._go_wrong("begin")
        await super().append(lease, record)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        self._go_wrong("finish")
        await super().finish(lease, ending, record)


async def settled(engine: Engine, response_id: str) -> Response:
    """The response as it ended, of which there may be no log."""
    response = await engine.retrieve(ANONYMOUS, response_id)
    while response.status in ("queued", "in_progress"):  # what tells of it elsewhere may be what is damaged
        await asyncio.sleep(0.1)
        response = await engine.retrieve(ANONYMOUS, response_id)
    return response


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return len([record for record in caplog.records if record.exc_info])


@pytest.mark.parametrize("what", ["records", "append", "begin", "finish"])
@jumping_time
async def test_a_run_that_met_what_nobody_expects_is_tried_again_and_told_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Odd(what, 1, at=2)
    async with engine_on(log, Story(LOOKS, DONE), Depot()) as engine:
        queued = await engine.create(ask(background=True, tools=[DEPOT]))
        response = await engine.ended(queued.id)
    assert (response.status, log.times) == ("completed", 0)
    assert [ended.response for ended in engine.told] == [response]
    assert tracebacks(caplog) == 1


@pytest.mark.parametrize("what", ["records", "append", "begin", "finish"])
@jumping_time
async def test_a_run_that_meets_what_nobody_expects_again_and_again_has_failed(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Odd(what, 2**31, at=2)
    async with engine_on(log, Story(LOOKS, DONE), Depot()) as engine:
        queued = await engine.create(ask(background=True, tools=[DEPOT]))
        response = await settled(engine, queued.id)
        assert (await log.load()).running == 0
    assert response.error is not None
    assert (response.status, response.error.code) == ("failed", "attempts_exhausted")
    assert [ended.response for ended in engine.told] == [response]
    is_logged = what in ("append", "begin")  # then its end can be put into its log
    assert tracebacks(caplog) == (3 if is_logged else 4)


@pytest.mark.parametrize("has_left", [True, False])
@jumping_time
async def test_a_run_that_was_begun_in_the_foreground_is_tried_again_as_well(*, has_left: bool) -> None:
    log, hold = Odd("append", 1, at=3), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello there"), hold, say(" and so on"))), Depot()) as engine:
        run = await engine.start(ask(stream=True), on_disconnect="continue")
        await run.read()
        if has_left:
            run.leave()
        hold.set()
        seen = [event async for _, event in run.events()]
        response = await engine.ended(run.response_id)
    assert (response.status, len(engine.told), log.times) == ("completed", 1, 0)
    assert not any(isinstance(event, TERMINAL) for event in seen)  # who read it here reads on elsewhere


@jumping_time
async def test_a_run_of_the_foreground_whose_client_is_there_is_renewed_and_can_be_lost() -> None:
    log, hold = Log(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello"), hold)), Depot(), longest_silence=30.0) as engine:
        run = await engine.start(ask(stream=True), on_disconnect="continue")
        await run.read()
        await asyncio.sleep(300)
        assert (engine.live, (await log.load()).running) == (1, 1)
        await log.query("UPDATE runs SET fence = fence + 1 RETURNING 1")  # as if another process had it
        await run.wait()
        assert engine.told == []
        with pytest.raises(HandedOver):
            await run.result()


# ---- a record that cannot be read ----


class Torn(Log):
    """The record of a run cannot be read, once somebody has begun with it."""

    is_torn = False

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        if self.is_torn:
            raise Damaged
        return await super().records(lease)

    async def read(self, *of_run: Any, **how: Any) -> AsyncGenerator[list[EventRecord], None]:
        if self.is_torn:
            raise Damaged
        async for some in super().read(*of_run, **how):
            yield some


async def torn(log: Torn) -> str:
    """The id of a run of which half is on record, and cannot be read."""
    async with engine_on(log, Story(answer(say("Half"), asyncio.Event()))) as one:
        queued = await one.create(ask(background=True))
        await log.reached(2).wait()
    log.is_torn = True
    return queued.id


@jumping_time
async def test_a_run_whose_record_cannot_be_read_has_failed_and_holds_no_place() -> None:
    log = Torn()
    lost = await torn(log)
    async with engine_on(log, Story(DONE), at_once=1) as other:
        response = await settled(other, lost)
        log.is_torn = False
        assert (await other.ended((await other.create(ask(background=True))).id)).status == "completed"
        assert not await has_log(log, ANONYMOUS, lost)
    assert response.error is not None
    assert (response.status, response.error.code, response.output) == ("failed", "storage_error", ())
    assert [ended.response.status for ended in other.told] == ["failed", "completed"]


@jumping_time
async def test_one_whose_record_cannot_be_read_is_shown_as_it_was_submitted_and_can_be_cancelled() -> None:
    log = Torn()
    lost = await torn(log)
    async with front_of(log) as front:
        assert (await front.retrieve(ANONYMOUS, lost)).status == "in_progress"
        assert (await front.cancel(ANONYMOUS, lost)).status == "cancelled"
        assert [ended.response.status for ended in front.told] == ["cancelled"]


@jumping_time
async def test_a_response_whose_row_cannot_be_read_has_failed_as_well() -> None:
    class Blurred(Rows):
        async def link(self, *_: object, **__: object) -> NoReturn:
            raise Damaged

    async with front_of(log := Log(Blurred())) as front, engine_on(log, Story(DONE)) as maker:
        response = await settled(front, (await front.create(ask(background=True))).id)
    assert response.error is not None
    assert (response.status, response.error.code, len(maker.told)) == ("failed", "storage_error", 1)


@jumping_time
async def test_a_process_that_leaves_does_not_wait_for_a_record_that_it_asked_for() -> None:
    class Deaf(Log):
        asked = asyncio.Event()

        async def records(self, lease: Lease) -> Sequence[EventRecord]:
            self.asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with engine_on(log := Deaf(), Story(DONE)) as one:
        await one.create(ask(background=True))
        await log.asked.wait()
        await one.drain(0)
        assert (await log.load()).queued == 1


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
@jumping_time
async def test_rows_of_the_foreground_say_who_makes_them_where_others_have_to_know(log: type[Log]) -> None:
    rows = Kept()
    shared = log(rows)
    async with engine_on(shared, ScriptedProvider(DONE), at_once=0) as engine:
        await engine.create(ask())
        [(name,)] = await shared.query("SELECT name FROM workers")
    [row] = rows.begun
    assert row.worker == (name if shared.traits.many else None)


@jumping_time
async def test_who_leaves_is_not_there_any_more() -> None:
    log = Log()
    async with engine_on(log, ScriptedProvider()):
        assert await log.query("SELECT count(*) FROM workers") == [(1,)]
    assert await log.query("SELECT count(*) FROM workers") == [(0,)]


@jumping_time
async def test_where_others_reach_it_is_told_with_its_name() -> None:
    log = Log()
    async with Engine(ScriptedProvider(), store=log.store, runs=log, address="http://10.0.0.7:9000"):
        [(name, address)] = await log.query("SELECT name, address FROM workers")
    assert address == "http://10.0.0.7:9000"
    assert name.startswith("worker_")


# ---- what ends with the process ----


@jumping_time
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


@jumping_time
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


@pytest.mark.parametrize("turns", [0, 1, 5, 30])
@jumping_time
async def test_one_that_waits_for_its_conversation_while_the_process_leaves_is_left_to_the_next(turns: int) -> None:
    """However many turns of the event loop it has waited."""
    log = Log()
    provider = ScriptedProvider(answer(say("Late."), asyncio.Event()))
    async with engine_on(log, provider) as one:
        conversation = (await one.conversations.create([])).id
        foreground = await one.start(ask("First", conversation=conversation, stream=True))
        queued = await one.create(ask("Second", conversation=conversation, background=True))
        while (await log.load()).running == 0:  # noqa: ASYNC110 - it is claimed, and that shows nowhere else
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await one.drain(0)
        assert (await foreground.result()).status == "failed"
    assert [ended.response.id for ended in one.told] == [foreground.response_id]
    async with engine_on(log, ScriptedProvider(DONE)) as other:
        assert (await other.ended(queued.id)).status == "completed"
