"""Requests with an idempotency key: one run, and one response for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.events import Mark, StreamEvent
from antwort.api.responses import Model, Response
from antwort.engine import kept
from antwort.engine.engine import Engine
from antwort.engine.fingerprint import fingerprint
from antwort.engine.shared import Reader
from antwort.errors import (
    AntwortError,
    BackendError,
    BackendUnavailable,
    ClientLeft,
    KeyInUse,
    KeyReused,
    RateLimited,
    RequestCancelled,
    RequestError,
    ResponseNotFound,
    ShuttingDown,
    StoreFault,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta
from antwort.storage.base import Claim, NewResponse, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, StreamChecker, answer, call, say
from engine_kit import WEATHER, ask, name_of, text_of, weather_tool
from keyed_kit import Ground, ground, read, settled
from serving import until

HELLO = answer(say("Hello there"))
OTHER = answer(say("Something else"))


# ---- the same key and the same body ----


@pytest.mark.proves("MISTAKE-30")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_the_same_request_once_more_gets_the_same_response(is_stored: bool) -> None:
    async with ground(HELLO) as at:
        first = await at.engine.attach(ask(store=is_stored), ANONYMOUS, "key")
        response = await first.whole()
        again = await at.engine.attach(ask(store=is_stored), ANONYMOUS, "key")
        assert await again.whole() == response
        assert (first.is_replay, again.is_replay) == (False, True)
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)
        assert text_of(response) == "Hello there"


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_streamed_request_once_more_gets_the_same_events(is_stored: bool) -> None:
    async with ground(HELLO) as at:
        request = ask(stream=True, store=is_stored)
        first = await read(await at.engine.attach(request, ANONYMOUS, "key"))
        assert await read(await at.engine.attach(request, ANONYMOUS, "key")) == first
        assert len(at.provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_many_at_the_very_same_moment_are_one_run() -> None:
    async with ground(HELLO) as at:
        readers = await asyncio.gather(*(at.engine.attach(ask(), ANONYMOUS, "key") for _ in range(50)))
        responses = [await reader.whole() for reader in readers]
        assert all(response == responses[0] for response in responses)
        assert sum(not reader.is_replay for reader in readers) == 1
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)


async def test_one_who_comes_while_it_runs_gets_what_was_said_and_then_the_rest() -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello there"), go, say("friend"))) as at:
        request = ask(stream=True)
        first = await at.engine.attach(request, ANONYMOUS, "key")
        reading = asyncio.create_task(read(first))
        await until(lambda: at.provider.under_way == 1 and len(first._shared.tape or ()) >= 6)
        second = await at.engine.attach(request, ANONYMOUS, "key")
        await second.answered()
        [so_far] = await second.read()
        assert [name_of(event) for event in so_far.events][:2] == ["response.created", "response.in_progress"]
        assert name_of(so_far.events[-1]) == "response.output_text.delta"
        go.set()
        rest = [event for batch in await all_batches(second) for event in batch]
        assert [*so_far.events, *rest] == await reading


async def all_batches(reader: Reader) -> list[list[StreamEvent]]:
    found = []
    while batches := await reader.read():
        found += [batch.events for batch in batches]
    return found


async def test_a_reader_that_does_not_read_holds_nobody_back() -> None:
    """Neither the run nor the others wait for it, and it misses nothing."""
    async with ground(answer(say("word " * 200)), buffer_events=4) as at:
        request = ask(stream=True)
        idle = await at.engine.attach(request, ANONYMOUS, "key")
        busy = await at.engine.attach(request, ANONYMOUS, "key")
        events = await read(busy)
        assert await read(idle) == events


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_the_library_takes_keys_too_and_both_ways_of_asking_are_the_same_request(is_stored: bool) -> None:
    async with ground(HELLO) as at:
        response = await at.engine.create(input="Hello", store=is_stored, idempotency_key="key")
        assert await at.engine.create(input="Hello", store=is_stored, idempotency_key="key") == response
        checker, number = StreamChecker(), 0
        async for event in at.engine.respond(input="Hello", store=is_stored, idempotency_key="key"):
            checker.feed(number, event)
            number += 1
        assert checker.finish() == response
        assert len(at.provider.requests) == 1


async def test_events_are_asked_for_of_a_run_that_was_started_without() -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go)) as at:
        creating = asyncio.create_task(at.engine.create(input="Hello", idempotency_key="key"))
        await until(lambda: at.provider.under_way == 1)
        events = at.engine.respond(input="Hello", idempotency_key="key")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        go.set()
        assert name_of(await first) == "response.created"
        *_, last = [event async for event in events]
        assert last.response == await creating  # type: ignore[union-attr]  # the terminal event


# ---- another body, another owner ----


@pytest.mark.parametrize("change", [{"input": "Other"}, {"stream": True}, {"store": False}])
async def test_the_same_key_with_another_body_is_a_conflict(change: dict[str, Any]) -> None:
    async with ground(HELLO, OTHER) as at:
        await (await at.engine.attach(ask(), ANONYMOUS, "key")).whole()
        with pytest.raises(KeyReused) as caught:
            await at.engine.attach(ask(**{"input": "Hello", **change}), ANONYMOUS, "key")
        assert (caught.value.status, caught.value.code, caught.value.param) == (409, "idempotency_key_reused", None)
        assert len(at.provider.requests) == 1


async def test_it_is_a_conflict_while_the_first_is_under_way_too() -> None:
    go = asyncio.Event()
    async with ground(answer(go, say("Hello"))) as at:
        first = await at.engine.attach(ask(), ANONYMOUS, "key")
        with pytest.raises(KeyReused):
            await at.engine.attach(ask("Other"), ANONYMOUS, "key")
        go.set()
        assert text_of(await first.whole()) == "Hello"


async def test_keys_are_their_owners() -> None:
    async with ground(HELLO, HELLO, HELLO) as at:
        people = [Identity("acme", "ann"), Identity("acme", "bob"), Identity("other", "ann")]
        responses = [await (await at.engine.attach(ask(), who, "key")).whole() for who in people]
        assert len({response.id for response in responses}) == 3
        again = await at.engine.attach(ask(), Identity("acme", "ann", key="a second API key"), "key")
        assert await again.whole() == responses[0]


@pytest.mark.parametrize("key", ["", "with space", "x" * 256])
async def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    async with ground() as at:
        with pytest.raises(RequestError, match="Idempotency-Key"):
            await at.engine.create(input="Hello", idempotency_key=key)


async def test_without_a_time_to_remember_them_keys_mean_nothing() -> None:
    async with ground(HELLO, OTHER, idempotency=0) as at:
        first = await at.engine.create(input="Hello", idempotency_key="key")
        assert (await at.engine.create(input="Hello", idempotency_key="key")).id != first.id


# ---- what goes wrong releases the key ----


class Slow(ScriptedProvider):
    """Says which models there are when it is told to, or that it cannot."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.go, self.fault = asyncio.Event(), None
        self.asked = 0

    async def models(self) -> Sequence[Model]:
        self.asked += 1
        await self.go.wait()
        return await super().models()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_request_that_failed_before_it_was_answered_is_tried_again(stream: bool) -> None:
    broken = answer(BackendUnavailable("The backend cannot be reached."))
    async with ground(broken, HELLO) as at:
        request = ask(stream=stream)
        for attempt in (1, 2):
            reader = await at.engine.attach(request, ANONYMOUS, "key")
            if attempt == 1:
                with pytest.raises(BackendUnavailable):
                    await (reader.answered() if stream else reader.whole())
                assert not reader.is_replay
        assert not reader.is_replay
        assert (await reader.whole()).status == "completed"
        assert len(at.provider.requests) == 2


