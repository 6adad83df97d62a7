"""Reading the events of a response again: which ones, with which numbers, and what a reader may do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antwort.api.events import OutputTextDelta, StreamEvent
from antwort.engine.engine import Engine
from antwort.engine.runs.event_log import NumberedBatch
from antwort.engine.runs.subscription import StoredSubscription
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.errors import BackendUnavailable, InvalidField, ResponseNotFound, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import EventRecord, Gone, Outline, Unavailable
from antwort.storage.sql_run_log import SqlRunLog
from antwort.testing import ScriptedProvider, StreamChecker, answer, call, say
from engine_kit import WEATHER, ask, engine_of, name_of, stream, weather_tool
from jumping_time import jumping_time
from serving import until

STORY = (answer(call("weather", city="Rome"), call("weather", city="Oslo")), answer(say("Fine out there")))

Seen = list[tuple[int, StreamEvent]]


async def read(engine: Engine, response_id: str, after: int = -1) -> Seen:
    """All events behind that number."""
    async with await engine.follow(ANONYMOUS, response_id, after) as reader:
        return [pair async for pair in reader.events()]


@pytest.mark.parametrize("fields", [{"background": True}, {"stream": True}], ids=["background", "foreground"])
async def test_what_is_read_behind_a_number_is_all_that_has_a_greater_one(fields: dict[str, Any]) -> None:
    async with engine_of(ScriptedProvider(*STORY), weather_tool()) as engine:
        started = await engine.start(ask(tools=[WEATHER], **fields))
        whole = await read(engine, started.response_id)
        assert [number for number, _ in whole] == [*range(len(whole))]
        for after in range(-1, len(whole)):
            assert await read(engine, started.response_id, after) == whole[after + 1 :]


@pytest.mark.parametrize("fields", [{"background": True}, {"stream": True}], ids=["background", "foreground"])
async def test_whoever_comes_while_it_runs_reads_on_to_its_end(fields: dict[str, Any]) -> None:
    hold = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(say("Hello"), hold, say(" there")))) as engine:
        started = await engine.start(ask(**fields))
        first = await engine.follow(ANONYMOUS, started.response_id)
        begun: Seen = []
        while not any(isinstance(event, OutputTextDelta) for _, event in begun):
            begun += [
                (batch.first + at, event) for batch in await first.read() for at, event in enumerate(batch.events)
            ]
        late = [asyncio.ensure_future(read(engine, started.response_id, after)) for after in (-1, 2, begun[-1][0])]
        await asyncio.sleep(0)
        hold.set()
        whole = begun + [pair async for pair in first.events()]
        assert [await each for each in late] == [whole, whole[3:], whole[len(begun) :]]


# ---- from the log ----


class Faulty(SqlRunLog):
    """Cannot be read now and then."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.database, poll=0.1)
        self.faults, self.asked = list[Exception](), list[int]()

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[EventRecord], None]:
        self.asked.append(after)
        async for records in super().read(identity, response_id, after, follow=follow):
            if self.faults:
                yield records[:1]
                raise self.faults.pop(0)
            yield records


async def ended_in(log: Faulty, store: MemoryStore) -> tuple[Engine, str]:
    """A background response that has ended."""
    engine = Engine(ScriptedProvider(answer(say("Hello out there"))), store=store, runs=log)
    await engine.open()
    response = await engine.create(ask(background=True))
    while (await log.load()).running or engine.live_runs:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    return engine, response.id


@jumping_time
async def test_a_log_that_cannot_be_read_is_read_on_where_it_was() -> None:
    log = Faulty(store := MemoryStore())
    engine, response_id = await ended_in(log, store)
    whole = await read(engine, response_id)
    log.faults, log.asked = [Unavailable(), Unavailable()], []
    assert await read(engine, response_id) == whole
    assert log.asked == [-1, 1, 2]
    await engine.close()


@jumping_time
async def test_a_log_that_is_gone_is_a_response_that_is_not_found() -> None:
    log = Faulty(store := MemoryStore())
    engine, response_id = await ended_in(log, store)
    log.faults = [Gone()]
    with pytest.raises(ResponseNotFound):
        await read(engine, response_id)
    await engine.close()


