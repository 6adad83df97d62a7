"""Log messages with structured fields that have stable names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
Fields: TypeAlias = Mapping[str, Value]

RESPONSE_ID: ContextVar[str] = ContextVar("response_id", default="")
"""The id of the response that the current task works on, if any; the tools it runs inherit it."""

_NO_FIELDS: Fields = MappingProxyType({})


def note(logger: logging.Logger, level: int, message: str, /, *, said: Fields = _NO_FIELDS, **fields: Value) -> None:
    """Log `message`, which is not formatted, with `fields`. `said` are fields that the message contains already: lines
    for people do not repeat them.

    The message, and names and values of fields, may be untrusted: the handler escapes them, so that no line and no
    field can be forged. Fields that are None are left out.
    """
    if logger.isEnabledFor(level):
        # `Logger.log` would walk the stack for a place in the code, which no line shows.
        record = logging.getLogRecordFactory()(logger.name, level, "", 0, message, (), None)
        record.__dict__ |= {"said": said, "fields": fields}
        logger.handle(record)


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
