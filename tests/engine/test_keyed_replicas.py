"""Idempotency keys where several processes share the records: the key stands for one response, whoever is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import StreamEvent
from antwort.engine.runs.subscription import Subscription
from antwort.errors import ClientLeft, KeyInUse, KeyReused, ResponseNotFound
from antwort.identity import ANONYMOUS
from antwort.storage.run_log import Lease, Traits, Unavailable
from antwort.testing import answer, call, say
from engine_kit import ask, text_of
from jumping_time import jumping_time
from serving import until
from takeover_kit import DEPOT, Depot, Log, Story, Watched, engine_on

HELLO = answer(say("Hello"))
OTHER = answer(say("Something else"))

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


class Shared(Log):
    traits = Traits(durability="disk", many=True)


async def read(reader: Subscription) -> list[tuple[int, StreamEvent]]:
    await reader.answered()
    return [pair async for pair in reader.events()]


async def settled(engine: Watched) -> None:
    await until(lambda: not engine.idempotency_keys.unsettled)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_another_process_has_deleted_is_made_anew(*, stream: bool) -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        first = await one.start(ask(stream=stream), key="key")
        response = await first.result()
        await settled(one)
        assert (await one.start(ask(stream=stream), key="key")).is_replay
        await settled(one)
        await other.delete(ANONYMOUS, response.id)
        again = await one.start(ask("Another thing", stream=stream), key="key")
        assert (again.is_replay, (await again.result()).id == response.id) == (False, False)


async def test_what_another_process_made_since_counts() -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        response = await one.create(ask(), idempotency_key="key")
        await settled(one)
        await other.delete(ANONYMOUS, response.id)
        since = await other.create(ask(), idempotency_key="key")
        await settled(other)
        assert await one.create(ask(), idempotency_key="key") == since
        assert text_of(since) == "Something else"
        await settled(one)
        with pytest.raises(KeyReused):
            await one.create(ask("Another thing"), idempotency_key="key")
        await other.delete(ANONYMOUS, since.id)
        later = await one.start(ask("Later", background=True), key="key")
        assert not later.is_replay


async def test_what_is_not_stored_is_known_here_alone() -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        first = await one.create(ask(store=False), idempotency_key="key")
        await settled(one)
        assert await one.create(ask(store=False), idempotency_key="key") == first
        assert (await other.create(ask(store=False), idempotency_key="key")).id != first.id


# ---- runs that another process can continue ----


async def running(engine: Watched, *, stream: bool) -> Subscription:
    """A subscription to a durable run with a key whose model has begun to speak."""
    reader = await engine.start(ask(stream=stream), key="key", on_disconnect="continue")
    (run,) = engine.live_runs.values()
    await until(lambda: run.summary().first is not None)
    return reader


@STREAMED
async def test_a_run_that_goes_on_elsewhere_is_read_along_with(stream: bool) -> None:
    log, hold = Shared(), asyncio.Event()
    async with (
        engine_on(log, Story(answer(say("Hello"), hold, say(" there")))) as one,
        engine_on(log, Story()) as other,
    ):
        first = await running(one, stream=stream)
        first.leave()
        reader = await other.start(ask(stream=stream), key="key")
        assert (reader.response_id, reader.is_replay) == (first.response_id, True)
        reading = asyncio.ensure_future(read(reader))
        with pytest.raises(KeyReused):
            await other.start(ask("Another thing", stream=stream), key="key")
        hold.set()
        async with await one.follow(ANONYMOUS, first.response_id) as follower:
            assert await reading == [pair async for pair in follower.events()]
        assert text_of(await other.retrieve(ANONYMOUS, first.response_id)) == "Hello there"


async def test_whoever_asks_for_it_whole_waits_for_its_end() -> None:
    log, hold = Shared(), asyncio.Event()
    async with (
        engine_on(log, Story(answer(say("Hello"), hold, say(" there")))) as one,
        engine_on(log, Story()) as other,
    ):
        first = await running(one, stream=False)
        first.leave()
        leaving = await other.start(ask(stream=False), key="key")
        gone = asyncio.ensure_future(leaving.result())
        await asyncio.sleep(0)
        leaving.leave()
        with pytest.raises(ClientLeft):
            await gone
        waiting = asyncio.ensure_future(other.create(ask(stream=False), idempotency_key="key"))
        await asyncio.sleep(0)
        hold.set()
        assert (await waiting).id == first.response_id
        assert text_of(await waiting) == "Hello there"


@pytest.mark.proves("MISTAKE-30")
async def test_one_who_reads_it_along_in_the_same_process_sees_each_event_with_its_number() -> None:
    log, hold = Shared(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello"), hold, say(" there")))) as engine:
        first = await running(engine, stream=True)
        await first.answered()
        assert (await first.read())[0].first == 0  # what it has read need not be kept for it
        again = await engine.start(ask(stream=True), key="key")
        assert (again.response_id, again.is_replay) == (first.response_id, True)
        so_far = [(batch.first + at, event) for batch in await again.read() for at, event in enumerate(batch.events)]
        assert [number for number, _ in so_far][:2] == [0, 1]
        first.leave()
        hold.set()
        rest = [pair async for pair in again.events()]
        async with await engine.follow(ANONYMOUS, first.response_id) as follower:
            assert [*so_far, *rest] == [pair async for pair in follower.events()]


@STREAMED
async def test_one_who_comes_when_it_has_ended_gets_the_same_response(stream: bool) -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        first = await one.start(ask(stream=stream), key="key", on_disconnect="continue")
        seen = await read(first) if stream else []
        response = await first.result()
        assert (first.is_replay, text_of(response)) == (False, "Hello")
        await settled(one)
        for engine in (one, other):
            again = await engine.start(ask(stream=stream), key="key")
            assert (again.is_replay, again.response_id) == (True, response.id)
            if stream:
                assert await read(again) == seen
            assert await again.result() == response


@STREAMED
@jumping_time
async def test_the_key_of_a_run_whose_process_has_died_stands_for_what_another_process_makes_of_it(
    stream: bool,
) -> None:
    log, depot = Shared(), Depot()
    depot.gate = asyncio.Event()
    story = (answer(call("look", n=1)), answer(say("Done.")))
    request = ask(tools=[DEPOT], stream=stream)
    first = engine_on(log, Story(*story), depot)
    await first.open()
    reader = await first.start(request, key="key", on_disconnect="continue")
    await depot.asked.wait()
    await log.kill()
    await log.bury()
    depot.gate.set()
    async with engine_on(log, Story(*story), depot) as second:
        again = await second.start(request, key="key")
        response = await second.ended(reader.response_id)
        assert (again.response_id, again.is_replay) == (response.id, True)
        if stream:
            await read(again)
        assert await again.result() == response
    assert (response.status, text_of(response)) == ("completed", "Done.")
    await first.close()


class Away(Shared):
    """Takes no run that is to be continued."""

    is_away = True

    async def adopt(self, *of_run: Any, **how: Any) -> Lease:
        if self.is_away:
            raise Unavailable("away")
        return await super().adopt(*of_run, **how)


@jumping_time
async def test_a_run_that_cannot_be_put_into_the_log_leaves_its_key_free() -> None:
    log = Away()
    async with engine_on(log, Story(HELLO)) as engine:
        with pytest.raises(Unavailable):
            await engine.start(ask(), key="key", on_disconnect="continue")
        log.is_away = False
        again = await engine.start(ask(), key="key", on_disconnect="continue")
        assert not again.is_replay
        assert (await again.result()).status == "completed"


# ---- runs that end with their process ----


async def test_without_a_log_it_is_a_conflict_to_try_again() -> None:
    log, hold = Shared(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello"), hold))) as one, engine_on(log, Story()) as other:
        making = asyncio.ensure_future(one.create(ask(), idempotency_key="key"))
        await until(lambda: one.live == 1)
        with pytest.raises(KeyInUse):
            await other.start(ask(), key="key")
        hold.set()
        response = await making
        await settled(one)
        assert await other.create(ask(), idempotency_key="key") == response


async def test_a_run_with_a_key_that_nobody_reads_ends_in_its_process() -> None:
    log, hold = Shared(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello"), hold))) as one, engine_on(log, Story()) as other:
        reader = await one.start(ask(), key="key")
        await until(lambda: one.live == 1)
        reader.leave()
        hold.set()
        await settled(one)
        assert (await other.create(ask(), idempotency_key="key")).id == reader.response_id
        await other.delete(ANONYMOUS, reader.response_id)
        with pytest.raises(ResponseNotFound):
            await one.retrieve(ANONYMOUS, reader.response_id)
