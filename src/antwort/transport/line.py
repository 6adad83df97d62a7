"""One line in the log for each request: never content, and of the address only the path."""

from __future__ import annotations

import logging

from antwort.notes import Value, note
from antwort.transport.exchange import Exchange

_logger = logging.getLogger("antwort.transport")

_LONGEST_PATH = 200
_LONGEST_MODEL = 100


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
    if (ended := exchange.run.account()) is None:  # the line of the request that started it says what it took
        response = exchange.run.response
        return {
            "model": response.model[:_LONGEST_MODEL],
            "response_status": response.status,
            "replayed": True,
        }
    usage = ended.response.usage
    return {
        "model": ended.response.model[:_LONGEST_MODEL],
        "response_status": ended.response.status,
        "turns": ended.turns,
        "input_tokens": None if usage is None else usage.input_tokens,
        "output_tokens": None if usage is None else usage.output_tokens,
    }
