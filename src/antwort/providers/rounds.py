"""One inference's way through those who can answer it: whom it asks next, and what it has learned of those it asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.connection import CONNECT_SHARE
from antwort.providers.attempts import Attempt, begin
from antwort.providers.base import ChatRequest, Delta
from antwort.providers.candidates import Candidate, askable, larger, next_of, share_of, worth_waiting_for
from antwort.providers.verdicts import is_unconnected, may_go_elsewhere, most_telling

CONNECTING = 1.8
"""Seconds in which all who can answer are connected to, one after the other: below the two for which
`response.created` is held back, so that where nobody is there it shows as an HTTP error. Only failing to connect
uses it up: not waiting for a place, nor for the answer of one that is there.
"""


class Round:
    """`candidates` are asked in their order, as long as nothing of an answer has come."""

    __slots__ = ("_clock", "_failures", "_left", "_request", "_time_left", "_tried", "candidate")

    candidate: Candidate
    """The one that is asked, or was asked last."""

    def __init__(self, candidates: Sequence[Candidate], request: ChatRequest, clock: Callable[[], float]) -> None:
        self._left = [*candidates]
        self._request, self._clock = request, clock
        self._time_left = CONNECTING if len(self._left) > 1 else None
        self._tried: list[Candidate] = []
        self._failures: list[AntwortError] = []

    @classmethod
    def begun(cls, candidate: Candidate, request: ChatRequest, clock: Callable[[], float]) -> Self:
        """With the only one there is, who was asked without ado."""
        begun = cls((), request, clock)
        begun.candidate = candidate
        return begun

    def at_once(self) -> Attempt | None:
        """As `next`, where there is only one to ask, and it need not be waited for: mostly."""
        if len(self._left) == 1 and self._left[0].member.is_there(self._left[0].model):
            return self._begin(self._left.pop())
        return None

    async def next(self) -> Attempt:
        """Begin with the next one, of which a place is held from then on. Raises what has gone wrong when nobody is
        left.
        """
        candidate = await next_of(self._left, self._failures)
        if candidate is None:
            raise most_telling(worth_waiting_for(self._tried, self._failures) or self._failures)
        return self._begin(candidate)

    def _begin(self, candidate: Candidate) -> Attempt:
        self.candidate = candidate
        if self._time_left is not None:
            CONNECT_SHARE.set(share_of(candidate.member, len(askable(self._left)) + 1, self._time_left))
        return begin(candidate.member, candidate.model, self._clock)

    def hear(self, attempt: Attempt, batch: list[Delta]) -> None:
        """The first batches of an answer have come, up to the first delta."""
        if self._time_left is not None:
            CONNECT_SHARE.set(None)
        attempt.hear(batch)

    def failed(self, attempt: Attempt, error: AntwortError) -> None:
        """Raises the error as the client may read it, where nobody else is to be asked."""
        if self._time_left is not None:
            CONNECT_SHARE.set(None)
            if is_unconnected(error):
                self._time_left -= attempt.seconds
        self._tried.append(self.candidate)
        self._failures.append(_told(error, self.candidate, self._request.model))
        if attempt.has_begun or not may_go_elsewhere(error):
            raise self._failures[-1] from error.__cause__
        self._left = larger(self._left, self.candidate, error)


def _told(error: AntwortError, candidate: Candidate, asked: str) -> AntwortError:
    """The error as the client may read it: it knows the model by the name that it asked for. One that is too small is
    known to be, whether it says how much fits or not.
    """
    if isinstance(error, ContextTooLong) and candidate.is_small:
        error.limit = error.limit or candidate.length
    return ModelNotFound(asked) if isinstance(error, ModelNotFound) and candidate.model != asked else error
