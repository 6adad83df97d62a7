"""One line in the log for each request: never content, and of the address only the path."""

from __future__ import annotations

import logging

from antwort.errors import AntwortError
from antwort.notes import Value, note, reason_behind
from antwort.transport.exchange import Exchange

_logger = logging.getLogger("antwort.transport")

_LONGEST_PATH = 200
_LONGEST_MODEL = 100


def log_fault(error: AntwortError) -> None:
    """A fault of ours is worth a line of its own, with what is behind it; a wrong request is not."""
    if error.status >= 500:
        _logger.warning("%s: %s%s", error.code, error.message, reason_behind(error))


def log_request(exchange: Exchange, seconds: float) -> None:
    if _logger.isEnabledFor(logging.INFO):
        path, ms = exchange.path[:_LONGEST_PATH], round(seconds * 1000, 1)
        note(
            _logger,
            logging.INFO,
            f"{exchange.method} {path} {exchange.status} {ms:.1f} ms",
            said={
                "event": "request",
                "method": exchange.method,
                "path": path,
                "status": exchange.status,
                "duration_ms": ms,
            },
            request_id=exchange.request_id,
            response_id=exchange.response_id,
            key=exchange.identity.key or None,
            error=exchange.code,
            **_of_the_run(exchange),
        )


def _of_the_run(exchange: Exchange) -> dict[str, Value]:
    if exchange.run is None:
        return {}
    response = exchange.run.response
    said: dict[str, Value] = {
        "model": response.model[:_LONGEST_MODEL],
        "response_status": response.status,
    }
    if response.incomplete_details is not None:
        said["reason"] = response.incomplete_details.reason
    if exchange.is_replay:
        said["replayed"] = True
    # Of those who read along with one run, the line of one says what it took; if all have left it, a line of its own.
    if (ended := exchange.run.account()) is None:
        return said
    usage = ended.response.usage
    return {
        **said,
        "turns": ended.turns,
        "input_tokens": None if usage is None else usage.input_tokens,
        "output_tokens": None if usage is None else usage.output_tokens,
    }
