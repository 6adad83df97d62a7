"""The two directions of a session, as the SDK takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from antwort.tools.mcp.pauses import Pace

Incoming: TypeAlias = SessionMessage | Exception
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

    What a server says by itself is heard at a pace. Its requests do not get to the SDK, which would begin a task for
    each: `decline` takes them, and where it does not, the session is over.
    """

    def __init__(self, inner: Reading, over: asyncio.Event, decline: Callable[[JSONRPCRequest], bool]) -> None:
        self._inner = inner
        self._over = over
        self._decline = decline
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
        if wait := self._pace.wait(asyncio.get_running_loop().time()):
            await asyncio.sleep(wait)
        if isinstance(message, JSONRPCNotification):
            return message.method in _PASSED_OVER
        if not self._decline(message):
            raise StopAsyncIteration
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
