"""The two directions of a session, as the SDK takes them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from mcp.shared.message import SessionMessage

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


class Ending:
    """Reads from `inner`, and sets `over` at its end: the SDK tells it only to those who wait for an answer."""

    def __init__(self, inner: Reading, over: asyncio.Event) -> None:
        self._inner = inner
        self._over = over

    async def receive(self) -> Incoming:
        return await self._inner.receive()

    async def aclose(self) -> None:
        self._over.set()
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self._inner.__anext__()
        except BaseException:
            self._over.set()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
