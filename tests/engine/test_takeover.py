"""A run that changes hands: killed before any of its records, it goes on elsewhere, and nothing is done twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.events import UNSENT, Batch, CallBegun, CallEnded, ResponseInProgress, RunEvent
from antwort.api.items import McpCall
from antwort.api.responses import Response
from antwort.engine.history.refusals import PROCESS_LOST
from antwort.engine.runs.event_log import observe_streams
from antwort.engine.settings import LoopSettings
from antwort.identity import ANONYMOUS
from antwort.testing import Answer, answer, call, say, think
from engine_kit import ask, items_of, text_of
from jumping_time import jumping_time
from takeover_kit import DEPOT, Depot, Log, Story, check_calls, check_log, engine_on, records_of

STORY: tuple[Answer, ...] = (
    answer(think("Let me"), say("I look."), call("look", n=1), call("sell", n=2)),
    answer(call("sell", n=3), call("mark", n=4), call("look", n=5)),
    answer(say("All is done.")),
)


async def play(dies_at: int | None, depot: Depot, story: tuple[Answer, ...] = STORY) -> tuple[Log, Response]:
    """Two processes, the first of which dies before it has written the record in that place."""
    log = Log()
    log.dies_at = dies_at
    first = engine_on(log, Story(*story), depot)
    second = engine_on(log, Story(*story), depot)
    async with first, second:
        queued = await first.create(ask(background=True, tools=[DEPOT]))
        reading = asyncio.create_task(records_of(log, queued.id, follow=True))
        died = asyncio.create_task(log.died.wait())
        await asyncio.wait([reading, died], return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        await log.bury()
        await reading
        response = await second.retrieve(ANONYMOUS, queued.id)
    return log, response


async def length() -> int:
    log, response = await play(None, Depot())
    return len(await records_of(log, response.id, follow=False))


@pytest.mark.proves("MISTAKE-31", "RULING-11", "CP-028", "FR-023", "FR-024")
@jumping_time
async def test_a_run_that_dies_before_any_of_its_records_comes_to_its_end() -> None:
    for dies_at in range(1, await length()):
        depot = Depot()
        log, response = await play(dies_at, depot)
        assert response.status == "completed", dies_at
        assert text_of(response).endswith("All is done.")
        events = check_log(await records_of(log, response.id, follow=False), response)
        check_calls(events, depot)
        assert sum(isinstance(event, ResponseInProgress) for event in events) == 1
        assert log.died.is_set()


@jumping_time
async def test_whoever_continues_a_run_is_observed_from_its_first_event() -> None:
    class Observer:
        def __init__(self, _: LoopSettings, is_takeover: bool) -> None:
            self.is_takeover, self.has_ended = is_takeover, False
            self.events: list[tuple[int, RunEvent]] = []
            observers.append(self)

        def on_batch(self, first: int, batch: Batch) -> None:
            self.events += enumerate((event for event in batch if not isinstance(event, UNSENT)), first)

        def on_end(self) -> None:
            self.has_ended = True

    observers: list[Observer] = []
    with observe_streams(Observer):
        log, response = await play(4, Depot())
    assert [(each.is_takeover, each.has_ended) for each in observers] == [(False, False), (True, True)]
    recorded = check_log(await records_of(log, response.id, follow=False), response)
    events = [event for event in recorded if not isinstance(event, UNSENT)]
    assert [type(event) for _, event in observers[1].events] == [type(event) for event in events]
    assert [number for number, _ in observers[1].events] == [*range(len(events))]


@pytest.mark.parametrize(("name", "times"), [("look", 2), ("mark", 2), ("sell", 1)])
@jumping_time
async def test_a_call_that_was_begun_is_run_again_only_where_that_does_no_harm(name: str, times: int) -> None:
    log, depot = Log(), Depot()
    depot.gate = asyncio.Event()
    story = (answer(call(name, n=1)), answer(say("Done.")))
    first = engine_on(log, Story(*story), depot)
    second = engine_on(log, Story(*story), depot)
    async with first, second:
        queued = await first.create(ask(background=True, tools=[DEPOT]))
        await depot.asked.wait()
        await log.kill()
        depot.gate.set()
        await log.bury()
        events = check_log(await records_of(log, queued.id, follow=True), await second.retrieve(ANONYMOUS, queued.id))
        response = await second.retrieve(ANONYMOUS, queued.id)
    [made] = items_of(response, McpCall)
    [call_id] = depot.ran
    assert depot.ran[call_id] == times
    assert set(depot.keys) == {call_id}  # the same idempotency key each time
    assert (made.error_text == PROCESS_LOST) is (times == 1)
    assert [type(event) for event in events if isinstance(event, CallBegun | CallEnded)] == [CallBegun] * times + [
        CallEnded
    ]
    assert response.status == "completed"


@jumping_time
async def test_an_outage_of_the_log_repeats_nothing() -> None:
    """Whether the record was written before it went away or not."""
    for at in range(1, await length()):
        for when in (["before"], ["after"], ["before", "after", "before"]):
            log, depot = Log(), Depot()
            log.outages = {at: [*when]}
            async with engine_on(log, Story(*STORY), depot) as engine:
                queued = await engine.create(ask(background=True, tools=[DEPOT]))
                records = await records_of(log, queued.id, follow=True)
                response = await engine.retrieve(ANONYMOUS, queued.id)
            assert response.status == "completed"
            check_calls(check_log(records, response), depot)
            assert set(depot.ran.values()) == {1}


@pytest.mark.proves("MISTAKE-31", "TR-022")
@pytest.mark.parametrize("seconds", [0, 60], ids=["at once", "at the end of its step"])
@jumping_time
async def test_a_run_is_handed_over_wherever_it_is(seconds: float) -> None:
    handed = 0
    for at in range(1, await length() - 1):
        log, depot = Log(), Depot()
        async with engine_on(log, Story(*STORY), depot) as first:
            queued = await first.create(ask(background=True, tools=[DEPOT]))
            await log.reached(at).wait()
            await first.drain(seconds)
        async with engine_on(log, Story(*STORY), depot) as second:
            records = await records_of(log, queued.id, follow=True)
            response = await second.retrieve(ANONYMOUS, queued.id)
        assert response.status == "completed"
        assert [ended.response for ended in (*first.told, *second.told)] == [response]  # by who has ended it
        check_calls(check_log(records, response), depot)
        handed += not first.told
        if seconds:
            assert set(depot.ran.values()) == {1}
            assert all(item.status == "completed" for item in response.output)
    assert handed > 10


# ---- any run, any deaths ----

TEXTS = st.sampled_from(["", "So.", "One two three."])
CALLS = st.lists(st.sampled_from(["look", "mark", "sell", "nobody"]), min_size=1, max_size=3)


@st.composite
def stories(draw: st.DrawFn) -> tuple[Answer, ...]:
    turns = draw(st.lists(st.tuples(TEXTS, CALLS), max_size=3))
    made = [answer(say(text), *[call(name, n=n) for n, name in enumerate(names)]) for text, names in turns]
    return (*made, answer(say(draw(TEXTS))))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(stories(), st.lists(st.integers(1, 30), max_size=2), st.booleans())
@jumping_time
async def test_any_run_comes_to_its_end_whoever_dies_over_it(
    story: tuple[Answer, ...], deaths: list[int], is_eager: bool
) -> None:
    log, depot = Log(), Depot()
    fresh = [engine_on(log, Story(*story), depot, eager=is_eager) for _ in range(len(deaths) + 1)]
    async with AsyncExitStack() as stack:
        for engine in fresh:
            await stack.enter_async_context(engine)
        log.dies_at = deaths.pop(0) if deaths else None
        queued = await fresh[0].create(ask(background=True, tools=[DEPOT], stream=False))
        reading = asyncio.create_task(records_of(log, queued.id, follow=True))
        while not reading.done():
            died = asyncio.create_task(log.died.wait())
            await asyncio.wait([reading, died], return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            log.died.clear()
            log.dies_at = log.dies_at or (deaths.pop(0) if deaths else None)
            await log.bury()
        response = await fresh[0].retrieve(ANONYMOUS, queued.id)
    check_calls(check_log(await reading, response), depot)
    assert response.status == "completed"
    assert sum(len(engine.told) for engine in fresh) == 1
