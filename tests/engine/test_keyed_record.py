"""How long idempotency keys are kept, and what outlives a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from antwort.engine.kept import MOST_BYTES, MOST_KEPT

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.runs.fingerprint import fingerprint
from antwort.errors import (
    AntwortError,
    BackendUnavailable,
    KeyInUse,
    KeyReused,
    ShuttingDown,
    StoreFault,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Claim, Entry, NewResponse, PackedLog, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.testing import answer, call, say
from engine_kit import WEATHER, ask, name_of, text_of, weather_tool
from keyed_kit import Ground, Slow, ground, read, settled
from serving import until

HELLO = answer(say("Hello there"))
OTHER = answer(say("Something else"))


# ---- how long, and how much ----


async def test_a_key_is_remembered_for_as_long_as_the_settings_say() -> None:
    async with ground(HELLO, OTHER, idempotency=60) as at:
        first = await at.engine.create(input="Hello", idempotency_key="key")
        await settled(at)
        at.clock.now += 59
        assert await at.engine.create(input="Hello", idempotency_key="key") == first
        at.clock.now += 1
        second = await at.engine.create(input="Hello", idempotency_key="key")
        assert (text_of(first), text_of(second)) == ("Hello there", "Something else")
        assert await at.engine.retrieve(ANONYMOUS, first.id) == first


async def test_a_run_outlives_its_key_for_those_who_come_meanwhile() -> None:
    go = asyncio.Event()
    async with ground(answer(go, say("Hello")), idempotency=1) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        at.clock.now += 10
        second = await at.engine.start(ask(), ANONYMOUS, key="key")
        go.set()
        assert await reader.result() == await second.result()


@pytest.mark.proves("CP-033")
@pytest.mark.parametrize(
    ("text", "more"), [("Hello there", MOST_KEPT), ("x" * (MOST_BYTES // 5), 2)], ids=["too many", "too large"]
)
async def test_of_those_that_are_not_stored_only_so_many_are_kept_and_the_oldest_go_first(text: str, more: int) -> None:
    async with ground(*[answer(say(text)) for _ in range(more + 2)]) as at:
        for number in range(more + 1):
            await at.engine.create(input=str(number), store=False, idempotency_key=f"key-{number}")
        await settled(at)
        for number in (more, 1):
            await at.engine.create(input=str(number), store=False, idempotency_key=f"key-{number}")
        assert len(at.provider.requests) == more + 1
        await at.engine.create(input="0", store=False, idempotency_key="key-0")
        assert len(at.provider.requests) == more + 2
        assert at.store._claims == {}  # type: ignore[attr-defined]  # nothing of them is in the store


@pytest.mark.proves("CP-033")
async def test_one_who_sends_much_drives_out_nothing_of_the_others() -> None:
    ann, bob = Identity("acme", "ann"), Identity("other", "bob")
    async with ground(*[HELLO for _ in range(MOST_KEPT + 2)]) as at:
        first = await at.engine.create(ask(store=False), ann, idempotency_key="key")
        for number in range(MOST_KEPT + 1):
            await at.engine.create(ask(store=False), bob, idempotency_key=f"key-{number}")
        await settled(at)
        assert await at.engine.create(ask(store=False), ann, idempotency_key="key") == first


async def test_a_stored_one_that_is_not_in_memory_is_read_from_the_store() -> None:
    request, store = ask(stream=True), MemoryStore()
    async with ground(answer(say("Hello there"), finish="length"), store=store) as at:
        first = await read(await at.engine.start(request, ANONYMOUS, key="key"))
    async with ground(store=store) as at:
        again = await at.engine.start(request, ANONYMOUS, key="key")
        events = await read(again)
        assert again.is_replay
        assert again.summary() is None
        assert events[-1] == first[-1]
        assert at.provider.requests == []
        with pytest.raises(KeyReused):
            await at.engine.start(ask("Other", stream=True), ANONYMOUS, key="key")


# ---- the record ----


async def test_deleting_the_response_frees_its_key() -> None:
    async with ground(HELLO, OTHER) as at:
        first = await at.engine.create(input="Hello", idempotency_key="key")
        await at.engine.delete(ANONYMOUS, first.id)
        assert text_of(await at.engine.create(input="Hello", idempotency_key="key")) == "Something else"


async def test_deleting_a_response_that_runs_frees_its_key() -> None:
    async with ground(answer(say("Hello"), asyncio.Event()), OTHER) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        await until(lambda: at.provider.under_way == 1)
        await at.engine.delete(ANONYMOUS, reader.response_id)
        assert text_of(await at.engine.create(ask(), idempotency_key="key")) == "Something else"


async def claim_elsewhere(store: ResponseStore, at: Ground, digest: bytes) -> None:
    """As if another process had just begun the response."""
    plan = await at.engine.plan(ask())
    claim = Claim(key="key", request_hash=digest, now=1_700_000_000, expires_at=1_700_000_900)
    await store.begin(
        NewResponse(identity=ANONYMOUS, response=plan.response, request=b"{}", input=(), raw_input=(), claim=claim)
    )


async def test_a_response_that_another_process_makes_is_a_conflict_to_try_again() -> None:
    async with ground(HELLO) as at:
        await claim_elsewhere(at.store, at, fingerprint(ask()))
        with pytest.raises(KeyInUse) as caught:
            await at.engine.start(ask(), ANONYMOUS, key="key")
        assert (caught.value.status, caught.value.code) == (409, "idempotency_key_in_use")
        assert caught.value.retry_after == 1.0
        with pytest.raises(KeyReused):
            await at.engine.start(ask("Other"), ANONYMOUS, key="key")
        assert at.provider.requests == []


async def test_a_key_that_another_process_takes_at_the_same_moment_is_not_run_twice() -> None:
    class Beaten(MemoryStore):
        async def begin(self, new: NewResponse) -> None:
            raise KeyInUse

    async with ground(HELLO, store=Beaten()) as at:
        with pytest.raises(KeyInUse):
            await at.engine.start(ask(), ANONYMOUS, key="key")
        assert at.provider.requests == []


async def test_one_with_the_right_body_is_not_refused_because_of_one_with_the_wrong_body() -> None:
    """Both come while the store is being asked whose the key is."""

    class SlowToSay(MemoryStore):
        go = asyncio.Event()

        async def claimed(self, identity: Identity, key: str, now: int) -> Any:
            await self.go.wait()
            return await super().claimed(identity, key, now)

    store = SlowToSay()
    store.go.set()
    async with ground(HELLO, store=store) as at:
        right = await at.engine.create(input="Hello", idempotency_key="key")
        at.engine._keyed._forget(("default", "", "key"))
        store.go.clear()
        wrong = asyncio.create_task(at.engine.create(input="Other", idempotency_key="key"))
        await asyncio.sleep(0)
        again = asyncio.create_task(at.engine.create(input="Hello", idempotency_key="key"))
        await asyncio.sleep(0)
        store.go.set()
        with pytest.raises(KeyReused):
            await wrong
        assert await again == right


async def test_a_store_that_cannot_be_read_is_an_error_and_leaves_the_key_free() -> None:
    class Broken(MemoryStore):
        is_broken = True

        async def claimed(self, identity: Identity, key: str, now: int) -> Any:
            if self.is_broken:
                raise StoreFault("The disk is gone.")
            return await super().claimed(identity, key, now)

    store = Broken()
    async with ground(HELLO, store=store) as at:
        with pytest.raises(StoreFault):
            await at.engine.create(input="Hello", idempotency_key="key")
        store.is_broken = False
        assert (await at.engine.create(input="Hello", idempotency_key="key")).status == "completed"


async def test_an_end_that_could_not_be_recorded_is_still_what_the_key_stands_for_where_a_tool_was_run() -> None:
    class Full(MemoryStore):
        is_full = True

        async def finish(
            self,
            identity: Identity,
            response: Response,
            marks: Sequence[tuple[int, Mark]],
            entries: Sequence[Entry] = (),
            approvals: Sequence[Approval] = (),
            log: PackedLog | None = None,
        ) -> None:
            if self.is_full:
                raise StoreFault("The disk is full.")
            await super().finish(identity, response, marks, entries, approvals, log)

    store = Full()
    asked = ask(tools=[WEATHER])
    async with ground(answer(call("weather", city="Rome")), HELLO, store=store, executors=[weather_tool()]) as at:
        first = await at.engine.create(asked, idempotency_key="key")
        assert first.status == "failed"
        await settled(at)
        at.engine._keyed._forget(("default", "", "key"))
        store.is_full = False
        assert await at.engine.create(asked, idempotency_key="key") == first


async def test_a_store_that_fails_in_an_unexpected_way_leaves_a_line_and_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(MemoryStore):
        async def release(self, identity: Identity, key: str, response_id: str) -> None:
            raise RuntimeError("Nobody expected this.")

    async with ground(answer(BackendUnavailable("No.")), HELLO, store=Odd()) as at:
        with pytest.raises(BackendUnavailable):
            await at.engine.create(input="Hello", idempotency_key="key")
        await settled(at)
        assert len(at.engine.idempotency_keys) == 0
    assert "could not be put away" in caplog.text


# ---- the end of the engine ----


async def test_an_engine_that_closes_ends_what_is_shared_and_leaves_no_task() -> None:
    store = MemoryStore()
    async with ground(answer(say("Hello"), asyncio.Event()), store=store) as at:
        reader = await at.engine.start(ask(stream=True), ANONYMOUS, key="key")
        await until(lambda: at.provider.under_way == 1)
        closing = asyncio.create_task(at.engine.close())
        events = await read(reader)
        await closing
        assert name_of(events[-1]) == "response.failed"
        with pytest.raises(ShuttingDown):
            await at.engine.start(ask(stream=True), ANONYMOUS, key="key")


async def test_a_plan_that_is_under_way_when_the_engine_closes_is_broken_off() -> None:
    provider = Slow(HELLO)
    engine = Engine(provider, store=MemoryStore())
    waiting = asyncio.create_task(engine.create(input="Hello", idempotency_key="key"))
    await until(lambda: provider.asked == 1)
    await engine.close()
    with pytest.raises(ShuttingDown):
        await waiting


async def test_requests_without_a_key_leave_nothing_behind_for_one() -> None:
    async with ground(HELLO) as at:
        await at.engine.create(input="Hello")
        assert len(at.engine.idempotency_keys) == 0
        assert at.engine._keyed._names == {}


async def test_nothing_of_a_run_stays_under_a_key_that_is_gone() -> None:
    async with ground(answer(AntwortError("No."))) as at:
        with pytest.raises(AntwortError):
            await at.engine.create(input="Hello", idempotency_key="key")
        await settled(at)
        assert (at.engine._keyed._runs, at.engine._keyed._names, at.engine._keyed._kept.size) == ({}, {}, 0)
