"""One line in the log for each request: never content, and of the address only the path."""

from __future__ import annotations

import logging

from antwort.errors import AntwortError
from antwort.notes import Value, reason_behind, tell
from antwort.server.exchange import Exchange

_logger = logging.getLogger("antwort.transport")

_LONGEST_PATH = 200
_LONGEST_MODEL = 100


def log_fault(error: AntwortError) -> None:
    """A fault of ours is worth a line of its own, with what is behind it; a wrong request is not."""
    if error.status >= 500:
        _logger.warning("%s: %s%s", error.code, error.message, reason_behind(error))


def log_request(exchange: Exchange, seconds: float) -> None:
    if not _logger.isEnabledFor(logging.INFO):
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
    if (run := exchange.run) is not None:
        response = run.response
        fields["model"], fields["response_status"] = response.model[:_LONGEST_MODEL], response.status
        if response.incomplete_details is not None:
            fields["reason"] = response.incomplete_details.reason
        if exchange.is_replay:
            fields["replayed"] = True
        # Of several readers of one run, the line of one has the figures; if all have left, the run has its own line.
        if (summary := run.summary()) is not None:
            fields["turns"] = summary.turns
            if (usage := summary.response.usage) is not None:
                fields["input_tokens"], fields["output_tokens"] = usage.input_tokens, usage.output_tokens
    message = f"{exchange.method} {path} {exchange.status} {ms:.1f} ms"
    tell(_logger, logging.INFO, message, in_message, fields)
