"""What a server sends that nobody has asked for: how much of it is read, and what of it matters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from antwort.notes import note
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.pauses import Pauses

_log = logging.getLogger(__name__)

FLOODED = "The MCP server sends too much that nobody asked for."
_LIGHT = 1024
"""Bytes that a message counts as beside its own, however short it is: to read it takes as long."""
_ASKED = 256
"""The same for the progress of a call that wants to hear of it."""
_HEAVY = 8 * 1024
"""The same for one that makes work: a request that is declined, news of the list of tools."""
_WINDOW = 4.0
"""Seconds in which the allowance comes back."""
_SHORTEST_WAIT = 0.25
"""Seconds: shorter waits are left to the next messages."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_FORGOTTEN = 600.0
"""Seconds without a closed stream after which the pauses begin anew."""
_HANDLED = frozenset(("notifications/tools/list_changed", "notifications/subscriptions/acknowledged"))
"""The notifications that anybody here listens to, beside progress."""
_PROGRESS = "notifications/progress"


class Flooded(ServerUnavailable):
    """The stream is closed."""


class Allowance:
    """Bytes that one server may send unasked: all of it at once, then as much again in each four seconds.

    What comes faster waits. A server that has the whole allowance once more waiting, before half of it has come back,
    has its stream closed. The pause before the next stream grows from one time to the next.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._label, self._most, self.is_strangers = spec.label, spec.unsolicited, spec.is_strangers
        self._level = logging.INFO if spec.is_strangers else logging.WARNING
        self._due = float("-inf")
        """When the allowance is enough for all that was sent, at the pace at which it comes back."""
        self._above = 0
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE, at_once=0)
        self._closed_at = self._told_at = float("-inf")

    async def spend(self, size: int, *, only_waits: bool = False) -> None:
        """Wait until it may be heard. Raises `Flooded`, unless it `only_waits`."""
        now = asyncio.get_running_loop().time()
        if now - self._due > _WINDOW / 2:
            self._above = 0
        cost = min(size, self._most) if only_waits else size
        self._due = max(self._due, now - _WINDOW) + cost * _WINDOW / self._most
        wait = self._due - now
        if wait > 0 and not only_waits:
            self._above += size
            if self._above > self._most:
                raise self.closed()
        if wait > _SHORTEST_WAIT:
            self._tell_of_waiting(now)
            await asyncio.sleep(wait)

    def _tell_of_waiting(self, now: float) -> None:
        if now - self._told_at > _FORGOTTEN:
            self._told_at = now
            text = "An MCP server is read slowly: it sends much that nobody asked for."
            note(_log, logging.INFO, text, server=self._label)

    def pause(self) -> float:
        """Seconds before the next stream may be opened."""
        return self._pauses.left(asyncio.get_running_loop().time())

    def closed(self) -> Flooded:
        """The stream is closed, for whoever reads it to raise."""
        now = asyncio.get_running_loop().time()
        if now - self._closed_at > _FORGOTTEN:
            self._pauses.worked()
        self._closed_at = self._due = now
        self._above = 0
        self._pauses.failed(now)
        text = "A stream of an MCP server is closed: it sends too much that nobody asked for."
        note(_log, self._level, text, server=self._label, pause=round(self._pauses.left(now)))
        return Flooded(FLOODED)


class Unsolicited:
    """Takes the messages that answer nothing. `progress` says whether a call wants to hear of it."""

    def __init__(self, allowance: Allowance, progress: Callable[[Any], bool]) -> None:
        self.allowance = allowance
        self._progress = progress

    async def pass_over(self, size: int) -> None:
        """A comment, an empty event, a line that is no message. Raises `Flooded`."""
        await self.allowance.spend(size + _LIGHT)

    async def take(self, message: object, size: int) -> bool:
        """Whether there is still something to do about it. Raises `Flooded`."""
        method = message.get("method") if isinstance(message, dict) else None
        if isinstance(message, dict) and ("id" in message or (isinstance(method, str) and method in _HANDLED)):
            await self.allowance.spend(size + _HEAVY)
            return True
        if isinstance(message, dict) and method == _PROGRESS and self._progress(message.get("params")):
            await self.allowance.spend(size + _ASKED, only_waits=True)
        elif isinstance(method, str):  # an operator's tool may log each line of its work: nobody's calls end by that
            await self.allowance.spend(size + _LIGHT, only_waits=not self.allowance.is_strangers)
        else:
            await self.pass_over(size)
        return False
