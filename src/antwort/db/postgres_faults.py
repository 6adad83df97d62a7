"""What errors of PostgreSQL mean: for whoever waits, and for who may try again."""

from __future__ import annotations

import psycopg
from psycopg import errors

from antwort.db.base import NO_WORDS
from antwort.errors import StoreFault, StoreUnavailable

UNREACHABLE = "The database cannot be reached."
TOO_SLOW = "The database took too long to answer."
UNKNOWN = "The database was lost before it had confirmed a change."

WaitTimeout = errors._WaitTimeout  # noqa: SLF001  # it has no other name

_LATE = (errors.QueryCanceled, errors.LockNotAvailable, errors.ConnectionTimeout, WaitTimeout)
_RACES = (errors.SerializationFailure, errors.DeadlockDetected)
"""Of transactions as a whole."""
_RIVALS = (errors.UniqueViolation, errors.ForeignKeyViolation)
"""Another process was faster with the same row. The second time it is seen beforehand, unless it was no race."""
_WORDS: tuple[tuple[tuple[type[psycopg.Error], ...], str], ...] = (
    (_LATE, TOO_SLOW),
    ((errors.DiskFull,), "The database is full: its disk has no room left."),
    ((errors.ReadOnlySqlTransaction,), "The database may not be written."),
    ((errors.InsufficientPrivilege,), "The database does not permit it."),
    ((psycopg.OperationalError,), UNREACHABLE),
)
_SIGNS = (
    (("connection refused",), "connection refused"),
    (("timeout expired",), "timed out"),
    (("translate host name", "name or service not known"), "its name is not known"),
    (("no route to host", "network is unreachable"), "there is no way to it"),
    (("authentication failed", "no password supplied", "pg_hba.conf"), "it does not let this user in"),
    (("starting up", "not yet accepting connections"), "it starts"),
    (("shutting down", "terminating connection", "administrator command"), "it is shut down"),
    (("too many clients", "connection slots"), "it has no connection left"),
    (("does not exist",), "there is no such database or user"),
    (("ssl", "certificate"), "TLS could not be agreed on"),
    (("closed the connection", "connection is lost", "connection reset"), "the connection was lost"),
)


def store_fault(exc: Exception, words: str | None = None) -> StoreFault:
    """What a client may know of `exc`: no address, no statement."""
    found = words or next((words for kinds, words in _WORDS if isinstance(exc, kinds)), None)
    fault = StoreFault(NO_WORDS) if found is None else StoreUnavailable(found)
    fault.__cause__, fault.why = exc, _why(exc)
    return fault


def _why(exc: Exception) -> str:
    """In words of our own, as far as they are known: those of the driver name hosts, users and databases."""
    if isinstance(exc, _LATE):
        return "timed out"
    said = str(exc).lower()
    return next((words for signs, words in _SIGNS if any(sign in said for sign in signs)), type(exc).__name__)


def may_pass(exc: Exception, *, is_alone: bool) -> bool:
    """Whether the same transaction may succeed at once. `is_alone`: it is one operation, and not several."""
    return isinstance(exc, _RACES) or (is_alone and isinstance(exc, _RIVALS))
