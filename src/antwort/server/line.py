"""One line in the log for each request: never content, and of the address only the path."""

from __future__ import annotations

import logging

from antwort.errors import AntwortError
from antwort.notes import Value, note, reason_behind
from antwort.server.exchange import Exchange

_logger = logging.getLogger("antwort.transport")

_LONGEST_PATH = 200
_LONGEST_MODEL = 100


def cause_of(error: Exception | None) -> str | None:
    """Return what a fault of ours or of a backend is and what is behind it, for the line of its request; None for a
    request that is wrong: the message may be the backend's own, with the prompt in it.
    """
    if isinstance(error, AntwortError) and error.status >= 500:
        return f"{error.message}{reason_behind(error)}"
    return None


def log_request(exchange: Exchange, seconds: float) -> None:
    """Log a request, as a warning where a fault of ours or of a backend is the cause of its failure."""
    cause = exchange.cause
    run = exchange.run
    summary = None if run is None else run.summary()  # of several readers of one run, only the first reports it
    if cause is None and summary is not None:
        cause = cause_of(summary.error)
    level = logging.INFO if cause is None else logging.WARNING
    if not _logger.isEnabledFor(level):
        return
    path, ms = exchange.path[:_LONGEST_PATH], round(seconds * 1000, 1)
    in_message: dict[str, Value] = {
        "event": "request",
        "method": exchange.method,
        "path": path,
        "status": exchange.status,
        "duration_ms": ms,
    }
    fields: dict[str, Value] = {"request_id": exchange.request_id}  # only what there is: that is written faster
    if exchange.response_id is not None:
        fields["response_id"] = exchange.response_id
    if exchange.identity.key:
        fields["key"] = exchange.identity.key
    if exchange.code is not None:
        fields["error"] = exchange.code
    elif summary is not None and summary.response.error is not None:
        fields["error"] = summary.response.error.code
    if cause is not None:
        fields["cause"] = cause
    if run is not None:
        response = run.response
        fields["model"], fields["response_status"] = response.model[:_LONGEST_MODEL], response.status
        if response.incomplete_details is not None:
            fields["reason"] = response.incomplete_details.reason
        if exchange.is_replay:
            fields["replayed"] = True
        if summary is not None:
            fields["turns"] = summary.turns
            if (usage := summary.response.usage) is not None:
                fields["input_tokens"], fields["output_tokens"] = usage.input_tokens, usage.output_tokens
    note(_logger, level, f"{exchange.method} {path} {exchange.status} {ms:.1f} ms", said=in_message, **fields)
