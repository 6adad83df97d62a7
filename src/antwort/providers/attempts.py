"""One inference at a member: what becomes of it, and what that says about the member."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import msgspec

from antwort.errors import AntwortError, BackendTimeout, ContextTooLong
from antwort.providers.base import Delta
from antwort.providers.member import Member
from antwort.providers.verdicts import counts, may_be_the_request

OVERDUE = 30.0
"""Seconds without an answer, after which a stream that is given up is a failure of the backend's."""


class Attempt(msgspec.Struct, eq=False):
    """From its start to its end, at a member of which it holds a place. The member learns what becomes of it.

    It has begun when it is made, see `begin`; whoever makes it leaves its `with`, or says how it `ended`.
    """

    member: Member
    clock: Callable[[], float]
    began: float
    trial: object | None
    is_streamed: bool
    has_answered: bool = False
    has_begun: bool = False
    """Whether its first delta has come."""
    doubt: AntwortError | None = None
    """A failure that may be the request's fault."""

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.clock() - self.began

    def hear(self, batch: list[Delta]) -> None:
        """A batch has come, the first of which says that the backend has answered."""
        self.has_begun = bool(batch)
        if not self.has_answered:
            self.has_answered = True
            self.member.answered(self.trial)

    def ended(self, error: BaseException | None = None) -> None:
        """Whoever has answered to the end has answered, though nobody heard a part of it before."""
        member, trial = self.member, self.trial
        if error is None:
            if not self.has_answered:
                member.answered(trial)
            member.breaker.succeeded()
        elif isinstance(error, AntwortError):
            self._failed(error)
        elif self._is_overdue():  # anything else says nothing: the client left, or we are at fault
            member.count(BackendTimeout("The backend did not begin to answer."), trial)
        if trial is not None:
            member.breaker.leave(trial)
        if not member.places.are_endless:
            member.places.give_back()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(error)

    def _failed(self, error: AntwortError) -> None:
        self.member.note(error)
        if not counts(error):
            self.member.answered(self.trial)
        elif self.trial is None and not self.has_begun and may_be_the_request(error):
            self.doubt = error
        else:
            self.member.count(error, self.trial)

    def _is_overdue(self) -> bool:
        """A stream has its headers soon; an answer in one piece has them only when the inference is done."""
        return self.is_streamed and not self.has_answered and self.seconds >= OVERDUE


def begin(member: Member, clock: Callable[[], float], *, is_streamed: bool) -> Attempt:
    """Ask the member, of which a place is held."""
    breaker = member.breaker
    return Attempt(member, clock, clock(), None if breaker.is_closed else breaker.enter(), is_streamed)


class Doubts:
    """Failures that may be the request's fault. They count against a backend when another one answers the request, or
    when no other one was there to compare; a request at which several fail alike counts against none. Neither does one
    that is too long for any of them: there are backends that break at such.
    """

    __slots__ = ("_attempts", "_is_long")

    def __init__(self) -> None:
        self._attempts: list[Attempt] = []
        self._is_long = False

    def add(self, attempt: Attempt, error: AntwortError) -> None:
        if isinstance(error, ContextTooLong):
            self._is_long = True
            self._attempts.clear()
        elif attempt.doubt is not None and not self._is_long:
            self._attempts.append(attempt)

    def confirm(self) -> None:
        """The request is fine."""
        for attempt in self._attempts:
            if attempt.doubt is not None:
                attempt.member.count(attempt.doubt)
        self._attempts.clear()

    def weigh(self) -> None:
        """Nobody has answered."""
        if len({attempt.member.name for attempt in self._attempts}) == 1:
            self.confirm()
