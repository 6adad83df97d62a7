"""One line in the log for each tool call: never its arguments, nor what came of them."""

from __future__ import annotations

import logging

from antwort.engine.loop.tool_runner import CallRecord
from antwort.notes import Value, tell

_logger = logging.getLogger("antwort.tools")
_LONGEST_NAME = 100


def log_call(called: CallRecord) -> None:
    """For `Engine(on_call=…)`."""
    if _logger.isEnabledFor(logging.INFO):
        tool, label, ms = called.tool[:_LONGEST_NAME], called.label, round(called.seconds * 1000, 1)
        fields: dict[str, Value] = {"call_id": called.call_id, "response_id": called.response_id}
        if label is not None:
            fields = {"server_label": label[:_LONGEST_NAME], **fields}
        said: dict[str, Value] = {"event": "tool_call", "tool": tool, "outcome": called.end, "duration_ms": ms}
        tell(_logger, logging.INFO, f"tool {tool} {called.end} {ms:.1f} ms", said, fields)
