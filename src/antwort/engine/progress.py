"""How far tools say they are, for those who ask to be told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from antwort.api.events import Batch, McpCallProgress
from antwort.api.items import McpCall, OutputItem
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.control import Control
from antwort.engine.pairs import call_id_of
from antwort.engine.pipe import Heard
from antwort.tools.base import Progress

WANTED = "mcp_call.progress"
"""What a request includes to be told."""

_BETWEEN = 0.25
"""Seconds between two times that it is told. Of what a tool says meanwhile, the latest counts."""
_LONGEST = 500
"""Characters of a message."""
_EXACT = 2**53
"""Whole numbers below it are what they are for every reader of JSON."""


def asks_for_progress(request: CreateRequest) -> bool:
    return WANTED in (request.include or ())


class ProgressTold:
    """Tells the reader what tools report: at once, then at most so often, however often they do."""

    def __init__(self, control: Control, outlet: Heard) -> None:
        self._control, self._outlet = control, outlet
        self._latest: dict[str, Progress] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._is_over = False

    def note(self, call_id: str, news: str | Progress) -> None:
        """Of a call that does not show as at work, nothing is told: one whose turn is still being written, too."""
        if self._is_over or call_id not in self._control.running:
            return
        self._latest[call_id] = news if isinstance(news, Progress) else Progress(message=news)
        if self._pause is None:
            self._tell()

    def stop(self) -> None:
        self._is_over = True
        if self._pause is not None:
            self._pause.cancel()

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_BETWEEN, self._go_on)
        if self._outlet.is_read:  # a reader who is behind gets the latest when there is nothing else to read
            latest = {call: news for call, news in self._latest.items() if call in self._control.running}
            self._latest.clear()
            if batch := told(self._control.run.output, latest):
                self._outlet.publish(batch)

    def _go_on(self) -> None:
        self._pause = None
        if self._latest:
            self._tell()


def told(output: Sequence[OutputItem], latest: Mapping[str, Progress]) -> Batch:
    """The events. A function that the request declares has no item that shows work. Pure."""
    return [
        McpCallProgress(
            item_id=item.id,
            output_index=at,
            progress=_number(news.done),
            total=_number(news.total),
            message=_words(news.message),
        )
        for at, item in enumerate(output)
        if isinstance(item, McpCall)
        and item.status == "in_progress"
        and (news := latest.get(call_id_of(item))) is not None
    ]


def _number(value: object) -> float | UnsetType:
    """Tools come from anywhere, and a report is no reason for one to fail: what is no number is not told."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNSET
    if isinstance(value, int) and abs(value) < _EXACT:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return UNSET
    return number if math.isfinite(number) else UNSET


def _words(message: object) -> str | UnsetType:
    """What is no text is not told, nor are halves of surrogate pairs, which nobody could write."""
    if not isinstance(message, str):
        return UNSET
    return message[:_LONGEST].encode(errors="replace").decode()
