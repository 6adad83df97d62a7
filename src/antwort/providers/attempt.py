"""Run one inference at one backend, and report its outcome to metrics and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from time import perf_counter
from types import TracebackType

import msgspec

from antwort.api.wire import replace
from antwort.errors import AntwortError
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.base import ChatRequest, Delta, Finished, InferenceRecord, OnInference
from antwort.providers.capabilities import adapt
from antwort.providers.member import Member


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


class Attempt:
    """One inference at one backend, where it holds a slot from its making to the end of its `with`.

    It is one request to the backend, or several where tool calls are emulated: as long as there is a `request`, `start`
    sends it, `feed` takes each batch of the answer, and `finish` ends it. The outcome counts for the backend's health.
    """

    __slots__ = (
        "_emulated",
        "_first_delta_at",
        "_last_batch",
        "_on_inference",
        "_started_at",
        "_trial",
        "began",
        "candidate",
        "has_answered",
        "has_begun",
        "request",
    )

    def __init__(
        self,
        candidate: Candidate,
        request: ChatRequest,
        clock: Callable[[], float],
        on_inference: OnInference | None,
    ) -> None:
        member = candidate.member
        self.candidate = candidate
        self.began = clock()
        self._on_inference = on_inference
        self._emulated = None if member.emulation is None else member.emulation.begin(request)
        self._trial = member.breakers.enter(candidate.model) if member.breakers.by_model else None
        self.request: ChatRequest | None = request if self._emulated is None else self._emulated.request
        """What to ask the backend next; None when the attempt is over."""
        self.has_answered = False
        self.has_begun = False
        """Whether a delta has gone out: from then on no other backend may answer."""
        self._started_at = 0.0
        self._first_delta_at = 0.0
        self._last_batch: list[Delta] = []

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
            member.record_failure(error, model, self._trial)
        if self._started_at:
            self._record("cancelled")
        if self._trial is not None:
            member.breakers.leave(model, self._trial)
        member.slots.give_back()

    def start(self) -> AsyncGenerator[list[Delta], None]:
        """Send the request."""
        assert self.request is not None
        self._started_at, self._first_delta_at, self._last_batch = perf_counter(), 0.0, []
        return self.candidate.member.provider.infer(self.request)

    def feed(self, batch: list[Delta]) -> list[Delta]:
        """Take a batch of the answer, and return what may go out now."""
        if not self.has_answered:
            self.has_answered = True
            self.candidate.member.record_answer()
            if CONNECT_LIMIT_SECONDS.get() is not None:
                CONNECT_LIMIT_SECONDS.set(None)
        if batch:
            if not self._last_batch:
                self._first_delta_at = perf_counter()
            self._last_batch = batch
        if self._emulated is not None:
            batch = self._emulated.feed(batch)
        if batch:
            self.has_begun = True
        return batch

    def finish(self, error: AntwortError | None = None) -> list[Delta]:
        """End the answer to the request, or its failure, and return what goes out now. Raises the error that stands."""
        self._record("" if error is None else error.code)
        if self._emulated is None:
            sent, self.request = self.request, None
            if error is not None:
                emulation = self.candidate.member.emulation
                if emulation is not None and sent is not None and not self.has_begun:
                    self._emulated = emulation.begin_after_refusal(sent, error)
                if self._emulated is None:
                    raise error
                self.request = self._emulated.request
            return []
        out = self._emulated.finish(error)
        self.request = self._emulated.request
        self.has_begun = self.has_begun or bool(out)
        return out

    def _record(self, error: str) -> None:
        if self._on_inference is not None:
            assert self.request is not None
            last = self._last_batch[-1] if self._last_batch else None
            end = last if isinstance(last, Finished) else None
            self._on_inference(
                InferenceRecord(
                    self.candidate.member.name,
                    self.request.model,
                    perf_counter() - self._started_at,
                    self._first_delta_at - self._started_at
                    if self._first_delta_at and self.request.stream is True
                    else None,
                    error if end is None else "",
                    None if end is None else end.usage,
                )
            )
        self._started_at = 0.0
