"""One line in the log for each tool call: never its arguments, nor what came of them."""

from __future__ import annotations

import logging

from antwort.engine.control import Called
from antwort.notes import Value, note

_logger = logging.getLogger("antwort.tools")
_LONGEST_NAME = 100


def log_call(called: Called) -> None:
    """For `Engine(on_call=…)`."""
    if _logger.isEnabledFor(logging.INFO):
        ms = round(called.seconds * 1000, 1)
        tool = called.tool[:_LONGEST_NAME]
        at: dict[str, Value] = {} if called.label is None else {"server_label": called.label[:_LONGEST_NAME]}
        note(
            _logger,
            logging.INFO,
            f"tool {tool} {called.end} {ms:.1f} ms",
            said={"event": "tool_call", "tool": tool, "outcome": called.end, "duration_ms": ms},
            **at,
            call_id=called.call_id,
            response_id=called.response_id,
        )
