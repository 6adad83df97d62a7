"""Connections of a Python client that keep the streams they carry, to be held against the grammar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from antwort.testing import check_frames

_END = b"data: [DONE]\n\n"


class _Kept(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, body: bytearray) -> None:
        self._stream, self._body = stream, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._body += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Tap(httpx2.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytearray] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            self.bodies.append(body := bytearray())
            response.stream = _Kept(response.stream, body)
        return response


@asynccontextmanager
async def tapped() -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client for an SDK. Every stream that it read to its end must be grammatical."""
    tap = _Tap()
    async with httpx2.AsyncClient(transport=tap) as client:
        yield client
    for body in tap.bodies:
        if body.endswith(_END):
            check_frames(bytes(body))
