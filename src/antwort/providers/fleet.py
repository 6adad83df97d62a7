"""Several backends as one provider: routing, failover and retry."""

from __future__ import annotations

import asyncio
import logging
import math
import random as random_module
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING

from antwort.api.responses import Model
from antwort.api.wire import replace
from antwort.errors import AntwortError, ModelNotFound, NotFound, UnsupportedFeature
from antwort.providers.base import (
    Capabilities,
    ChatRequest,
    Delta,
    Finished,
    InferenceRecord,
    OnInference,
    OtherName,
    Provider,
)
from antwort.providers.capabilities import accepts, is_too_long, widest
from antwort.providers.failover import Attempt, Failover
from antwort.providers.health import CallLater, HealthMonitor, call_later
from antwort.providers.member import BackendStatus, Member
from antwort.providers.retry_policy import NO_RETRY, RetryPolicy, most_useful_error
from antwort.providers.routing import Router, Rules, arrange

if TYPE_CHECKING:
    from antwort.providers.tool_emulation.emulation import ToolEmulation

__all__ = ["BackendStatus", "Fleet", "Member", "Retrying"]

REFRESH_INTERVAL_SECONDS = 5.0
"""Between two refreshes of the lists of models that requests ask for."""
MODEL_TIMEOUT_SECONDS = 1.0
"""For which an inference waits for such a refresh, if no backend is known to have its model."""
LIST_TIMEOUT_SECONDS = 2.0
"""For which a request for the list of models waits for slow backends."""
TOTAL_COUNT_TIMEOUT_SECONDS = 2.0
"""For a token count, over all backends that are asked for it; each has its share."""
LEAST_COUNT_TIMEOUT_SECONDS = 0.5


