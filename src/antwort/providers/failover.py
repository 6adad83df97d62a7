"""Ask the backends that can answer an inference, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.attempt import Attempt, Candidate
from antwort.providers.base import ChatRequest, OnInference
from antwort.providers.retry_policy import (
    circuit_open,
    is_connection_failure,
    is_short_wait,
    may_fail_over,
    most_useful_error,
)
from antwort.providers.slots import Slots

CONNECT_SECONDS = 1.8
"""Seconds in which all candidates together are connected to: below the two for which `response.created` is held back,
so that the client reads an HTTP error where none can be reached. Only failed connections use it up, not the wait for a
slot or for the answer of a backend that is connected.
"""
LEAST_CONNECT_SECONDS = 0.4
"""For each of them; and all that one gets that is known to be unreachable."""


class Failover:
    """The candidates of one inference, asked in their order as long as nothing of an answer has come."""

    __slots__ = ("_clock", "_connect_seconds", "_errors", "_is_shared", "_left", "_on_inference", "_request", "_tried")

    def __init__(
        self,
        candidates: Sequence[Candidate],
        request: ChatRequest,
        *,
        is_shared: bool,
        clock: Callable[[], float],
        on_inference: OnInference | None,
    ) -> None:
        """`is_shared`: the request was written for several backends."""
        self._left = [*candidates]
        self._request, self._is_shared = request, is_shared
        self._clock, self._on_inference = clock, on_inference
        self._connect_seconds = CONNECT_SECONDS if len(self._left) > 1 else None
        self._tried: list[Candidate] = []
        self._errors: list[AntwortError] = []

    def take(self) -> Candidate | None:
        """Take a slot of the first healthy candidate that has one free."""
        for candidate in self._left:
            member = candidate.member
            if not candidate.is_small and member.is_healthy(candidate.model) and member.slots.take():
                return candidate
        return None

    def begin(self, candidate: Candidate) -> Attempt:
        """Begin an attempt at a candidate whose slot is taken."""
        self._left.remove(candidate)
        member = candidate.member
        try:
            request = self._request
            if self._is_shared or candidate.model != request.model:
                request = candidate.adapt(request, is_shared=self._is_shared)
            if self._connect_seconds is not None:
                askable = 1 + sum(not each.wait for each in self._left)
                share = 0.0 if member.is_unreachable else self._connect_seconds / askable
                CONNECT_LIMIT_SECONDS.set(max(LEAST_CONNECT_SECONDS, share))
            return Attempt(candidate, request, self._clock, self._on_inference)
        except BaseException:
            member.slots.give_back()
            raise

    async def wait(self) -> Candidate:
        """Wait for a slot of a healthy candidate, or of one that recovers meanwhile, and take it. Candidates with a
        context that is too small come when no other one is healthy, unreachable ones when none is. Open circuit
        breakers are errors. Raises the most useful error if no candidate is left.
        """
        while askable := [each for each in self._left if not each.wait]:
            healthy = [each for each in askable if each.is_healthy]
            fitting = [each for each in healthy if not each.is_small]
            hopeful = fitting or healthy or askable[:1]
            chosen = next((each for each in hopeful if each.member.slots.take()), None)
            if chosen is None:
                others = [each for each in self._left if each not in hopeful and not (fitting and each.is_small)]
                free = await Slots.take_first(
                    [each.member.slots for each in hopeful], [each.member.slots for each in others]
                )
                chosen = next(each for each in self._left if each.member.slots is free)
            if not chosen.wait:
                return chosen
            chosen.member.slots.give_back()  # its circuit breaker has opened meanwhile
        self._errors.extend(circuit_open(each.wait) for each in self._left)
        raise most_useful_error(_worth_waiting_for(self._tried, self._errors) or self._errors)

    def record_failure(self, attempt: Attempt, error: AntwortError) -> None:
        """Record a failed attempt. Raises the error as the client may read it unless another candidate may be asked."""
        if self._connect_seconds is not None:
            CONNECT_LIMIT_SECONDS.set(None)
            if is_connection_failure(error):
                self._connect_seconds -= self._clock() - attempt.began
        candidate = attempt.candidate
        if isinstance(error, ContextTooLong):
            length = error.limit or candidate.context_length
            self._left = [each for each in self._left if length is None or (each.context_length or length + 1) > length]
            if candidate.is_small:  # that much is known, whether the backend says it or not
                error.limit = error.limit or candidate.context_length
        reported = error
        if isinstance(error, ModelNotFound) and candidate.model != self._request.model:
            reported = ModelNotFound(self._request.model)  # the client knows the model by this name
        self._tried.append(candidate)
        self._errors.append(reported)
        if attempt.has_begun or not may_fail_over(error):
            raise reported from error.__cause__


def _worth_waiting_for(tried: Sequence[Candidate], errors: Sequence[AntwortError]) -> Sequence[AntwortError]:
    """Return the errors that pass soon, of candidates that may take what others have found too long: a request that
    has only to wait need not be shortened. `errors` are those of `tried`, in their order, and may be more.
    """
    asked = list(zip(tried, errors, strict=False))
    too_long = [error.limit or each.context_length or 0 for each, error in asked if isinstance(error, ContextTooLong)]
    if not too_long:
        return ()
    most = max(too_long)
    waiting = [each for each in asked if is_short_wait(each[1]) and not each[0].is_small]
    return [error for each, error in waiting if (each.context_length or most + 1) > most]
