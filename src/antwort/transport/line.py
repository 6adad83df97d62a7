"""One line in the log for each request: never content, and of the address only the path."""

from __future__ import annotations

import logging

from antwort.engine.runs.subscription import Subscription
from antwort.errors import AntwortError
from antwort.notes import Value, reason_behind, tell
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
        said: dict[str, Value] = {
            "event": "request",
            "method": exchange.method,
            "path": path,
            "status": exchange.status,
            "duration_ms": ms,
        }
        message = f"{exchange.method} {path} {exchange.status} {ms:.1f} ms"
        tell(_logger, logging.INFO, message, said, _of_the_exchange(exchange))


def _of_the_exchange(exchange: Exchange) -> dict[str, Value]:
    """What there is to say: a line is written faster that has nothing to leave out."""
    said: dict[str, Value] = {"request_id": exchange.request_id}
    if exchange.response_id is not None:
        said["response_id"] = exchange.response_id
    if exchange.identity.key:
        said["key"] = exchange.identity.key
    if exchange.code is not None:
        said["error"] = exchange.code
    return said if exchange.run is None else _of_the_run(exchange, exchange.run, said)


def _of_the_run(exchange: Exchange, run: Subscription, said: dict[str, Value]) -> dict[str, Value]:
    response = run.response
    said["model"] = response.model[:_LONGEST_MODEL]
    said["response_status"] = response.status
    if response.incomplete_details is not None:
        said["reason"] = response.incomplete_details.reason
    if exchange.is_replay:
        said["replayed"] = True
    # Of those who read along with one run, the line of one says what it took; if all have left it, a line of its own.
    if (ended := run.summary()) is None:
        return said
    said["turns"] = ended.turns
    if (usage := ended.response.usage) is not None:
        said["input_tokens"], said["output_tokens"] = usage.input_tokens, usage.output_tokens
    return said
