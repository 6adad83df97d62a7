"""A run that goes on when its client leaves: another process can continue it at any time, and nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.events import UNSENT, ArgumentsDone, CallBegun, StreamEvent
from antwort.api.items import McpCall
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.engine.history.refusals import PROCESS_LOST
from antwort.engine.runs.subscription import Subscription
from antwort.engine.settings import BackgroundSettings, EngineSettings, OnDisconnect
from antwort.errors import ClientLeft, HandedOver, RequestCancelled, ResponseNotFound, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta
from antwort.storage.base import Page
from antwort.storage.run_log import Lease, Unavailable
from antwort.testing import Answer, answer, call, say, think
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, ask, function_calls, items_of, text_of
from jumping_time import jumping_time
from serving import until
from takeover_kit import DEPOT, Depot, Log, Story, Watched, check_calls, check_log, engine_on, events_of, records_of

STORY: tuple[Answer, ...] = (
    answer(think("Let me"), say("I look."), call("look", n=1), call("sell", n=2)),
    answer(call("sell", n=3), call("mark", n=4), call("look", n=5)),
    answer(say("All is done.")),
)


class Stock(Depot):
    """Counts what was asked of it, whatever the id of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: Counter[str] = Counter()

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        self.asked_for[f"{call.name} {call.arguments}"] += 1
        return await super()._run(call, context)

    @property
    def sold(self) -> set[int]:
        """How often each of the things was done that may not be done twice."""
        return {count for what, count in self.asked_for.items() if what.startswith("sell")}


