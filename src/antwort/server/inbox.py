"""What comes in on a WebSocket: messages, in their order, and the news that the client has gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antwort.concurrency import Signal
from antwort.engine.runs.subscription import Subscription
from antwort.errors import AntwortError, BodyTooLarge, ClientLeft
from antwort.server.exchange import ClientGone, Message, Receive

T = TypeVar("T")

_AHEAD = 2**20
"""Bytes of messages that wait, about: from there on no more are read."""
_LARGEST = 64 * 2**20


class Inbox:
    """Reads on while a response is made, since only reading shows that the client has left; but not without bound.

    A message that was taken is held here no longer.
    """

    __slots__ = (
        "_largest",
        "_most",
        "_receive",
        "_room",
        "_run",
        "_signal",
        "_size",
        "_task",
        "_waiter",
        "_waiting",
        "ending",
    )

    def __init__(self, receive: Receive, most: int, largest: int = _LARGEST) -> None:
        """`most`: how many messages wait before reading stops. `largest`: bytes that one may have."""
        self._receive, self._most, self._largest = receive, most, largest
        self._waiting: deque[tuple[str | bytes, int]] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._signal = Signal()
        self._run: Subscription | None = None
        self.ending: AntwortError | None = None
        """Why no more messages are taken, though the client is there."""
        self._task = asyncio.create_task(self._read())

    @property
    def is_gone(self) -> bool:
        return self._signal.reason is not None

    async def next(self) -> str | bytes | None:
        """The next message; none when there are no more to be taken. Raises `BodyTooLarge`."""
        while not self.is_gone and self.ending is None:
            if self._waiting:
                message, size = self._waiting.popleft()
                self._size -= size
                _wake(self._room)
                if size > self._largest:
                    raise BodyTooLarge(self._largest)
                return message
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return None

    def left(self) -> tuple[str | bytes, ...]:
        """What came and is not to be taken any more."""
        left = tuple(message for message, _ in self._waiting)
        self._waiting.clear()
        return left

    def end(self, reason: AntwortError) -> None:
        """No further message is taken; the response under way is made to its end."""
        self.ending = self.ending or reason
        _wake(self._waiter)

    async def unless_gone(self, planning: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._signal.race(planning)
        except ClientLeft:
            raise ClientGone from None

    def follow(self, run: Subscription | None) -> None:
        """The run that is told when the client leaves, and now if it has left already."""
        self._run = run
        if run is not None and self.is_gone:
            run.leave()

    def leave(self) -> None:
        """The client has gone. Where no more is read, only whoever has the connection knows."""
        self._signal.set(ClientLeft())
        self._waiting.clear()
        _wake(self._waiter)
        if self._run is not None:
            self._run.leave()

    async def close(self) -> None:
        """Leaves no task behind."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    # ---- its own task ----

    async def _read(self) -> None:
        try:
            while self._add(await self._receive()):
                while len(self._waiting) >= self._most or self._size >= _AHEAD:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        finally:
            self.leave()

    def _add(self, event: Message) -> bool:
        """Whether there is more to come."""
        if event["type"] != "websocket.receive":
            return False
        text = event.get("text")
        message = event.get("bytes") or b"" if text is None else text
        size = _bytes_of(message)
        self._waiting.append((message, size))
        self._size += size
        _wake(self._waiter)
        return True


def _bytes_of(message: str | bytes) -> int:
    return len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
