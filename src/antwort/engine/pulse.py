"""Signs of life: what a reader gets while there is nothing to read.

A comment keeps a connection open. It does not keep every client waiting: some count only events, and give up on a
stream that brings none for two minutes. So `response.in_progress` is repeated in a long silence, sooner where tools
work here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence

from antwort.api.events import Batch, McpCallInProgress, ResponseInProgress
from antwort.api.items import McpCall, OutputItem
from antwort.engine.control import Control
from antwort.engine.pairs import call_id_of
from antwort.engine.pipe import Heard
from antwort.engine.plan import Plan
from antwort.engine.progress import ProgressTold, asks_for_progress
from antwort.tools.base import Progress

_LOOKS = 4
"""How often a silence is looked at before it counts: it is found out when it has lasted a quarter longer at most."""

_BETWEEN_REPORTS = 1.0
"""Seconds between two reports of a tool that are passed on."""


def at_work(output: Sequence[OutputItem], running: Collection[str]) -> Batch:
    """For each call of a server's tool that is under way, that it still is."""
    return [
        McpCallInProgress(item_id=item.id, output_index=at)
        for at, item in enumerate(output)
        if isinstance(item, McpCall) and item.status == "in_progress" and call_id_of(item) in running
    ]


class Pulse:
    """Looks at an outlet now and then: what is sent pays nothing for it.

    A call that is under way has been sent, as tools start after what was said before has gone out; and none is under
    way whose end has. So the run as it stands may be ahead of what was sent, and still tells what to repeat.
    """

    def __init__(self, plan: Plan, control: Control, outlet: Heard) -> None:
        self._settings, self._response = plan.settings, plan.response
        self._control, self._outlet = control, outlet
        self._progress_told = ProgressTold(control, outlet) if asks_for_progress(plan.request) else None
        self._longest = self._settings.longest_silence or math.inf
        self._progress = min(self._settings.progress_interval or math.inf, self._longest)
        self._step = min(self._settings.keepalive_interval, self._progress) / _LOOKS
        self._seen = 0
        self._without_event = self._without_anything = 0
        self._next_report = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._step, self._look)
        self._is_over = self._is_hushed = False

    def hush(self) -> None:
        """The end is being put on record, with all that was sent before: signs of life are no events from now on."""
        self._is_hushed = True
        if self._progress_told is not None:
            self._progress_told.stop()

    def stop(self) -> None:
        """Nothing more is sent, and no timer is left."""
        self._is_over = True
        if self._progress_told is not None:
            self._progress_told.stop()
        self._timer.cancel()

    def report(self, call_id: str, news: str | Progress) -> None:
        """A tool says that it is getting on: passed on at once, though not each time that it says so."""
        if self._progress_told is not None:
            self._progress_told.note(call_id, news)
            return
        may_tell = self._outlet.is_read and not self._is_over and call_id in self._control.running
        if not may_tell or self._loop.time() < self._next_report:
            return
        self._next_report = self._loop.time() + _BETWEEN_REPORTS
        # A function that the request declares has no item that shows work: there it is the response that goes on.
        self._publish(at_work(self._control.run.output, (call_id,)) or self._in_progress())

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._step, self._look)
        if self._outlet.sent != self._seen or not self._outlet.is_read:
            self._seen = self._outlet.sent
            self._without_event = self._without_anything = 0
            return
        self._without_event += 1
        self._without_anything += 1
        running = self._control.running
        if self._without_event * self._step >= (self._progress if running else self._longest):
            self._publish(self._in_progress())
        elif self._without_anything * self._step >= self._settings.keepalive_interval:
            self._show_life()

    def _show_life(self) -> None:
        if self._settings.keepalive == "in_progress":
            self._publish(self._in_progress())
        else:
            self._outlet.tick()
            self._without_anything = 0

    def _in_progress(self) -> Batch:
        return [ResponseInProgress(response=self._response)]

    def _publish(self, batch: Batch) -> None:
        if self._is_hushed:
            self._outlet.tick()
        elif self._outlet.sent:  # the response is announced first
            self._outlet.publish(batch)
