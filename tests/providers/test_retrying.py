"""Trying again: only what may pass, only before the first batch, and no longer than is decent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

import pytest

from antwort.api.responses import Model
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    QuotaUsedUp,
    RateLimited,
)
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest, Delta, Finished, Provider, TextDelta
from antwort.providers.errors import CONNECT_TIMEOUT, CONNECTION_CLOSED
from antwort.providers.fleet import Fleet, Retrying
from antwort.providers.tool_emulation.emulation import Constrained
from jumping_time import jumping_time

REQUEST = ChatRequest(model="m", messages=[ChatMessage(role="user", content="Hi")])
ANSWER: list[list[Delta]] = [[], [TextDelta("Hi")], [Finished("stop")]]


class Moody:
    """Plays its moods in turn: raises an error, at once or after some batches, or answers."""

    def __init__(self, *moods: AntwortError | list[list[Delta] | AntwortError]) -> None:
        self._moods = list(moods)
        self.asked = self.closed = 0
        self.is_shut = False

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        assert request is REQUEST
        self.asked += 1
        mood = self._moods.pop(0) if self._moods else [*ANSWER]
        try:
            for step in [mood] if isinstance(mood, AntwortError) else mood:
                if isinstance(step, AntwortError):
                    raise step
                yield step
        finally:
            self.closed += 1

    async def models(self) -> Sequence[Model]:
        return [Model(id="m")]

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(vision=model == "seeing")

    async def check(self) -> None:
        raise BackendUnavailable("down")

    async def close(self) -> None:
        self.is_shut = True


class Clock:
    """Time passes only by waiting, or by a try that `takes` its time."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Slow(Moody):
    def __init__(self, clock: Clock, takes: float, *moods: AntwortError) -> None:
        super().__init__(*moods)
        self._clock, self._takes = clock, takes

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        self._clock.now += self._takes
        async with aclosing(super().infer(request)) as answer:
            async for batch in answer:
                yield batch


async def batches(retrying: Retrying) -> list[list[Delta]]:
    return [batch async for batch in retrying.infer(REQUEST)]


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("x"),
        RateLimited("x"),
        RateLimited("x", retry_after=1.5),
        BackendTimeout("x", code=CONNECT_TIMEOUT),
        BackendOverloaded("x"),
    ],
)
async def test_what_may_pass_is_tried_again(error: AntwortError) -> None:
    provider, clock = Moody(error), Clock()
    assert await batches(Retrying(provider, sleep=clock.sleep, clock=clock)) == ANSWER
    assert (provider.asked, provider.closed, len(clock.waits)) == (2, 2, 1)


@pytest.mark.parametrize(
    "error",
    [
        BackendError("x"),
        BackendCut("x"),
        BackendTimeout("x"),
        BackendUnavailable("x", code=CONNECTION_CLOSED),
        BackendRefused("x"),
        RateLimited("x", retry_after=1.6),
        QuotaUsedUp("x"),
        BackendUnavailable("x", retry_after=60),
    ],
)
async def test_what_cannot_pass_is_said_at_once(error: AntwortError) -> None:
    provider, clock = Moody(error), Clock()
    with pytest.raises(AntwortError) as caught:
        await batches(Retrying(provider, sleep=clock.sleep, clock=clock))
    assert caught.value is error
    assert (provider.asked, clock.waits) == (1, [])


async def test_nothing_is_tried_again_after_the_first_delta() -> None:
    provider, clock = Moody([[], [TextDelta("Hi")], BackendUnavailable("x")]), Clock()
    async with aclosing(Retrying(provider, sleep=clock.sleep, clock=clock).infer(REQUEST)) as stream:
        assert [await anext(stream), await anext(stream)] == [[], [TextDelta("Hi")]]
        with pytest.raises(BackendUnavailable):
            await anext(stream)
    assert (provider.asked, clock.waits) == (1, [])


async def test_headers_alone_are_no_answer_and_are_told_only_once() -> None:
    provider, clock = Moody([[], BackendUnavailable("x")], [[], BackendUnavailable("x")]), Clock()
    assert await batches(Retrying(provider, sleep=clock.sleep, clock=clock)) == ANSWER
    assert (provider.asked, provider.closed) == (3, 3)


async def test_the_last_attempt_says_what_is_wrong() -> None:
    errors = [BackendUnavailable(str(n)) for n in range(3)]
    provider, clock = Moody(*errors), Clock()
    with pytest.raises(BackendUnavailable) as caught:
        await batches(Retrying(provider, sleep=clock.sleep, clock=clock))
    assert caught.value is errors[-1]
    assert (provider.asked, len(clock.waits)) == (3, 2)