class Slow(Story):
    """One delta after the other."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(super().infer(request)) as reads:
            async for deltas in reads:
                for delta in deltas:
                    await asyncio.sleep(0)
                    yield [delta]


async def begun(engine: Watched, on_disconnect: OnDisconnect | None = "continue", **fields: Any) -> Subscription:
    return await engine.start(ask(**{"tools": [DEPOT], "stream": True, **fields}), on_disconnect=on_disconnect)


async def read(reader: Subscription, most: int) -> list[StreamEvent]:
    """At least so many events, as far as there are as many."""
    seen: list[StreamEvent] = []
    while len(seen) < most and (batches := await reader.read()):
        seen += [event for batch in batches for event in batch.events]
    return seen


async def sent(log: Log, response: Response) -> list[StreamEvent]:
    """What the log says was sent; it is a log as it should be."""
    events = check_log(await records_of(log, response.id, follow=False), response)
    return [event for event in events if not isinstance(event, UNSENT)]


# ---- a client that leaves ----


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}])
@jumping_time
async def test_it_is_made_to_its_end_and_all_its_events_are_in_the_log(fields: dict[str, Any]) -> None:
    log, stock = Log(), Stock()
    stock.gate = asyncio.Event()
    async with engine_on(log, Story(*STORY), stock) as engine:
        run = await begun(engine, **fields)
        await stock.asked.wait()
        run.leave()
        stock.gate.set()
        response = await engine.ended(run.response_id)
    assert response.status == "completed"
    assert stock.sold == {1}
    assert [ended.response for ended in engine.told] == [response]


@jumping_time
async def test_a_client_may_leave_after_any_event() -> None:
    last = 0
    for most in range(1, 100):
        log, stock = Log(), Stock()
        async with engine_on(log, Slow(*STORY), stock) as engine:
            run = await begun(engine)
            seen = await read(run, most)
            run.leave()
            response = await engine.ended(run.response_id)
        assert response.status == "completed"
        assert stock.asked_for == Counter(dict.fromkeys(stock.asked_for, 1))
        assert (await sent(log, response))[: len(seen)] == seen
        last = len(seen)
        if last < most:
            break
    assert last > 30


@pytest.mark.parametrize("ticks", range(0, 60, 4))
@jumping_time
async def test_nothing_is_missing_in_the_log_whenever_the_client_leaves(ticks: int) -> None:
    """Calls that begin early write to the log while a batch is on its way."""
    log, stock = Log(), Stock()
    story = (answer(say("Let me see."), call("look", n=1), call("mark", n=2), say("And so on.")), answer(say("Done.")))
    async with engine_on(log, Slow(*story), stock) as engine:
        run = await begun(engine)
        for _ in range(ticks):
            await asyncio.sleep(0)
        run.leave()
        response = await engine.ended(run.response_id)
        check_calls(events_of(await records_of(log, run.response_id, follow=False)), stock)
    assert response.status == "completed"


@jumping_time
async def test_however_much_it_has_said_it_goes_on() -> None:
    hold, log = asyncio.Event(), Log()
    text = " ".join(["word"] * 300)
    settings = EngineSettings(background=BackgroundSettings(log_bytes=0))
    story = Story(answer(say(text), hold, say(" end")))
    async with Watched(log, story, (Stock(),), settings, vault=None, clock=time.time) as engine:
        run = await begun(engine)
        await read(run, 300)
        run.leave()
        hold.set()
        response = await engine.ended(run.response_id)
    assert text_of(response) == text + " end"


@pytest.mark.parametrize("stored", [True, False])
@jumping_time
async def test_it_ends_where_it_was_not_asked_to_go_on_or_is_not_stored(*, stored: bool) -> None:
    hold, log = asyncio.Event(), Log()
    async with engine_on(log, Story(answer(say("Hello"), hold)), Stock()) as engine:
        run = await begun(engine, None if stored else "continue", store=stored)
        await read(run, 3)
        run.leave()
        response = await run.result()
    assert response.status == "cancelled"


@jumping_time
async def test_the_setting_counts_where_the_request_says_nothing() -> None:
    hold, log = asyncio.Event(), Log()
    settings = EngineSettings(background=BackgroundSettings(on_disconnect="continue"))
    engine = Watched(log, Story(answer(say("Hello"), hold)), (Stock(),), settings, vault=None, clock=time.time)
    async with engine:
        going, ending = await begun(engine, None), await begun(engine, "cancel")
        for run in (going, ending):
            await read(run, 3)
            run.leave()
        assert (await ending.result()).status == "cancelled"
        hold.set()
        assert (await engine.ended(going.response_id)).status == "completed"


@pytest.mark.parametrize("how", ["leaves", "is broken off"])
@jumping_time
async def test_whoever_waits_for_the_whole_response_is_let_go(how: str) -> None:
    hold, log = asyncio.Event(), Log()
    async with engine_on(log, Story(answer(say("Hello"), hold)), Stock()) as engine:
        run = await begun(engine, stream=False)
        waiting = asyncio.ensure_future(run.result())
        await asyncio.sleep(0)
        if how == "leaves":
            run.leave()
        else:
            run.stop(RequestCancelled())
        with pytest.raises(ClientLeft):
            await waiting
        assert (run.has_left, run.runs_alone, run.summary()) == (True, True, None)
        hold.set()
        assert (await engine.ended(run.response_id)).status == "completed"


@pytest.mark.parametrize("has_left", [True, False])
@jumping_time
async def test_it_can_be_cancelled(*, has_left: bool) -> None:
    log = Log()
    async with engine_on(log, Story(answer(say("Hello"), asyncio.Event())), Stock()) as engine:
        run = await begun(engine)
        await read(run, 3)
        if has_left:
            run.leave()
        cancelled = await engine.cancel(ANONYMOUS, run.response_id)
        assert cancelled == await engine.ended(run.response_id)
    assert cancelled.status == "cancelled"
    assert len(engine.told) == 1


@jumping_time
async def test_those_who_follow_it_read_on_when_its_client_leaves() -> None:
    hold, log = asyncio.Event(), Log()
    async with engine_on(log, Story(answer(say("Hello"), hold, say(" there and good bye"))), Stock()) as engine:
        run = await begun(engine)
        await read(run, 4)
        async with await engine.follow(ANONYMOUS, run.response_id) as follower:
            before = await follower.read()
            run.leave()
            hold.set()
            events = [(batch.first + at, event) for batch in before for at, event in enumerate(batch.events)]
            events += [pair async for pair in follower.events()]
        response = await engine.ended(run.response_id)
        assert [event for _, event in events] == await sent(log, response)
    assert [number for number, _ in events] == [*range(len(events))]


@jumping_time
async def test_a_client_that_reads_slowly_holds_it_back_until_it_leaves() -> None:
    log, text = Log(), "word " * 3000
    async with engine_on(log, Slow(answer(say(text))), Stock(), buffer_events=4, buffer_bytes=100) as engine:
        run = await begun(engine)
        live = engine.live_runs[run.response_id]
        await until(lambda: live.log.is_full)
        sent_before = live.log.next
        for _ in range(100):
            await asyncio.sleep(0)
        assert live.log.next == sent_before < 20
        run.leave()
        response = await engine.ended(run.response_id)
        assert (response.status, text_of(response)) == ("completed", text)


# ---- a process that dies ----


@pytest.mark.parametrize("has_left", [True, False])
@jumping_time
async def test_whenever_its_process_dies_another_one_continues_it_whether_its_client_was_there_or_not(
    *, has_left: bool
) -> None:
    for dies_at in range(200):
        log, stock = Log(), Stock()
        log.dies_at = dies_at
        first = engine_on(log, Slow(*STORY), stock)
        await first.open()
        run = await begun(first)
        seen = await read(run, 3) if has_left else await read(run, 1000)
        if has_left:
            run.leave()
        await run.wait()
        if not log.died.is_set():
            await first.close()
            break  # it had ended before
        async with engine_on(log, Story(*STORY), stock) as second:
            await log.bury()
            response = await second.ended(run.response_id)
        assert response.status == "completed"
        assert stock.sold == {1}
        assert (await sent(log, response))[: len(seen)] == seen
        assert (len(first.told), len(second.told)) == (0, 1)
        await first.close()
    assert dies_at > 30


@jumping_time
async def test_whoever_waits_for_the_whole_response_learns_that_another_process_continues_it() -> None:
    log, stock = Log(), Stock()
    log.dies_at = 4
    first = engine_on(log, Story(*STORY), stock)
    await first.open()
    run = await begun(first, stream=False)
    with pytest.raises(HandedOver):
        await run.result()
    async with engine_on(log, Story(*STORY), stock) as second:
        await log.bury()
        assert (await second.ended(run.response_id)).status == "completed"
    await first.close()


@pytest.mark.parametrize(("name", "times"), [("look", 2), ("mark", 2), ("sell", 1)])
@pytest.mark.parametrize("has_left", [True, False])
@jumping_time
async def test_a_call_in_progress_when_its_process_dies_is_on_record(name: str, times: int, *, has_left: bool) -> None:
    log, stock = Log(), Stock()
    stock.gate = asyncio.Event()
    story = (answer(call(name, n=1)), answer(say("All is done.")))
    first = engine_on(log, Story(*story), stock)
    await first.open()
    run = await begun(first)
    await stock.asked.wait()
    if has_left:
        run.leave()
    (call_id,) = stock.ran
    assert CallBegun(call_id=call_id) in events_of(await records_of(log, run.response_id, follow=False))
    await log.kill()
    await log.bury()
    stock.gate.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert sum(stock.asked_for.values()) == times
    (shown,) = items_of(response, McpCall)
    assert (PROCESS_LOST in str(shown.error)) == (times == 1)
    await first.close()


@jumping_time
async def test_a_call_that_may_not_be_repeated_does_not_begin_before_its_turn_has_ended() -> None:
    """Another process would make the turn anew, and call again."""
    hold, log, stock = asyncio.Event(), Log(), Stock()
    story = (answer(call("sell", n=1), call("look", n=2), say("And"), hold, say(" so on.")), answer(say("All done.")))
    first = engine_on(log, Story(*story), stock)
    await first.open()
    run = await begun(first)
    await stock.asked.wait()
    assert stock.asked_for == Counter({'look {"n":2}': 1})
    await log.kill()
    await log.bury()
    hold.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert (response.status, stock.sold) == ("completed", {1})
    await first.close()


@pytest.mark.proves("RULING-3b")
@jumping_time
async def test_a_call_of_the_clients_is_not_done_before_its_turn_has_ended() -> None:
    """Another process would make the turn anew, and the client would have the call twice."""
    log, gate, reached = Log(), asyncio.Event(), asyncio.Event()

    class Held(Story):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            async with aclosing(super().infer(request)) as reads:
                async for deltas in reads:
                    yield deltas
                    reached.set()

    calls = [call("clock", zone="UTC"), call("clock", zone="CET")]
    first = engine_on(log, Held(answer(*calls, gate)), Stock())
    await first.open()
    run = await begun(first, tools=[DEPOT, CLOCK])
    await reached.wait()
    seen = [event for batch in await run.read() for event in batch.events]
    assert not any(isinstance(event, ArgumentsDone) for event in seen)
    await first.close()
    async with engine_on(log, Story(answer(*calls)), Stock()) as second:
        response = await second.ended(run.response_id)
    assert response.status == "requires_action"
    assert [item.status for item in function_calls(response)].count("completed") == 2


# ---- a process that stops ----


@jumping_time
async def test_one_whose_process_stops_goes_on_elsewhere() -> None:
    log, stock, hold = Log(), Stock(), asyncio.Event()
    story = (STORY[0], answer(say("All"), hold, say(" is done.")))
    first = engine_on(log, Story(*story), stock)
    await first.open()
    run = await begun(first)
    seen: list[StreamEvent] = []
    while not any(getattr(event, "delta", "") == "All" for event in seen):
        seen += await read(run, 1)
    await first.close()
    seen += await read(run, 1000)  # what was said by then is closed
    assert first.told == []
    hold.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert (response.status, stock.sold) == ("completed", {1})
    assert (await sent(log, response))[: len(seen)] == seen


@jumping_time
async def test_one_whose_client_reads_it_may_end_while_its_process_stops() -> None:
    log, stock, hold = Log(), Stock(), asyncio.Event()
    async with engine_on(log, Story(answer(say("All"), hold, say(" is done."))), stock) as engine:
        run = await begun(engine)
        seen = await read(run, 5)
        stopping = asyncio.create_task(engine.drain(60))
        await asyncio.sleep(1)
        assert not stopping.done()
        hold.set()
        seen += await read(run, 1000)
        await stopping
    response = await log.store.get(ANONYMOUS, run.response_id)
    assert response is not None
    assert (response.status, seen) == ("completed", await sent(log, response))


@jumping_time
async def test_one_whose_request_is_broken_off_while_its_process_stops_goes_on_elsewhere() -> None:
    log, stock, hold = Log(), Stock(), asyncio.Event()
    story = (answer(say("All"), hold, say(" is done.")),)
    first = engine_on(log, Story(*story), stock)
    await first.open()
    run = await begun(first)
    seen = await read(run, 5)
    stopping = asyncio.create_task(first.drain(60))
    await asyncio.sleep(1)
    run.stop(ShuttingDown())
    await stopping
    await first.close()
    assert first.told == []
    hold.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert response.status == "completed"
    assert (await sent(log, response))[: len(seen)] == seen


@jumping_time
async def test_one_that_ends_with_its_client_ends_when_its_process_stops() -> None:
    log = Log()
    engine = engine_on(log, Story(answer(say("Hello"), asyncio.Event())), Stock())
    await engine.open()
    run = await begun(engine, "cancel")
    await read(run, 3)
    await engine.close()
    assert (await run.result()).status in ("failed", "incomplete", "cancelled")
    assert len(engine.told) == 1


# ---- a log that is not available ----


@pytest.mark.parametrize("when", ["before", "after"])
@jumping_time
async def test_where_the_log_is_away_for_a_while_nothing_is_lost(when: str) -> None:
    log, stock = Log(), Stock()
    log.outages = {at: [when, when] for at in range(0, 30, 3)}
    async with engine_on(log, Story(*STORY), stock) as engine:
        run = await begun(engine)
        seen = await read(run, 8)
        run.leave()
        response = await engine.ended(run.response_id)
    assert (response.status, stock.sold) == ("completed", {1})
    assert (await sent(log, response))[: len(seen)] == seen


class Away(Log):
    """Takes no run that is to be continued; with `writes`, it does, and nobody learns of it."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.is_away, self.writes = True, writes

    async def adopt(self, *of_run: Any, **how: Any) -> Lease:
        if not self.is_away or self.writes:
            lease = await super().adopt(*of_run, **how)
        if self.is_away:
            raise Unavailable("away")
        return lease