async def test_all_who_wait_are_told_what_went_wrong() -> None:
    go = asyncio.Event()

    class Fails(ScriptedProvider):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            await go.wait()
            async with aclosing(super().infer(request)) as deltas:
                async for read in deltas:
                    yield read

    async with Engine(Fails(answer(BackendUnavailable("No."))), store=MemoryStore()) as engine:
        readers = [await engine.attach(ask(), ANONYMOUS, "key") for _ in range(3)]
        waiting = [asyncio.create_task(reader.whole()) for reader in readers]
        go.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BackendUnavailable] * 3


async def test_a_request_that_is_wrong_leaves_its_key_free() -> None:
    async with ground(HELLO) as at:
        with pytest.raises(ResponseNotFound):
            await at.engine.attach(ask(previous_response_id="resp_none"), ANONYMOUS, "key")
        assert (await (await at.engine.attach(ask(), ANONYMOUS, "key")).whole()).status == "completed"


FOR_GOOD = BackendError("The backend does not know us.", may_pass=False)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_failure_for_good_after_the_answer_has_begun_is_the_response(is_stored: bool) -> None:
    async with ground(answer(say("Hel"), FOR_GOOD)) as at:
        request = ask(stream=True, store=is_stored)
        events = await read(await at.engine.attach(request, ANONYMOUS, "key"))
        assert name_of(events[-1]) == "response.failed"
        assert await read(await at.engine.attach(request, ANONYMOUS, "key")) == events
        assert len(at.provider.requests) == 1


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("error", [RateLimited("Try again in 7s."), BackendError("It broke."), ValueError("A defect.")])
async def test_a_failure_after_the_answer_has_begun_that_may_pass_frees_the_key(
    error: Exception, stream: bool, is_stored: bool
) -> None:
    """For whoever comes next, be it at once."""
    async with ground(answer(say("Hel"), error), HELLO, hold_back=0) as at:
        request = ask(stream=stream, store=is_stored)
        first = await at.engine.attach(request, ANONYMOUS, "key")
        failed = (await read(first))[-1].response if stream else await first.whole()  # type: ignore[union-attr]
        again = await at.engine.attach(request, ANONYMOUS, "key")
        assert (failed.status, first.is_replay, again.is_replay) == ("failed", False, False)
        assert (await again.whole()).status == "completed"
        if is_stored:
            assert await at.engine.retrieve(ANONYMOUS, failed.id) == failed


