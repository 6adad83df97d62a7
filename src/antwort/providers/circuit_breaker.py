"""Circuit breakers: while a backend cannot be reached, no request is sent to it. Pure, but for the clock.

                 `failures` connection failures in a row,
                 or a health check without an answer after a timeout or a broken stream
     closed ─────────────────────────────────────────────────────────▶ open ◀───┐
       ▲                                                                 │       │ the trial fails to connect
       │ any answer, or a health check that passes                       │ `open_for` seconds
       └──────────────────────────────────────────── half-open ◀─────────┘       │
                                                         └───────────────────────┘

There is one for each backend and model. Neither an error that the backend answers with nor a client that leaves counts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from antwort.providers.models import ModelCache

TRIAL_RETRY_SECONDS = 1.0
"""`Retry-After` of those that come while another request's trial is under way."""
FAILURE_INTERVAL_SECONDS = 1.0
"""Connection failures within this time count as one: an immediate retry learns nothing new."""


class CircuitBreaker:
    """Half-open, one request at a time passes as a trial, and keeps the others waiting no longer than `open_for`."""

    __slots__ = ("_clock", "_counted_at", "_failures", "_limit", "_open_for", "_open_until", "_trial")

    def __init__(self, failures: float, open_for: float, clock: Callable[[], float]) -> None:
        self._limit, self._open_for, self._clock = failures, open_for, clock
        self._failures = 0
        self._counted_at = float("-inf")
        self._open_until: float | None = None
        self._trial: object | None = None

    @property
    def is_closed(self) -> bool:
        return self._open_until is None

    def wait(self) -> float:
        """Return the seconds until a request may pass; 0: now."""
        if self._open_until is None:
            return 0.0
        left = max(0.0, self._open_until - self._clock())
        return left if self._trial is None else min(left, TRIAL_RETRY_SECONDS)

    def enter(self) -> object | None:
        """Let a request pass. Half-open, it gets a trial, and must `leave` with it."""
        if self._open_until is None:
            return None
        self._trial = object()
        self._open_until = self._clock() + self._open_for
        return self._trial

    def leave(self, trial: object) -> None:
        """End a trial. One that has shown nothing makes room for the next."""
        if trial is self._trial:
            self._trial = None
            self._open_until = self._clock()

    def failed_to_connect(self, trial: object | None) -> None:
        """Count a connection failure. Requests from before it opened tell nothing new, nor does an outdated trial."""
        now = self._clock()
        if self._open_until is not None:
            if trial is not None and trial is self._trial:
                self.open()
        elif now - self._counted_at >= FAILURE_INTERVAL_SECONDS:
            self._counted_at = now
            self._failures += 1
            if self._failures >= self._limit:
                self.open()

    def open(self) -> None:
        self._trial = None
        self._open_until = self._clock() + self._open_for


class CircuitBreakers:
    """The circuit breakers of one backend, one per model. With infinitely many `failures` they never open.

    A timeout or a broken stream says little by itself: the backend may be at fault, or the request. A health check
    decides. It is due once for each tenant and model within `open_for` seconds, however many requests fail.
    """

    __slots__ = ("_clock", "_counted", "_failures", "_open_for", "awaiting_check", "by_model")

    def __init__(self, failures: float, open_for: float, clock: Callable[[], float]) -> None:
        self._failures, self._open_for, self._clock = failures, open_for, clock
        self.by_model = ModelCache[str, CircuitBreaker]()
        """Where there is none, it is closed, and has no failures."""
        self.awaiting_check = ModelCache[str, bool]()
        """Models whose breaker opens if the next health check gets no answer: as long as there are any, one is due."""
        self._counted = ModelCache[tuple[str, str], float]()
        """Until when failures of a model do not count for a tenant."""

    @property
    def has_open(self) -> bool:
        """Whether any is open, or half-open."""
        return any(not breaker.is_closed for breaker in self.by_model.values())

    def wait(self, model: str) -> float:
        breaker = self.by_model.get(model)
        return 0.0 if breaker is None else breaker.wait()

    def enter(self, model: str) -> object | None:
        breaker = self.by_model.get(model)
        return None if breaker is None else breaker.enter()

    def leave(self, model: str, trial: object) -> None:
        if (breaker := self.by_model.get(model)) is not None:
            breaker.leave(trial)

    def failed_to_connect(self, model: str, trial: object | None) -> None:
        self._breaker(model).failed_to_connect(trial)

    def request_check(self, model: str, tenant: str, trial: object | None) -> None:
        """Request a health check after a timeout or a broken stream, at most one per tenant and model within `open_for`
        seconds. That of a trial counts in any case: there is one at a time.
        """
        now, key = self._clock(), (model, tenant)
        if self._failures < inf and (trial is not None or (self._counted.get(key) or now) <= now):
            self.awaiting_check.put(model, True)
            self._counted.put(key, now + self._open_for)

    def open_suspects(self) -> None:
        """Open those of the models that await a check, which got no answer."""
        for model in self.awaiting_check:
            self._breaker(model).open()
        self.awaiting_check.clear()

    def close(self) -> None:
        """Close all: the backend has answered, or a health check has passed."""
        self.by_model.clear()
        self.awaiting_check.clear()

    def _breaker(self, model: str) -> CircuitBreaker:
        breaker = self.by_model.get(model)
        if breaker is None:
            breaker = CircuitBreaker(self._failures, self._open_for, self._clock)
            self.by_model.put(model, breaker)
        return breaker
