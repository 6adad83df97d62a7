"""Several backends as one provider: each inference goes to one that can answer, and to the next one if it cannot."""

from __future__ import annotations

import asyncio
import random as dice
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import chain

from antwort.api.responses import Model
from antwort.api.wire import replace
from antwort.errors import AntwortError, ModelNotFound, NotFound, UnsupportedFeature
from antwort.providers.attempts import Attempt, begin
from antwort.providers.base import Capabilities, ChatRequest, Delta, Heard, OtherName, Whole, count_at, whole_of
from antwort.providers.candidates import Candidate
from antwort.providers.member import BackendStatus, Member
from antwort.providers.readiness import Readiness
from antwort.providers.rounds import Round
from antwort.providers.routing import Group, Router, Rules, Target, arranged, lists
from antwort.providers.suited import is_too_long, suited, takes, widest
from antwort.providers.verdicts import most_telling
from antwort.providers.watch import Later, Watch, call_later

__all__ = ["BackendStatus", "Fleet", "Member"]

LEAST_PAUSE = 5.0
"""Seconds between two looks that requests ask for."""
PATIENCE = 1.0
"""Seconds that an inference for a model that nobody is known to have waits for such a look."""
LIST_PATIENCE = 2.0
"""Seconds that a request for the list of models waits for backends that are slow to tell."""
COUNTING = 2.0
"""Seconds for a count, whoever is asked; one that has not answered in its share of them is passed over."""
LEAST_COUNTING = 0.5


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
        self.capabilities: Callable[[str], Capabilities] = (
            self._widest if self._only is None else self._only.provider.capabilities
        )
        wholes = {member.name: whole_of(member.provider) for member in members}
        self._wholes = {name: whole for name, whole in wholes.items() if whole is not None}
        self._random, self._clock = random, clock
        self._watch = Watch(self._members, refresh=refresh, health=health, clock=clock, later=later)
        self._readiness = Readiness(self._members, self._watch, clock=clock)
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
        asked = await self._round(request)
        has_answered = False
        while True:
            attempt = asked.at_once() or await asked.next()
            try:
                with attempt:
                    provider = asked.candidate.member.provider
                    async with aclosing(provider.infer(self._outgoing(request, asked.candidate))) as batches:
                        async for batch in batches:
                            if not attempt.has_begun:
                                asked.hear(attempt, batch)
                            if batch or not has_answered:
                                has_answered = True
                                yield batch
            except AntwortError as error:
                self._look_into(error, asked.candidate)
                asked.failed(attempt, error)
            else:
                return

    @property
    def whole(self) -> Whole | None:
        """Where every backend can."""
        return self._gathered if len(self._wholes) == len(self._members) else None

    async def _gathered(self, request: ChatRequest, heard: Heard) -> list[Delta]:
        """The only member there is, where no rule says more, is asked without ado if it is well: the common case. Who
        else is to be asked is seen when it fails.
        """
        only, asked = self._only, None
        if only is not None and only.is_there(request.model):
            attempt = begin(only, request.model, self._clock)
        else:
            asked = await self._round(request)
            attempt = await asked.next()
        while True:
            before = len(heard)
            try:
                outgoing = request if asked is None else self._outgoing(request, asked.candidate)
                answer = await self._wholes[attempt.member.name](outgoing, heard)
            except BaseException as error:
                asked = asked or Round.begun(Candidate(attempt.member, request.model, 1), request, self._clock)
                self._broken(asked, attempt, heard[before:], error)
                if not isinstance(error, AntwortError):
                    raise
            else:
                if asked is not None:
                    asked.hear(attempt, answer)
                attempt.ended()
                return answer
            attempt = await asked.next()

    def _broken(self, asked: Round, attempt: Attempt, said: Heard, error: BaseException) -> None:
        """Raises the error as the client may read it, where nobody else is to be asked."""
        for batch in said:
            if not attempt.has_begun:
                asked.hear(attempt, batch)
        attempt.ended(error)
        if isinstance(error, AntwortError):
            self._look_into(error, asked.candidate)
            asked.failed(attempt, error)

    async def _round(self, request: ChatRequest) -> Round:
        """Where there is but one, and no rule says more, nothing is to be found out."""
        only = self._only
        able = await self._candidates(request) if only is None else (Candidate(only, request.model, 1),)
        return Round(able, request, self._clock)

    async def _candidates(self, request: ChatRequest) -> Sequence[Candidate]:
        """In the order in which they are to be asked. Raises `ModelNotFound`, and `UnsupportedFeature` where none of
        them takes what the request carries. A model that nobody is known to have is looked for first, if not for long.
        """
        group = self._find(request.model)
        if (group is None or group.is_guess) and len(self._members) > 1:
            await self._watch.catch_up(LEAST_PAUSE, PATIENCE)
            group = self._find(request.model)
        if group is None:
            raise ModelNotFound(request.model)
        able = [each for to in group.targets if (each := self._candidate(to, request)) is not None]
        if not able:
            raise UnsupportedFeature("The model does not take the images or files of the request.", param="input")
        if len(able) == 1:
            return able
        return arranged(
            able,
            group.policy,
            weight=lambda each: each.weight,
            rank=lambda each: each.rank,
            draw=self._random,
        )

    def _candidate(self, to: Target, request: ChatRequest) -> Candidate | None:
        """None: it does not take what the request carries."""
        member = self._by_name[to.backend]
        capabilities = member.provider.capabilities(to.model)
        if not takes(request, capabilities):
            return None
        return Candidate(member, to.model, to.weight, is_small=is_too_long(request, capabilities))

    def _look_into(self, error: AntwortError, candidate: Candidate) -> None:
        """A lost member is looked after, and one whose health check is due; one that no longer has what it lists is
        asked for its list.
        """
        self._watch.worry(candidate.member)
        if isinstance(error, NotFound) and lists(candidate.member.known, candidate.model):
            self._watch.refresh(LEAST_PAUSE)

    def _find(self, model: str) -> Group | None:
        return self._router.find(model, [member.known for member in self._members])

    def _outgoing(self, request: ChatRequest, candidate: Candidate) -> ChatRequest:
        """The request as this candidate takes it, whoever it was written for: more may be known by now than then."""
        if len(self._members) > 1:
            request = suited(request, candidate.member.provider.capabilities(candidate.model))
        return request if candidate.model == request.model else replace(request, model=candidate.model)

    # ---- what there is ----

    async def models(self) -> Sequence[Model]:
        """All that clients may ask for, each once, with the length of its context. Raises only when nothing at all is
        known.
        """
        await self._watch.catch_up(LEAST_PAUSE, LIST_PATIENCE)
        found: dict[str, Model] = {}
        added = (OtherName(id=name) for name in self._router.names())
        for model in chain(*(member.listed() for member in self._members), added):
            found.setdefault(model.id, model)
        errors = [member.error for member in self._members if member.error is not None]
        if not found and errors:
            raise most_telling(errors).with_traceback(None)
        return [_with_length(model, self.capabilities(model.id)) for model in found.values()]

    def lists(self, model: str) -> bool:
        """Whether a backend lists the model, by its own name or by the one that clients ask for."""
        return any(
            lists(known, model) or (known.prefix and lists(known, model.removeprefix(known.prefix)))
            for known in (member.known for member in self._members)
        )

    def _widest(self, model: str) -> Capabilities:
        """What at least one of those takes that can answer for the model; where none is known, of all. These need not
        have the model, so that nothing is known of its context then.
        """
        group = self._find(model)
        if group is None or (group.is_guess and len(self._members) > 1):
            everyone = widest([member.provider.capabilities(model) for member in self._members])
            return replace(everyone, context_length=None)
        return widest([self._by_name[to.backend].provider.capabilities(to.model) for to in group.targets])

    async def count(self, request: ChatRequest) -> int | None:
        """By the first that can answer for the model, and count: they have the same tokenizer, mostly."""
        group = self._find(request.model)
        targets = () if group is None else group.targets
        found = (Candidate(self._by_name[to.backend], to.model, to.weight) for to in targets)
        asked = [each for each in found if each.is_well]
        until = asyncio.get_running_loop().time() + COUNTING
        for number, candidate in enumerate(asked):
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(min(left, LEAST_COUNTING), left / (len(asked) - number))):
                    counted = await count_at(candidate.member.provider, self._outgoing(request, candidate))
                if counted is not None:
                    return counted
        return None

    async def check(self) -> None:
        """Raise `BackendUnavailable` when none can be reached."""
        await self._readiness.check()

    def status(self) -> Sequence[BackendStatus]:
        """How each backend stands, as far as is known: nobody is asked."""
        return [member.status for member in self._members]


def _with_length(model: Model, capabilities: Capabilities) -> Model:
    length = capabilities.context_length
    return model if length is None else replace(model, context_length=length)


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
