"""Whether any backend would take an inference now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from antwort.errors import AntwortError, BackendUnavailable
from antwort.providers.member import Member
from antwort.providers.verdicts import most_telling
from antwort.providers.watch import Watch

FRESH = 1.0
"""Seconds for which an answer holds: anybody may ask, and as often as they like."""


class Readiness:
    """Asks the members side by side, once for all who want to know; one that takes inferences is enough."""

    def __init__(self, members: Sequence[Member], watch: Watch, *, clock: Callable[[], float]) -> None:
        self._members, self._watch, self._clock = members, watch, clock
        self._round: asyncio.Task[AntwortError | None] | None = None
        self._asked_at = float("-inf")

    async def check(self) -> None:
        """Raises `BackendUnavailable`."""
        if self._round is None or (self._round.done() and self._clock() - self._asked_at >= FRESH):
            self._round = self._watch.start(self._ask_all())
        asked = self._round
        await asyncio.wait({asked})  # whoever leaves does not take the others' answer along
        problem = BackendUnavailable("The server is about to stop.") if asked.cancelled() else asked.result()
        if problem is not None:
            raise problem.with_traceback(None)

    async def _ask_all(self) -> AntwortError | None:
        """What is wrong with them, or None as soon as one is well; the others are asked to the end all the same."""
        under_way = {self._watch.start(self._ask(member)) for member in self._members}
        problems: list[AntwortError] = []
        while under_way:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            self._asked_at = self._clock()
            for each in done:
                if (problem := each.result()) is None:
                    return None
                problems.append(problem)
        return most_telling(problems)

    async def _ask(self, member: Member) -> AntwortError | None:
        try:
            await member.check()
        except AntwortError as error:
            self._watch.worry(member)
            return error
        return None
