"""Reading the events of a response again: which ones, with which numbers, and what a reader may do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from antwort.engine.following import Subscription, as_logged, logged, numbered, unfolded
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import CallEnded, OutputTextDelta, RunEvent, StreamEvent, TurnEnded
from antwort.engine.engine import Engine
from antwort.engine.runs.event_log import NumberedBatch
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendUnavailable, InvalidField, ResponseNotFound
from antwort.identity import ANONYMOUS, Identity
from antwort.runs.base import Gone, Record, Unavailable
from antwort.runs.memory import MemoryRunLog
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, StreamChecker, answer, call, say
from engine_kit import WEATHER, ask, engine_of, name_of, stream, weather_tool
from serving import until

DELTA = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a")
MARKS: list[RunEvent] = [TurnEnded(finish="stop"), CallEnded(call_id="call_1", outcome="ran")]

logs = st.lists(st.lists(st.sampled_from([DELTA, *MARKS]), min_size=1, max_size=4), max_size=6)


def records_of(batches: Sequence[Sequence[RunEvent]]) -> list[Record]:
    records: list[Record] = []
    for at, events in enumerate(batches):
        records.append(Record(at, records[-1].next if records else 0, list(events)))
    return records


@given(logs, st.integers(-1, 25))
def test_what_is_sent_behind_a_number_is_all_that_has_a_greater_one(batches: list[list[RunEvent]], after: int) -> None:
    found = [(number, event) for each in numbered(records_of(batches), after) for number, event in _counted(each)]
    sent = [event for batch in batches for event in batch if event is DELTA]
    assert found == [*enumerate(sent)][after + 1 :]


def _counted(batch: NumberedBatch) -> list[tuple[int, StreamEvent]]:
    assert batch.events, "a batch without events is a sign of life"
    return [*enumerate(batch.events, batch.first)]


# ---- from the log ----


class Faulty(MemoryRunLog):
    """Cannot be read now and then."""

    def __init__(self, store: MemoryStore, faults: Sequence[Exception]) -> None:
        super().__init__(store, poll=0.001)
        self.faults, self.asked = [*faults], list[int]()

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        self.asked.append(after)
        async for records in super().read(identity, response_id, after, follow=follow):
            if self.faults:
                yield records[:1]
                raise self.faults.pop(0)
            yield records


async def queued(log: MemoryRunLog, store: MemoryStore, **settings: Any) -> tuple[Engine, str]:
    engine = Engine(
        ScriptedProvider(answer(say("Hello out there"))), store=store, runs=log, settings=EngineSettings(**settings)
    )
    await engine.open()
    response = await engine.create(ask(background=True))
    await until(lambda: engine.live_runs == {} and log._open == {})
    return engine, response.id


async def test_a_log_that_cannot_be_read_is_read_on_where_it_was() -> None:
    store = MemoryStore()
    log = Faulty(store, [])
    engine, response_id = await queued(log, store)
    whole = [each async for batch in logged(log, response_id, ANONYMOUS, -1, 60) for each in batch]
    log.faults, log.asked = [Unavailable(), Unavailable()], []
    again = [each async for batch in logged(log, response_id, ANONYMOUS, -1, 60) for each in batch]
    assert again == whole
    assert log.asked == [-1, 1, 2]
    await engine.close()


async def test_a_log_that_is_gone_is_a_response_that_is_not_found() -> None:
    store = MemoryStore()
    log = Faulty(store, [])
    engine, response_id = await queued(log, store)
    log.faults = [Gone()]
    with pytest.raises(ResponseNotFound):
        [batch async for batch in logged(log, response_id, ANONYMOUS, -1, 60)]
    await engine.close()


async def test_signs_of_life_come_when_they_are_due_and_no_sooner() -> None:
    store, hold = MemoryStore(), asyncio.Event()
    log = MemoryRunLog(store, poll=0.001)
    provider = ScriptedProvider(answer(hold, say("Hello")))
    async with Engine(provider, store=store, runs=log) as engine:
        response = await engine.create(ask(background=True))
        await until(lambda: provider.under_way == 1)
        often, seldom = (logged(log, response.id, ANONYMOUS, 2, every) for every in (0.0, 3600.0))
        assert await anext(often) == [NumberedBatch(3, [])]
        waiting = asyncio.ensure_future(anext(seldom))
        assert await anext(often) == [NumberedBatch(3, [])]
        assert not waiting.done()
        hold.set()
        assert (await waiting)[0].first == 3
        for reading in (often, seldom):
            await reading.aclose()


async def test_the_log_tells_how_far_a_run_has_come() -> None:
    engine = engine_of(ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Fine"))), weather_tool())
    async with engine:
        response = await engine.create(ask(background=True, tools=[WEATHER]))
        async with await engine.follow(ANONYMOUS, response.id) as reader:
            events = [event async for _, event in reader.events()]
        assert engine.runs is not None
        records = [record async for some in engine.runs.read(ANONYMOUS, response.id) for record in some]
        kept = await engine.retrieve(ANONYMOUS, response.id)
    assert as_logged(records) == kept == reader.response
    steps = [len(found.output) for at in range(1, len(records)) if (found := as_logged(records[:at]))]
    assert steps == sorted(steps)
    assert as_logged([]) is None
    assert [name_of(event) for event in events][-1] == "response.completed"


# ---- from the response ----


async def test_signs_of_life_come_until_there_is_a_response_to_take_apart() -> None:
    response = await engine_of(ScriptedProvider(answer(say("Hello")))).create(ask())
    asked = [None, None, response]

    async def ended() -> Any:
        return asked.pop(0)

    batches = [batch async for batch in unfolded(ended, EngineSettings())]
    assert batches[:2] == [[NumberedBatch(0, [])], [NumberedBatch(0, [])]]
    checker = StreamChecker()
    for (batch,) in batches[2:]:
        for number, event in enumerate(batch.events, batch.first):
            checker.feed(number, event)
    assert checker.finish() == response


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

    reader = Subscription(response, batches(), ended)
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


async def test_a_background_response_is_not_launched() -> None:
    async with engine_of(ScriptedProvider()) as engine:
        with pytest.raises(ValueError, match="submitted"):
            await engine.start(ask(background=True))
        assert engine.live == 0
