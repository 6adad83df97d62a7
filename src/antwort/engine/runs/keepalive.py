"""Send keep-alives and the progress of tools while a streamed run has no other events.

A comment keeps a connection open, but some clients count only events, and give up on a stream that brings none for two
minutes. So `response.in_progress` is repeated in a long silence, sooner while tools run here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from antwort.api.events import Batch, McpCallInProgress, McpCallProgress, ResponseInProgress
from antwort.api.items import McpCall, OutputItem
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.history.calls import call_id_of
from antwort.tools.base import Progress

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

CHECKS_PER_SILENCE = 4
"""How often a silence is checked: it is noticed when it has lasted a quarter longer at most."""
REPORT_INTERVAL_SECONDS = 1.0
"""Between two reports of a tool that are passed on as "in progress"."""
PROGRESS_INTERVAL_SECONDS = 0.25
"""Between two batches of progress events. Of what a tool reports meanwhile, the latest counts."""
PROGRESS_INCLUDE = "mcp_call.progress"
"""What a request includes to get progress events."""
MAX_MESSAGE_CHARS = 500
_MAX_EXACT_INTEGER = 2**53
"""Smaller integers are exact for every reader of JSON."""


class KeepAlive:
    """Checks a run's log now and then, so that publishing an event costs nothing for it."""

    def __init__(self, live: LiveRun) -> None:
        self._live, self._settings = live, live.plan.settings
        self._sends_progress = PROGRESS_INCLUDE in (live.plan.request.include or ())
        self._max_silence = self._settings.longest_silence or math.inf
        self._max_tool_silence = min(self._settings.progress_interval or math.inf, self._max_silence)
        self._step = min(self._settings.keepalive_interval, self._max_tool_silence) / CHECKS_PER_SILENCE
        self._seen = 0
        self._checks_without_event = self._checks_without_anything = 0
        self._next_report = 0.0
        self._latest: dict[str, Progress] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._step, self._check)
        self._is_paused = False

    def pause(self) -> None:
        """Send no more events: the end is being recorded, with all events before it. Comments may still come."""
        self._is_paused = True
        self._stop_progress()

    def stop(self) -> None:
        self._is_paused = True
        self._timer.cancel()
        self._stop_progress()

    def _stop_progress(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()

    # ---- reports of tools ----

    def report(self, call_id: str, report: str | Progress) -> None:
        """Take a report of a running tool. It is passed on at once, but not more often than the intervals allow."""
        if self._is_paused or call_id not in self._live.tools.running:
            return
        if self._sends_progress:
            self._latest[call_id] = report if isinstance(report, Progress) else Progress(message=report)
            if self._progress_timer is None:
                self._send_progress()
        elif self._is_read and self._loop.time() >= self._next_report:
            self._next_report = self._loop.time() + REPORT_INTERVAL_SECONDS
            # A declared function has no item that shows work: there the response is in progress.
            self._send(in_progress_events(self._live.run.output, (call_id,)) or self._response_in_progress())

    def _send_progress(self) -> None:
        self._progress_timer = self._loop.call_later(PROGRESS_INTERVAL_SECONDS, self._continue_progress)
        if self._is_read:  # a reader that is behind gets the latest when it has read the rest
            running = self._live.tools.running
            latest = {call: report for call, report in self._latest.items() if call in running}
            self._latest.clear()
            if batch := progress_events(self._live.run.output, latest):
                self._send(batch)

    def _continue_progress(self) -> None:
        self._progress_timer = None
        if self._latest:
            self._send_progress()

    # ---- silence ----

    def _check(self) -> None:
        self._timer = self._loop.call_later(self._step, self._check)
        log = self._live.log
        if log.next != self._seen or not self._is_read:
            self._seen = log.next
            self._checks_without_event = self._checks_without_anything = 0
            return
        self._checks_without_event += 1
        self._checks_without_anything += 1
        max_silence = self._max_tool_silence if self._live.tools.running else self._max_silence
        if self._checks_without_event * self._step >= max_silence:
            self._send(self._response_in_progress())
        elif self._checks_without_anything * self._step >= self._settings.keepalive_interval:
            if self._settings.keepalive == "in_progress":
                self._send(self._response_in_progress())
            else:
                log.tick()
                self._checks_without_anything = 0

    @property
    def _is_read(self) -> bool:
        """Whether a reader waits for an event. Who reads a durable run elsewhere is not known."""
        return self._live.is_durable or self._live.log.is_awaited

    def _response_in_progress(self) -> Batch:
        return [ResponseInProgress(response=self._live.plan.response)]

    def _send(self, batch: Batch) -> None:
        if self._is_paused:
            self._live.log.tick()
        elif self._live.log.next:  # the response is announced first
            self._live.publish(batch)


def in_progress_events(output: Sequence[OutputItem], running: Collection[str]) -> Batch:
    """For each running call of a server's tool, an event that it is in progress."""
    return [
        McpCallInProgress(item_id=item.id, output_index=at)
        for at, item in enumerate(output)
        if isinstance(item, McpCall) and item.status == "in_progress" and call_id_of(item) in running
    ]


def progress_events(output: Sequence[OutputItem], latest: Mapping[str, Progress]) -> Batch:
    """The events for the latest reports by call id. A declared function has no item that shows work."""
    return [
        McpCallProgress(
            item_id=item.id,
            output_index=at,
            progress=_number(report.done),
            total=_number(report.total),
            message=_text(report.message),
        )
        for at, item in enumerate(output)
        if isinstance(item, McpCall)
        and item.status == "in_progress"
        and (report := latest.get(call_id_of(item))) is not None
    ]


def _number(value: object) -> float | UnsetType:
    """Return a number of a report, or leave it out: tools are untrusted, and a bad report must not fail the call."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNSET
    if isinstance(value, int) and abs(value) < _MAX_EXACT_INTEGER:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return UNSET
    return number if math.isfinite(number) else UNSET


def _text(message: object) -> str | UnsetType:
    """Return the message of a report, bounded and without lone surrogates, which cannot be encoded."""
    if not isinstance(message, str):
        return UNSET
    return message[:MAX_MESSAGE_CHARS].encode(errors="replace").decode()