class Fleet:
    """A provider of several backends, the preferred one first; `rules` say which of them answer for which model.

    It works as it is; `open` begins to check the health of its members. `close` closes them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        rules: Rules = Rules(),  # noqa: B008 - a frozen value
        *,
        retry: RetryPolicy = NO_RETRY,
        refresh: float = 60.0,
        health: float | None = 10.0,
        on_inference: OnInference | None = None,
        random: Callable[[], float] = random_module.random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: CallLater = call_later,
    ) -> None:
        """`refresh` and `health` are the seconds between two refreshes of the lists of models, and between two checks
        of unreachable members; None: no checks. `on_inference` is called after each request to a backend.
        """
        if not members:
            raise ValueError("a fleet has at least one backend")
        if len({member.name for member in members}) != len(members):
            raise ValueError("two backends have the same name")
        self._members = tuple(members)
        self._is_shared = len(members) > 1
        """Whether requests are written for several backends, and adapted to the one that gets them."""
        self._router = Router(rules, self._members)
        self._only = self._members[0] if len(members) == 1 and rules == Rules() and not members[0].prefix else None
        """The only backend, if no rule applies to it: the common case."""
        self.capabilities: Callable[[str], Capabilities] = (
            self._widest if self._only is None else self._only.capabilities
        )
        self._retry, self._on_inference = retry, on_inference
        self._random, self._clock, self._sleep = random, clock, sleep
        self._monitor = HealthMonitor(self._members, refresh=refresh, health=health, clock=clock, later=later)

    async def open(self) -> None:
        """Begin to check the members' health. Returns at once."""
        self._monitor.start()

    async def close(self) -> None:
        await self._monitor.close()
        await asyncio.gather(*(member.provider.close() for member in self._members))

    # ---- an inference ----

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        """Run the inference at the first candidate that answers. Before the first delta, a failed attempt goes on at
        the next candidate, and when all have failed, the retry policy decides about another round.

        The empty batch that says "the backend has answered" is passed on once: another backend may still answer.
        """
        last_start = self._clock() + self._retry.budget
        candidates = await self._candidates(request) if self._only is None else [Attempt(self._only, request.model)]
        failover = Failover(request, self._is_shared, self._clock, candidates)
        has_answered = False
        while True:
            attempt = failover.choose() or await self._wait(failover, last_start)
            try:
                failover.start(attempt)
                while (sent := attempt.request) is not None:
                    failure: AntwortError | None = None
                    last: list[Delta] = []
                    first_delta_at, sent_at, error_code = 0.0, perf_counter(), "cancelled"
                    batches = attempt.member.provider.infer(sent)
                    try:
                        async for batch in batches:
                            if not attempt.has_answered:
                                attempt.record_answer()
                            if batch:
                                last = batch
                                first_delta_at = first_delta_at or perf_counter()
                            out = batch if attempt.emulated is None else attempt.emulated.feed(batch)
                            if out:
                                failover.has_begun = True
                            elif has_answered:
                                continue
                            has_answered = True
                            yield out
                        error_code = ""
                    except AntwortError as error:
                        failure, error_code = error, error.code
                    finally:
                        await batches.aclose()
                        if self._on_inference is not None:
                            backend = attempt.member.name
                            self._on_inference(_record(backend, sent, sent_at, first_delta_at, last, error_code))
                    if failure is None and attempt.emulated is None:
                        break
                    if out := attempt.finish(sent, failure, has_begun=failover.has_begun):
                        failover.has_begun = True
                        yield out
                if attempt.member.deprioritized_until:
                    attempt.member.deprioritized_until.discard(attempt.model)
                return
            except AntwortError as error:
                failover.record_failure(attempt, error)
                self._look_into(attempt)
            finally:
                attempt.end()

    async def _wait(self, failover: Failover, last_start: float) -> Attempt:
        """Wait for the next candidate or, when all have failed, for another round of them. No round begins after
        `last_start`. Raises the error that stands.
        """
        while True:
            try:
                return await failover.wait()
            except AntwortError as error:
                delay = self._retry.delay(error, failover.rounds, last_start - self._clock(), self._random)
                if failover.has_begun or delay is None:
                    raise
            await self._sleep(delay)
            failover.begin_round(await self._candidates(failover.request))

    async def _candidates(self, request: ChatRequest) -> list[Attempt]:
        """Return the backends that can answer, in the order in which to ask them. Raises `ModelNotFound`, and
        `UnsupportedFeature` where none takes every part of the request. If no backend is known to have the model, the
        lists are refreshed first.
        """
        if self._only is not None:
            return [Attempt(self._only, request.model)]
        group = self._router.find(request.model)
        if (group is None or group.is_guess) and len(self._members) > 1:
            await self._monitor.wait_for_refresh(REFRESH_INTERVAL_SECONDS, MODEL_TIMEOUT_SECONDS)
            group = self._router.find(request.model)
        if group is None:
            raise ModelNotFound(request.model)
        able: list[Attempt] = []
        for each in group.candidates:
            capabilities = each.member.capabilities(each.model)
            if accepts(request, capabilities):
                each.is_small = is_too_long(request, capabilities)
                able.append(each)
        if not able:
            raise UnsupportedFeature("The model does not take the images or files of the request.", param="input")
        if len(able) == 1:
            return able
        return arrange(
            able,
            group.policy,
            weight=lambda each: each.weight,
            rank=lambda each: each.rank,
            draw=self._random,
        )

    def _look_into(self, attempt: Attempt) -> None:
        """After a failure, have a member checked that is unreachable, or whose health check is due; and all lists
        refreshed where one is wrong.
        """
        self._monitor.watch(attempt.member)
        if isinstance(attempt.error, NotFound) and attempt.member.lists(attempt.model):
            self._monitor.refresh(REFRESH_INTERVAL_SECONDS)

    # ---- models ----

    async def models(self) -> Sequence[Model]:
        """Return all models that clients may ask for, each once, with the length of its context. Raises only if none is
        known.
        """
        await self._monitor.wait_for_refresh(REFRESH_INTERVAL_SECONDS, LIST_TIMEOUT_SECONDS)
        found: dict[str, Model] = {}
        added = (OtherName(id=name) for name in self._router.names())
        for model in chain(*(member.listed() for member in self._members), added):
            found.setdefault(model.id, model)
        errors = [member.error for member in self._members if member.error is not None]
        if not found and errors:
            raise most_useful_error(errors).with_traceback(None)
        return [_with_length(model, self.capabilities(model.id)) for model in found.values()]

    def lists(self, model: str) -> bool:
        """Whether a backend lists the model, by its own name or by the one that clients ask for."""
        return any(
            member.lists(model) or (member.prefix and member.lists(model.removeprefix(member.prefix)))
            for member in self._members
        )

    def _widest(self, model: str) -> Capabilities:
        """Return what at least one of the backends takes that can answer for the model. Where none is known, all
        count, but not their context lengths: these may be of other models.
        """
        group = self._router.find(model)
        if group is None or (group.is_guess and len(self._members) > 1):
            everyone = widest([member.capabilities(model) for member in self._members])
            return replace(everyone, context_length=None)
        return widest([each.member.capabilities(each.model) for each in group.candidates])

    async def count(self, request: ChatRequest) -> int | None:
        """Have the first backend count that can answer for the model, and count: most have the same tokenizer."""
        group = self._router.find(request.model)
        asked = [] if group is None else [each for each in group.candidates if each.is_healthy]
        until = asyncio.get_running_loop().time() + TOTAL_COUNT_TIMEOUT_SECONDS
        for number, candidate in enumerate(asked):
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            share = max(min(left, LEAST_COUNT_TIMEOUT_SECONDS), left / (len(asked) - number))
            outgoing = candidate.adapt(request, is_shared=self._is_shared)
            with suppress(TimeoutError):
                async with asyncio.timeout(share):
                    counted = await candidate.member.count(outgoing)
                if counted is not None:
                    return counted
        return None

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless one backend can be reached."""
        await self._monitor.check_ready()

    def status(self) -> Sequence[BackendStatus]:
        """Return the state of each backend as far as it is known, without asking them."""
        return [member.status for member in self._members]


class SingleBackend(Fleet):
    """One provider with the retry and the tool emulation of a fleet. It is asked directly: nothing of it is cached,
    checked in the background or logged.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        retry: RetryPolicy = NO_RETRY,
        emulation: ToolEmulation | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._member = Member("backend", provider, emulation=emulation, failures=math.inf, clock=clock, log=_SILENT)
        super().__init__([self._member], retry=retry, health=None, sleep=sleep, random=random, clock=clock)

    async def open(self) -> None:
        pass

    async def models(self) -> Sequence[Model]:
        return await self._member.provider.models()

    async def count(self, request: ChatRequest) -> int | None:
        return await self._member.count(request)

    async def check(self) -> None:
        await self._member.provider.check()


