"""One backend of a fleet: what is known of its models, and how it fares."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from antwort.api.responses import Model
from antwort.api.wire import Wire, replace
from antwort.errors import AntwortError, ContextTooLong
from antwort.notes import reason_behind
from antwort.providers.base import Provider
from antwort.providers.breaker import Breaker
from antwort.providers.failures import NotReady
from antwort.providers.places import Places
from antwort.providers.routing import Known
from antwort.providers.verdicts import is_out_of_reach, may_go_elsewhere

_log = logging.getLogger("antwort.providers")

BackendState: TypeAlias = Literal["ok", "unreachable", "open", "unknown"]


class BackendStatus(Wire):
    """How a backend stands. `open`: it has failed too often and is left alone; `unknown`: nobody has asked it yet."""

    name: str
    kind: str
    state: BackendState
    models: tuple[str, ...] | None
    """As clients ask for them; None as long as nobody knows them."""
    problem: str | None = None
    """The last one, in a sentence, as long as it lasts."""


class Member:
    """`models` are set by the operator; None: the backend is asked. `prefix` is what its models' names begin with, and
    `most` is how many inferences it takes at once.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        *,
        kind: str = "chat",
        models: Sequence[str] | None = None,
        prefix: str = "",
        weight: int = 1,
        most: int | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.provider = provider
        self.breaker = breaker or Breaker()
        self.places = Places(most)
        self.known = Known(name=name, prefix=prefix, weight=weight)
        self.listing: tuple[Model, ...] = ()
        self.error: AntwortError | None = None
        """What went wrong last, until something goes right."""
        self._is_set = models is not None
        self._is_out_of_reach = False
        self._is_seen = False
        self._is_read = False
        if models is not None:
            self._take(Model(id=each) for each in models)

    @property
    def is_out_of_reach(self) -> bool:
        return self._is_out_of_reach

    @property
    def is_well(self) -> bool:
        """Whether an inference may be sent to it with good hope. One whose time alone is over is given its trial."""
        return not self._is_out_of_reach and self.breaker.wait() == 0

    def is_there(self) -> bool:
        """Whether it can be asked at once, and has a place, which is taken then."""
        if self._is_out_of_reach or not (self.breaker.is_closed or self.breaker.wait() == 0):
            return False
        return self.places.are_endless or self.places.take()

    @property
    def status(self) -> BackendStatus:
        models = None if self.known.models is None else tuple(model.id for model in self.listed())
        problem = None if self.error is None else self.error.message
        return BackendStatus(name=self.name, kind=self.kind, state=self._state, models=models, problem=problem)

    def listed(self) -> Iterable[Model]:
        """Its models, by the names that clients ask for."""
        prefix = self.known.prefix
        return [replace(model, id=f"{prefix}{model.id}") for model in self.listing] if prefix else self.listing

    # ---- what inferences tell ----

    def answered(self, trial: object | None) -> None:
        """It has said something, if only that it will not: it is there, and works."""
        if trial is not None:
            self.breaker.answered(trial)
        if self.error is not None or not self._is_seen or self._is_out_of_reach:
            self._recovered()  # else it was well: whatever makes it otherwise leaves an error

    def note(self, error: AntwortError) -> None:
        """An inference failed."""
        if isinstance(error, ContextTooLong):
            return  # it did not
        if may_go_elsewhere(error) and not is_out_of_reach(error):  # that it is lost is logged once
            _log.info("the backend %s failed an inference: %s: %s", self.name, error.code, error.message)

    def count(self, error: AntwortError, trial: object | None = None) -> None:
        """The failure says that the backend does not work."""
        was_closed = self.breaker.is_closed
        self.breaker.failed(trial, is_absence=is_out_of_reach(error))
        if is_out_of_reach(error):
            self._lost(error)
        self.error = error
        if was_closed and not self.breaker.is_closed:
            _log.warning("the backend %s has failed too often and is left alone for a while", self.name)

    # ---- what looking after it tells ----

    async def check(self) -> None:
        """As the provider's; what comes of it is remembered."""
        try:
            await self.provider.check()
        except AntwortError as error:
            self._lost(error)
            raise
        self._recovered()

    async def look(self) -> None:
        """Ask for its models, or, where they are set, whether it is there; and then, once for each time that it comes
        back, for its list all the same, as that tells how much fits into their contexts. A failure keeps the last list.
        """
        try:
            if self._is_set:
                await self.provider.check()
            else:
                self._take(await self.provider.models())
        except AntwortError as error:
            await self._look_closer(error)
        else:
            self._recovered()
            if self._is_set and not self._is_read:
                self._is_read = True
                with suppress(AntwortError):  # it need not have one
                    await self.provider.models()

    async def _look_closer(self, first: AntwortError) -> None:
        """A backend that gives no list may be there all the same."""
        try:
            await self.provider.check()
        except AntwortError as error:
            self._lost(error)
        else:
            self._recovered()
            self.error = self.error or first

    def _take(self, models: Iterable[Model]) -> None:
        self.listing = tuple({model.id: model for model in models}.values())
        self.known = replace(self.known, models=frozenset(model.id for model in self.listing))

    def _lost(self, error: AntwortError) -> None:
        if not self._is_out_of_reach:
            level = logging.INFO if isinstance(error, NotReady) else logging.WARNING  # it is there, and on its way
            _log.log(level, "the backend %s is out of reach: %s%s", self.name, error.message, reason_behind(error))
        self._is_out_of_reach = self._is_seen = True
        self._is_read = False
        self.error = error

    def _recovered(self) -> None:
        if self._is_out_of_reach:
            _log.info("the backend %s is back", self.name)
            self._is_out_of_reach = False
        self._is_seen = True
        self.breaker.seen()
        if self.breaker.is_closed:
            self.error = None
            self.places.reopened()

    @property
    def _state(self) -> BackendState:
        if not self.breaker.is_closed:
            return "open"
        if self._is_out_of_reach:
            return "unreachable"
        return "ok" if self._is_seen else "unknown"
