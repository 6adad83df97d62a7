"""The two directions of a session, as the SDK takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

Incoming: TypeAlias = SessionMessage | Exception


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

    Requests of the server's do not get to the SDK, which begins a task for each: `decline` takes them, and where it
    does not, the session is over.
    """

    def __init__(
        self, inner: Reading, over: asyncio.Event, decline: Callable[[JSONRPCRequest], Awaitable[bool]]
    ) -> None:
        self._inner = inner
        self._over = over
        self._decline = decline

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
                message = item.message if isinstance(item, SessionMessage) else None
                if not isinstance(message, JSONRPCRequest):
                    return item
                if not await self._decline(message):
                    raise StopAsyncIteration
        except BaseException:
            self._over.set()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