async def test_an_incomplete_response_keeps_its_key() -> None:
    async with ground(answer(say("Half"), finish="length")) as at:
        response = await at.engine.create(input="Hello", idempotency_key="key")
        assert response.status == "incomplete"
        assert await at.engine.create(input="Hello", idempotency_key="key") == response


async def test_a_response_that_was_cancelled_by_its_id_keeps_its_key() -> None:
    async with ground(answer(say("Half"), asyncio.Event())) as at:
        reader = await at.engine.attach(ask(), ANONYMOUS, "key")
        await at.engine.cancel(ANONYMOUS, reader.response_id)
        assert (await reader.whole()).status == "cancelled"
        assert (await at.engine.create(ask(), idempotency_key="key")).status == "cancelled"
        assert len(at.provider.requests) == 1


async def test_a_key_that_cannot_be_released_is_logged_and_not_in_the_way_of_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(MemoryStore):
        async def release(self, identity: Identity, key: str, response_id: str) -> None:
            raise StoreFault("The disk is full.")

    async with ground(answer(BackendUnavailable("No.")), store=Stuck()) as at:
        with caplog.at_level(logging.WARNING), pytest.raises(BackendUnavailable):
            await at.engine.create(input="Hello", idempotency_key="sk-secret")
        again = await at.engine.create(input="Hello", idempotency_key="sk-secret")
        assert again.status == "failed"
    assert "could not be released: The disk is full." in caplog.text
    assert "sk-secret" not in caplog.text


