"""Several backends as one provider: each inference goes to one that can answer, and to the next one if it cannot."""

from __future__ import annotations

import asyncio
import random as dice
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import chain

import msgspec

from antwort.api.responses import Model
from antwort.api.wire import replace
from antwort.errors import AntwortError, BackendUnavailable, ModelNotFound
from antwort.providers.base import Capabilities, ChatRequest, Delta, OtherName
from antwort.providers.member import Attempt, BackendStatus, Member
from antwort.providers.routing import Group, Router, Rules, arranged
from antwort.providers.suited import suited
from antwort.providers.verdicts import left_alone, may_go_elsewhere, most_telling
from antwort.providers.watch import Later, Watch, call_later

__all__ = ["BackendStatus", "Fleet", "Member"]

LEAST_PAUSE = 5.0
"""Seconds between two looks that requests ask for."""
PATIENCE = 1.0
"""Seconds that an inference for a model that nobody is known to have waits for such a look."""
LIST_PATIENCE = 2.0
"""Seconds that a request for the list of models waits for backends that are slow to tell."""


class _Candidate(msgspec.Struct, frozen=True):
    member: Member
    model: str
    weight: int


class Fleet:
    """Members in the order in which they are preferred; `rules` say which of them answers for which model.

    It works as it is; `open` makes it look after its members from then on. `close` closes them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        rules: Rules = Rules(),  # noqa: B008 - a frozen value
        *,
        refresh: float = 60.0,
        health: float = 10.0,
        random: Callable[[], float] = dice.random,
        clock: Callable[[], float] = time.monotonic,
        later: Later = call_later,
    ) -> None:
        """`refresh` and `health` are the seconds between two looks at all members, and at those that are lost."""
        self._members = tuple(members)
        self._by_name = {member.name: member for member in members}
        self._router = Router(rules)
        self._only = (
            self._members[0] if len(members) == 1 and rules == Rules() and not members[0].known.prefix else None
        )
        self._random = random
        self._watch = Watch(self._members, refresh=refresh, health=health, clock=clock, later=later)
        _check(self._members, self._by_name, rules)

    async def open(self) -> None:
        """Begin to look after the members. Returns at once."""
        self._watch.begin()

    async def close(self) -> None:
        await self._watch.close()
        await asyncio.gather(*(member.provider.close() for member in self._members))

    # ---- an inference ----

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        """As the contract says; an inference that fails before its first delta goes on at the next candidate.

        The empty batch that says "the backend has answered" is passed on at once, and only once: it promises nothing
        about what is said, so another backend may still say it.
        """
        failures: list[AntwortError] = []
        has_answered = False
        for candidate in self._at_once(request.model) or await self._candidates(request.model):
            if wait := candidate.member.breaker.wait():
                failures.append(left_alone(wait))
                continue
            attempt = Attempt(candidate.member)
            try:
                with attempt:
                    async with aclosing(candidate.member.provider.infer(self._outgoing(request, candidate))) as batches:
                        async for batch in batches:
                            if batch and not attempt.has_begun:
                                attempt.begin()
                            if batch or not has_answered:
                                has_answered = True
                                yield batch
            except AntwortError as error:
                self._watch.worry(candidate.member)
                failures.append(_named(error, candidate.model, request.model))
                if attempt.has_begun or not may_go_elsewhere(error):
                    raise failures[-1] from error.__cause__
            else:
                return
        raise most_telling(failures)

    def _at_once(self, model: str) -> Sequence[_Candidate]:
        """The only member there is, where no rule says more: the common case, which costs next to nothing."""
        return () if self._only is None else (_Candidate(self._only, model, 1),)

    async def _candidates(self, model: str) -> Sequence[_Candidate]:
        """Raises `ModelNotFound`. A model that nobody is known to have is looked for first, if not for long."""
        group = self._find(model)
        if (group is None or group.is_guess) and len(self._members) > 1:
            await self._watch.catch_up(LEAST_PAUSE, PATIENCE)
            group = self._find(model)
        if group is None:
            raise ModelNotFound(model)
        candidates = [_Candidate(self._by_name[to.backend], to.model, to.weight) for to in group.targets]
        if len(candidates) == 1:
            return candidates
        return arranged(
            candidates,
            group.policy,
            weight=lambda each: each.weight,
            is_well=lambda each: each.member.is_well,
            draw=self._random,
        )

    def _find(self, model: str) -> Group | None:
        return self._router.find(model, [member.known for member in self._members])

    def _outgoing(self, request: ChatRequest, candidate: _Candidate) -> ChatRequest:
        """The request as this candidate takes it: it was written for the one that `capabilities` speaks of."""
        if len(self._members) > 1:
            capabilities = candidate.member.provider.capabilities(candidate.model)
            if capabilities != self.capabilities(request.model):
                request = suited(request, capabilities)
        return request if candidate.model == request.model else replace(request, model=candidate.model)

    # ---- what there is ----

    async def models(self) -> Sequence[Model]:
        """All that clients may ask for, each once. Raises only when nothing at all is known."""
        await self._watch.catch_up(LEAST_PAUSE, LIST_PATIENCE)
        found: dict[str, Model] = {}
        added = (OtherName(id=name) for name in self._router.names())
        for model in chain(*(member.listed() for member in self._members), added):
            found.setdefault(model.id, model)
        errors = [member.error for member in self._members if member.error is not None]
        if not found and errors:
            raise most_telling(errors).with_traceback(None)
        return list(found.values())

    def capabilities(self, model: str) -> Capabilities:
        """Those of the first that can answer for the model, whether it is well or not."""
        group = self._find(model) if len(self._members) > 1 else None
        if group is None:
            return self._members[0].provider.capabilities(model)
        first = group.targets[0]
        return self._by_name[first.backend].provider.capabilities(first.model)

    async def check(self) -> None:
        """Raise `BackendUnavailable` when none can be reached. Those that are well are asked first."""
        problem: AntwortError | None = None
        for member in sorted(self._members, key=lambda each: not each.is_well):
            try:
                await member.check()
            except AntwortError as error:
                problem = problem or error
                self._watch.worry(member)
            else:
                return
        raise problem or BackendUnavailable("There is no backend.")

    def status(self) -> Sequence[BackendStatus]:
        """How each backend stands, as far as is known: nobody is asked."""
        return [member.status for member in self._members]


def _named(error: AntwortError, sent: str, asked: str) -> AntwortError:
    """The error as the client may read it: it knows the model by the name that it asked for."""
    return ModelNotFound(asked) if isinstance(error, ModelNotFound) and sent != asked else error


def _check(members: Sequence[Member], by_name: dict[str, Member], rules: Rules) -> None:
    if not members:
        raise ValueError("a fleet has at least one backend")
    if len(by_name) != len(members):
        raise ValueError("two backends have the same name")
    for route in rules.routes:
        unknown = [to.backend for to in route.to if to.backend not in by_name]
        if unknown:
            raise ValueError(f"the route of {route.model!r} leads to {unknown[0]!r}, which is no backend")
        if not route.to:
            raise ValueError(f"the route of {route.model!r} leads nowhere")