@pytest.mark.parametrize("interval", [0.5, 7.0])
@jumping_time
async def test_keep_alives_come_when_they_are_due_and_no_sooner(interval: float) -> None:
    hold, clock = asyncio.Event(), asyncio.get_running_loop().time
    log = Faulty(store := MemoryStore())
    settings = EngineSettings(keepalive_interval=interval)
    provider = ScriptedProvider(answer(hold, say("Hello")))
    async with Engine(provider, store=store, runs=log, settings=settings) as engine:
        response = await engine.create(ask(background=True))
        await until(lambda: provider.under_way == 1)
        reader = await engine.follow(ANONYMOUS, response.id, 2)
        for _ in range(3):
            before = clock()
            assert await reader.read() == [NumberedBatch(3, [])]
            assert interval <= clock() - before <= interval + 0.3
        hold.set()
        assert (await reader.read())[0].first == 3
        await reader.close()


@jumping_time
async def test_whoever_waits_for_the_end_of_a_logged_run_reads_its_log_and_does_not_ask_again_and_again() -> None:
    class Counting(Faulty):
        outlines = 0

        async def outline(self, identity: Identity, response_id: str) -> Outline | None:
            self.outlines += 1
            return await super().outline(identity, response_id)

    hold = asyncio.Event()
    log = Counting(store := MemoryStore())
    async with Engine(ScriptedProvider(answer(hold, say("Hello"))), store=store, runs=log) as engine:
        response = await engine.create(ask(background=True))
        waiting = asyncio.create_task(engine.until_ended(ANONYMOUS, response.id))
        await asyncio.sleep(60)
        assert not waiting.done()
        hold.set()
        await waiting
        assert log.outlines == 2
        assert (await engine.retrieve(ANONYMOUS, response.id)).status == "completed"


async def test_a_background_response_that_runs_is_retrieved_as_far_as_its_log_says() -> None:
    engine = engine_of(ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Fine"))), weather_tool())
    async with engine:
        response = await engine.create(ask(background=True, tools=[WEATHER]))
        steps = [response]
        async with await engine.follow(ANONYMOUS, response.id) as reader:
            while await reader.read():
                steps.append(await engine.retrieve(ANONYMOUS, response.id))
    assert [len(each.output) for each in steps] == sorted(len(each.output) for each in steps)
    assert (steps[0].status, steps[-1].status, len(steps[-1].output)) == ("queued", "completed", 3)
    assert steps[-1] == reader.response


# ---- from the response ----


@pytest.mark.parametrize("stream", [True, False])
@jumping_time
async def test_where_the_events_are_not_kept_keep_alives_come_until_they_are_made_from_the_response(
    *, stream: bool
) -> None:
    hold, clock = asyncio.Event(), asyncio.get_running_loop().time
    none = BackgroundSettings(log_bytes=0)
    provider = ScriptedProvider(answer(say("Hello"), hold, say(" there")))
    async with engine_of(provider, background=none, keepalive_interval=5.0) as engine:
        run = await engine.start(ask(stream=stream))
        await until(lambda: provider.under_way == 1)
        reader = await engine.follow(ANONYMOUS, run.response_id)
        for _ in range(2):
            before = clock()
            assert await reader.read() == [NumberedBatch(0, [])]
            assert clock() - before >= 5
        hold.set()
        checker, response = StreamChecker(), await run.result()
        async for number, event in reader.events():
            checker.feed(number, event)
        assert checker.finish() == response == reader.response
        with pytest.raises(InvalidField) as caught:
            await engine.follow(ANONYMOUS, run.response_id, 3)
        assert caught.value.param == "starting_after"


# ---- a reader ----


async def test_one_who_leaves_while_waiting_is_let_go_and_the_run_goes_on() -> None:
    hold = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(say("Hello"), hold))) as engine:
        response = await engine.create(ask(background=True))
        reader = await engine.follow(ANONYMOUS, response.id)
        await until(lambda: any(run.response.output for run in engine.live_runs.values()))
        while batches := await asyncio.wait_for(reader.read(), 5):
            if any(isinstance(event, OutputTextDelta) for batch in batches for event in batch.events):
                break
        waiting = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reader.leave()
        assert await waiting == await reader.read() == []
        await reader.close()
        assert reader.has_left
        hold.set()
        async with await engine.follow(ANONYMOUS, response.id) as again:
            assert [number async for number, _ in again.events()][-1] > 0
    assert again.response.status == "completed"


async def test_a_reader_that_nobody_read_from_is_closed_without_asking_anybody() -> None:
    read: list[int] = []

    async def batches() -> AsyncGenerator[list[NumberedBatch], None]:
        read.append(1)
        yield []

    response = await engine_of(ScriptedProvider(answer(say("Hello")))).create(ask())

    async def ended() -> None:
        """At once."""

    reader = StoredSubscription(response, batches(), ended)
    assert await reader.result() == response
    await reader.close()
    assert read == []


