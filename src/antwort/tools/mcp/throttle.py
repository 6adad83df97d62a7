"""Limits on what a server costs: pauses between attempts, bytes that it may send unasked, requests to decline."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from antwort.notes import note
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import Message

_log = logging.getLogger(__name__)


class Backoff:
    """Pauses after failures. The first `free` failures are followed by none; then they double from `first` to `most`.

    A server that could be reached has not worked yet: only `succeeded` begins anew. So one that ends after each
    handshake is not started over and over.
    """

    def __init__(self, first: float = 0.5, most: float = 30.0, free: int = 1) -> None:
        self._first, self._most, self._free = first, most, free
        self._failures = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        self._failures += 1
        doublings = self._failures - self._free - 1
        self._until = now + (0.0 if doublings < 0 else min(self._most, self._first * 2.0 ** min(doublings, 30)))

    def succeeded(self) -> None:
        self._failures = 0
        self._until = 0.0

    def left(self, now: float) -> float:
        """Return the seconds until the next attempt; 0: now."""
        return max(0.0, self._until - now)


# ---- traffic ----

FLOODED = "The MCP server sends too much that nobody asked for."
_LIGHT_BYTES = 1024
"""What a message counts as beside its own bytes, however short it is: to read it takes as long."""
_PROGRESS_BYTES = 256
"""The same for the progress of a call that wants to hear of it."""
_HEAVY_BYTES = 8 * 1024
"""The same for one that makes work: a request that is declined, news of the list of tools."""
_WINDOW_SECONDS = 4.0
"""Time in which the allowance comes back."""
_MIN_WAIT_SECONDS = 0.25
"""Shorter waits are left to the next messages."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 5.0, 300.0
_FORGET_SECONDS = 600.0
"""Time without a closed stream after which the pauses begin anew."""


class Flooded(ServerUnavailable):
    """The stream is closed."""


class Allowance:
    """Bytes that one server may send unasked: all of it at once, then as much again in each four seconds.

    What comes faster waits. A server that has the whole allowance once more waiting, before half of it has come back,
    has its stream closed. The pause before the next stream grows from one time to the next.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._label, self._max_bytes, self.is_untrusted = spec.label, spec.unsolicited, spec.is_untrusted
        self._level = logging.INFO if spec.is_untrusted else logging.WARNING
        self._due = float("-inf")
        """When the allowance is enough for all that was sent, at the pace at which it comes back."""
        self._excess = 0
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, free=0)
        self._closed_at = self._logged_at = float("-inf")

    async def spend(self, size: int, *, only_waits: bool = False) -> None:
        """Wait until it may be read. Raises `Flooded`, unless it `only_waits`."""
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
            if now - self._logged_at > _FORGET_SECONDS:
                self._logged_at = now
                text = "An MCP server is read slowly: it sends much that nobody asked for."
                note(_log, logging.INFO, text, server=self._label)
            await asyncio.sleep(wait)

    def pause(self) -> float:
        """Return the seconds before the next stream may be opened."""
        return self._backoff.left(asyncio.get_running_loop().time())

    def closed(self) -> Flooded:
        """Record that a stream is closed, and return the exception for its reader to raise."""
        now = asyncio.get_running_loop().time()
        if now - self._closed_at > _FORGET_SECONDS:
            self._backoff.succeeded()
        self._closed_at = self._due = now
        self._excess = 0
        self._backoff.failed(now)
        text = "A stream of an MCP server is closed: it sends too much that nobody asked for."
        note(_log, self._level, text, server=self._label, pause=round(self._backoff.left(now)))
        return Flooded(FLOODED)


class Unsolicited:
    """Takes the messages of one server that answer nothing.

    `progress` returns whether a call wants to hear of it; `changed` is called when the list of tools is another,
    `acknowledged` when the server has begun to tell of such changes.
    """

    def __init__(
        self,
        allowance: Allowance,
        progress: Callable[[Any], bool],
        changed: Callable[[], None],
        acknowledged: Callable[[], None],
    ) -> None:
        self.allowance = allowance
        self._progress = progress
        self._handlers = {
            "notifications/tools/list_changed": changed,
            "notifications/subscriptions/acknowledged": acknowledged,
        }

    async def skip(self, size: int) -> None:
        """Pass over a comment, an empty event, a line that is no message. Raises `Flooded`."""
        await self.allowance.spend(size + _LIGHT_BYTES)

    async def take(self, message: object, size: int, decliner: Decliner) -> bool:
        """Return False where the server asks for more than is declined. Raises `Flooded`."""
        if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
            await self.skip(size)
        elif "id" in message:
            await self.allowance.spend(size + _HEAVY_BYTES)
            return await decliner.decline(message["id"], method)
        elif (handle := self._handlers.get(method)) is not None:
            await self.allowance.spend(size + _HEAVY_BYTES)
            handle()
        elif method == "notifications/progress" and self._progress(message.get("params")):
            await self.allowance.spend(size + _PROGRESS_BYTES, only_waits=True)
        else:  # an operator's tool may log each line of its work: nobody's calls end by that
            await self.allowance.spend(size + _LIGHT_BYTES, only_waits=not self.allowance.is_untrusted)
        return True


# ---- requests of the server ----

MAX_UNANSWERED = 32
"""Requests that have no answer yet, above which no more are read."""
_MAX_ID_CHARACTERS = 256
"""Longest id of a request: it is held until the answer goes out."""
_DECLINE_SECONDS = 3.0
"""Time until one answer must be taken. A server that takes no answers has no right to ask for more."""

Send: TypeAlias = Callable[[Message], Awaitable[None]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


class Decliner:
    """Answers what a server asks for: nothing of it is offered here. One answer at a time, in the order of requests.

    `send` sends one, and does not raise; `spawn` runs it beside.
    """

    def __init__(self, send: Send, spawn: Spawn) -> None:
        self._send = send
        self._spawn = spawn
        self._waiting: deque[Message] = deque()
        self._is_busy = False
        self._taken = asyncio.Event()

    async def decline(self, request_id: object, method: str) -> bool:
        """Return whether there is room for one more, or will be soon: who waits here reads nothing meanwhile. A request
        whose id cannot be repeated is passed over.
        """
        if not _is_id(request_id):
            return True
        try:
            async with asyncio.timeout(_DECLINE_SECONDS):
                while len(self._waiting) >= MAX_UNANSWERED:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            return False
        unsupported = {"code": -32601, "message": "Not supported by this client."}
        answer = {"result": {}} if method == "ping" else {"error": unsupported}
        self._waiting.append({"jsonrpc": "2.0", "id": request_id, **answer})
        if not self._is_busy:
            self._is_busy = True
            self._spawn(self._answer())
        return True

    def drop(self) -> None:
        """Forget the answers that are not sent yet: nobody waits for them."""
        self._waiting.clear()

    async def _answer(self) -> None:
        try:
            while self._waiting:
                message = self._waiting.popleft()
                self._taken.set()
                await self._send(message)
        finally:
            self._is_busy = False


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_ID_CHARACTERS
    return isinstance(value, int | float) and not isinstance(value, bool)
