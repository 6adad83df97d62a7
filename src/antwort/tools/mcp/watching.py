"""What the SDK does not tell of a session over HTTP: its id, and how a message was refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2

from antwort.net.sse import EventParser, SseEvent
from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.decoding import decode
from antwort.tools.mcp.messages import TOO_LONG
from antwort.tools.mcp.unsolicited_traffic import Unsolicited
from antwort.tools.mcp.web import LARGEST_OTHER

_BETWEEN_STREAMS = 1.0
"""Seconds from one stream of what a server says by itself to the next. A server may ask for less, and gets this."""
_GREETING = b'"notifications/initialized"'
_ELSEWHERE = (307, 308)
"""It has not been taken yet, but is sent again to where it belongs."""
_LARGEST_NEWS = 256 * 1024
"""Bytes of one event in a stream in which no answer comes."""


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
    """Sends by `inner`, and holds back who asks for one stream after the other. `unsolicited` takes its part of what
    the streams say; None where whoever reads them sees to that.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        watch: Watch,
        unsolicited: Unsolicited | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._watch = watch
        self._unsolicited = unsolicited
        self._pause = pause
        self._next_stream = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._opened(request)
        response = self._heard(await self._inner.handle_async_request(request), is_answer=True)
        if request.method == "POST" and request.headers.get("content-type", "").startswith("application/json"):
            self._watch.see(response)
            if _GREETING in request.content and response.status_code not in _ELSEWHERE:
                self._watch.greeted.set()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _opened(self, request: httpx2.Request) -> httpx2.Response:
        wait = self._next_stream - asyncio.get_running_loop().time()
        if self._unsolicited is not None:
            wait = max(wait, self._unsolicited.allowance.pause())
        if wait > 0:
            await self._pause(wait)
        response = await self._inner.handle_async_request(request)
        if response.status_code == 200:
            self._next_stream = asyncio.get_running_loop().time() + _BETWEEN_STREAMS
        return self._heard(response, is_answer=False)

    def _heard(self, response: httpx2.Response, *, is_answer: bool) -> httpx2.Response:
        kind = response.headers.get("content-type", "").lower()
        if self._unsolicited is None or not kind.startswith("text/event-stream"):
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        stream = _Events(response.stream, self._unsolicited, is_answer=is_answer)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )


class _Events(httpx2.AsyncByteStream):
    """The events of a stream that the SDK has to handle: it takes a hundred times as long as we do to pass one over.

    `is_answer`: whether it is the answer to a request, and what is no notification in it is the SDK's to judge.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, unsolicited: Unsolicited, *, is_answer: bool) -> None:
        self._inner, self._unsolicited, self._is_answer = inner, unsolicited, is_answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parser = EventParser()
        async for data in self._inner:
            last: bytes | None = None
            for event in parser.feed(data):
                last = event.id or last
                if await self._is_handled(event):
                    yield _written(event)
                    last = None
            if last is not None:
                yield b"id: " + last + b"\n\n"  # the stream goes on from there, even where nothing was for the SDK
            if self._is_answer and parser.open_size > LARGEST_OTHER:
                raise ServerUnavailable(TOO_LONG)
            if not self._is_answer and parser.open_size > _LARGEST_NEWS:
                raise self._unsolicited.allowance.closed()
        for event in parser.finish():
            yield _written(event)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _is_handled(self, event: SseEvent) -> bool:
        if event.kind != b"message" or not event.data:
            await self._unsolicited.pass_over(event.size)
            return event.retry is not None
        try:
            message = decode(event.data)
        except ValueError:
            message = None
        if self._is_answer and not (isinstance(message, dict) and "method" in message):
            return True
        return await self._unsolicited.take(message, event.size)


def _written(event: SseEvent) -> bytes:
    lines = [b"event: " + event.kind]
    if event.id is not None:
        lines.append(b"id: " + event.id)
    if event.retry is not None:
        lines.append(b"retry: %d" % event.retry)
    lines += [b"data: " + line for line in event.data.split(b"\n")]
    return b"\n".join(lines) + b"\n\n"
