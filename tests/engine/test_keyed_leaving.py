"""Requests with an idempotency key whose clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from antwort.api.events import Mark
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.errors import ClientLeft, RequestCancelled
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Entry, KeyHolder, NewResponse, PackedLog
from antwort.storage.memory import MemoryStore
from antwort.testing import answer, say
from engine_kit import ask, text_of
from keyed_kit import FOR_GOOD, Slow, ended_as, ground, read, settled
from serving import until

HELLO = answer(say("Hello there"))
OTHER = answer(say("Something else"))


WAYS = pytest.mark.parametrize(
    "way", [{"stream": True}, {}, {"stream": True, "store": False}, {"store": False}], ids=str
)


@WAYS
async def test_the_run_goes_on_as_long_as_another_waits_for_it(way: dict[str, Any]) -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go, say("there"))) as at:
        first, second = [await at.engine.start(ask(**way), ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        first.leave()
        if way.get("stream"):
            assert await first.read() == []
        with pytest.raises(ClientLeft):
            await first.result()
        go.set()
        assert (await second.result()).status == "completed"
        assert len(at.provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
@WAYS
async def test_when_the_last_one_leaves_the_run_continues_and_the_next_request_reads_along(way: dict[str, Any]) -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go, say(" there"))) as at:
        readers = [await at.engine.start(ask(**way), ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        for reader in readers:
            reader.leave()
        again = await at.engine.start(ask(**way), ANONYMOUS, key="key")
        assert (again.response_id, again.is_replay) == (readers[0].response_id, True)
        go.set()
        response = ended_as((await read(again))[-1]) if way.get("stream") else await again.result()
        assert (response.status, text_of(response)) == ("completed", "Hello there")
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)


@pytest.mark.proves("MISTAKE-30")
@WAYS
async def test_a_run_that_nobody_reads_ends_and_the_next_request_gets_what_it_came_to(way: dict[str, Any]) -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go, say(" there")), buffer_events=1) as at:
        reader = await at.engine.start(ask(**way), ANONYMOUS, key="key")
        await until(lambda: at.provider.under_way == 1)
        reader.leave()
        go.set()
        await settled(at)
        again = await at.engine.start(ask(**way), ANONYMOUS, key="key")
        assert (again.response_id, again.is_replay) == (reader.response_id, True)
        response = ended_as((await read(again))[-1]) if way.get("stream") else await again.result()
        assert (response.status, text_of(response)) == ("completed", "Hello there")
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)


async def test_one_that_waits_while_it_leaves_is_woken() -> None:
    async with ground(answer(say("Hello"), asyncio.Event())) as at:
        first, second = [await at.engine.start(ask(stream=True), ANONYMOUS, key="key") for _ in range(2)]
        await first.read()
        waiting = asyncio.create_task(first.read())
        await asyncio.sleep(0)
        first.leave()
        assert await waiting == []
        second.leave()


async def test_leaving_after_the_end_leaves_the_key_alone() -> None:
    """The answer was lost on its way: this is what keys are for."""
    async with ground(answer(say("Hel"), FOR_GOOD)) as at:
        request = ask(stream=True)
        reader = await at.engine.start(request, ANONYMOUS, key="key")
        events = await read(reader)
        reader.leave()
        assert await read(await at.engine.start(request, ANONYMOUS, key="key")) == events


async def test_one_that_all_have_left_while_its_end_is_recorded_keeps_its_key() -> None:
    class Late(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def finish(
            self,
            identity: Identity,
            response: Response,
            marks: Sequence[tuple[int, Mark]],
            entries: Sequence[Entry] = (),
            approvals: Sequence[Approval] = (),
            log: PackedLog | None = None,
        ) -> None:
            self.asked.set()
            await self.go.wait()
            await super().finish(identity, response, marks, entries, approvals, log)

    store = Late()
    async with ground(HELLO, store=store) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        await store.asked.wait()
        reader.leave()
        store.go.set()
        again = await at.engine.start(ask(), ANONYMOUS, key="key")
        assert (await again.result()).status == "completed"
        assert again.is_replay


@pytest.mark.proves("TR-021")
async def test_when_all_leave_a_plan_it_is_broken_off() -> None:
    provider = Slow(HELLO)
    async with Engine(provider, store=MemoryStore()) as engine:
        waiting = [asyncio.create_task(engine.create(input="Hello", idempotency_key="key")) for _ in range(2)]
        await until(lambda: provider.asked == 1)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        provider.go.set()
        assert (await engine.create(input="Hello", idempotency_key="key")).status == "completed"
        assert (provider.asked, len(provider.requests)) == (2, 1)


async def test_the_one_who_came_first_may_leave_the_plan_to_the_others() -> None:
    provider = Slow(HELLO)
    async with Engine(provider, store=MemoryStore()) as engine:
        first, second = [asyncio.create_task(engine.create(input="Hello", idempotency_key="key")) for _ in range(2)]
        await until(lambda: provider.asked == 1)
        first.cancel()
        await asyncio.wait([first])
        provider.go.set()
        assert (await second).status == "completed"
        assert (provider.asked, len(provider.requests)) == (1, 1)


async def test_one_who_leaves_while_the_row_is_begun_leaves_a_row_that_is_ended() -> None:
    class SlowToBegin(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def begin(self, new: NewResponse) -> None:
            self.asked.set()
            await self.go.wait()
            await super().begin(new)

    store = SlowToBegin()
    async with ground(HELLO, OTHER, store=store) as at:
        waiting = asyncio.create_task(at.engine.create(input="Hello", idempotency_key="key"))
        await store.asked.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        store.go.set()
        again = await at.engine.create(input="Hello", idempotency_key="key")
        assert again.status == "completed"
        assert await store.fail_running("left running") == 0


async def test_a_request_that_comes_while_the_plan_of_those_that_left_is_broken_off_is_answered() -> None:
    """The store is still being asked for the key when the first one leaves."""

    class SlowToSay(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def claimed(self, identity: Identity, key: str, now: int) -> KeyHolder | None:
            self.asked.set()
            await self.go.wait()
            return await super().claimed(identity, key, now)

    store = SlowToSay()
    async with ground(HELLO, store=store) as at:
        first = asyncio.create_task(at.engine.create(input="Hello", idempotency_key="key"))
        await store.asked.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(at.engine.create(input="Hello", idempotency_key="key"))
        for _ in range(5):
            await asyncio.sleep(0)
        store.go.set()
        assert (await second).status == "completed"
        assert len(at.provider.requests) == 1


async def test_requests_that_are_broken_off_leave_the_run_alone() -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go)) as at:
        readers = [await at.engine.start(ask(), ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        for reader in readers:
            reader.stop(RequestCancelled())
            with pytest.raises(ClientLeft):
                await reader.result()
            assert at.provider.under_way == 1
        go.set()
        again = await at.engine.create(ask(), idempotency_key="key")
        assert (again.id, again.status) == (readers[0].response_id, "completed")


async def test_an_engine_that_shuts_down_ends_a_run_that_nobody_reads() -> None:
    store = MemoryStore()
    async with ground(answer(say("Hello"), asyncio.Event()), store=store) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        await until(lambda: at.provider.under_way == 1)
        reader.leave()
    kept = await store.get(ANONYMOUS, reader.response_id)
    assert kept is not None
    assert (kept.status, at.provider.under_way) == ("failed", 0)
