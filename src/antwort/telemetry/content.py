"""What was asked and answered, for operators who want to see it. Off unless `configure` says otherwise."""

from __future__ import annotations

import logging

from antwort.api.wire import encode
from antwort.engine.live import Ended
from antwort.notes import note
from antwort.telemetry.lines import Content

content_log = logging.getLogger("antwort.content")
# Not left to the levels of others: a program that sets "antwort" to INFO has not asked for content.
content_log.setLevel(logging.CRITICAL + 1)

LONGEST_CONTENT = 100_000


def log_content(ended: Ended) -> None:
    """For `Engine(on_end=…)`. The tools of a request are left out: their declarations may carry credentials."""
    if content_log.isEnabledFor(logging.INFO):
        response = ended.response
        note(
            content_log,
            logging.INFO,
            "content of a response",
            event="content",
            response_id=response.id,
            instructions=Content((response.instructions or "")[:LONGEST_CONTENT]) or None,
            input=_text(ended.plan.request.input),
            output=_text(response.output),
        )


def _text(items: object) -> Content:
    return Content(encode(items).decode()[:LONGEST_CONTENT])
