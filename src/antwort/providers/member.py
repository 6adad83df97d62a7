"""One backend of a fleet: what is known of its models, and how it fares."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from antwort.api.responses import Model
from antwort.api.wire import Wire, replace
from antwort.errors import AntwortError, BackendError, ContextTooLong
from antwort.identity import TENANT
from antwort.notes import reason_behind
from antwort.providers.base import Provider
from antwort.providers.circuit_breaker import CircuitBreakers, remember
from antwort.providers.errors import CheckRefused, NotReady
from antwort.providers.places import Places
from antwort.providers.routing import Known
from antwort.providers.verdicts import is_interrupted, is_unconnected, may_go_elsewhere

_log = logging.getLogger("antwort.providers")

BackendState: TypeAlias = Literal["ok", "unreachable", "open", "unknown"]


class BackendStatus(Wire):
    """How a backend stands. `open`: the circuit breaker of one of its models is; `unknown`: nobody has asked it yet."""

    name: str
    kind: str
    state: BackendState
    models: tuple[str, ...] | None
    """As clients ask for them; None as long as nobody knows them."""
    problem: str | None = None
    """The last one, in a sentence, as long as it lasts."""


class Member:
    """`models` are set by the operator; None: the backend is asked. `prefix` is what its models' names begin with, and
    `most` is how many inferences it takes at once. `failures` and `open_for` are those of its circuit breakers.
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
        failures: float = 5,
        open_for: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.kind = kind
        self.provider = provider
        self.places = Places(most)
        self.known = Known(name=name, prefix=prefix, weight=weight)
        self.listing: tuple[Model, ...] = ()
        self.error: AntwortError | None = None
        """What went wrong last, until something goes right."""
        self.breakers = CircuitBreakers(failures, open_for, clock)
        """None is open, and none has counted a failure, without an `error`."""
        self._open_for, self._clock = open_for, clock
        self.failing: dict[str, float] = {}
        """Until when a model is asked for elsewhere first, as the backend has answered with an error."""
        self._is_set = models is not None
        self._is_out_of_reach = False
        self._is_seen = False
        self._is_read = False
        if models is not None:
            self._take(Model(id=each) for each in models)

    @property
    def is_out_of_reach(self) -> bool:
        return self._is_out_of_reach

    def is_there(self, model: str) -> bool:
        """Whether it can be asked at once, and has a place, which is taken then."""
        if self._is_out_of_reach or (self.breakers.by_model and self.breakers.wait(model)):
            return False
        return self.places.are_endless or self.places.take()

    def is_failing(self, model: str) -> bool:
        """Whether it has answered with an error lately, and not well since."""
        return self.failing.get(model, 0.0) > self._clock()

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

    def answered(self) -> None:
        """It has said something, if only that it will not: it is there, and works."""
        if self.error is not None or not self._is_seen or self._is_out_of_reach:
            self._recovered()  # else it was well: whatever makes it otherwise leaves an error

    def failed(self, error: AntwortError, model: str, trial: object | None) -> None:
        """An inference failed, or was refused. That is held against the backend

        - if no connection was made: `failures` in a row open the circuit breaker, whoever asked;
        - if it took too long or broke off: once for each tenant within `open_for` seconds, its health is checked, and
          the circuit breaker opens if that gets no answer, either;
        - if it answered with an error: for `open_for` seconds others are asked for the model first.
        """
        is_lost, was_open = is_unconnected(error), self.breakers.is_open
        if may_go_elsewhere(error) and not is_lost and not isinstance(error, ContextTooLong):
            # That it is lost is logged once; one that finds a request too long has not failed.
            _log.info("the backend %s failed an inference: %s: %s", self.name, error.code, error.message)
        if is_lost:
            self._lost(error)
        if is_interrupted(error):
            self.error = error
            self.breakers.interrupted(model, TENANT.get(), trial)
        elif is_lost:
            self.breakers.failed_to_connect(model, trial)
            self._note_opened(was_open=was_open)
        else:
            self.answered()
            if isinstance(error, BackendError):
                self.error = error
                remember(self.failing, model, self._clock() + self._open_for)

    # ---- what looking after it tells ----

    async def check(self) -> None:
        """As the provider's; what comes of it is remembered."""
        try:
            await self.provider.check()
        except AntwortError as error:
            self._failed_check(error)
            raise
        self._recovered()

    async def look(self) -> None:
        """Ask for its models, or, where they are set or a health check is due, whether it is there; those that are set
        are then asked for, once for each time that it comes back, as the list tells how much fits into their contexts.
        A failure keeps the last list.
        """
        unlisted: AntwortError | None = None
        if not (self._is_set or self.breakers.suspects):
            try:
                self._take(await self.provider.models())
            except AntwortError as error:
                unlisted = error  # one that gives no list may be there all the same
            else:
                self._recovered()
                return
        with suppress(AntwortError):  # `check` remembers that it failed; and one that is there need not have a list
            await self.check()
            self.error = unlisted
            if self._is_set and not self._is_read:
                self._is_read = True
                await self.provider.models()

    def _take(self, models: Iterable[Model]) -> None:
        self.listing = tuple({model.id: model for model in models}.values())
        self.known = replace(self.known, models=frozenset(model.id for model in self.listing))

    def _failed_check(self, error: AntwortError) -> None:
        was_open = self.breakers.is_open
        self._lost(error)
        if isinstance(error, CheckRefused | NotReady):
            self.breakers.suspects.clear()  # that it has answered says enough
        else:
            self.breakers.check_failed()
        self._note_opened(was_open=was_open)

    def _note_opened(self, *, was_open: bool) -> None:
        if self.breakers.is_open and not was_open:
            _log.warning("the backend %s cannot be reached: its circuit breaker is open", self.name)

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
        self.error = None
        self.breakers.close()
        self.places.reopened()

    @property
    def _state(self) -> BackendState:
        if self.breakers.is_open:
            return "open"
        if self._is_out_of_reach:
            return "unreachable"
        return "ok" if self._is_seen else "unknown"
