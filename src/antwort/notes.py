"""Notes for the log: a sentence for people, and fields with stable names for machines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None

RESPONSE_ID: ContextVar[str] = ContextVar("response_id", default="")
"""The id of the response that the current task works on, if any; the tools it runs inherit it."""

_NOTHING: Mapping[str, Value] = MappingProxyType({})


def note(
    logger: logging.Logger, level: int, message: str, /, *, said: Mapping[str, Value] = _NOTHING, **fields: Value
) -> None:
    """Log `message`, as it is, with `fields`. `said` are more of them, which the message says already: a line for
    people does not repeat them.

    Values may be untrusted, the message and the names of the fields too: whoever writes the line sees to it that
    neither a line nor a field can be forged. Fields that are None are left out.
    """
    if logger.isEnabledFor(level):
        extra = {"fields": fields, "said": said}
        # Straight to the record: `Logger.log` would walk the stack for a place in the code that no line shows.
        logger.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None, None, extra))


def reason_behind(error: BaseException) -> str:
    """What is at the bottom of an error, to stand behind its message: the kind, and what the system said.

    Never more: other exceptions carry what they failed at, which may be a prompt or an answer.
    """
    cause = error
    while isinstance(cause.__cause__, Exception):  # below a timeout there is a cancellation, which says nothing
        cause = cause.__cause__
    if cause is error:
        return ""
    said = cause.strerror if isinstance(cause, OSError) else None
    return f" ({type(cause).__name__}: {said})" if said else f" ({type(cause).__name__})"
