"""What a server asks for by itself: nobody here can give it, and it is told so."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
Tell: TypeAlias = Callable[[Message], Awaitable[None]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

_UNSUPPORTED = {"code": -32601, "message": "Not supported by this client."}
MOST_WAITING = 32
"""Requests that have no answer yet. A server that does not take the answers has no right to ask for more."""


class Declining:
    """One answer at a time, in the order that was asked in. `tell` sends one, and does not raise."""

    def __init__(self, tell: Tell, spawn: Spawn) -> None:
        self._tell = tell
        self._spawn = spawn
        self._waiting: deque[Message] = deque()
        self._is_busy = False

    def take(self, number: object, method: object) -> bool:
        """Whether there was room for one more."""
        if len(self._waiting) >= MOST_WAITING:
            return False
        said = {"result": {}} if method == "ping" else {"error": _UNSUPPORTED}
        self._waiting.append({"jsonrpc": "2.0", "id": number, **said})
        if not self._is_busy:
            self._is_busy = True
            self._spawn(self._answer())
        return True

    def drop(self) -> None:
        """Nobody waits for what has not been said yet."""
        self._waiting.clear()

    async def _answer(self) -> None:
        try:
            while self._waiting:
                await self._tell(self._waiting.popleft())
        finally:
            self._is_busy = False
