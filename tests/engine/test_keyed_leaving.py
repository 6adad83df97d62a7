"""Requests with an idempotency key whose clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.errors import (
    ClientLeft,
    RequestCancelled,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Entry, NewResponse, PackedLog
from antwort.storage.memory import MemoryStore
from antwort.testing import answer, say
from engine_kit import ask, text_of
from keyed_kit import FOR_GOOD, Slow, ended_as, ground, read
from serving import until

HELLO = answer(say("Hello there"))
OTHER = answer(say("Something else"))


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_run_goes_on_as_long_as_another_waits_for_it(stream: bool) -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go, say("there"))) as at:
        request = ask(stream=stream)
        first, second = [await at.engine.start(request, ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        first.leave()
        assert await first.read() == []
        with pytest.raises(ClientLeft):
            await first.result()
        go.set()
        assert (await second.result()).status == "completed"
        assert len(at.provider.requests) == 1


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_when_the_last_one_leaves_the_run_stops_and_the_next_request_is_a_new_one(is_stored: bool) -> None:
    async with ground(answer(say("Hello"), asyncio.Event()), OTHER) as at:
        request = ask(stream=True, store=is_stored)
        readers = [await at.engine.start(request, ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        for reader in readers:
            reader.leave()
        again = await at.engine.start(request, ANONYMOUS, key="key")  # at once: it waits until the first has stopped
        assert at.provider.under_way == 0 or len(at.provider.requests) == 2
        events = await read(again)
        assert not again.is_replay
        assert text_of(ended_as(events[-1])) == "Something else"
        if is_stored:
            assert (await at.engine.retrieve(ANONYMOUS, readers[0].response_id)).status == "cancelled"


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


async def test_a_run_that_ends_by_itself_although_all_have_left_keeps_its_key() -> None:
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


async def test_a_request_that_is_broken_off_stops_the_run_only_when_it_is_alone() -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go)) as at:
        first, second = [await at.engine.start(ask(), ANONYMOUS, key="key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        first.stop(RequestCancelled())
        with pytest.raises(ClientLeft):
            await first.result()
        assert at.provider.under_way == 1
        second.stop(RequestCancelled())
        assert (await second.result()).status == "failed"
        assert at.provider.under_way == 0