# ---- leaving ----


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_run_goes_on_as_long_as_another_waits_for_it(stream: bool) -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello"), go, say("there"))) as at:
        request = ask(stream=stream)
        first, second = [await at.engine.attach(request, ANONYMOUS, "key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        first.leave()
        assert await first.read() == []
        with pytest.raises(ClientLeft):
            await first.whole()
        go.set()
        assert (await second.whole()).status == "completed"
        assert len(at.provider.requests) == 1


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_when_the_last_one_leaves_the_run_stops_and_the_next_request_is_a_new_one(is_stored: bool) -> None:
    async with ground(answer(say("Hello"), asyncio.Event()), OTHER) as at:
        request = ask(stream=True, store=is_stored)
        readers = [await at.engine.attach(request, ANONYMOUS, "key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        for reader in readers:
            reader.leave()
        again = await at.engine.attach(request, ANONYMOUS, "key")  # at once: it waits until the first has stopped
        assert at.provider.under_way == 0 or len(at.provider.requests) == 2
        events = await read(again)
        assert not again.is_replay
        assert text_of(events[-1].response) == "Something else"  # type: ignore[union-attr]  # the terminal event
        if is_stored:
            assert (await at.engine.retrieve(ANONYMOUS, readers[0].response_id)).status == "cancelled"


async def test_one_that_waits_while_it_leaves_is_woken() -> None:
    async with ground(answer(say("Hello"), asyncio.Event())) as at:
        first, second = [await at.engine.attach(ask(stream=True), ANONYMOUS, "key") for _ in range(2)]
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
        reader = await at.engine.attach(request, ANONYMOUS, "key")
        events = await read(reader)
        reader.leave()
        assert await read(await at.engine.attach(request, ANONYMOUS, "key")) == events


async def test_a_run_that_ends_by_itself_although_all_have_left_keeps_its_key() -> None:
    class Late(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def finish(self, identity: Identity, response: Response, marks: Sequence[tuple[int, Mark]]) -> None:
            self.asked.set()
            await self.go.wait()
            await super().finish(identity, response, marks)

    store = Late()
    async with ground(HELLO, store=store) as at:
        reader = await at.engine.attach(ask(), ANONYMOUS, "key")
        await store.asked.wait()
        reader.leave()
        store.go.set()
        again = await at.engine.attach(ask(), ANONYMOUS, "key")
        assert (await again.whole()).status == "completed"
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
        first, second = [await at.engine.attach(ask(), ANONYMOUS, "key") for _ in range(2)]
        await until(lambda: at.provider.under_way == 1)
        first.stop(RequestCancelled())
        with pytest.raises(ClientLeft):
            await first.whole()
        assert at.provider.under_way == 1
        second.stop(RequestCancelled())
        assert (await second.whole()).status == "failed"
        assert at.provider.under_way == 0


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
        reader = await at.engine.attach(ask(), ANONYMOUS, "key")
        at.clock.now += 10
        second = await at.engine.attach(ask(), ANONYMOUS, "key")
        go.set()
        assert await reader.whole() == await second.whole()


@pytest.mark.proves("CP-033")
@pytest.mark.parametrize("bound", ["MOST_KEPT", "MOST_BYTES"])
async def test_of_those_that_are_not_stored_only_so_many_are_kept_and_the_oldest_go_first(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ground(*[HELLO for _ in range(4)]) as at:
        await at.engine.create(input="0", store=False, idempotency_key="key-0")
        await settled(at)
        monkeypatch.setattr(kept, bound, {"MOST_KEPT": 2, "MOST_BYTES": 2 * at.engine._keyed._kept.size + 100}[bound])
        for number in (1, 2):
            await at.engine.create(input=str(number), store=False, idempotency_key=f"key-{number}")
            await settled(at)
        assert [name[2] for name in at.engine._keyed._runs] == ["key-1", "key-2"]
        for number in (2, 0):
            await at.engine.create(input=str(number), store=False, idempotency_key=f"key-{number}")
        assert len(at.provider.requests) == 4
        assert at.store._claims == {}  # type: ignore[attr-defined]  # nothing of them is in the store


@pytest.mark.proves("CP-033")
async def test_one_who_sends_much_drives_out_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT", 3)
    ann, bob = Identity("acme", "ann"), Identity("other", "bob")
    async with ground(*[HELLO for _ in range(6)]) as at:
        first = await at.engine.create(ask(store=False), ann, idempotency_key="key")
        await settled(at)
        for number in range(5):
            await at.engine.create(ask(store=False), bob, idempotency_key=f"key-{number}")
            await settled(at)
        assert await at.engine.create(ask(store=False), ann, idempotency_key="key") == first
        assert [name[2] for name in at.engine._keyed._runs] == ["key", "key-3", "key-4"]


async def test_a_stored_one_that_is_not_in_memory_any_more_is_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT", 0)
    async with ground(answer(say("Hello there"), finish="length")) as at:
        request = ask(stream=True)
        first = await read(await at.engine.attach(request, ANONYMOUS, "key"))
        again = await at.engine.attach(request, ANONYMOUS, "key")
        events = await read(again)
        assert again.is_replay
        assert again.account() is None
        assert events[-1] == first[-1]
        assert len(at.provider.requests) == 1
        with pytest.raises(KeyReused):
            await at.engine.attach(ask("Other", stream=True), ANONYMOUS, "key")


# ---- the record ----


async def test_deleting_the_response_frees_its_key() -> None:
    async with ground(HELLO, OTHER) as at:
        first = await at.engine.create(input="Hello", idempotency_key="key")
        await at.engine.delete(ANONYMOUS, first.id)
        assert text_of(await at.engine.create(input="Hello", idempotency_key="key")) == "Something else"


async def test_deleting_a_response_that_runs_frees_its_key() -> None:
    async with ground(answer(say("Hello"), asyncio.Event()), OTHER) as at:
        reader = await at.engine.attach(ask(), ANONYMOUS, "key")
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
            await at.engine.attach(ask(), ANONYMOUS, "key")
        assert (caught.value.status, caught.value.code) == (409, "idempotency_key_in_use")
        assert caught.value.retry_after == 1.0
        with pytest.raises(KeyReused):
            await at.engine.attach(ask("Other"), ANONYMOUS, "key")
        assert at.provider.requests == []


async def test_a_key_that_another_process_takes_at_the_same_moment_is_not_run_twice() -> None:
    class Beaten(MemoryStore):
        async def begin(self, new: NewResponse) -> None:
            raise KeyInUse

    async with ground(HELLO, store=Beaten()) as at:
        with pytest.raises(KeyInUse):
            await at.engine.attach(ask(), ANONYMOUS, "key")
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

        async def finish(self, identity: Identity, response: Response, marks: Sequence[tuple[int, Mark]]) -> None:
            if self.is_full:
                raise StoreFault("The disk is full.")
            await super().finish(identity, response, marks)

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
        assert at.engine._keyed._runs == {}
    assert "could not be put away" in caplog.text


# ---- the end of the engine ----


async def test_an_engine_that_closes_ends_what_is_shared_and_leaves_no_task() -> None:
    store = MemoryStore()
    async with ground(answer(say("Hello"), asyncio.Event()), store=store) as at:
        reader = await at.engine.attach(ask(stream=True), ANONYMOUS, "key")
        await until(lambda: at.provider.under_way == 1)
        closing = asyncio.create_task(at.engine.close())
        events = await read(reader)
        await closing
        assert name_of(events[-1]) == "response.failed"
        with pytest.raises(ShuttingDown):
            await at.engine.attach(ask(stream=True), ANONYMOUS, "key")


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
        assert at.engine._keyed._runs == {}
        assert at.engine._keyed._names == {}


async def test_nothing_of_a_run_stays_under_a_key_that_is_gone() -> None:
    async with ground(answer(AntwortError("No."))) as at:
        with pytest.raises(AntwortError):
            await at.engine.create(input="Hello", idempotency_key="key")
        await settled(at)
        assert (at.engine._keyed._runs, at.engine._keyed._names, at.engine._keyed._kept.size) == ({}, {}, 0)
