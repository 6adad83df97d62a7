"""What the SDK does not tell of a session over HTTP: its id, and how a message was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx2

_BETWEEN_STREAMS = 1.0
"""Seconds from one stream of what a server says by itself to the next. A server may ask for less, and gets this."""
_GREETING = b'"notifications/initialized"'
_ELSEWHERE = (307, 308)
"""It has not been taken yet, but is sent again to where it belongs."""


class Watch:
    """What was seen of one session."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.refused: int | None = None
        """The status of the latest message that the server did not take; None once it has taken one."""
        self.greeted = asyncio.Event()
        """Set when the server has answered to the last message of the handshake."""

    @property
    def is_unauthorized(self) -> bool:
        return self.refused in (401, 403)

    def see(self, response: httpx2.Response) -> None:
        self.refused = response.status_code if response.status_code >= 400 else None
        if self.refused is None:
            self.session = response.headers.get("mcp-session-id") or self.session


class Watched(httpx2.AsyncBaseTransport):
    """Sends by `inner`, and holds back who asks for one stream after the other."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        watch: Watch,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._watch = watch
        self._pause = pause
        self._next_stream = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._opened(request)
        response = await self._inner.handle_async_request(request)
        if request.method == "POST" and request.headers.get("content-type", "").startswith("application/json"):
            self._watch.see(response)
            if _GREETING in request.content and response.status_code not in _ELSEWHERE:
                self._watch.greeted.set()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _opened(self, request: httpx2.Request) -> httpx2.Response:
        wait = self._next_stream - asyncio.get_running_loop().time()
        if wait > 0:
            await self._pause(wait)
        response = await self._inner.handle_async_request(request)
        if response.status_code == 200:
            self._next_stream = asyncio.get_running_loop().time() + _BETWEEN_STREAMS
        return response
