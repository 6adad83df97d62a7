"""Write log lines about tool calls and background runs, and about content where the operator asks for it.

Only `log_content` writes what was asked and answered: the other lines have no arguments, results or texts.
"""

from __future__ import annotations

import logging

from antwort.api.wire import encode
from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.notes import Value, note, tell
from antwort.storage.run_log import ClaimedRun
from antwort.telemetry.formatters import Content

_tools_log = logging.getLogger("antwort.tools")
_runs_log = logging.getLogger("antwort.runs")
content_log = logging.getLogger("antwort.content")
# Not left to the levels of others: a program that sets "antwort" to INFO has not asked for content.
content_log.setLevel(logging.CRITICAL + 1)

_MAX_NAME_CHARS = 100
MAX_CONTENT_BYTES = 64 * 1024
"""Of each of the three fields, before escaping: so a line is smaller than the buffer of the log writer."""
_CLAIMED = {"new": "begins", "handed_over": "goes on here", "taken_over": "is taken over: whoever made it was lost"}


# ---- tool calls ----


def log_call(called: CallRecord) -> None:
    """For `Engine(on_call=…)`."""
    if _tools_log.isEnabledFor(logging.INFO):
        tool, label, ms = called.tool[:_MAX_NAME_CHARS], called.label, round(called.seconds * 1000, 1)
        fields: dict[str, Value] = {"call_id": called.call_id, "response_id": called.response_id}
        if label is not None:
            fields = {"server_label": label[:_MAX_NAME_CHARS], **fields}
        said: dict[str, Value] = {"event": "tool_call", "tool": tool, "outcome": called.end, "duration_ms": ms}
        tell(_tools_log, logging.INFO, f"tool {tool} {called.end} {ms:.1f} ms", said, fields)


# ---- background runs ----


def log_claimed(claimed: ClaimedRun, kind: str) -> None:
    """Log a claim, as a warning where another process was lost."""
    response = claimed.response
    waited: dict[str, Value] = {} if claimed.waited is None else {"waited_ms": round(claimed.waited * 1000, 1)}
    note(
        _runs_log,
        logging.WARNING if kind == "taken_over" else logging.INFO,
        f"a response in the background {_CLAIMED[kind]}",
        said={"event": "run_claimed", "kind": kind},
        response_id=response.id,
        model=response.model[:_MAX_NAME_CHARS],
        attempt=claimed.attempt,
        **waited,
    )


def log_ended(ended: RunSummary) -> None:
    """Log the end of a run like the line of a request."""
    if not _runs_log.isEnabledFor(logging.INFO):
        return
    response, ms = ended.response, round(ended.seconds * 1000, 1)
    note(
        _runs_log,
        logging.INFO,
        f"a response in the background is {response.status} {ms:.1f} ms",
        said={"event": "run_ended", "response_status": response.status, "duration_ms": ms},
        response_id=response.id,
        key=ended.plan.identity.key or None,
        model=response.model[:_MAX_NAME_CHARS],
        reason=response.incomplete_details.reason if response.incomplete_details else None,
        error=response.error.code if response.error else None,
        turns=ended.turns,
        input_tokens=response.usage.input_tokens if response.usage else None,
        output_tokens=response.usage.output_tokens if response.usage else None,
    )


def log_handed_over(response_id: str) -> None:
    said: dict[str, Value] = {"event": "run_handed_over"}
    note(_runs_log, logging.INFO, "a response in the background is handed over", said=said, response_id=response_id)


def log_lost(response_id: str) -> None:
    """Log that another process has the run: this one has missed its heartbeats."""
    said: dict[str, Value] = {"event": "run_lost"}
    note(
        _runs_log, logging.WARNING, "a response in the background is lost to others", said=said, response_id=response_id
    )


# ---- content ----


def log_content(ended: RunSummary) -> None:
    """For `Engine(on_end=…)`. Tools are left out: their declarations may carry credentials."""
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
    if len(text) <= MAX_CONTENT_BYTES:
        return Content(text.decode())
    kept = text[:MAX_CONTENT_BYTES].decode("utf-8", "ignore")  # the last character may be cut in two
    return Content(f"{kept}… ({len(text) - MAX_CONTENT_BYTES} bytes more)")
