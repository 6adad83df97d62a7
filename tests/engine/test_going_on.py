"""A run that goes on when its client leaves: another process may go on with it then, and nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.events import UNSENT, ArgumentsDone, CallBegun, StreamEvent
from antwort.api.items import McpCall
from antwort.api.responses import Response
from antwort.engine.runs.subscription import Subscription
from antwort.engine.settings import BackgroundSettings, EngineSettings, OnDisconnect
from antwort.engine.steps import LOST
from antwort.errors import ClientLeft
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta
from antwort.runs.base import Lease, Record, Renewed, Unavailable, Worker
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, answer, call, say, think
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, ask, function_calls, items_of, text_of
from jumping_time import jumping_time
from serving import until
from takeover_kit import DEPOT, Depot, Log, Story, Watched, check_log, engine_on, events_of, records_of

STORY: tuple[Answer, ...] = (
    answer(think("Let me"), say("I look."), call("look", n=1), call("sell", n=2)),
    answer(call("sell", n=3), call("mark", n=4), call("look", n=5)),
    answer(say("All is done.")),
)


class Stock(Depot):
    """Keeps what was asked of it, whatever the call went by."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: Counter[str] = Counter()

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        self.asked_for[f"{call.name} {call.arguments}"] += 1
        return await super()._run(call, context)

    @property
    def sold(self) -> set[int]:
        """How often each of the things was that may not be done twice."""
        return {count for what, count in self.asked_for.items() if what.startswith("sell")}


async def begun(engine: Watched, on_disconnect: OnDisconnect | None = "continue", **fields: Any) -> Subscription:
    return await engine.start(ask(**{"tools": [DEPOT], "stream": True, **fields}), on_disconnect=on_disconnect)


async def read(run: Subscription, most: int) -> list[StreamEvent]:
    """At least so many events, as far as there are as many."""
    seen: list[StreamEvent] = []
    while len(seen) < most and (batches := await run.read()):
        seen += [event for batch in batches for event in batch.events]
    return seen


async def sent(log: Log, response: Response) -> list[StreamEvent]:
    """What the log says was sent; it is what it should be."""
    events = check_log(await records_of(log, response.id, follow=False), response)
    return [event for event in events if not isinstance(event, UNSENT)]


async def left_after(most: int, log: Log, stock: Stock) -> tuple[Subscription, list[StreamEvent]]:
    """A run whose reader reads one event after the other, and leaves after so many."""
    engine = engine_on(log, Story(*STORY), stock, buffer_events=1)
    await engine.open()
    run = await begun(engine)
    seen = await read(run, most)
    run.leave()
    return run, seen


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}])
@jumping_time
async def test_it_is_made_to_its_end_and_all_it_said_is_in_the_log(fields: dict[str, Any]) -> None:
    log, stock = Log(), Stock()
    stock.gate = asyncio.Event()
    async with engine_on(log, Story(*STORY), stock) as engine:
        run = await begun(engine, **fields)
        await stock.asked.wait()
        run.leave()
        await until(lambda: run.is_durable)
        stock.gate.set()
        response = await engine.ended(run.response_id)
    assert response.status == "completed"
    assert stock.sold == {1}
    assert [ended.response for ended in engine.told] == [response]


@pytest.mark.proves("RULING-3b")
@jumping_time
async def test_it_is_not_handed_on_in_a_turn_in_which_a_call_of_the_clients_is_done() -> None:
    """Another process would make the turn anew, and the client would have the call twice."""
    log, gate = Log(), asyncio.Event()
    story = Story(answer(call("clock", zone="UTC"), call("clock", zone="CET"), gate))
    async with engine_on(log, story, Stock()) as engine:
        run = await begun(engine, tools=[DEPOT, CLOCK])
        seen = await read(run, 10)
        assert sum(isinstance(event, ArgumentsDone) for event in seen) == 1
        run.leave()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not run.is_durable
        gate.set()
        response = await run.result()
    assert response.status == "requires_action"
    assert [item.status for item in function_calls(response)] == ["completed", "completed"]


@jumping_time
async def test_a_client_may_leave_after_any_event() -> None:
    last = 0
    for most in range(1, 100):
        log, stock = Log(), Stock()
        run, seen = await left_after(most, log, stock)
        await run.wait()
        assert run.response.status == "completed"
        assert stock.sold == {1}
        if run.is_durable:
            events = await sent(log, run.response)
            assert events[: len(seen)] == seen
            assert stock.asked_for == Counter({f"{what}": 1 for what in stock.asked_for})
        last = len(seen)
        if last < most:
            break
    assert last > 30