@pytest.mark.parametrize(("chance", "expected"), [(1.0, [0.2, 0.4, 0.8, 1.0, 1.0]), (0.0, [0.1, 0.2, 0.4, 0.5, 0.5])])
async def test_waits_double_up_to_a_cap_less_a_random_part(chance: float, expected: list[float]) -> None:
    provider, clock = Moody(*[BackendUnavailable("x")] * 5), Clock()
    retrying = Retrying(
        provider, attempts=6, base=0.2, cap=1.0, budget=60, sleep=clock.sleep, clock=clock, random=lambda: chance
    )
    assert await batches(retrying) == ANSWER
    assert clock.waits == pytest.approx(expected)


async def test_the_wait_a_backend_asks_for_is_kept() -> None:
    provider, clock = Moody(RateLimited("x", retry_after=1.25), BackendUnavailable("x", retry_after=0)), Clock()
    assert await batches(Retrying(provider, sleep=clock.sleep, clock=clock)) == ANSWER
    assert clock.waits == [1.25, 0]


async def test_all_waits_together_stay_within_the_budget() -> None:
    errors = [RateLimited(str(n), retry_after=1) for n in range(3)]
    provider, clock = Moody(*errors), Clock()
    with pytest.raises(RateLimited) as caught:
        await batches(Retrying(provider, sleep=clock.sleep, clock=clock))
    assert caught.value is errors[1]
    assert (provider.asked, clock.waits) == (2, [1])


async def test_a_wait_that_just_fits_the_budget_is_kept() -> None:
    clock = Clock()
    provider = Slow(clock, 0.5, RateLimited("x", retry_after=1))
    assert await batches(Retrying(provider, sleep=clock.sleep, clock=clock)) == ANSWER
    assert clock.waits == [1]


@pytest.mark.parametrize(("takes", "asked"), [(5.0, 1), (1.0, 2), (0.1, 3)])
async def test_the_time_that_tries_take_counts_too(takes: float, asked: int) -> None:
    clock = Clock()
    provider = Slow(clock, takes, *[BackendTimeout("x", code=CONNECT_TIMEOUT)] * 3)
    with pytest.raises(BackendTimeout):
        await batches(Retrying(provider, sleep=clock.sleep, clock=clock))
    assert provider.asked == asked


async def test_closing_in_mid_answer_closes_the_provider_s_answer() -> None:
    provider = Moody()
    async with aclosing(Retrying(provider).infer(REQUEST)) as stream:
        assert await anext(stream) == []
        assert provider.closed == 0
    assert provider.closed == 1


@pytest.mark.proves("EN-001")
async def test_everything_else_is_the_provider_s() -> None:
    provider = Moody()
    retrying = Retrying(provider)
    assert await retrying.models() == [Model(id="m")]
    assert retrying.capabilities("seeing").vision
    assert not retrying.capabilities("blind").vision
    with pytest.raises(BackendUnavailable, match="down"):
        await retrying.check()
    await retrying.close()
    assert provider.is_shut


class Changing(Moody):
    """Lists other models each time, and becomes ready. `infer` fails first."""

    def __init__(self) -> None:
        super().__init__(BackendUnavailable("down"), RateLimited("busy"))
        self.lists = self.checks = 0

    async def models(self) -> Sequence[Model]:
        await asyncio.sleep(60)
        self.lists += 1
        return [Model(id=f"m{self.lists}")]

    async def check(self) -> None:
        self.checks += 1
        if self.checks == 1:
            raise BackendUnavailable("down")


@pytest.mark.parametrize("wrap", [Retrying, Constrained])
@jumping_time
async def test_the_provider_is_asked_each_time_and_waited_for(wrap: Callable[[Provider], Provider]) -> None:
    provider = Changing()
    wrapped = wrap(provider)
    assert [await wrapped.models(), await wrapped.models()] == [[Model(id="m1")], [Model(id="m2")]]
    with pytest.raises(BackendUnavailable, match="down"):
        await wrapped.check()
    await wrapped.check()
    assert (provider.lists, provider.checks) == (2, 2)


@pytest.mark.parametrize("wrap", [Retrying, Constrained])
@jumping_time
async def test_nothing_is_asked_in_the_background_and_nothing_logged(
    wrap: Callable[[Provider], Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "antwort")
    provider = Changing()
    wrapped = wrap(provider)
    await wrapped.open()
    for _ in range(2):
        with suppress(AntwortError):
            _ = [batch async for batch in wrapped.infer(REQUEST)]
    await asyncio.sleep(3600)
    assert (provider.lists, provider.checks, caplog.records) == (0, 0, [])
    await wrapped.close()