class Retrying(SingleBackend):
    """A provider whose inferences are retried while nothing of their answer has come: see `RetryPolicy`."""

    def __init__(
        self,
        provider: Provider,
        *,
        attempts: int = 3,
        base: float = 0.2,
        cap: float = 2.0,
        budget: float = 1.5,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        retry = RetryPolicy(attempts, base, cap, budget)
        super().__init__(provider, retry=retry, sleep=sleep, random=random, clock=clock)


_SILENT = logging.Logger("antwort.providers.silent", logging.CRITICAL + 1)


def _record(
    backend: str, request: ChatRequest, sent_at: float, first_delta_at: float, last: list[Delta], error: str
) -> InferenceRecord:
    """Return what metrics count of a request that ends now. `first_delta_at` is 0 where there was none, `last` the last
    batch of deltas, and `error` the code.
    """
    seconds, usage = perf_counter() - sent_at, None
    first_delta = first_delta_at - sent_at if first_delta_at and request.stream is True else None
    if last and isinstance(end := last[-1], Finished):
        error, usage = "", end.usage
    return InferenceRecord(backend, request.model, seconds, first_delta, error, usage)


def _with_length(model: Model, capabilities: Capabilities) -> Model:
    length = capabilities.context_length
    return model if length is None else replace(model, context_length=length)
