"""The two directions of a session, as the SDK takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from antwort.tools.mcp.pauses import Pace

Incoming: TypeAlias = SessionMessage | Exception
_PROGRESS = "notifications/progress"
_PASSED_OVER = frozenset(("notifications/message", "notifications/cancelled"))
"""What a server logs, and that it takes back what nobody here does anyway."""


class Reading(Protocol):
    """What comes from a server."""

    async def receive(self) -> Incoming: ...

    async def aclose(self) -> None: ...

    async def __anext__(self) -> Incoming: ...


class Writing(Protocol):
    """What goes to it."""

    async def send(self, item: SessionMessage, /) -> None: ...

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


Streams: TypeAlias = tuple[Reading, Writing]


class Hearing:
    """Reads from `inner`, and sets `over` at its end: the SDK tells it only to those who wait for an answer.

    What a server says by itself is heard at a pace, as the SDK begins a task for each. What makes none is not: what
    nobody here listens to, and how far a call has come, which `progress` takes. Requests do not get to the SDK, either:
    `decline` takes them, and where it does not, the session is over.
    """

    def __init__(
        self,
        inner: Reading,
        over: asyncio.Event,
        decline: Callable[[JSONRPCRequest], Awaitable[bool]],
        progress: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._inner = inner
        self._over = over
        self._decline = decline
        self._progress = progress
        self._pace = Pace()

    async def receive(self) -> Incoming:
        return await self.__anext__()

    async def aclose(self) -> None:
        self._over.set()
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        try:
            while True:
                item = await self._inner.__anext__()
                if not await self._is_taken(item):
                    return item
        except BaseException:
            self._over.set()
            raise

    async def _is_taken(self, item: Incoming) -> bool:
        message = item.message if isinstance(item, SessionMessage) else None
        if not isinstance(message, JSONRPCRequest | JSONRPCNotification):
            return False
        if isinstance(message, JSONRPCNotification) and self._is_light(message):
            return True
        if wait := self._pace.wait(asyncio.get_running_loop().time()):
            await asyncio.sleep(wait)
        if isinstance(message, JSONRPCNotification):
            return False
        if not await self._decline(message):
            raise StopAsyncIteration
        return True

    def _is_light(self, message: JSONRPCNotification) -> bool:
        if message.method == _PROGRESS:
            self._progress(message.params or {})
        return message.method == _PROGRESS or message.method in _PASSED_OVER

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
