"""Ask the backends that can answer an inference, one after the other, and report the outcomes to metrics and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from antwort.api.wire import replace
from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.base import ChatRequest, Delta, Finished, InferenceRecord, OnInference
from antwort.providers.capabilities import adapt
from antwort.providers.member import Member
from antwort.providers.retry_policy import (
    circuit_open,
    is_connection_failure,
    is_short_wait,
    may_fail_over,
    most_useful_error,
)
from antwort.providers.slots import Slots

if TYPE_CHECKING:
    from antwort.providers.tool_emulation.emulation import EmulatedInference

CONNECT_SECONDS = 1.8
"""Seconds in which all candidates together are connected to: below the two for which `response.created` is held back,
so that the client reads an HTTP error where none can be reached. Only failed connections use it up, not the wait for a
slot or for the answer of a backend that is connected.
"""
LEAST_CONNECT_SECONDS = 0.4
"""For each of them; and all that one gets that is known to be unreachable."""


class Candidate(msgspec.Struct, frozen=True):
    """A backend that can answer an inference."""

    member: Member
    model: str
    """The name of the model there."""
    weight: int
    is_small: bool = False
    """Whether the request is certainly longer than its context."""

    @property
    def wait(self) -> float:
        """Seconds until its circuit breaker lets a request pass; 0: now."""
        return self.member.breakers.wait(self.model)

    @property
    def is_healthy(self) -> bool:
        return self.member.is_healthy(self.model)

    @property
    def rank(self) -> int:
        """Healthy ones come first, and among these the ones that answer with errors last."""
        return 2 if not self.is_healthy else 1 if self.member.is_failing(self.model) else 0

    @property
    def context_length(self) -> int | None:
        return self.member.capabilities(self.model).context_length

    def adapt(self, request: ChatRequest, *, is_shared: bool) -> ChatRequest:
        """Return the request with this backend's name of the model and, where the request was written for several
        backends (`is_shared`), in the form that this one accepts.
        """
        if is_shared:
            request = adapt(request, self.member.capabilities(self.model))
        return request if request.model == self.model else replace(request, model=self.model)


class Attempt(msgspec.Struct):
    """One inference at one backend, where it holds a slot from its making to the end of its `with`.

    It is one request to the backend, or several where tool calls are emulated: as long as there is a `request`, `start`
    sends it, `feed` takes each batch of the answer, and `finish` ends it. The outcome counts for the backend's health.
    """

    candidate: Candidate
    began: float
    request: ChatRequest | None
    """What to ask the backend next; None when the attempt is over."""
    emulated: EmulatedInference | None
    trial: object | None
    """That of a half-open circuit breaker."""
    on_inference: OnInference | None
    has_answered: bool = False
    has_begun: bool = False
    """Whether a delta has gone out: from then on no other backend may answer."""
    started_at: float = 0.0
    first_delta_at: float = 0.0
    last_batch: list[Delta] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the slot back, and report the outcome. An exception that is not ours says nothing about the backend:
        the client has left, or the run was stopped.
        """
        member, model = self.candidate.member, self.candidate.model
        if error is None:
            if not self.has_answered:
                member.record_answer()
            member.deprioritized_until.discard(model)
        elif isinstance(error, AntwortError):
            member.record_failure(error, model, self.trial)
        if self.started_at:
            self._record("cancelled")
        if self.trial is not None:
            member.breakers.leave(model, self.trial)
        member.slots.give_back()

    def start(self) -> AsyncGenerator[list[Delta], None]:
        """Send the request."""
        assert self.request is not None
        self.started_at, self.first_delta_at, self.last_batch = perf_counter(), 0.0, []
        return self.candidate.member.provider.infer(self.request)

    def feed(self, batch: list[Delta]) -> list[Delta]:
        """Take a batch of the answer, and return what may go out now."""
        if not self.has_answered:
            self.has_answered = True
            self.candidate.member.record_answer()
            if CONNECT_LIMIT_SECONDS.get() is not None:
                CONNECT_LIMIT_SECONDS.set(None)
        if batch:
            if not self.last_batch:
                self.first_delta_at = perf_counter()
            self.last_batch = batch
        if self.emulated is not None:
            batch = self.emulated.feed(batch)
        if batch:
            self.has_begun = True
        return batch

    def finish(self, error: AntwortError | None = None) -> list[Delta]:
        """End the answer to the request, or its failure, and return what goes out now. Raises the error that stands."""
        self._record("" if error is None else error.code)
        if self.emulated is None:
            sent, self.request = self.request, None
            if error is not None:
                emulation = self.candidate.member.emulation
                if emulation is not None and sent is not None and not self.has_begun:
                    self.emulated = emulation.begin_after_refusal(sent, error)
                if self.emulated is None:
                    raise error
                self.request = self.emulated.request
            return []
        out = self.emulated.finish(error)
        self.request = self.emulated.request
        self.has_begun = self.has_begun or bool(out)
        return out

    def _record(self, error: str) -> None:
        if self.on_inference is not None:
            assert self.request is not None
            last = self.last_batch[-1] if self.last_batch else None
            end = last if isinstance(last, Finished) else None
            self.on_inference(
                InferenceRecord(
                    self.candidate.member.name,
                    self.request.model,
                    perf_counter() - self.started_at,
                    self.first_delta_at - self.started_at
                    if self.first_delta_at and self.request.stream is True
                    else None,
                    error if end is None else "",
                    None if end is None else end.usage,
                )
            )
        self.started_at = 0.0


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
            began, breakers = self._clock(), member.breakers
            emulated = None if member.emulation is None else member.emulation.begin(request)
            trial = breakers.enter(candidate.model) if breakers.by_model else None
            first = request if emulated is None else emulated.request
            return Attempt(candidate, began, first, emulated, trial, self._on_inference)
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
