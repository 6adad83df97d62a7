"""Notes for the log: a sentence for people, and fields with stable names for machines."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
Fields: TypeAlias = Mapping[str, Value]

RESPONSE_ID: ContextVar[str] = ContextVar("response_id", default="")
"""The id of the response that the current task works on, if any; the tools it runs inherit it."""

_NOTHING: Fields = MappingProxyType({})


class NoteTaker(logging.Handler):
    """A handler that may take a note without a record of it: to make one is half of what a line costs."""

    @abstractmethod
    def take(self, name: str, level: int, message: str, said: Fields, fields: Fields) -> bool:
        """Whether it has. If not, it wants the record."""


def note(logger: logging.Logger, level: int, message: str, /, *, said: Fields = _NOTHING, **fields: Value) -> None:
    """Log `message`, as it is, with `fields`. `said` are more of them, which the message says already: a line for
    people does not repeat them.

    Values may be untrusted, the message and the names of the fields too: whoever writes the line sees to it that
    neither a line nor a field can be forged. Fields that are None are left out.
    """
    if logger.isEnabledFor(level):
        tell(logger, level, message, said, fields)


def tell(logger: logging.Logger, level: int, message: str, said: Fields, fields: Fields) -> None:
    """The same, for those who have asked whether the logger is enabled before they put their note together.

    Who hears of it is looked up each time, as `logging` does: that can change whenever somebody likes. If it is one
    alone who takes notes, and nobody between has a say in it, no record is made.
    """
    at = logger
    while not (heard := at.handlers) and at.propagate and at.parent is not None:
        at = at.parent
    taker = heard[0] if len(heard) == 1 else None
    if (
        not isinstance(taker, NoteTaker)
        or (at.parent is not None and at.propagate)
        or logger.filters
        or logger.__class__.callHandlers is not _walk
        or logging.getLogRecordFactory() is not _plain_record
        or not taker.take(logger.name, level, message, said, fields)
    ):
        logger.handle(_record(logger, level, message, fields, said))


_walk: object = logging.Logger.callHandlers
_plain_record = logging.LogRecord
"""As they come: others replace them to see or to change every record."""
if getattr(_walk, "__globals__", None) is not vars(logging):
    _walk = None  # somebody has done so before we came: there is a record of each note


def _record(logger: logging.Logger, level: int, message: str, fields: Fields, said: Fields) -> logging.LogRecord:
    """Without a place in the code: `Logger.log` would walk the stack for it, and no line shows it.

    Where nobody asks for threads and processes, and nobody makes records in a way of their own, it is a copy of a
    blank one: to make it of nothing is half of what a line costs.
    """
    if logging.logThreads or logging.logProcesses or logging.getLogRecordFactory() is not logging.LogRecord:
        extra = {"fields": fields, "said": said}
        return logger.makeRecord(logger.name, level, "", 0, message, (), None, None, extra)
    now = time.time()
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__ = {
        **_BLANK,
        "name": logger.name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "msg": message,
        "created": now,
        "msecs": int(now % 1 * 1000) + 0.0,
        "relativeCreated": (now - _LOADED) * 1000,
        "fields": fields,
        "said": said,
    }
    return record


def _blank() -> dict[str, object]:
    record = vars(logging.LogRecord("", logging.INFO, "", 0, "", (), None))
    nobody = {"thread", "threadName", "process", "processName", "taskName"}
    return {name: None if name in nobody else value for name, value in record.items()}


_BLANK = _blank()
_LOADED: float = time.time() - logging.LogRecord("", logging.INFO, "", 0, "", (), None).relativeCreated / 1000


def reason_behind(error: BaseException) -> str:
    """What is at the bottom of an error, to stand behind its message: the kind, and what the system said.

    Never more: other exceptions carry what they failed at, which may be a prompt or an answer.
    """
    cause, passed = error, {id(error)}
    # Below a timeout there is a cancellation, which says nothing.
    while isinstance(below := cause.__cause__, Exception):
        if id(below) in passed:  # one that was raised again can have come to be behind itself
            break
        passed.add(id(below))
        cause = below
    if cause is error:
        return ""
    said = cause.strerror if isinstance(cause, OSError) else None
    return f" ({type(cause).__name__}: {said})" if said else f" ({type(cause).__name__})"
