"""What the SDK does not tell of a session over HTTP: its id, how a message was refused, and that one was not sent."""

from __future__ import annotations

from collections.abc import Callable

import httpx2


class Watch:
    """What was seen of one session."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.refused: int | None = None
        """The status of the latest message that the server did not take; None once it has taken one."""

    @property
    def is_unauthorized(self) -> bool:
        return self.refused in (401, 403)

    def see(self, response: httpx2.Response) -> None:
        self.refused = response.status_code if response.status_code >= 400 else None
        if self.refused is None:
            self.session = response.headers.get("mcp-session-id") or self.session


class Watched(httpx2.AsyncBaseTransport):
    """Sends by `inner`. `lost` hears of each message that did not get through: not all of the SDK's callers do."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, watch: Watch, lost: Callable[[], None]) -> None:
        self._inner = inner
        self._watch = watch
        self._lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
            return await self._inner.handle_async_request(request)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError:
            self._lost()
            raise
        self._watch.see(response)
        if response.status_code >= 400:
            self._lost()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
