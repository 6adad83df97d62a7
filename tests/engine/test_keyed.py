"""Requests with an idempotency key: one run, and one response for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings
from antwort.errors import (
    BackendError,
    BackendUnavailable,
    KeyReused,
    RateLimited,
    RequestError,
    ResponseNotFound,
    StoreFault,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, StreamChecker, answer, say
from engine_kit import ask, name_of, text_of
from keyed_kit import FOR_GOOD, ended_as, ground, read
from serving import until

HELLO = answer(say("Hello there"))
OTHER = answer(say("Something else"))


# ---- the same key and the same body ----


@pytest.mark.proves("MISTAKE-30")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_the_same_request_once_more_gets_the_same_response(is_stored: bool) -> None:
    async with ground(HELLO) as at:
        first = await at.engine.start(ask(store=is_stored), ANONYMOUS, key="key")
        response = await first.result()
        again = await at.engine.start(ask(store=is_stored), ANONYMOUS, key="key")
        assert await again.result() == response
        assert (first.is_replay, again.is_replay) == (False, True)
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)
        assert text_of(response) == "Hello there"


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_streamed_request_once_more_gets_the_same_events(is_stored: bool) -> None:
    async with ground(HELLO) as at:
        request = ask(stream=True, store=is_stored)
        first = await read(await at.engine.start(request, ANONYMOUS, key="key"))
        assert await read(await at.engine.start(request, ANONYMOUS, key="key")) == first
        assert len(at.provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_many_at_the_very_same_moment_are_one_run() -> None:
    async with ground(HELLO) as at:
        readers = await asyncio.gather(*(at.engine.start(ask(), ANONYMOUS, key="key") for _ in range(50)))
        responses = [await reader.result() for reader in readers]
        assert all(response == responses[0] for response in responses)
        assert sum(not reader.is_replay for reader in readers) == 1
        assert (len(at.provider.requests), len(at.ended)) == (1, 1)


async def test_one_who_comes_while_it_runs_gets_what_was_said_and_then_the_rest() -> None:
    go = asyncio.Event()
    async with ground(answer(say("Hello there"), go, say("friend"))) as at:
        request = ask(stream=True)
        first = await at.engine.start(request, ANONYMOUS, key="key")
        reading = asyncio.create_task(read(first))
        [run] = at.engine.live_runs.values()
        await until(lambda: at.provider.under_way == 1 and run.log.next >= 5)
        second = await at.engine.start(request, ANONYMOUS, key="key")
        await second.answered()
        so_far = [event for batch in await second.read() for event in batch.events]
        assert [name_of(event) for event in so_far][:2] == ["response.created", "response.in_progress"]
        assert name_of(so_far[-1]) == "response.output_text.delta"
        go.set()
        rest = [event async for _, event in second.events()]
        assert [*so_far, *rest] == await reading


async def test_a_reader_that_does_not_read_holds_neither_the_run_nor_the_others_back_and_misses_nothing() -> None:
    async with ground(answer(say("word " * 200)), buffer_events=4) as at:
        request = ask(stream=True)
        idle = await at.engine.start(request, ANONYMOUS, key="key")
        busy = await at.engine.start(request, ANONYMOUS, key="key")
        events = await read(busy)
        assert await read(idle) == events


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_the_first_request_gets_all_events_where_none_are_kept_for_others(is_stored: bool) -> None:
    go, none = asyncio.Event(), BackgroundSettings(log_bytes=0)
    async with ground(answer(say("Hello"), go, say(" there")), background=none) as at:
        reading = asyncio.create_task(
            read(await at.engine.start(ask(stream=True, store=is_stored), ANONYMOUS, key="key"))
        )
        await until(lambda: at.provider.under_way == 1)
        go.set()
        events = await reading
        assert name_of(events[0]) == "response.created"
        assert text_of(ended_as(events[-1])) == "Hello there"


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
        assert ended_as(last) == await creating


# ---- another body, another owner ----


@pytest.mark.parametrize("change", [{"input": "Other"}, {"stream": True}, {"store": False}])
async def test_the_same_key_with_another_body_is_a_conflict(change: dict[str, Any]) -> None:
    async with ground(HELLO, OTHER) as at:
        await (await at.engine.start(ask(), ANONYMOUS, key="key")).result()
        with pytest.raises(KeyReused) as caught:
            await at.engine.start(ask(**{"input": "Hello", **change}), ANONYMOUS, key="key")
        assert (caught.value.status, caught.value.code, caught.value.param) == (409, "idempotency_key_reused", None)
        assert len(at.provider.requests) == 1


async def test_it_is_a_conflict_while_the_first_is_under_way_too() -> None:
    go = asyncio.Event()
    async with ground(answer(go, say("Hello"))) as at:
        first = await at.engine.start(ask(), ANONYMOUS, key="key")
        with pytest.raises(KeyReused):
            await at.engine.start(ask("Other"), ANONYMOUS, key="key")
        go.set()
        assert text_of(await first.result()) == "Hello"


async def test_keys_are_their_owners() -> None:
    async with ground(HELLO, HELLO, HELLO) as at:
        people = [Identity("acme", "ann"), Identity("acme", "bob"), Identity("other", "ann")]
        responses = [await (await at.engine.start(ask(), who, key="key")).result() for who in people]
        assert len({response.id for response in responses}) == 3
        again = await at.engine.start(ask(), Identity("acme", "ann", key="a second API key"), key="key")
        assert await again.result() == responses[0]


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


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_request_that_failed_before_it_was_answered_is_tried_again(stream: bool) -> None:
    broken = answer(BackendUnavailable("The backend cannot be reached."))
    async with ground(broken, HELLO) as at:
        request = ask(stream=stream)
        for attempt in (1, 2):
            reader = await at.engine.start(request, ANONYMOUS, key="key")
            if attempt == 1:
                with pytest.raises(BackendUnavailable):
                    await (reader.answered() if stream else reader.result())
                assert not reader.is_replay
        assert not reader.is_replay
        assert (await reader.result()).status == "completed"
        assert len(at.provider.requests) == 2


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_backend_that_fails_at_once_is_asked_once_for_each_request(stream: bool, is_stored: bool) -> None:
    async with ground(*[answer(BackendUnavailable("No.")) for _ in range(3)]) as at:
        for attempt in (1, 2, 3):
            async with asyncio.timeout(5):
                reader = await at.engine.start(ask(stream=stream, store=is_stored), ANONYMOUS, key="key")
            with pytest.raises(BackendUnavailable):
                await (reader.answered() if stream else reader.result())
            assert (reader.is_replay, len(at.provider.requests)) == (False, attempt)


async def test_all_who_wait_are_told_what_went_wrong() -> None:
    go = asyncio.Event()

    class Fails(ScriptedProvider):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            await go.wait()
            async with aclosing(super().infer(request)) as deltas:
                async for read in deltas:
                    yield read

    async with Engine(Fails(answer(BackendUnavailable("No."))), store=MemoryStore()) as engine:
        readers = [await engine.start(ask(), ANONYMOUS, key="key") for _ in range(3)]
        waiting = [asyncio.create_task(reader.result()) for reader in readers]
        go.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BackendUnavailable] * 3


async def test_a_request_that_is_wrong_leaves_its_key_free() -> None:
    async with ground(HELLO) as at:
        with pytest.raises(ResponseNotFound):
            await at.engine.start(ask(previous_response_id="resp_none"), ANONYMOUS, key="key")
        assert (await (await at.engine.start(ask(), ANONYMOUS, key="key")).result()).status == "completed"


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_failure_for_good_after_the_answer_has_begun_is_the_response(is_stored: bool) -> None:
    async with ground(answer(say("Hel"), FOR_GOOD)) as at:
        request = ask(stream=True, store=is_stored)
        events = await read(await at.engine.start(request, ANONYMOUS, key="key"))
        assert name_of(events[-1]) == "response.failed"
        assert await read(await at.engine.start(request, ANONYMOUS, key="key")) == events
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
        first = await at.engine.start(request, ANONYMOUS, key="key")
        failed = ended_as((await read(first))[-1]) if stream else await first.result()
        again = await at.engine.start(request, ANONYMOUS, key="key")
        assert (failed.status, first.is_replay, again.is_replay) == ("failed", False, False)
        assert (await again.result()).status == "completed"
        if is_stored:
            assert await at.engine.retrieve(ANONYMOUS, failed.id) == failed


async def test_an_incomplete_response_keeps_its_key() -> None:
    async with ground(answer(say("Half"), finish="length")) as at:
        response = await at.engine.create(input="Hello", idempotency_key="key")
        assert response.status == "incomplete"
        assert await at.engine.create(input="Hello", idempotency_key="key") == response


async def test_a_response_that_was_cancelled_by_its_id_keeps_its_key() -> None:
    async with ground(answer(say("Half"), asyncio.Event())) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        await at.engine.cancel(ANONYMOUS, reader.response_id)
        assert (await reader.result()).status == "cancelled"
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
