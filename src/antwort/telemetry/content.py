"""What was asked and answered, for operators who want to see it. Off unless `configure` says otherwise."""

from __future__ import annotations

import logging

from antwort.api.wire import encode
from antwort.engine.runs.live import RunSummary
from antwort.notes import note
from antwort.telemetry.lines import Content

content_log = logging.getLogger("antwort.content")
# Not left to the levels of others: a program that sets "antwort" to INFO has not asked for content.
content_log.setLevel(logging.CRITICAL + 1)

LONGEST_CONTENT = 64 * 1024
"""Bytes of each of the three fields, before what must be escaped is: so a line is less than what waits for a reader."""


def log_content(ended: RunSummary) -> None:
    """For `Engine(on_end=…)`. The tools of a request are left out: their declarations may carry credentials."""
    if content_log.isEnabledFor(logging.INFO):
        response = ended.response
        note(
            content_log,
            logging.INFO,
            "content of a response",
            event="content",
            response_id=response.id,
            instructions=_cut((response.instructions or "").encode("utf-8", "replace")) or None,
            input=_text(ended.plan.request.input),
            output=_text(response.output),
        )


def _text(items: object) -> Content:
    return _cut(encode(items))


def _cut(text: bytes) -> Content:
    if len(text) <= LONGEST_CONTENT:
        return Content(text.decode())
    kept = text[:LONGEST_CONTENT].decode("utf-8", "ignore")  # the last character may be cut in two
    return Content(f"{kept}… ({len(text) - LONGEST_CONTENT} bytes more)")
