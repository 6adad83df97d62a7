"""How long idempotency keys are kept, and what outlives a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import Mark
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.wire import replace
from antwort.engine.engine import Engine
from antwort.engine.runs.event_log import EventLog
from antwort.engine.runs.idempotency import (
    MAX_ENDED_BYTES,
    MAX_ENDED_RUNS,
    EndedRun,
    EndedRunCache,
    KeyName,
    fingerprint,
)
from antwort.engine.settings import BackgroundSettings
from antwort.errors import (
    AntwortError,
    BackendUnavailable,
    KeyInUse,
    KeyReused,
    ShuttingDown,
    StoreFault,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Entry, KeyClaim, NewResponse, PackedLog, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.testing import answer, call, say
from engine_kit import WEATHER, ask, name_of, text_of, weather_tool
from keyed_kit import Ground, Slow, ground, read, settled
from serving import until


async def claims_in(store: ResponseStore) -> int:
    assert isinstance(store, MemoryStore)
    count = "SELECT count(*) FROM idempotency_keys"
    return int(await store.database.read(lambda connection: connection.execute(count).fetchone()[0]))


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
    ("text", "more"),
    [("Hello there", MAX_ENDED_RUNS), ("x" * (MAX_ENDED_BYTES // 5), 2)],
    ids=["too many", "too large"],
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
        assert await claims_in(at.store) == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_run_that_is_stored_is_not_kept_in_memory_when_it_has_ended(stream: bool) -> None:
    async with ground(HELLO, OTHER) as at:
        for is_stored in (True, False):
            reader = await at.engine.start(ask(stream=stream, store=is_stored), ANONYMOUS, key=f"key-{is_stored}")
            await reader.result()
            await reader.close()
            await settled(at)
            assert len(at.engine.idempotency_keys) == (not is_stored)


async def test_of_one_that_said_more_than_is_kept_the_events_are_made_from_the_response() -> None:
    few = BackgroundSettings(log_bytes=2000)
    for is_stored in (True, False):
        async with ground(answer(say("word " * 200)), background=few) as at:
            request = ask(stream=True, store=is_stored)
            first = await read(await at.engine.start(request, ANONYMOUS, key="key"))
            await settled(at)
            again = await read(await at.engine.start(request, ANONYMOUS, key="key"))
            assert again[-1] == first[-1]
            assert len(again) < len(first)
            assert len(at.provider.requests) == 1


async def test_one_who_comes_while_more_was_said_than_is_kept_reads_it_when_it_has_ended() -> None:
    go, few = asyncio.Event(), BackgroundSettings(log_bytes=2000)
    async with ground(answer(say("word " * 200), go, say("end")), background=few) as at:
        first = await at.engine.start(ask(stream=True), ANONYMOUS, key="key")
        [run] = at.engine.live_runs.values()
        reading = asyncio.create_task(read(first))
        await until(lambda: run.log.next > 200)
        again = await at.engine.start(ask(stream=True), ANONYMOUS, key="key")
        go.set()
        assert (await read(again))[-1] == (await reading)[-1]
        assert (again.is_replay, len(at.provider.requests)) == (True, 1)


@pytest.mark.proves("CP-033")
async def test_one_who_sends_much_drives_out_nothing_of_the_others() -> None:
    ann, bob = Identity("acme", "ann"), Identity("other", "bob")
    async with ground(*[HELLO for _ in range(MAX_ENDED_RUNS + 2)]) as at:
        first = await at.engine.create(ask(store=False), ann, idempotency_key="key")
        for number in range(MAX_ENDED_RUNS + 1):
            await at.engine.create(ask(store=False), bob, idempotency_key=f"key-{number}")
        await settled(at)
        assert await at.engine.create(ask(store=False), ann, idempotency_key="key") == first


RESPONSE = Response(id="resp_1", created_at=0, status="completed", model="m")
FOREVER = 2**40


def name(owner: str, number: int) -> KeyName:
    return ("acme", owner, f"key-{number}")


def keep(kept: EndedRunCache, owner: str, number: int, size: int, expires_at: int = FOREVER) -> None:
    kept.add(name(owner, number), EndedRun(b"", expires_at, RESPONSE, EventLog()), size)


def there(kept: EndedRunCache, owner: str) -> list[int]:
    """The numbers of those that are kept."""
    return [number for number in range(20) if kept.find(name(owner, number), 0) is not None]


def test_the_identity_that_has_most_gives_up_its_oldest() -> None:
    kept = EndedRunCache(max_count=4)
    keep(kept, "ann", 0, 1)
    for number in range(20):
        keep(kept, "bob", number, 1)
        assert there(kept, "bob") == [*range(max(number - 2, 0), number + 1)]
    assert there(kept, "ann") == [0]


def test_the_identity_whose_runs_are_largest_gives_up_its_oldest() -> None:
    kept = EndedRunCache(max_bytes=100)
    for number in range(3):
        keep(kept, "ann", number, 10)
    keep(kept, "bob", 0, 60)
    assert (there(kept, "ann"), there(kept, "bob")) == ([0, 1, 2], [0])
    keep(kept, "bob", 1, 20)
    assert (there(kept, "ann"), there(kept, "bob")) == ([0, 1, 2], [1])


def test_one_identity_alone_may_have_all_the_room() -> None:
    kept = EndedRunCache(max_count=3)
    for number in range(4):
        keep(kept, "ann", number, 1)
    assert there(kept, "ann") == [1, 2, 3]


def test_one_that_is_larger_than_all_the_room_is_not_kept() -> None:
    kept = EndedRunCache(max_bytes=100)
    keep(kept, "ann", 0, 101)
    assert (there(kept, "ann"), len(kept)) == ([], 0)


def test_one_whose_key_has_expired_is_not_kept_any_longer() -> None:
    kept = EndedRunCache()
    keep(kept, "ann", 0, 1, expires_at=60)
    assert kept.find(name("ann", 0), 59.9) is not None
    assert kept.find(name("ann", 0), 60) is None
    assert len(kept) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 50)), max_size=40))
def test_no_more_is_kept_than_may_be_and_nothing_goes_without_need(steps: list[tuple[str, int, int]]) -> None:
    kept, expected = EndedRunCache(max_count=5, max_bytes=100), dict[KeyName, int]()
    for owner, number, size in steps:
        if name(owner, number) in expected:
            kept.remove(name(owner, number))
            del expected[name(owner, number)]
        else:
            expected[name(owner, number)] = size
            keep(kept, owner, number, size)
            evicted = {each: expected.pop(each) for each in [*expected] if each not in kept}
            rest = sum(expected.values())
            assert not evicted or any(len(expected) + 1 > 5 or rest + size > 100 for size in evicted.values())
        kept.remove(("acme", "nobody", "key"))
        assert (len(expected) <= 5, sum(expected.values()) <= 100) == (True, True)
        assert len(kept) == len(expected)
        assert all(each in kept for each in expected)


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
    claim = KeyClaim(key="key", request_hash=digest, now=1_700_000_000, expires_at=1_700_000_900)
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


async def test_a_key_that_another_process_takes_at_the_same_moment_leads_to_its_response() -> None:
    class Late(MemoryStore):
        is_beaten = False

        async def begin(self, new: NewResponse) -> None:
            if not self.is_beaten:  # another process is faster
                self.is_beaten = True
                other = msgspec.structs.replace(new, response=replace(new.response, id="resp_other"))
                await super().begin(other)
                await self.finish(ANONYMOUS, replace(other.response, status="completed"), ())
            await super().begin(new)

    async with ground(HELLO, store=Late()) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        assert (reader.response_id, reader.is_replay) == ("resp_other", True)
        assert (await reader.result()).status == "completed"
        assert at.provider.requests == []


async def test_all_who_wait_are_led_to_the_response_of_a_key_that_another_process_takes_meanwhile() -> None:
    class Late(MemoryStore):
        is_beaten = False

        async def begin(self, new: NewResponse) -> None:
            await asyncio.sleep(0)
            if not self.is_beaten:  # another process is faster
                self.is_beaten = True
                other = msgspec.structs.replace(new, response=replace(new.response, id="resp_other"))
                await super().begin(other)
                await self.finish(ANONYMOUS, replace(other.response, status="completed"), ())
            await super().begin(new)

    async with ground(HELLO, store=Late()) as at:
        readers = await asyncio.gather(*[at.engine.start(ask(), ANONYMOUS, key="key") for _ in range(4)])
        assert [(reader.response_id, reader.is_replay) for reader in readers] == [("resp_other", True)] * 4
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
        await settled(at)
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
    assert "the end of a run with a key could not be recorded" in caplog.text


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


async def test_nothing_of_a_run_stays_under_a_key_that_is_gone() -> None:
    async with ground(answer(AntwortError("No."))) as at:
        with pytest.raises(AntwortError):
            async with asyncio.timeout(5):
                await at.engine.create(input="Hello", idempotency_key="key")
        await settled(at)
        assert len(at.provider.requests) == 1
        assert len(at.engine.idempotency_keys) == 0
