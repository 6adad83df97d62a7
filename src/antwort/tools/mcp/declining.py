"""What a server asks for by itself: nobody here can give it, and it is told so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
Tell: TypeAlias = Callable[[Message], Awaitable[None]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

_UNSUPPORTED = {"code": -32601, "message": "Not supported by this client."}
MOST_WAITING = 32
"""Requests that have no answer yet, above which no more are heard."""
_LONGEST_NUMBER = 256
"""Characters of what a request is told apart by: it is held until the answer goes out."""
_PATIENCE = 3.0
"""Seconds until one of them must be taken. A server that takes no answers has no right to ask for more."""


class Declining:
    """One answer at a time, in the order that was asked in. `tell` sends one, and does not raise."""

    def __init__(self, tell: Tell, spawn: Spawn) -> None:
        self._tell = tell
        self._spawn = spawn
        self._waiting: deque[Message] = deque()
        self._is_busy = False
        self._taken = asyncio.Event()

    async def take(self, number: object, method: object) -> bool:
        """Whether there is room for one more, or will be soon. Whoever waits here reads nothing meanwhile. What cannot
        be answered is passed over.
        """
        if not _is_number(number):
            return True
        if len(self._waiting) >= MOST_WAITING and not await self._has_room():
            return False
        said = {"result": {}} if method == "ping" else {"error": _UNSUPPORTED}
        self._waiting.append({"jsonrpc": "2.0", "id": number, **said})
        if not self._is_busy:
            self._is_busy = True
            self._spawn(self._answer())
        return True

    async def _has_room(self) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE):
                while len(self._waiting) >= MOST_WAITING:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            return False
        return True

    def drop(self) -> None:
        """Nobody waits for what has not been said yet."""
        self._waiting.clear()

    async def _answer(self) -> None:
        try:
            while self._waiting:
                message = self._waiting.popleft()
                self._taken.set()
                await self._tell(message)
        finally:
            self._is_busy = False


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_NUMBER
    return isinstance(value, int | float) and not isinstance(value, bool)