@jumping_time
async def test_whoever_dies_then_is_followed_by_another() -> None:
    for most in range(1, 40, 2):
        for more in (0, 1, 3):
            log, stock = Log(), Stock()
            log.dies_at = more
            run, seen = await left_after(most, log, stock)
            died = asyncio.create_task(log.died.wait())
            await asyncio.wait([died, asyncio.create_task(run.wait())], return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            if not log.died.is_set():
                continue  # it was over before
            async with engine_on(log, Story(*STORY), stock) as second:
                await log.bury()
                response = await second.ended(run.response_id)
            assert response.status == "completed"
            assert stock.sold == {1}
            assert (await sent(log, response))[: len(seen)] == seen


@pytest.mark.parametrize(("name", "times"), [("look", 2), ("mark", 2), ("sell", 1)])
@jumping_time
async def test_a_call_under_way_when_the_client_leaves_is_on_record(name: str, times: int) -> None:
    log, stock = Log(), Stock()
    stock.gate = asyncio.Event()
    story = (answer(call(name, n=1)), answer(say("All is done.")))
    first = engine_on(log, Story(*story), stock)
    await first.open()
    run = await begun(first)
    await stock.asked.wait()
    run.leave()
    await until(lambda: run.is_durable)
    (call_id,) = stock.ran
    assert CallBegun(call_id=call_id) in events_of(await records_of(log, run.response_id, follow=False))
    log.dead |= set(log._workers)
    await log.bury()
    stock.gate.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert sum(stock.asked_for.values()) == times
    (shown,) = items_of(response, McpCall)
    assert (LOST in str(shown.error)) == (times == 1)
    await first.close()


@jumping_time
async def test_a_call_of_a_turn_that_is_being_written_is_waited_for() -> None:
    """Whoever would make that turn anew would call again."""
    hold, log, stock = asyncio.Event(), Log(), Stock()
    story = (answer(call("sell", n=1), say("And"), hold, say(" so on.")), answer(say("All is done.")))
    async with engine_on(log, Story(*story), stock) as engine:
        run = await begun(engine)
        await stock.asked.wait()
        run.leave()
        for _ in range(50):
            await asyncio.sleep(0)
        was_held = run.is_durable
        hold.set()
        await run.wait()
        response = await engine.ended(run.response_id)
    assert (response.status, stock.sold) == ("completed", {1})
    assert (was_held, run.is_durable) == (False, True)


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
        assert (await going.result()).status == "completed"


@jumping_time
async def test_whoever_waits_for_it_whole_is_let_go() -> None:
    hold, log = asyncio.Event(), Log()
    async with engine_on(log, Story(answer(say("Hello"), hold)), Stock()) as engine:
        run = await begun(engine, stream=False)
        waiting = asyncio.ensure_future(run.result())
        await asyncio.sleep(0)
        run.leave()
        with pytest.raises(ClientLeft):
            await waiting
        hold.set()
        assert (await engine.ended(run.response_id)).status == "completed"


@jumping_time
async def test_it_can_be_cancelled_then() -> None:
    log = Log()
    async with engine_on(log, Story(answer(say("Hello"), asyncio.Event())), Stock()) as engine:
        run = await begun(engine)
        await read(run, 3)
        run.leave()
        await until(lambda: run.is_durable)
        cancelled = await engine.cancel(ANONYMOUS, run.response_id)
        assert cancelled == await engine.ended(run.response_id)
    assert cancelled.status == "cancelled"


@jumping_time
async def test_those_who_read_along_read_on_when_it_becomes_durable() -> None:
    hold, log = asyncio.Event(), Log()
    async with engine_on(log, Story(answer(say("Hello"), hold, say(" there and good bye"))), Stock()) as engine:
        run = await begun(engine)
        await read(run, 4)
        async with await engine.follow(ANONYMOUS, run.response_id) as follower:
            before = await follower.read()
            run.leave()
            await until(lambda: run.is_durable)
            hold.set()
            events = [(batch.first + at, event) for batch in before for at, event in enumerate(batch.events)]
            events += [pair async for pair in follower.events()]
        response = await engine.ended(run.response_id)
        assert [event for _, event in events] == await sent(log, response)
    assert [number for number, _ in events] == [*range(len(events))]


class Away(Log):
    """Cannot be written when a run is to be adopted, so often; `writes` tells whether it is all the same."""

    def __init__(self, times: int, *, writes: bool) -> None:
        super().__init__()
        self.times, self.writes = times, writes

    async def adopt(
        self,
        worker: str,
        identity: Identity,
        response_id: str,
        records: Sequence[Record],
        *,
        has_room: bool | None = None,
    ) -> Lease:
        if not self.times:
            return await super().adopt(worker, identity, response_id, records, has_room=has_room)
        self.times -= 1
        if self.writes:
            await super().adopt(worker, identity, response_id, records, has_room=has_room)
        raise Unavailable("away")


@pytest.mark.parametrize(("times", "writes"), [(2, False), (4, False), (100, False), (2, True), (4, True)])
@jumping_time
async def test_where_the_log_is_away_it_goes_on_and_is_put_on_record_at_its_end(times: int, *, writes: bool) -> None:
    log, stock = Away(times, writes=writes), Stock()
    stock.gate = asyncio.Event()
    async with engine_on(log, Story(*STORY), stock) as engine:
        run = await begun(engine)
        seen = await read(run, 8)
        await stock.asked.wait()
        run.leave()
        stock.gate.set()
        await run.wait()
        response = await engine.retrieve(ANONYMOUS, run.response_id)
        events = await sent(log, response)
    assert (response.status, stock.sold, run.is_durable) == ("completed", {1}, True)
    assert events[: len(seen)] == seen


@jumping_time
async def test_one_that_was_written_unheard_and_taken_by_another_stops_here() -> None:
    log, stock = Away(3, writes=True), Stock()
    stock.gate = asyncio.Event()
    story = (answer(call("look", n=1)), answer(call("sell", n=2)), answer(say("All is done.")))
    async with engine_on(log, Story(*story), stock, at_once=1) as first:
        run = await begun(first)
        await stock.asked.wait()
        run.leave()
        await until(lambda: log.times == 0)
        (held,) = log._open.values()
        await log.release(Lease(run_id=run.response_id, fence=held.fence, worker=held.worker or "", key=held.key))
        async with engine_on(log, Story(*story), stock) as second:
            await until(lambda: sum(stock.ran.values()) == 2)
            stock.gate.set()
            await run.wait()
            response = await second.ended(run.response_id)
    assert (response.status, stock.sold, run.is_left) == ("completed", {1}, True)
    assert (len(first.told), len(second.told)) == (0, 1)


class Silent(Away):
    """Nobody learns what comes of an adoption, before it is `back`: whether it was written, or whether it is held."""

    def __init__(self, *, writes: bool = True) -> None:
        super().__init__(2**31, writes=writes)
        self.is_asked = asyncio.Event()

    def back(self) -> None:
        self.times = 0

    async def adopt(self, *of_run: Any, has_room: bool | None = None) -> Lease:
        self.is_asked.set()
        return await super().adopt(*of_run, has_room=has_room)

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        if self.times:
            raise Unavailable
        return await super().renew(worker, leases)


SALE = (answer(say("Let me"), call("sell", n=1)), answer(say("All is done.")))


async def left_in_doubt(engine: Watched, log: Silent, hold: asyncio.Event) -> Subscription:
    """A run that its client has left, and that is about to ask a tool that may not be asked twice."""
    await engine.open()
    run = await begun(engine)
    await read(run, 4)
    run.leave()
    await log.is_asked.wait()
    hold.set()
    await asyncio.sleep(5)  # by then it was tried as often as it is
    return run


def holding(hold: asyncio.Event) -> Story:
    return Story(answer(say("Let me"), hold, call("sell", n=1)), answer(say("All is done.")))


@pytest.mark.parametrize("writes", [True, False])
@jumping_time
async def test_no_tool_is_asked_while_nobody_knows_whether_the_run_is_durable(*, writes: bool) -> None:
    log, stock, hold = Silent(writes=writes), Stock(), asyncio.Event()
    async with engine_on(log, holding(hold), stock) as engine:
        run = await left_in_doubt(engine, log, hold)
        asked = sum(stock.asked_for.values())
        log.back()
        response = await run.result()
        await sent(log, response)
    assert (asked, stock.sold, response.status, run.is_durable) == (0, {1}, "completed", True)
    assert len(engine.told) == 1


@jumping_time
async def test_one_that_was_written_unheard_asks_no_tool_beside_the_one_who_goes_on_with_it() -> None:
    log, stock, hold = Silent(), Stock(), asyncio.Event()
    first = engine_on(log, holding(hold), stock)
    run = await left_in_doubt(first, log, hold)
    log.dead |= set(log._workers)
    await log.bury()
    async with engine_on(log, Story(*SALE), stock) as second:
        response = await second.ended(run.response_id)
    log.back()
    await run.wait()
    assert (response.status, stock.sold, run.is_left, first.told) == ("completed", {1}, True, [])
    await first.close()


@jumping_time
async def test_one_that_is_cancelled_in_doubt_ends_without_asking_a_tool() -> None:
    log, stock, hold = Silent(), Stock(), asyncio.Event()
    async with engine_on(log, holding(hold), stock) as engine:
        run = await left_in_doubt(engine, log, hold)
        cancelling = asyncio.ensure_future(engine.cancel(ANONYMOUS, run.response_id))
        for _ in range(50):
            await asyncio.sleep(0)
        was_told = cancelling.done()
        log.back()
        assert await cancelling == await engine.ended(run.response_id)
    assert (was_told, (await run.result()).status, stock.sold) == (False, "cancelled", set())


@jumping_time
async def test_whoever_asks_for_what_ends_in_doubt_is_not_kept_waiting() -> None:
    log, hold = Silent(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Let me"), hold)), Stock()) as engine:
        run = await left_in_doubt(engine, log, hold)
        for ask_for in (engine.retrieve, engine.cancel):
            with pytest.raises(Unavailable):
                await ask_for(ANONYMOUS, run.response_id)
        log.back()
        assert (await run.result()).status == "completed"


@pytest.mark.parametrize("is_over", [True, False])
@jumping_time
async def test_no_end_is_told_of_what_is_left_in_doubt(*, is_over: bool) -> None:
    """Another may go on with it, and make its calls."""
    log, stock, hold = Silent(), Stock(), asyncio.Event()
    story = Story(answer(say("Let me"), hold)) if is_over else holding(hold)
    first = engine_on(log, story, stock)
    run = await left_in_doubt(first, log, hold)
    await first.drain(0)
    row = await log.store.get(ANONYMOUS, run.response_id)
    assert row is not None
    assert (row.status, run.is_left, first.told, stock.sold) == ("in_progress", True, [], set())
    log.back()
    await first.close()
    async with engine_on(log, Story(*SALE), stock) as second:
        response = await second.ended(run.response_id)
    assert (response.status, stock.sold, len(second.told)) == ("completed", set() if is_over else {1}, 1)


@pytest.mark.parametrize("writes", [True, False])
@jumping_time
async def test_what_is_left_in_doubt_fails_with_the_next_start_unless_another_goes_on_with_it(*, writes: bool) -> None:
    log, hold = Silent(writes=writes), asyncio.Event()
    engine = engine_on(log, holding(hold), Stock())
    run = await left_in_doubt(engine, log, hold)
    await engine.close()
    assert await MemoryStore.fail_running(log.store, "It is gone.") == (0 if writes else 1)
    row = await log.store.get(ANONYMOUS, run.response_id)
    assert row is not None
    assert row.status == ("in_progress" if writes else "failed")


@pytest.mark.parametrize("ticks", range(1, 16))
@jumping_time
async def test_nothing_is_missing_in_the_log_whoever_waits_for_it(ticks: int) -> None:
    """A call that is about to begin may put the run on record while a batch is on its way."""
    log, stock = Away(3, writes=False), Stock()
    story = (answer(say("Let me see."), call("look", n=1), call("mark", n=2), say("And so on.")), answer(say("Done.")))
    async with engine_on(log, Slow(*story), stock) as engine:
        run = await begun(engine)
        for _ in range(ticks):
            await asyncio.sleep(0)
        run.leave()
        await run.wait()
        response = await engine.retrieve(ANONYMOUS, run.response_id)
        await sent(log, response)
    assert (response.status, run.is_durable) == ("completed", True)


class Slow(Story):
    """One delta after the other."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(super().infer(request)) as reads:
            async for deltas in reads:
                for delta in deltas:
                    await asyncio.sleep(0)
                    yield [delta]


@jumping_time
async def test_what_has_said_too_much_in_doubt_is_made_anew() -> None:
    log, stock, hold = Silent(), Stock(), asyncio.Event()
    text = " ".join(["word"] * 300)
    settings = EngineSettings(background=BackgroundSettings(log_bytes=20_000))
    story = Story(answer(say("Let me"), hold, say(text)))
    async with Watched(log, story, (stock,), settings, vault=None, clock=time.time) as engine:
        run = await left_in_doubt(engine, log, hold)
        log.back()
        response = await engine.ended(run.response_id)
    assert (response.status, run.is_left, len(engine.told)) == ("completed", True, 1)
    assert text_of(response).endswith(text)


@jumping_time
async def test_where_too_much_was_said_it_goes_on_in_memory() -> None:
    hold, log = asyncio.Event(), Log()
    text = " ".join(["word"] * 300)
    settings = EngineSettings(background=BackgroundSettings(log_bytes=1000))
    engine = Watched(
        log, Story(answer(say(text), hold, say(" end"))), (Stock(),), settings, vault=None, clock=time.time
    )
    async with engine:
        run = await begun(engine)
        await read(run, 300)
        run.leave()
        hold.set()
        response = await run.result()
        assert not run.is_durable
        assert await engine.retrieve(ANONYMOUS, run.response_id) == response
    assert text_of(response) == text + " end"


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
    assert await run.read() == []
    assert first.told == []
    hold.set()
    async with engine_on(log, Story(*story), stock) as second:
        response = await second.ended(run.response_id)
    assert (response.status, stock.sold) == ("completed", {1})
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


# ---- places ----


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
    return runs


def model() -> tuple[Story, asyncio.Event]:
    hold = asyncio.Event()
    return Story(answer(say("Hello"), hold, say(" there"))), hold


@jumping_time
async def test_what_goes_on_without_its_client_takes_a_place_waits_for_one_or_ends() -> None:
    log, (busy, hold) = Log(queue=2, per_owner=1), model()
    async with crowded(log, busy, at_once=1, per_owner=1, queue=2) as engine:
        runs = await left(engine, 12)
        await until(lambda: busy.under_way == 1)
        load = await log.load()
        ended = [await engine.retrieve(ANONYMOUS, run.response_id) for run in runs]
        assert [each.status for each in ended] == ["in_progress"] * 3 + ["cancelled"] * 9
        assert (load.running, load.queued, [run.is_durable for run in runs].count(True)) == (1, 2, 1)
        hold.set()
        made = [await engine.ended(run.response_id) for run in runs[:3]]
    assert {each.status for each in made} == {"completed"}
    assert [text_of(each) for each in made] == ["Hello there"] + ["HelloHello there"] * 2
    assert busy.under_way == 0
    assert len(engine.told) == 12


@pytest.mark.parametrize("at_once", [0, 1])
@jumping_time
async def test_another_process_takes_what_there_is_no_place_for_here(at_once: int) -> None:
    log, (busy, hold) = Log(), model()
    other = Story(answer(say("Hello there")))
    async with crowded(log, busy, at_once=at_once) as here:
        runs = await left(here, at_once + 1)
        await until(lambda: busy.under_way == at_once)
        async with crowded(log, other, at_once=1) as there:
            response = await there.ended(runs[-1].response_id)
            assert [ended.response for ended in there.told] == [response]
        hold.set()
    assert (response.status, runs[-1].is_left) == ("completed", True)


@jumping_time
async def test_a_place_that_one_gives_up_is_the_next_ones() -> None:
    log, (busy, hold) = Log(), model()
    async with crowded(log, busy, at_once=1) as engine:
        runs = await left(engine, 2)
        await engine.cancel(ANONYMOUS, runs[0].response_id)
        hold.set()
        assert (await engine.ended(runs[1].response_id)).status == "completed"


@pytest.mark.parametrize(
    ("background", "statuses"),
    [
        ({"at_once": 1}, ["completed", "cancelled"]),
        ({"at_once": 4, "per_owner": 1}, ["completed", "cancelled"]),
        ({"at_once": 0}, ["cancelled", "cancelled"]),
    ],
)
@jumping_time
async def test_what_cannot_be_put_on_record_takes_a_place_here_or_ends(
    background: dict[str, Any], statuses: list[str]
) -> None:
    log, (busy, hold) = Log(), model()
    async with crowded(log, busy, log_bytes=0, **background) as engine:
        runs = await left(engine, 2)
        await until(lambda: busy.under_way == statuses.count("completed"))
        hold.set()
        assert [(await run.result()).status for run in runs] == statuses
        assert not any(run.is_durable for run in runs)
        hold.clear()
        (again,) = await left(engine, 1)
        await until(lambda: busy.under_way == (statuses[0] == "completed"))
        hold.set()
        assert (await again.result()).status == statuses[0]


@jumping_time
async def test_one_that_is_handed_over_when_its_process_stops_needs_no_place() -> None:
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
