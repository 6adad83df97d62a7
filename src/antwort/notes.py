"""Log messages with structured fields that have stable names."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
Fields: TypeAlias = Mapping[str, Value]

RESPONSE_ID: ContextVar[str] = ContextVar("response_id", default="")
"""The id of the response that the current task works on, if any; the tools it runs inherit it."""

_NO_FIELDS: Fields = MappingProxyType({})


class NoteTaker(logging.Handler):
    """A handler that can write a message without a `LogRecord`: creating one is half of the cost of a line."""

    @abstractmethod
    def take(self, name: str, level: int, message: str, said: Fields, fields: Fields) -> bool:
        """Write the message, and return True; return False to be given a record instead."""


def note(logger: logging.Logger, level: int, message: str, /, *, said: Fields = _NO_FIELDS, **fields: Value) -> None:
    """Log `message`, which is not formatted, with `fields`. `said` are fields that the message contains already: lines
    for people do not repeat them.

    The message, and names and values of fields, may be untrusted: the handler escapes them, so that no line and no
    field can be forged. Fields that are None are left out.
    """
    if logger.isEnabledFor(level):
        tell(logger, level, message, said, fields)


def tell(logger: logging.Logger, level: int, message: str, said: Fields, fields: Fields) -> None:
    """Log like `note`, for callers that have checked that the logger is enabled.

    The handlers are looked up for each message, as `logging` does, because they may change. If the only one is a
    `NoteTaker`, and nothing else could change or see a record, none is created.
    """
    at = logger
    while not (handlers := at.handlers) and at.propagate and at.parent is not None:
        at = at.parent
    handler = handlers[0] if len(handlers) == 1 else None
    if (
        not isinstance(handler, NoteTaker)
        or (at.parent is not None and at.propagate)
        or logger.filters
        or logger.__class__.callHandlers is not _call_handlers
        or logging.getLogRecordFactory() is not _record_factory
        or not handler.take(logger.name, level, message, said, fields)
    ):
        # `Logger.log` would walk the stack for a place in the code, which no line shows.
        extra = {"fields": fields, "said": said}
        logger.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None, None, extra))


_call_handlers: object = logging.Logger.callHandlers
_record_factory = logging.LogRecord
"""The originals: programs replace them to see or to change every record."""
if getattr(_call_handlers, "__globals__", None) is not vars(logging):
    _call_handlers = None  # replaced before this module was imported: every message needs a record


def reason_behind(error: BaseException) -> str:
    """Return the class of the innermost cause of an error, with the system's message for an `OSError`, as the end of a
    log message. Return an empty text if the error has no cause.

    Messages of other exceptions are left out, because they may contain a prompt or an answer.
    """
    cause, seen = error, {id(error)}
    # The cause of a timeout is a cancellation, which tells nothing.
    while isinstance(below := cause.__cause__, Exception):
        if id(below) in seen:  # an error that was raised again can be its own cause
            break
        seen.add(id(below))
        cause = below
    if cause is error:
        return ""
    message = cause.strerror if isinstance(cause, OSError) else None
    return f" ({type(cause).__name__}: {message})" if message else f" ({type(cause).__name__})"
