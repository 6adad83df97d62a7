"""One inference at a member, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import msgspec

from antwort.errors import AntwortError
from antwort.providers.base import Delta
from antwort.providers.member import Member


class Attempt(msgspec.Struct, eq=False):
    """From its start to its end, at a member of which it holds a place. The member learns what becomes of it.

    It has begun when it is made, see `begin`; whoever makes it leaves its `with`, or says how it `ended`.
    """

    member: Member
    model: str
    """By the name that it has there."""
    clock: Callable[[], float]
    began: float
    trial: object | None
    """Of the circuit breaker."""
    has_answered: bool = False
    has_begun: bool = False
    """Whether its first delta has come."""

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.clock() - self.began

    def hear(self, batch: list[Delta]) -> None:
        """A batch has come, the first of which says that the backend has answered."""
        self.has_begun = bool(batch)
        if not self.has_answered:
            self.has_answered = True
            self.member.answered()

    def ended(self, error: BaseException | None = None) -> None:
        """Whoever has answered to the end has answered, though nobody heard a part of it before. An error that is not
        of ours says nothing about the backend: the client left, or the run was stopped.
        """
        member = self.member
        if error is None:
            if not self.has_answered:
                member.answered()
            if member.failing:
                member.failing.pop(self.model, None)
        elif isinstance(error, AntwortError):
            member.failed(error, self.model, self.trial)
        if self.trial is not None:
            member.breakers.leave(self.model, self.trial)
        if not member.places.are_endless:
            member.places.give_back()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(error)


def begin(member: Member, model: str, clock: Callable[[], float]) -> Attempt:
    """Ask the member, of which a place is held."""
    breakers = member.breakers
    return Attempt(member, model, clock, clock(), breakers.enter(model) if breakers.by_model else None)
