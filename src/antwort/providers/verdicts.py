"""What a failed inference says: about the backend, about asking another one, and about all that were asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.errors import (
    AntwortError,
    BackendError,
    BackendOverloaded,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    NotFound,
    QuotaUsedUp,
    RateLimited,
)
from antwort.providers.failures import CLOSED, CONNECT_TIMEOUT, NotReady

LEFT_ALONE = "backend_circuit_open"
"""The code of a `BackendUnavailable` that nobody was asked for: the backend has failed too often."""


_SOON = 60.0
"""Seconds; clients that try again by themselves wait for no longer, as a rule."""


def left_alone(seconds: float) -> BackendUnavailable:
    message = "The backend has failed too often and is left alone for a moment; try again later."
    return BackendUnavailable(message, code=LEFT_ALONE, retry_after=seconds)


def may_go_elsewhere(error: AntwortError) -> bool:
    """Whether another backend may do better. What is wrong with the request is wrong everywhere, but for its length."""
    return isinstance(error, BackendError | RateLimited | NotFound | ContextTooLong)


def counts(error: AntwortError) -> bool:
    """Whether the error says that the backend does not work. One that is busy does, and one without the model, too."""
    return isinstance(error, BackendError)


def may_be_the_request(error: AntwortError) -> bool:
    """Whether it is an error that the backend answered with: a request can be such that every backend does."""
    return type(error) is BackendError


def is_out_of_reach(error: AntwortError) -> bool:
    """Whether the backend was not there: it can be found out without an inference when it is back."""
    if isinstance(error, BackendTimeout):
        return error.code == CONNECT_TIMEOUT
    return isinstance(error, BackendUnavailable) and not isinstance(error, NotReady | BackendOverloaded)


def is_unconnected(error: AntwortError) -> bool:
    """Whether all the time that it took was spent on connecting."""
    return is_out_of_reach(error) and error.code != CLOSED


def passes_soon(error: AntwortError) -> bool:
    """Whether the backend is there, and may take the same request in a moment."""
    match error:
        case _ if error.code == LEFT_ALONE or isinstance(error, QuotaUsedUp):
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
        case _ if error.code == LEFT_ALONE:
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
