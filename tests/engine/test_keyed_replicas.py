"""Idempotency keys where several processes share the records: the key stands for one response, wherever it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import StreamEvent
from antwort.engine.runs.subscription import Subscription
from antwort.errors import ClientLeft, KeyInUse, KeyReused
from antwort.identity import ANONYMOUS
from antwort.runs.base import Traits
from antwort.testing import answer, say
from engine_kit import ask, text_of
from serving import until
from takeover_kit import Log, Story, Watched, engine_on

HELLO = answer(say("Hello"))
OTHER = answer(say("Something else"))


class Shared(Log):
    traits = Traits(durability="disk", many=True)


async def read(reader: Subscription) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while batches := await reader.read():
        events += [event for batch in batches for event in batch.events]
    return events


async def settled(engine: Watched) -> None:
    await until(lambda: not engine._keyed._tasks)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_another_process_has_deleted_is_made_anew(*, stream: bool) -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        first = await one.join(ask(stream=stream), ANONYMOUS, "key")
        response = await first.result()
        await settled(one)
        assert (await one.join(ask(stream=stream), ANONYMOUS, "key")).is_replay
        await other.delete(ANONYMOUS, response.id)
        again = await one.join(ask("Another thing", stream=stream), ANONYMOUS, "key")
        assert (again.is_replay, (await again.result()).id == response.id) == (False, False)


async def test_what_another_process_made_since_counts() -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one, engine_on(log, Story(OTHER)) as other:
        response = await one.create(ask(), idempotency_key="key")
        await settled(one)
        await other.delete(ANONYMOUS, response.id)
        since = await other.create(ask(), idempotency_key="key")
        assert await one.create(ask(), idempotency_key="key") == since
        assert text_of(since) == "Something else"
        await settled(one)
        await settled(other)
        with pytest.raises(KeyReused):
            await one.create(ask("Another thing"), idempotency_key="key")
        await other.delete(ANONYMOUS, since.id)
        later = await one.enqueue(ask("Later", background=True), key="key")
        assert not later.is_replay


async def test_what_is_not_stored_is_known_here_alone() -> None:
    log = Shared()
    async with engine_on(log, Story(HELLO)) as one:
        first = await one.create(ask(store=False), idempotency_key="key")
        await settled(one)
        assert await one.create(ask(store=False), idempotency_key="key") == first


async def left_running(engine: Watched, **fields: Any) -> str:
    """A run with a key that goes on without its client; its id."""
    reader = await engine.start(ask(**fields), ANONYMOUS, "key", key="continue")
    (run,) = engine.live_runs.values()
    await until(lambda: run.summary().first is not None)
    reader.leave()
    await until(lambda: run.is_durable)
    return run.response_id


async def test_a_run_that_goes_on_elsewhere_is_read_along_with() -> None:
    log, hold = Shared(), asyncio.Event()
    async with (
        engine_on(log, Story(answer(say("Hello"), hold, say(" there")))) as one,
        engine_on(log, Story()) as other,
    ):
        response_id = await left_running(one, stream=True)
        reader = await other.join(ask(stream=True), ANONYMOUS, "key")
        assert (reader.response_id, reader.is_replay) == (response_id, True)
        reading = asyncio.ensure_future(read(reader))
        with pytest.raises(KeyReused):
            await other.join(ask("Another thing", stream=True), ANONYMOUS, "key")
        hold.set()
        assert await reading == await one.sent(ANONYMOUS, response_id)
        assert text_of(await other.retrieve(ANONYMOUS, response_id)) == "Hello there"
    assert isinstance(reader, Subscription)


async def test_whoever_asks_for_it_whole_waits_for_its_end() -> None:
    log, hold = Shared(), asyncio.Event()
    async with (
        engine_on(log, Story(answer(say("Hello"), hold, say(" there")))) as one,
        engine_on(log, Story()) as other,
    ):
        response_id = await left_running(one)
        leaving = await other.join(ask(), ANONYMOUS, "key")
        gone = asyncio.ensure_future(leaving.result())
        await asyncio.sleep(0)
        leaving.leave()
        with pytest.raises(ClientLeft):
            await gone
        waiting = asyncio.ensure_future(other.create(ask(), idempotency_key="key"))
        await asyncio.sleep(0)
        hold.set()
        assert (await waiting).id == response_id
        assert text_of(await waiting) == "Hello there"


async def test_without_a_log_it_is_a_conflict_to_try_again() -> None:
    log, hold = Shared(), asyncio.Event()
    async with engine_on(log, Story(answer(say("Hello"), hold))) as one, engine_on(log, Story()) as other:
        making = asyncio.ensure_future(one.create(ask(), idempotency_key="key"))
        await until(lambda: one.live == 1)
        with pytest.raises(KeyInUse):
            await other.join(ask(), ANONYMOUS, "key")
        hold.set()
        await making
