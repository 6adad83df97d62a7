"""Limits for a server: pauses between attempts, bytes that it may send unsolicited, requests that are declined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from antwort.concurrency import backoff
from antwort.notes import note
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import JsonRpcMessage

_log = logging.getLogger(__name__)


class Cooldown:
    """Pauses after failures. The first `free` failures are followed by none; then they double from `first` to `most`.

    Only `succeeded` begins anew, and a handshake is no success. So a server that ends after each handshake is not
    started over and over.
    """

    def __init__(self, first: float = 0.5, most: float = 30.0, free: int = 1) -> None:
        self._first, self._most, self._free = first, most, free
        self.succeeded()

    def succeeded(self) -> None:
        self.failures = 0
        """Failures in a row."""
        self._until = float("-inf")
        self._pauses = backoff(self._first, self._most)

    def failed(self, now: float) -> None:
        self.failures += 1
        self._until = now + (next(self._pauses) if self.failures > self._free else 0.0)

    def left(self, now: float) -> float:
        """Return the seconds until the next attempt; 0: now."""
        return max(0.0, self._until - now)


class LogThrottle:
    """Lets at most `lines` lines into the log in `seconds`, counted from the first line."""

    def __init__(self, seconds: float, lines: int = 1) -> None:
        self._seconds, self._lines = seconds, lines
        self._begun_at = float("-inf")
        self._left = lines

    def take(self, lines: int = 1) -> int:
        """Return how many of the lines may be logged."""
        now = asyncio.get_running_loop().time()
        if lines and now - self._begun_at >= self._seconds:
            self._begun_at, self._left = now, self._lines
        taken = min(lines, self._left)
        self._left -= taken
        return taken


# ---- traffic ----

FLOODED = "The MCP server sends too much that nobody asked for."
LIGHT_BYTES = 1024
"""Added to the size of each message: reading a short one costs as much."""
PROGRESS_BYTES = 256
"""The same for progress of a call that reports it."""
HEAVY_BYTES = 8 * 1024
"""The same for a message that causes work: a request that is declined, a change of the list of tools."""
_WINDOW_SECONDS = 4.0
"""Time in which the whole allowance is restored."""
_MIN_WAIT_SECONDS = 0.25
"""Shorter waits are added to those of the next messages."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 5.0, 300.0
_FORGET_SECONDS = 600.0
"""Time without a closed stream after which the pauses begin anew; also between two log lines about slow reading."""


class Flooded(ServerUnavailable):
    """The stream is closed."""


class Allowance:
    """Bytes that one server may send unsolicited: all of it at once, then as much again in each four seconds.

    A server that sends faster is read more slowly. Its stream is closed when the whole allowance is exceeded once more
    before half of it is restored. The pause before the next stream grows each time.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._label, self._max_bytes, self.is_untrusted = spec.label, spec.unsolicited, spec.is_untrusted
        self._level = logging.INFO if spec.is_untrusted else logging.WARNING
        self._due = float("-inf")
        """When the allowance covers all that was sent, at the pace at which it is restored."""
        self._excess = 0
        self._cooldown = Cooldown(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, free=0)
        self._closed_at = float("-inf")
        self._slow_log = LogThrottle(_FORGET_SECONDS)

    async def spend(self, size: int, *, only_waits: bool = False) -> None:
        """Wait until a message of that size may be read. Raises `Flooded`, unless it `only_waits`."""
        now = asyncio.get_running_loop().time()
        if now - self._due > _WINDOW_SECONDS / 2:
            self._excess = 0
        cost = min(size, self._max_bytes) if only_waits else size
        self._due = max(self._due, now - _WINDOW_SECONDS) + cost * _WINDOW_SECONDS / self._max_bytes
        wait = self._due - now
        if wait > 0 and not only_waits:
            self._excess += size
            if self._excess > self._max_bytes:
                raise self.closed()
        if wait > _MIN_WAIT_SECONDS:
            if self._slow_log.take():
                text = "An MCP server is read slowly: it sends much that nobody asked for."
                note(_log, logging.INFO, text, server=self._label)
            await asyncio.sleep(wait)

    def pause(self) -> float:
        """Return the seconds before the next stream may be opened."""
        return self._cooldown.left(asyncio.get_running_loop().time())

    def closed(self) -> Flooded:
        """Record that a stream is closed, and return the exception for its reader to raise."""
        now = asyncio.get_running_loop().time()
        if now - self._closed_at > _FORGET_SECONDS:
            self._cooldown.succeeded()
        self._closed_at = self._due = now
        self._excess = 0
        self._cooldown.failed(now)
        text = "A stream of an MCP server is closed: it sends too much that nobody asked for."
        note(_log, self._level, text, server=self._label, pause=round(self._cooldown.left(now)))
        return Flooded(FLOODED)


# ---- requests of the server ----

MAX_UNANSWERED = 32
"""Most requests of a stream without an answer; above that, reading stops."""
_MAX_ID_CHARACTERS = 256
"""Longest id of a request, because it is stored until the answer is sent."""
_DECLINE_SECONDS = 3.0
"""Longest wait for the server to read an answer before it may send more requests."""


class Decliner:
    """Declines a server's requests: the client offers no features. Answers go out one by one, in the order of requests.
    Each stream has its own, so that a server which asks too much in one call fails only that call.

    `send` sends a message and does not raise; `spawn` runs a coroutine in the background.
    """

    def __init__(
        self,
        send: Callable[[JsonRpcMessage], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._answers: asyncio.Queue[JsonRpcMessage] | None = None
        """Created with the first request: most servers send none."""
        self._is_sending = False

    async def decline(self, request_id: object, method: str) -> bool:
        """Queue an answer, if need be after a wait, in which the caller reads nothing. Return False if the queue stays
        full. A request with an invalid id gets no answer.
        """
        if not _is_id(request_id):
            return True
        unsupported = {"code": -32601, "message": "Not supported by this client."}
        answer = {"result": {}} if method == "ping" else {"error": unsupported}
        if self._answers is None:
            self._answers = asyncio.Queue(MAX_UNANSWERED)
        try:
            async with asyncio.timeout(_DECLINE_SECONDS):
                await self._answers.put({"jsonrpc": "2.0", "id": request_id, **answer})
        except TimeoutError:
            return False
        if not self._is_sending:
            self._is_sending = True
            self._spawn(self._send_all(self._answers))
        return True

    def drop(self) -> None:
        """Drop the answers that are not sent yet, because the request they came with is over."""
        while self._answers is not None and not self._answers.empty():
            self._answers.get_nowait()

    async def _send_all(self, answers: asyncio.Queue[JsonRpcMessage]) -> None:
        try:
            while not answers.empty():
                await self._send(answers.get_nowait())
        finally:
            self._is_sending = False


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_ID_CHARACTERS
    return isinstance(value, int | float) and not isinstance(value, bool)
