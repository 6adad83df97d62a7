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

import msgspec

from antwort.providers.models import ModelCache

TRIAL_RETRY_SECONDS = 1.0
"""`Retry-After` of those that come while another request's trial is under way."""
FAILURE_INTERVAL_SECONDS = 1.0
"""Connection failures within this time count as one: an immediate retry learns nothing new."""


class CircuitBreaker(msgspec.Struct, eq=False):
    """The state for one model."""

    failures: int = 0
    """Connection failures in a row."""
    counted_at: float = -inf
    """When the last one was."""
    open_until: float | None = None
    """None: it is closed."""
    trial: object | None = None
    """The request that was let pass last, while it is half-open."""


class CircuitBreakers:
    """The circuit breakers of one backend, one per model. With infinitely many `failures` they never open. Half-open,
    one request at a time passes as a trial, and keeps the others waiting no longer than `open_for`.

    A timeout or a broken stream says little by itself: the backend may be at fault, or the request. A health check
    decides. It is due once for each tenant and model within `open_for` seconds, however many requests fail.
    """

    __slots__ = ("_by_model", "_clock", "_counted", "_failures", "_open_for", "awaiting_check")

    def __init__(self, failures: float, open_for: float, clock: Callable[[], float]) -> None:
        self._failures, self._open_for, self._clock = failures, open_for, clock
        self._by_model = ModelCache[str, CircuitBreaker]()
        """Where there is none, it is closed, and has no failures."""
        self.awaiting_check = ModelCache[str, bool]()
        """Models whose breaker opens if the next health check gets no answer: as long as there are any, one is due."""
        self._counted = ModelCache[tuple[str, str], float]()
        """Until when failures of a model do not count for a tenant."""

    @property
    def has_open(self) -> bool:
        """Whether any is open, or half-open."""
        return any(breaker.open_until is not None for breaker in self._by_model.values())

    def wait(self, model: str) -> float:
        """Return the seconds until a request may pass; 0: now."""
        breaker = self._by_model.get(model)
        if breaker is None or breaker.open_until is None:
            return 0.0
        left = max(0.0, breaker.open_until - self._clock())
        return left if breaker.trial is None else min(left, TRIAL_RETRY_SECONDS)

    def enter(self, model: str) -> object | None:
        """Let a request pass. Half-open, it gets a trial, and must `leave` with it."""
        breaker = self._by_model.get(model)
        if breaker is None or breaker.open_until is None:
            return None
        breaker.trial, breaker.open_until = object(), self._clock() + self._open_for
        return breaker.trial

    def leave(self, model: str, trial: object) -> None:
        """End a trial. One that has shown nothing makes room for the next."""
        breaker = self._by_model.get(model)
        if breaker is not None and trial is breaker.trial:
            breaker.trial, breaker.open_until = None, self._clock()

    def failed_to_connect(self, model: str, trial: object | None) -> None:
        """Count a connection failure. Requests from before it opened tell nothing new, nor does an outdated trial."""
        now, breaker = self._clock(), self._by_model.get(model) or CircuitBreaker()
        self._by_model.put(model, breaker)
        if breaker.open_until is not None:
            if trial is not None and trial is breaker.trial:
                self.open(model)
        elif now - breaker.counted_at >= FAILURE_INTERVAL_SECONDS:
            breaker.counted_at = now
            breaker.failures += 1
            if breaker.failures >= self._failures:
                self.open(model)

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
            self.open(model)
        self.awaiting_check.clear()

    def open(self, model: str) -> None:
        breaker = self._by_model.get(model) or CircuitBreaker()
        breaker.trial, breaker.open_until = None, self._clock() + self._open_for
        self._by_model.put(model, breaker)

    def close(self) -> None:
        """Close all: the backend has answered, or a health check has passed."""
        self._by_model.clear()
        self.awaiting_check.clear()
