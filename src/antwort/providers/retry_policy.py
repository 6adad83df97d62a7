"""Decide what a failed inference means: for a retry, for failover to another backend, and for the backend's health.

Pure. `RetryPolicy.delay` decides whether the whole inference is retried; `may_fail_over` whether the next backend is
asked; `is_connection_failure` and `is_interrupted` what counts for the circuit breaker; `most_useful_error` which of
several errors the client reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from antwort.concurrency import backoff
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    NotFound,
    QuotaUsedUp,
    RateLimited,
)
from antwort.providers.errors import CONNECT_TIMEOUT, CONNECTION_CLOSED, AnsweredTimeout, NotReady

CIRCUIT_OPEN = "backend_circuit_open"
"""The code of a `BackendUnavailable` for which no backend was asked."""

_SHORT_WAIT_SECONDS = 60.0
"""The longest `Retry-After` that SDKs wait for by themselves, as a rule."""


# ---- retry ----


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often an inference is retried while nothing of its answer has come.

    Delays double from `base` to `cap` seconds, less a random part of up to a half. No try begins later than `budget`
    seconds after the first, in time for the client to read the error as an HTTP status. A backend that asks for a
    longer delay is not waited for: the client can wait better.
    """

    attempts: int = 3
    base: float = 0.2
    cap: float = 2.0
    budget: float = 1.5

    def delay(self, error: AntwortError, tried: int, seconds_left: float, random: Callable[[], float]) -> float | None:
        """Return the seconds until the next try; None if there is none."""
        if tried >= self.attempts or not may_retry(error):
            return None
        delay = error.retry_after
        if delay is None:
            delay = next(islice(backoff(self.base, self.cap), tried - 1, None)) * (0.5 + random() / 2)
        return None if delay > seconds_left else delay


NO_RETRY = RetryPolicy(attempts=1)


def may_retry(error: AntwortError) -> bool:
    """Whether the same request may succeed a moment later, and cannot have been begun by the backend."""
    if isinstance(error, BackendTimeout):
        return error.code == CONNECT_TIMEOUT
    is_passing = isinstance(error, BackendUnavailable | RateLimited) and error.may_pass is not False
    return is_passing and error.code != CONNECTION_CLOSED


# ---- failover ----


def may_fail_over(error: AntwortError) -> bool:
    """Whether another backend may succeed. A bad request is bad everywhere, unless it is only too long."""
    return isinstance(error, BackendError | RateLimited | NotFound | ContextTooLong)


def is_short_wait(error: AntwortError) -> bool:
    """Whether the backend can be reached, and may take the same request after a short wait."""
    match error:
        case _ if error.code == CIRCUIT_OPEN or isinstance(error, QuotaUsedUp):
            return False
        case RateLimited():
            return error.retry_after is None or error.retry_after <= _SHORT_WAIT_SECONDS
        case BackendUnavailable():
            return error.retry_after is not None and error.retry_after <= _SHORT_WAIT_SECONDS
        case _:
            return False


def most_useful_error(errors: Sequence[AntwortError]) -> AntwortError:
    """Return the error that helps the client most, by `_rank`. Of equal ones, the one with the shorter wait, then the
    one with the larger context, then the first.
    """
    return min(errors, key=lambda error: (_rank(error), _wait(error), -_limit(error)))


def _rank(error: AntwortError) -> int:
    # A shorter request helps (0); waiting helps: a rate limit (1), a backend with a known wait (2); no connection (3);
    # a timeout (4); another failure, or no quota (5); no backend was asked (6); the rest, such as a missing model (7).
    match error:
        case ContextTooLong():
            return 0
        case QuotaUsedUp():
            return 5
        case RateLimited():
            return 1
        case _ if error.code == CIRCUIT_OPEN:
            return 6
        case BackendUnavailable():
            return 2 if error.retry_after is not None else 3
        case BackendTimeout():
            return 3 if error.code == CONNECT_TIMEOUT else 4
        case BackendError():
            return 5
        case _:
            return 7


def _limit(error: AntwortError) -> int:
    return (error.limit or 0) if isinstance(error, ContextTooLong) else 0


def _wait(error: AntwortError) -> float:
    return float("inf") if error.retry_after is None else error.retry_after


# ---- health ----


def circuit_open(seconds: float) -> BackendUnavailable:
    """Return the error for a request that an open circuit breaker keeps from its backend."""
    message = "The backend could not be reached, and its circuit breaker is open; try again later."
    return BackendUnavailable(message, code=CIRCUIT_OPEN, retry_after=seconds)


def is_connection_failure(error: AntwortError) -> bool:
    """Whether no connection could be made: it was refused, or took too long, or the name or TLS failed."""
    if isinstance(error, BackendTimeout):
        return error.code == CONNECT_TIMEOUT
    is_answered = isinstance(error, NotReady | BackendOverloaded)
    return isinstance(error, BackendUnavailable) and not is_answered and error.code != CONNECTION_CLOSED


def is_interrupted(error: AntwortError) -> bool:
    """Whether the backend took too long, or cut its answer. Only a health check can tell whose fault that is."""
    if isinstance(error, BackendTimeout):
        return not isinstance(error, AnsweredTimeout)
    return isinstance(error, BackendCut) or error.code == CONNECTION_CLOSED
