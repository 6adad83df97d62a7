"""Who may answer one inference, and who of them is asked next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antwort.errors import AntwortError, ContextTooLong
from antwort.providers.member import Member
from antwort.providers.places import first_free
from antwort.providers.verdicts import circuit_open, passes_soon

LEAST_SHARE = 0.4
"""Seconds that each of them gets for connecting at least, and what one gets that is known to be lost."""


class Candidate(msgspec.Struct, frozen=True):
    member: Member
    model: str
    weight: int
    is_small: bool = False
    """Whether the request is certainly longer than its context."""

    @property
    def wait(self) -> float:
        """Seconds until its circuit breaker lets a request pass; 0: now."""
        return self.member.breakers.wait(self.model)

    @property
    def is_well(self) -> bool:
        """Whether an inference may be sent to it with good hope. A half-open circuit breaker is given its trial."""
        return not self.member.is_out_of_reach and self.wait == 0

    @property
    def rank(self) -> int:
        """Those that are well are asked first, and of these the ones that answer with errors last."""
        return 2 if not self.is_well else 1 if self.member.is_failing(self.model) else 0

    @property
    def length(self) -> int | None:
        """Of its context, as far as is known by now."""
        return self.member.provider.capabilities(self.model).context_length


async def next_of(left: list[Candidate], failures: list[AntwortError]) -> Candidate | None:
    """Take out of `left` the one to be asked now, with a place at it: the first that is well and has one free, or else
    the first of these to have one, or to be back. Those that are too small are asked when no other one is well. When
    the circuit breakers of all that are left are open, these are failures.
    """
    while able := askable(left):
        well = [each for each in able if each.is_well]
        fitting = [each for each in well if not each.is_small]
        hopeful = fitting or well or able[:1]
        chosen = next((each for each in hopeful if each.member.places.take()), None)
        if chosen is None:
            others = [each for each in left if each not in hopeful and not (fitting and each.is_small)]
            free = await first_free([each.member.places for each in hopeful], [each.member.places for each in others])
            chosen = next(each for each in left if each.member.places is free)
        if not chosen.wait:
            left.remove(chosen)
            return chosen
        chosen.member.places.give_back()  # it has opened meanwhile
    failures.extend(circuit_open(each.wait) for each in left)
    return None


def askable(left: Sequence[Candidate]) -> Sequence[Candidate]:
    return [each for each in left if not each.wait]


def share_of(member: Member, trying: int, time_left: float | None) -> float | None:
    """Seconds for connecting to this one; None: its own. What has not been used goes to those that come later."""
    if time_left is None:
        return None
    return LEAST_SHARE if member.is_out_of_reach else max(LEAST_SHARE, time_left / trying)


def larger(left: list[Candidate], refused: Candidate, error: AntwortError) -> list[Candidate]:
    """Those that may take what one of them has found too long; all, where it has failed at something else."""
    if not isinstance(error, ContextTooLong):
        return left
    length = error.limit or refused.length
    return [each for each in left if length is None or (each.length or length + 1) > length]


def worth_waiting_for(tried: Sequence[Candidate], failures: Sequence[AntwortError]) -> Sequence[AntwortError]:
    """The failures that pass soon, of those that may take what others have found too long: nothing has to be left out
    of a request that has only to wait. `failures` are those of `tried`, in their order, and may be more.
    """
    asked = list(zip(tried, failures, strict=False))
    too_long = [error.limit or each.length or 0 for each, error in asked if isinstance(error, ContextTooLong)]
    if not too_long:
        return ()
    most = max(too_long)
    waiting = [each for each in asked if passes_soon(each[1]) and not each[0].is_small]
    return [error for each, error in waiting if (each.length or most + 1) > most]
