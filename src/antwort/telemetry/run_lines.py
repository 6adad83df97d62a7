"""Lines in the log about runs that no request waits for: who makes them, and how they end. Never content."""

from __future__ import annotations

import logging

from antwort.engine.runs.live import RunSummary
from antwort.notes import Value, note
from antwort.storage.run_log import ClaimedRun

_logger = logging.getLogger("antwort.runs")
_LONGEST_MODEL = 100
_CLAIMED = {"new": "begins", "handed_over": "goes on here", "taken_over": "is taken over: whoever made it was lost"}


def log_claimed(claimed: ClaimedRun, kind: str) -> None:
    """What was lost elsewhere is worth a look."""
    response = claimed.response
    waited: dict[str, Value] = {} if claimed.waited is None else {"waited_ms": round(claimed.waited * 1000, 1)}
    note(
        _logger,
        logging.WARNING if kind == "taken_over" else logging.INFO,
        f"a response in the background {_CLAIMED[kind]}",
        said={"event": "run_claimed", "kind": kind},
        response_id=response.id,
        model=response.model[:_LONGEST_MODEL],
        attempt=claimed.attempt,
        **waited,
    )


def log_ended(ended: RunSummary) -> None:
    """As the line of the request says it that waits for its response."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    response, ms = ended.response, round(ended.seconds * 1000, 1)
    note(
        _logger,
        logging.INFO,
        f"a response in the background is {response.status} {ms:.1f} ms",
        said={"event": "run_ended", "response_status": response.status, "duration_ms": ms},
        response_id=response.id,
        key=ended.plan.identity.key or None,
        model=response.model[:_LONGEST_MODEL],
        reason=response.incomplete_details.reason if response.incomplete_details else None,
        error=response.error.code if response.error else None,
        turns=ended.turns,
        input_tokens=response.usage.input_tokens if response.usage else None,
        output_tokens=response.usage.output_tokens if response.usage else None,
    )


def log_handed_over(response_id: str) -> None:
    said: dict[str, Value] = {"event": "run_handed_over"}
    note(_logger, logging.INFO, "a response in the background is handed over", said=said, response_id=response_id)


def log_lost(response_id: str) -> None:
    """It goes on: this process was too long without a sign of life."""
    said: dict[str, Value] = {"event": "run_lost"}
    note(_logger, logging.WARNING, "a response in the background is lost to others", said=said, response_id=response_id)
