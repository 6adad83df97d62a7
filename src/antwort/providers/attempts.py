"""One inference at a member: what becomes of it, and what that says about the member."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from antwort.errors import AntwortError, BackendTimeout, ContextTooLong
from antwort.providers.base import Delta
from antwort.providers.member import Member
from antwort.providers.verdicts import counts, may_be_the_request

OVERDUE = 30.0
"""Seconds without an answer, after which a stream that is given up is a failure of the backend's."""


class Attempt:
    """From its start to its end, at a member of which it holds a place. The member learns what becomes of it."""

    __slots__ = ("_began", "_clock", "_has_answered", "_is_streamed", "_trial", "doubt", "has_begun", "member")

    def __init__(self, member: Member, *, is_streamed: bool, clock: Callable[[], float]) -> None:
        self.member = member
        self.has_begun = False
        """Whether its first delta has come."""
        self.doubt: AntwortError | None = None
        """A failure that may be the request's fault."""
        self._has_answered = False
        self._is_streamed = is_streamed
        self._clock = clock
        self._began = 0.0
        self._trial: object | None = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    def hear(self, batch: list[Delta]) -> None:
        """A batch has come, the first of which says that the backend has answered."""
        self.has_begun = bool(batch)
        if not self._has_answered:
            self._has_answered = True
            self.member.answered(self._trial)

    def __enter__(self) -> None:
        self._began = self._clock()
        self._trial = self.member.breaker.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.member.breaker.succeeded()
        elif isinstance(error, AntwortError):
            self._failed(error)
        elif self._is_overdue():  # anything else says nothing: the client left, or we are at fault
            self.member.count(BackendTimeout("The backend did not begin to answer."), self._trial)
        if self._trial is not None:
            self.member.breaker.leave(self._trial)
        self.member.places.give_back()

    def _failed(self, error: AntwortError) -> None:
        self.member.note(error)
        if not counts(error):
            self.member.answered(self._trial)
        elif self._trial is None and not self.has_begun and may_be_the_request(error):
            self.doubt = error
        else:
            self.member.count(error, self._trial)

    def _is_overdue(self) -> bool:
        """A stream has its headers soon; an answer in one piece has them only when the inference is done."""
        return self._is_streamed and not self._has_answered and self.seconds >= OVERDUE


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
