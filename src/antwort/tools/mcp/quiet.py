"""What the SDK and its HTTP client would write to the log: addresses, ids of sessions, arguments and results."""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar

_IN_SESSION: ContextVar[bool] = ContextVar("in_mcp_session", default=False)
_SHARED = ("client", "httpx2")
"""Names under which others log as well. The SDK's own, `mcp`, is left alone where somebody has set its level."""


def own_context() -> Context:
    """For the tasks of a session: nothing of the run that began it, which it outlives, and nothing for the log."""
    context = Context()
    context.run(_IN_SESSION.set, True)
    return context


def hush() -> None:
    if logging.getLogger("mcp").level == logging.NOTSET:
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
    for name in _SHARED:
        logging.getLogger(name).addFilter(_is_somebody_elses)


def _is_somebody_elses(record: logging.LogRecord) -> bool:
    del record
    return not _IN_SESSION.get()