# ---- programs ----


async def test_a_program_gets_a_background_response_as_it_was_queued_and_reads_it_later() -> None:
    async with engine_of(ScriptedProvider(answer(say("Hello there")))) as engine:
        response = await engine.create(input="Hello", model="scripted", background=True)
        assert response.status == "queued"
        async with await engine.follow(ANONYMOUS, response.id, after=1) as reader:
            numbers = [number async for number, _ in reader.events()]
        kept = await engine.retrieve(ANONYMOUS, response.id)
    assert numbers == [*range(2, len(numbers) + 2)]
    assert kept == reader.response
    assert kept.status == "completed"


async def test_a_program_that_stops_reading_leaves_the_run_alone() -> None:
    hold = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(say("Hello"), hold, say("you")))) as engine:
        events = engine.respond(input="Hello", model="scripted", background=True)
        first = await anext(events)
        await events.aclose()
        hold.set()
        assert name_of(first) == "response.created"
        (run,) = (await engine.list(ANONYMOUS, Page())).responses
        async with await engine.follow(ANONYMOUS, run.id) as reader:
            assert [number async for number, _ in reader.events()]
    assert reader.response.status == "completed"


async def test_the_events_of_a_background_response_are_those_of_one_in_the_foreground_and_that_it_waits() -> None:
    answers = (answer(call("weather", city="Rome")), answer(say("Fine weather")))
    fields: dict[str, Any] = {"tools": [WEATHER]}
    engines = [engine_of(ScriptedProvider(*answers), weather_tool()) for _ in range(2)]
    async with engines[0], engines[1]:
        foreground = await stream(engines[0], ask(**fields))
        background = await stream(engines[1], ask(**fields, background=True))
    assert [name for name in background.names if name != "response.queued"] == foreground.names
    assert background.response.background


async def test_what_goes_wrong_at_the_backend_is_a_response_that_has_failed() -> None:
    async with engine_of(ScriptedProvider(answer(BackendUnavailable("down")))) as engine:
        outcome = await stream(engine, ask(background=True))
    assert outcome.response.status == "failed"
    assert outcome.response.error is not None
    assert outcome.response.error.code == "backend_unavailable"


async def test_a_number_that_no_event_has_is_refused_and_the_last_one_is_not() -> None:
    async with engine_of(ScriptedProvider(answer(say("Hello")))) as engine:
        response = await engine.create(ask(background=True))
        async with await engine.follow(ANONYMOUS, response.id) as reader:
            numbers = [number async for number, _ in reader.events()]
        async with await engine.follow(ANONYMOUS, response.id, numbers[-1]) as over:
            assert await over.read() == []
        with pytest.raises(InvalidField) as caught:
            await engine.follow(ANONYMOUS, response.id, numbers[-1] + 1)
    assert caught.value.param == "starting_after"


async def test_whoever_starts_a_background_response_has_it_as_it_was_queued_and_may_read_it() -> None:
    hold = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(hold, say("Hello")))) as engine:
        reader = await engine.start(ask(background=True))
        assert (await reader.result()).status == reader.response.status == "queued"
        assert (reader.is_replay, reader.runs_alone, reader.summary()) == (False, False, None)
        hold.set()
        names = [name_of(event) async for _, event in reader.events()]
        await reader.wait()
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert (names[-1], reader.response.status, reader.is_over) == ("response.completed", "completed", True)


async def test_those_who_read_along_leave_the_run_of_its_client_alone() -> None:
    hold = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(say("Hello"), hold))) as engine:
        run = await engine.start(ask(stream=True))
        reader = await engine.follow(ANONYMOUS, run.response_id)
        await reader.read()
        reader.stop(ShuttingDown())
        assert await reader.read() == []
        assert (reader.has_left, engine.live) == (True, 1)
        hold.set()
        assert (await run.result()).status == "completed"


async def test_whoever_is_not_its_owner_finds_no_response() -> None:
    async with engine_of(ScriptedProvider(answer(say("Hello"), asyncio.Event()))) as engine:
        run = await engine.start(ask(stream=True))
        with pytest.raises(ResponseNotFound):
            await engine.follow(Identity("other", "ann"), run.response_id)
        run.leave()
        await run.wait()