class SlowToAdopt(Log):
    """Takes a run when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def adopt(self, *of_run: Any, **how: Any) -> Lease:
        self.asked.set()
        await self.go.wait()
        return await super().adopt(*of_run, **how)


@jumping_time
async def test_a_request_whose_run_cannot_be_put_into_the_log_is_refused_and_leaves_nothing_running() -> None:
    log, stock = Away(writes=False), Stock()
    async with engine_on(log, Story(*STORY), stock) as engine:
        with pytest.raises(Unavailable):
            await begun(engine)
        log.is_away = False
        await asyncio.sleep(60)
        (row,) = (await engine.list(ANONYMOUS, Page())).responses
        assert row.status in ("failed", "cancelled")
        assert (engine.live, (await log.load()).running, stock.sold) == (0, 0, set())


@jumping_time
async def test_one_that_was_put_into_the_log_without_an_answer_ends_as_its_record_says() -> None:
    log, stock = Away(writes=True), Stock()
    async with engine_on(log, Story(*STORY), stock) as engine:
        with pytest.raises(Unavailable):
            await begun(engine)
        log.is_away = False
        await asyncio.sleep(60)
        (row,) = (await engine.list(ANONYMOUS, Page())).responses
        assert row.status in FINAL
        assert stock.sold == ({1} if row.status == "completed" else set())
        assert (engine.live, (await log.load()).running) == (0, 0)


@jumping_time
async def test_a_client_that_leaves_while_its_run_is_put_into_the_log_leaves_nothing_running() -> None:
    log, stock = SlowToAdopt(), Stock()
    async with engine_on(log, Story(*STORY), stock) as engine:
        starting = asyncio.create_task(begun(engine))
        await log.asked.wait()
        starting.cancel()
        await asyncio.wait([starting])
        log.go.set()
        await asyncio.sleep(60)
        (row,) = (await engine.list(ANONYMOUS, Page())).responses
        assert row.status in FINAL
        assert (engine.live, (await log.load()).running) == (0, 0)


# ---- slots ----


def crowded(log: Log, model: Story, **background: Any) -> Watched:
    settings = EngineSettings(background=BackgroundSettings(**background))
    return Watched(log, model, (Stock(),), settings, vault=None, clock=time.time)


async def left(engine: Watched, count: int) -> list[Subscription]:
    """So many runs, one after the other, each left by its client as soon as the model speaks."""
    runs = []
    for _ in range(count):
        runs.append(run := await begun(engine))
        await read(run, 5)
        run.leave()
        await until(lambda: engine.live <= 1)
    return runs


def model() -> tuple[Story, asyncio.Event]:
    hold = asyncio.Event()
    return Story(answer(say("Hello"), hold, say(" there"))), hold


@jumping_time
async def test_one_without_a_client_takes_a_slot_or_waits_for_one_or_ends() -> None:
    log, (busy, hold) = Log(queue=2), model()
    async with crowded(log, busy, at_once=1, queue=2) as engine:
        runs = await left(engine, 12)
        load = await log.load()
        statuses = [(await engine.retrieve(ANONYMOUS, run.response_id)).status for run in runs]
        assert statuses == ["in_progress"] * 3 + ["cancelled"] * 9
        assert (load.running, load.queued, busy.under_way) == (1, 2, 1)
        hold.set()
        made = [await engine.ended(run.response_id) for run in runs[:3]]
    assert {each.status for each in made} == {"completed"}
    assert [text_of(each) for each in made] == ["Hello there"] + ["HelloHello there"] * 2
    assert busy.under_way == 0
    assert len(engine.told) == 12


@jumping_time
async def test_it_counts_among_those_of_its_owner() -> None:
    log, (busy, hold) = Log(per_owner=1), model()
    ann = Identity("acme", "ann")
    async with crowded(log, busy, at_once=4, per_owner=1) as engine:
        run = await begun(engine)
        await read(run, 5)
        waiting = await engine.create(ask(background=True))
        other = await engine.create(ask(background=True), ann)
        await asyncio.sleep(60)
        load = await log.load()
        assert (load.running, load.queued) == (2, 1)
        hold.set()
        assert (await engine.ended(waiting.id)).status == (await engine.ended(other.id, ann)).status == "completed"


@jumping_time
async def test_all_that_lose_their_clients_at_once_wait_only_as_far_as_may_wait() -> None:
    log, (busy, hold) = Log(queue=2), model()
    async with crowded(log, busy, at_once=1, queue=2) as engine:
        runs = [await begun(engine) for _ in range(6)]
        for run in runs:
            await read(run, 5)
        for run in runs:
            run.leave()
        await asyncio.sleep(1)
        statuses = Counter([(await engine.retrieve(ANONYMOUS, run.response_id)).status for run in runs])
        assert statuses == {"in_progress": 3, "cancelled": 3}
        hold.set()


@jumping_time
async def test_one_with_a_client_takes_no_slot() -> None:
    log, (busy, hold) = Log(), model()
    async with crowded(log, busy, at_once=1) as engine:
        runs = [await begun(engine) for _ in range(3)]
        for run in runs:
            await read(run, 5)
        waiting = await engine.create(ask(background=True))
        await until(lambda: busy.under_way == 4)
        hold.set()
        for run in runs:
            assert (await run.result()).status == "completed"
        assert (await engine.ended(waiting.id)).status == "completed"


@jumping_time
async def test_one_with_a_key_needs_a_slot_when_its_last_client_leaves() -> None:
    log, (busy, hold) = Log(), model()
    request = ask(stream=True)
    async with crowded(log, busy, at_once=0) as engine:
        first = await engine.start(request, key="key", on_disconnect="continue")
        second = await engine.start(request, key="key", on_disconnect="continue")
        await read(first, 5)
        first.leave()
        await asyncio.sleep(1)
        assert (busy.under_way, engine.live) == (1, 1)
        second.leave()
        await until(lambda: engine.live == 0)
        hold.set()
        async with crowded(log, busy, at_once=1) as other:
            response = await other.ended(first.response_id)
        assert await engine.create(request, idempotency_key="key") == response


@jumping_time
async def test_one_that_a_client_has_come_back_to_and_left_again_keeps_its_slot() -> None:
    log, (busy, hold) = Log(), model()
    request = ask()
    async with crowded(log, busy, at_once=1) as engine:
        for _ in range(3):
            reader = await engine.start(request, key="key", on_disconnect="continue")
            await until(lambda: busy.under_way == 1)
            reader.leave()
            await asyncio.sleep(1)
        hold.set()
        response = await engine.ended(reader.response_id)
    assert (response.status, text_of(response)) == ("completed", "Hello there")
    assert len(busy.requests) == 1


@pytest.mark.parametrize("at_once", [0, 1])
@jumping_time
async def test_another_process_takes_what_there_is_no_slot_for_here(at_once: int) -> None:
    log, (busy, hold) = Log(), model()
    other = Story(answer(say("Hello there")))
    async with crowded(log, busy, at_once=at_once) as here:
        runs = await left(here, at_once + 1)
        await until(lambda: busy.under_way == at_once)
        async with crowded(log, other, at_once=1) as there:
            response = await there.ended(runs[-1].response_id)
            assert [ended.response for ended in there.told] == [response]
        hold.set()
    assert response.status == "completed"
    assert response.id not in [ended.response.id for ended in here.told]


@jumping_time
async def test_a_slot_that_one_gives_up_is_the_next_ones() -> None:
    log, (busy, hold) = Log(), model()
    async with crowded(log, busy, at_once=1) as engine:
        runs = await left(engine, 2)
        await engine.cancel(ANONYMOUS, runs[0].response_id)
        hold.set()
        assert (await engine.ended(runs[1].response_id)).status == "completed"


@jumping_time
async def test_one_that_is_handed_over_when_its_process_stops_needs_no_slot() -> None:
    log, (busy, hold) = Log(queue=1), model()
    first = crowded(log, busy, at_once=1, queue=1)
    await first.open()
    runs = [await begun(first) for _ in range(4)]
    for run in runs:
        await read(run, 5)
    await first.close()
    hold.set()
    async with crowded(log, busy, at_once=4) as second:
        assert {(await second.ended(run.response_id)).status for run in runs} == {"completed"}


@jumping_time
async def test_one_that_is_deleted_while_its_client_reads_it_stops() -> None:
    log, (busy, _) = Log(), model()
    async with crowded(log, busy) as engine:
        run = await begun(engine)
        await read(run, 5)
        await engine.delete(ANONYMOUS, run.response_id)
        await until(lambda: engine.live == 0 and busy.under_way == 0)
        with pytest.raises(ResponseNotFound):
            await engine.retrieve(ANONYMOUS, run.response_id)
