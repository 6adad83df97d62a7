"""What a failed inference says: about the backend, about asking another one, and about all that were asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

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
from antwort.providers.errors import CLOSED, CONNECT_TIMEOUT, AnsweredTimeout, NotReady

CIRCUIT_OPEN = "backend_circuit_open"
"""The code of a `BackendUnavailable` that no backend was asked for."""

_SOON = 60.0
"""Seconds; clients that try again by themselves wait for no longer, as a rule."""


def circuit_open(seconds: float) -> BackendUnavailable:
    message = "The backend could not be reached, and its circuit breaker is open; try again later."
    return BackendUnavailable(message, code=CIRCUIT_OPEN, retry_after=seconds)


def may_go_elsewhere(error: AntwortError) -> bool:
    """Whether another backend may do better. What is wrong with the request is wrong everywhere, but for its length."""
    return isinstance(error, BackendError | RateLimited | NotFound | ContextTooLong)


def is_unconnected(error: AntwortError) -> bool:
    """Whether no connection could be made: it was refused, or took too long, or the name or TLS failed."""
    if isinstance(error, BackendTimeout):
        return error.code == CONNECT_TIMEOUT
    is_answered = isinstance(error, NotReady | BackendOverloaded)
    return isinstance(error, BackendUnavailable) and not is_answered and error.code != CLOSED


def is_interrupted(error: AntwortError) -> bool:
    """Whether the backend took too long, or broke its answer off: only a health check can tell whose fault it is."""
    if isinstance(error, BackendTimeout):
        return not isinstance(error, AnsweredTimeout)
    return isinstance(error, BackendCut) or error.code == CLOSED


def passes_soon(error: AntwortError) -> bool:
    """Whether the backend is there, and may take the same request in a moment."""
    match error:
        case _ if error.code == CIRCUIT_OPEN or isinstance(error, QuotaUsedUp):
            return False
        case RateLimited():
            return error.retry_after is None or error.retry_after <= _SOON
        case BackendUnavailable():
            return error.retry_after is not None and error.retry_after <= _SOON
        case _:
            return False


def most_telling(errors: Sequence[AntwortError]) -> AntwortError:
    """The one that helps the client most: what a shorter request avoids, what passes by waiting, then what went wrong,
    and last that it is not there.

    Of two alike it is the one that is over sooner, or that lets more pass, then the one that came first.
    """
    return min(errors, key=lambda error: (_rank(error), _wait(error), -_limit(error)))


def _rank(error: AntwortError) -> int:
    match error:
        case ContextTooLong():
            return -1
        case QuotaUsedUp():
            return 4
        case RateLimited():
            return 0
        case _ if error.code == CIRCUIT_OPEN:
            return 5
        case BackendUnavailable():
            return 1 if error.retry_after is not None else 2
        case BackendTimeout():
            return 2 if error.code == CONNECT_TIMEOUT else 3
        case BackendError():
            return 4
        case _:
            return 6


def _limit(error: AntwortError) -> int:
    return (error.limit or 0) if isinstance(error, ContextTooLong) else 0


def _wait(error: AntwortError) -> float:
    return float("inf") if error.retry_after is None else error.retry_after
