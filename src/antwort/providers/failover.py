"""The backends that can answer one inference: which is asked next, and what a failure means for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from antwort.api.wire import replace
from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.base import ChatRequest, Delta
from antwort.providers.capabilities import adapt
from antwort.providers.member import Member, wait_for_slot
from antwort.providers.retry_policy import (
    circuit_open,
    is_connection_failure,
    is_short_wait,
    may_fail_over,
    most_useful_error,
)

if TYPE_CHECKING:
    from antwort.providers.tool_emulation.emulation import EmulatedInference

CONNECT_SECONDS = 1.8
"""Seconds in which all candidates together are connected to: below the two for which `response.created` is held back,
so that the client reads an HTTP error where none can be reached. Only failed connections use it up, not the wait for a
slot or for the answer of a backend that is connected.
"""
LEAST_CONNECT_SECONDS = 0.4
"""For each of them; and all that one gets that is known to be unreachable."""


class Attempt(msgspec.Struct, eq=False):
    """A backend that can answer an inference, and the attempt at it, which holds a slot from its choice to `end`.

    It is one request to the backend, or several where tool calls are emulated: as long as there is a `request`, it is
    sent.
    """

    member: Member
    model: str
    """The name of the model there."""
    weight: int = 1
    is_small: bool = False
    """Whether the request is certainly longer than its context."""
    request: ChatRequest | None = None
    """What to ask the backend next; None when the attempt is over."""
    emulated: EmulatedInference | None = None
    trial: object | None = None
    """That of a half-open circuit breaker."""
    connect_limit: float | None = None
    """Most seconds to connect, where another candidate may have to be connected to after this one."""
    has_answered: bool = False
    error: AntwortError | None = None
    """Why it failed, as the client may read it."""

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

    def record_answer(self) -> None:
        """Record that the backend has answered, if only with its headers."""
        self.has_answered = True
        if not self.member.is_well:
            self.member.record_answer()
        if self.connect_limit is not None:
            CONNECT_LIMIT_SECONDS.set(None)

    def finish(self, sent: ChatRequest, error: AntwortError | None, *, has_begun: bool) -> list[Delta]:
        """End the answer to the request that was `sent`, or its failure, and return what goes out now. Raises the error
        that stands. `has_begun`: a delta of the inference has gone out.
        """
        out: list[Delta] = []
        if self.emulated is not None:
            out = self.emulated.finish(error)
        elif error is not None:
            if (emulation := self.member.emulation) is not None and not has_begun:
                self.emulated = emulation.begin_after_refusal(sent, error)
            if self.emulated is None:
                raise error
        self.request = None if self.emulated is None else self.emulated.request
        return out

    def end(self) -> None:
        """Give the slot back."""
        if self.connect_limit is not None:
            CONNECT_LIMIT_SECONDS.set(None)
        if self.trial is not None:
            self.member.breakers.leave(self.model, self.trial)
        if self.member.slots is not None:
            self.member.slots.give_back()


class Failover(msgspec.Struct, eq=False):
    """The candidates of one inference, asked in their order as long as nothing of an answer has come.

    `choose` or `wait` chooses the next one and takes its slot, `start` begins the attempt at it, and `record_failure`
    leaves out those that could not help either.
    """

    request: ChatRequest
    is_shared: bool
    """Whether the request was written for several backends."""
    clock: Callable[[], float]
    left: list[Attempt]
    """The candidates of this round that have not been asked."""
    has_begun: bool = False
    """Whether a delta of the inference has gone out."""
    rounds: int = 1
    failed: list[Attempt] = []
    """Those that have failed in this round."""
    error: AntwortError | None = None
    """The error that has ended this round: another backend could not help."""
    connect_seconds: float = CONNECT_SECONDS
    """How long further candidates may take to connect, if there are several."""
    began_at: float = 0.0
    """When the last attempt with a limit began."""

    def begin_round(self, candidates: list[Attempt]) -> None:
        self.rounds += 1
        self.left, self.failed, self.error, self.connect_seconds = candidates, [], None, CONNECT_SECONDS

    def choose(self) -> Attempt | None:
        """Choose the first healthy candidate with a free slot, and take that; None if there is none."""
        for each in self.left:
            if each.is_small or not (each.member.is_well or each.is_healthy):
                continue
            if (slots := each.member.slots) is None or slots.take():
                return each
        return None

    async def wait(self) -> Attempt:
        """Wait for a slot of a healthy candidate, or of one that recovers meanwhile, and take it.
        Candidates with a context that is too small come when no other one is healthy, unreachable ones when none is.
        Open circuit breakers are errors. Raises the most useful error if no candidate is left.
        """
        if self.error is not None:
            raise self.error
        while askable := [each for each in self.left if not each.wait]:
            healthy = [each for each in askable if each.is_healthy]
            fitting = [each for each in healthy if not each.is_small]
            hopeful = fitting or healthy or askable[:1]
            for each in hopeful:
                if each.member.slots is None or each.member.slots.take():
                    return each
            others = [each for each in self.left if each not in hopeful and not (fitting and each.is_small)]
            free = await wait_for_slot([each.member for each in hopeful], [each.member for each in others])
            if free is not None and free.slots is not None:
                for each in self.left:
                    if each.member is free and not each.wait:
                        return each
                free.slots.give_back()  # its circuit breaker has opened meanwhile
        errors = [each.error for each in self.failed if each.error is not None]
        errors += [circuit_open(each.wait) for each in self.left]
        raise most_useful_error(self._worth_waiting_for() or errors)

    def start(self, attempt: Attempt) -> None:
        """Begin the attempt at a candidate that was chosen."""
        member, request = attempt.member, self.request
        self.left.remove(attempt)
        if self.is_shared or attempt.model != request.model:
            request = attempt.adapt(request, is_shared=self.is_shared)
        if self.left or self.failed:
            askable = 1 + sum(not each.wait for each in self.left)
            share = 0.0 if member.is_unreachable else self.connect_seconds / askable
            attempt.connect_limit = max(LEAST_CONNECT_SECONDS, share)
            self.began_at = self.clock()
            CONNECT_LIMIT_SECONDS.set(attempt.connect_limit)
        attempt.request = request
        if member.emulation is not None and (emulated := member.emulation.begin(request)) is not None:
            attempt.emulated, attempt.request = emulated, emulated.request
        if not member.is_well:
            attempt.trial = member.breakers.enter(attempt.model)

    def record_failure(self, attempt: Attempt, error: AntwortError) -> None:
        """Record why an attempt has failed, and leave out the candidates that could not help."""
        attempt.member.record_failure(error, attempt.model, attempt.trial)
        if attempt.connect_limit is not None and is_connection_failure(error):
            self.connect_seconds -= self.clock() - self.began_at
        if isinstance(error, ContextTooLong):
            length = error.limit or attempt.context_length
            self.left = [each for each in self.left if length is None or (each.context_length or length + 1) > length]
            if attempt.is_small:  # that much is known, whether the backend says it or not
                error.limit = error.limit or attempt.context_length
        attempt.error = error
        if isinstance(error, ModelNotFound) and attempt.model != self.request.model:
            attempt.error = ModelNotFound(self.request.model)  # the client knows the model by this name
            attempt.error.__cause__ = error.__cause__
        self.failed.append(attempt)
        if self.has_begun or not may_fail_over(error):
            self.left, self.error = [], attempt.error

    def _worth_waiting_for(self) -> Sequence[AntwortError]:
        """Return the errors that pass soon, of candidates that may take what others have found too long: a request that
        has only to wait need not be shortened.
        """
        failed = [(each, each.error) for each in self.failed if each.error is not None]
        too_long = [
            error.limit or each.context_length or 0 for each, error in failed if isinstance(error, ContextTooLong)
        ]
        if not too_long:
            return ()
        most = max(too_long)
        return [
            error
            for each, error in failed
            if is_short_wait(error) and not each.is_small and (each.context_length or most + 1) > most
        ]
