"""Providers around a provider: the same contract, with more patience."""

from __future__ import annotations

import asyncio
import random as dice
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from antwort.api.responses import Model
from antwort.errors import AntwortError, BackendTimeout, BackendUnavailable, RateLimited
from antwort.providers.base import Capabilities, ChatRequest, Delta, Heard, Provider, count_at, whole_of
from antwort.providers.errors import CLOSED, CONNECT_TIMEOUT
from antwort.providers.gathered import Gathered


class Retrying:
    """Tries an inference again while nothing of its answer has come: after the first delta a second try could
    contradict what the client has read. It also stops in time for the client to be told by the status of the answer.

    The empty batch that says "the backend has answered" is passed on at once, and only once.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        attempts: int = 3,
        base: float = 0.2,
        cap: float = 2.0,
        budget: float = 1.5,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = dice.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Waits, in seconds, double from `base` to `cap`, less a random part of up to a half. No try begins later than
        `budget` after the first: a backend that asks for more is not waited for, as the client can wait better.
        """
        self._provider = provider
        self.capabilities: Callable[[str], Capabilities] = provider.capabilities
        self._whole = whole_of(provider)
        self._attempts = attempts
        self._base, self._cap, self._budget = base, cap, budget
        self._sleep, self._random, self._clock = sleep, random, clock

    def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        if self._whole is None or request.stream is True:
            return self._streamed(request)
        return Gathered(self._whole, request, self._again, self._clock() + self._budget)

    async def _streamed(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        tried = 0
        has_answered = has_begun = False
        last_start = self._clock() + self._budget
        while True:
            tried += 1
            try:
                async with aclosing(self._provider.infer(request)) as batches:
                    async for batch in batches:
                        if batch:
                            has_begun = True
                        elif has_answered:
                            continue
                        has_answered = True
                        yield batch
            except AntwortError as error:
                wait = self._wait(error, tried, last_start)
                if has_begun or wait is None:
                    raise
            else:
                return
            await self._sleep(wait)

    async def _again(self, error: AntwortError, request: ChatRequest, heard: Heard, last_start: float) -> list[Delta]:
        """What became of the first try that did not fail, after one that did; the last failure where there is none."""
        assert self._whole is not None
        tried = 1
        while (wait := self._wait(error, tried, last_start)) is not None and not any(heard):
            await self._sleep(wait)
            tried += 1
            try:
                return await self._whole(request, heard)
            except AntwortError as another:
                error = another
        raise error

    async def models(self) -> Sequence[Model]:
        return await self._provider.models()

    async def count(self, request: ChatRequest) -> int | None:
        return await count_at(self._provider, request)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    def _wait(self, error: AntwortError, tried: int, last_start: float) -> float | None:
        """Seconds until the next try; None when there is to be none."""
        if tried >= self._attempts or not _may_pass(error):
            return None
        wait = self._pause(tried) if error.retry_after is None else error.retry_after
        return None if self._clock() + wait > last_start else wait

    def _pause(self, tried: int) -> float:
        longest: float = min(self._cap, self._base * 2 ** (tried - 1))
        return longest * (0.5 + self._random() / 2)


def _may_pass(error: AntwortError) -> bool:
    """Whether the same request may succeed a moment later, and cannot have been begun by the backend."""
    if isinstance(error, BackendTimeout):
        return error.code == CONNECT_TIMEOUT
    is_passing = isinstance(error, BackendUnavailable | RateLimited) and error.may_pass is not False
    return is_passing and error.code != CLOSED
