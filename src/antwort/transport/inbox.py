"""What comes in on a WebSocket: messages, in their order, and the news that the client has gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antwort.concurrency import Signal
from antwort.engine.live import LiveRun
from antwort.errors import AntwortError, ClientLeft
from antwort.transport.exchange import ClientGone, Receive

T = TypeVar("T")

_AHEAD = 2**20
"""Bytes of messages that wait, about: from there on no more are read."""


class Inbox:
    """Reads on while a response is made, since only reading shows that the client has left; but not without bound."""

    __slots__ = ("_most", "_receive", "_room", "_run", "_signal", "_size", "_task", "_waiter", "_waiting", "ending")

    def __init__(self, receive: Receive, most: int) -> None:
        """`most`: how many messages wait before reading stops."""
        self._receive, self._most = receive, most
        self._waiting: deque[str | bytes] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._signal = Signal()
        self._run: LiveRun | None = None
        self.ending: AntwortError | None = None
        """Why no more messages are taken, though the client is there."""
        self._task = asyncio.create_task(self._read())

    @property
    def is_gone(self) -> bool:
        return self._signal.reason is not None

    async def next(self) -> str | bytes | None:
        """The next message; none when there are no more to be taken."""
        while not self.is_gone and self.ending is None:
            if self._waiting:
                message = self._waiting.popleft()
                self._size -= len(message)
                _wake(self._room)
                return message
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return None

    def end(self, reason: AntwortError) -> None:
        """No further message is taken; the response under way is made to its end."""
        self.ending = self.ending or reason
        _wake(self._waiter)

    async def unless_gone(self, planning: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._signal.race(planning)
        except ClientLeft:
            raise ClientGone from None

    def follow(self, run: LiveRun | None) -> None:
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
            while (message := await self._receive())["type"] == "websocket.receive":
                text = message.get("text")
                await self._add(message.get("bytes") or b"" if text is None else text)
        finally:
            self.leave()

    async def _add(self, message: str | bytes) -> None:
        self._waiting.append(message)
        self._size += len(message)
        _wake(self._waiter)
        while len(self._waiting) >= self._most or self._size >= _AHEAD:
            self._room = asyncio.get_running_loop().create_future()
            await self._room


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
