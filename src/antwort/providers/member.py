"""One backend of a fleet: its models, its slots and its health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from antwort.api.responses import Model
from antwort.api.wire import Wire, replace
from antwort.errors import AntwortError, BackendError, ContextTooLong
from antwort.identity import TENANT
from antwort.notes import reason_behind
from antwort.providers.base import Capabilities, ChatRequest, Provider, count_at
from antwort.providers.circuit_breaker import CircuitBreakers
from antwort.providers.errors import CheckRefused, NotReady
from antwort.providers.models import ModelCache
from antwort.providers.retry_policy import is_connection_failure, is_interrupted, may_fail_over

if TYPE_CHECKING:
    from antwort.providers.tool_emulation.emulation import ToolEmulation

LOG = logging.getLogger("antwort.providers")

BackendState: TypeAlias = Literal["ok", "unreachable", "open", "unknown"]


class BackendStatus(Wire):
    """The state of a backend. `open`: a circuit breaker of one of its models is open; `unknown`: not asked yet."""

    name: str
    kind: str
    state: BackendState
    models: tuple[str, ...] | None
    """By the names that clients use; None: not known yet."""
    problem: str | None = None
    """The last error as a sentence, until something succeeds."""


class Slots:
    """Limit how many inferences a backend has under way. Each slot that is taken must be given back.

    An inference that several backends may serve is in the queue of each, and takes the first slot: a `Limiter` has one
    queue.
    """

    __slots__ = ("_free", "queue")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self.queue: deque[asyncio.Future[Slots | None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free. None is free while others wait in the queue."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """Hand the slot to the first in the queue that still waits."""
        while self.queue:
            waiting = self.queue.popleft()
            if not waiting.done():
                waiting.set_result(self)
                return
        self._free += 1


async def wait_for_slot(members: Sequence[Member], recovering: Sequence[Member] = ()) -> Member | None:
    """Wait for a slot of any of `members`, and take it; None when one of `recovering` has recovered instead."""
    waiting: asyncio.Future[Slots | None] = asyncio.get_running_loop().create_future()
    queues = [each.slots.queue for each in members if each.slots is not None]
    queues += [each.waiting_for_recovery for each in recovering]
    for queue in queues:
        queue.append(waiting)
    try:
        taken = await waiting
    except asyncio.CancelledError:
        if not waiting.cancelled() and (taken := waiting.result()) is not None:
            taken.give_back()  # it was handed over in the same moment
        raise
    finally:
        for queue in queues:
            with suppress(ValueError):
                queue.remove(waiting)
    return next((each for each in members if taken is not None and each.slots is taken), None)


class Member:
    """Track one backend's models, slots and health. The fleet reports the outcome of each inference; `check` and
    `refresh` ask the backend.

    `models` are configured; None: those that the backend lists. Clients put `prefix` before their names. It takes
    `most` inferences at once. `emulation` gives tool calls to models without them. `failures` and `open_for` are those
    of its circuit breakers.
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
        emulation: ToolEmulation | None = None,
        failures: float = 5,
        open_for: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger = LOG,
    ) -> None:
        self.name = name
        self._log = log
        self.kind = kind
        self.provider = provider
        self.emulation = emulation
        self.capabilities: Callable[[str], Capabilities] = (
            provider.capabilities if emulation is None else emulation.capabilities
        )
        self.slots = None if most is None else Slots(most)
        """None: no limit."""
        self.waiting_for_recovery: deque[asyncio.Future[Slots | None]] = deque()
        self.prefix, self.weight = prefix, weight
        self.models: tuple[Model, ...] = ()
        self.model_names: frozenset[str] | None = None
        """None until the backend has listed its models."""
        self.is_well = False
        """Whether the last that was heard of it was good. Then it can be reached, and no circuit breaker is open."""
        self.error: AntwortError | None = None
        """The last error, until something succeeds."""
        self.breakers = CircuitBreakers(failures, open_for, clock)
        self._open_for, self._clock = open_for, clock
        self.deprioritized_until = ModelCache[str, float]()
        """Until when other backends are preferred for a model, because this one has answered with an error."""
        self._has_configured_models = models is not None
        self.is_unreachable = False
        self._has_listed_since_recovery = False
        if models is not None:
            self._set_models(Model(id=each) for each in models)

    async def count(self, request: ChatRequest) -> int | None:
        """Count the tokens of the request as it would be sent."""
        if self.emulation is not None:
            request = self.emulation.rewrite(request)
        return await count_at(self.provider, request)

    def is_healthy(self, model: str) -> bool:
        """Whether it can be reached, as far as is known. A half-open circuit breaker gets its trial."""
        return not self.is_unreachable and not self.breakers.wait(model)

    def is_failing(self, model: str) -> bool:
        """Whether its last answer for the model was an error, and that is not long ago."""
        return (self.deprioritized_until.get(model) or 0.0) > self._clock()

    @property
    def status(self) -> BackendStatus:
        models = None if self.model_names is None else tuple(model.id for model in self.listed())
        problem = None if self.error is None else self.error.message
        return BackendStatus(name=self.name, kind=self.kind, state=self._state, models=models, problem=problem)

    def listed(self) -> Iterable[Model]:
        """Return its models by the names that clients use."""
        prefix = self.prefix
        return [replace(model, id=f"{prefix}{model.id}") for model in self.models] if prefix else self.models

    def lists(self, model: str) -> bool:
        """Whether the backend lists the model under this name."""
        return self.model_names is not None and model in self.model_names

    # ---- outcomes of inferences ----

    def record_answer(self) -> None:
        """Record that the backend has answered, if only with a refusal: it can be reached."""
        if not self.is_well:
            self._record_recovery()

    def record_failure(self, error: AntwortError, model: str, trial: object | None) -> None:
        """Record an inference that failed or was refused.

        - No connection: `failures` in a row open the circuit breaker, whichever tenants they are of.
        - A timeout or a cut answer: a health check is due, once for each tenant within `open_for` seconds; the circuit
          breaker opens if it gets no answer.
        - An answer with an error: for `open_for` seconds other backends are preferred for the model.
        """
        is_lost, was_open = is_connection_failure(error), self.breakers.has_open
        if self.error is None and may_fail_over(error) and not is_lost and not isinstance(error, ContextTooLong):
            # Once, until it answers again. An unreachable one is logged elsewhere; a request too long is no failure.
            self._log.info("the backend %s failed an inference: %s: %s", self.name, error.code, error.message)
        if is_lost:
            self._record_unreachable(error)
        if is_interrupted(error):
            self._set_error(error)
            self.breakers.request_check(model, TENANT.get(), trial)
        elif is_lost:
            self.breakers.failed_to_connect(model, trial)
            self._note_opened(was_open=was_open)
        else:
            self.record_answer()
            if isinstance(error, BackendError):
                self._set_error(error)
                self.deprioritized_until.put(model, self._clock() + self._open_for)

    # ---- health checks ----

    async def check(self) -> None:
        """Check the provider, and record the outcome."""
        try:
            await self.provider.check()
        except AntwortError as error:
            self._record_failed_check(error)
            raise
        self._record_recovery()

    async def refresh(self) -> None:
        """Fetch the list of models; or, where models are configured or a health check is due, check the health.

        Configured models are listed once after each recovery, too: the list has their context lengths. A failure keeps
        the last list.
        """
        unlisted: AntwortError | None = None
        if not (self._has_configured_models or self.breakers.awaiting_check):
            try:
                self._set_models(await self.provider.models())
            except AntwortError as error:
                unlisted = error  # a backend without a list may be healthy all the same
            else:
                self._record_recovery()
                return
        with suppress(AntwortError):  # `check` records its failure; and a healthy backend need not have a list
            await self.check()
            self._set_error(unlisted)
            if self._has_configured_models and not self._has_listed_since_recovery:
                self._has_listed_since_recovery = True
                await self.provider.models()

    def _set_models(self, models: Iterable[Model]) -> None:
        self.models = tuple({model.id: model for model in models}.values())
        self.model_names = frozenset(model.id for model in self.models)

    def _record_failed_check(self, error: AntwortError) -> None:
        was_open = self.breakers.has_open
        self._record_unreachable(error)
        if isinstance(error, CheckRefused | NotReady):
            self.breakers.awaiting_check.clear()  # it has answered
        else:
            self.breakers.open_suspects()
        self._note_opened(was_open=was_open)

    def _note_opened(self, *, was_open: bool) -> None:
        if self.breakers.has_open and not was_open:
            # That it is out of reach was a warning.
            self._log.info("the backend %s cannot be reached: its circuit breaker is open", self.name)

    def _record_unreachable(self, error: AntwortError) -> None:
        if not self.is_unreachable:
            level = logging.INFO if isinstance(error, NotReady) else logging.WARNING  # NotReady: it is starting
            self._log.log(level, "the backend %s is out of reach: %s%s", self.name, error.message, reason_behind(error))
        self.is_unreachable = True
        self._has_listed_since_recovery = False
        self._set_error(error)

    def _record_recovery(self) -> None:
        if self.is_unreachable:
            self._log.info("the backend %s is back", self.name)
            self.is_unreachable = False
        self._set_error(None)
        self.breakers.close()
        for waiting in self.waiting_for_recovery:
            if not waiting.done():
                waiting.set_result(None)

    def _set_error(self, error: AntwortError | None) -> None:
        self.error, self.is_well = error, error is None

    @property
    def _state(self) -> BackendState:
        if self.breakers.has_open:
            return "open"
        if self.is_unreachable:
            return "unreachable"
        return "ok" if self.is_well or self.error is not None else "unknown"
