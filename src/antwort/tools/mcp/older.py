"""The older transport over HTTP: one stream in which all comes, and a POST for each message that goes.

The SDK's own takes no message above a megabyte, and ends the session of all with the first message that one of them
could not send.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from antwort.concurrency import Once, stop
from antwort.net.sse import EventParser, SseEvent
from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from antwort.tools.mcp.messages import BROKEN, NOT_AN_ANSWER, TOO_LONG, UNAUTHORIZED, Unsent, refused_with
from antwort.tools.mcp.reading import MessageReader, Unread, failed
from antwort.tools.mcp.streams import Incoming
from antwort.tools.mcp.unsolicited_traffic import Unsolicited
from antwort.tools.mcp.web import LARGEST_OTHER, ONCE

_MOST_REDIRECTS = 5
_GRACE = 1.0


@asynccontextmanager
async def older(
    client: httpx2.AsyncClient, url: str, largest: int, unsolicited: Unsolicited, lost: Callable[[], None]
) -> AsyncGenerator[tuple[MemoryObjectReceiveStream[Incoming], Outbox], None]:
    """`lost` hears of each message that did not get through. Raises httpx2's exceptions, and `ServerUnavailable`."""
    request = client.build_request("GET", url, headers={"Accept": "text/event-stream", "Cache-Control": "no-store"})
    async with _sent(client, request) as response:
        response.raise_for_status()
        send, receive = anyio.create_memory_object_stream[Incoming](0)
        talk = _Talk(client, url, largest, MessageReader(unsolicited), send.send, lost)
        reading = asyncio.create_task(talk.read(response))
        reading.add_done_callback(lambda _: send.close())
        try:
            await talk.endpoint.wait()
            yield receive, Outbox(talk)
        finally:
            send.close()
            receive.close()
            await stop([reading, *talk.tasks], _GRACE)


class _Talk:
    """Both directions of one session."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        largest: int,
        reader: MessageReader,
        put: Callable[[Incoming], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        self._client, self._url, self._largest, self._reader = client, url, largest, reader
        self._put, self._lost = put, lost
        self.endpoint: Once[str] = Once()
        """Where messages go, as the server says first."""
        self.tasks: set[asyncio.Task[None]] = set()

    async def read(self, response: httpx2.Response) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        parser = EventParser()
        try:
            async for data in response.aiter_raw():
                for event in parser.feed(data):
                    await self._take(event)
                if parser.open_size > self._largest:
                    raise ServerUnavailable(TOO_LONG)
                if not self._reader.is_waiting and parser.open_size > LARGEST_OTHER:
                    raise self._reader.unsolicited.allowance.closed()
        except ServerUnavailable as exc:
            fault = exc
        except (httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the end, in other words
        finally:
            self.endpoint.fail(fault)

    async def _take(self, event: SseEvent) -> None:
        if event.kind == b"endpoint":
            self.endpoint.set(self._endpoint(event.data.decode("utf-8", "replace")))
        elif event.kind == b"message" and event.data:
            with contextlib.suppress(Unread):
                for message in await self._reader.read(event.data, event.size):
                    await self._put(message)
        else:
            await self._reader.unsolicited.pass_over(event.size)

    def _endpoint(self, said: str) -> str:
        try:
            url = urljoin(self._url, said)
            if urlsplit(url)[:2] == urlsplit(self._url)[:2]:
                return url
        except ValueError:
            pass
        raise ServerUnavailable(NOT_AN_ANSWER)  # it leads elsewhere, with our credentials

    def begin(self, item: SessionMessage) -> asyncio.Task[None]:
        self._reader.expect(item)
        task = asyncio.create_task(self._post(item))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _post(self, item: SessionMessage) -> None:
        """A message that does not get through fails whoever has sent it, and nobody else."""
        is_once = isinstance(item.message, JSONRPCRequest) and item.message.method == "tools/call"
        fault = await self._refusal(item.message.model_dump_json(by_alias=True, exclude_unset=True), is_once)
        if fault is None:
            return
        self._lost()
        if isinstance(item.message, JSONRPCRequest):
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._put(failed(item.message.id, fault))

    async def _refusal(self, body: str, is_once: bool) -> ServerUnavailable | Unsent | None:
        headers, more = {"Content-Type": "application/json"}, {ONCE: is_once}
        try:
            request = self._client.build_request(
                "POST", await self.endpoint.wait(), content=body.encode(), headers=headers, extensions=more
            )
            async with _sent(self._client, request) as response:
                await response.aread()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return Unsent()
        except httpx2.HTTPError:
            return ServerUnavailable(BROKEN)
        if response.status_code in (401, 403):
            return Unauthorized(UNAUTHORIZED)
        if response.status_code >= 300:
            return refused_with(response.status_code)
        return None


class Outbox:
    """What goes to the server. A request is not waited for: its answer comes by the stream."""

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk

    async def send(self, item: SessionMessage, /) -> None:
        posting = self._talk.begin(item)
        if not isinstance(item.message, JSONRPCRequest):
            await asyncio.wait([posting])

    async def aclose(self) -> None:
        """What is on its way arrives, or is broken off with the session."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def _sent(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    """The answer. Redirects are followed that stay within the server."""
    response = await client.send(request, stream=True, follow_redirects=False)
    for _ in range(_MOST_REDIRECTS):
        following = response.next_request
        if following is None or following.method != request.method or not _is_within(request.url, following.url):
            break
        await response.aclose()
        response = await client.send(following, stream=True, follow_redirects=False)
    try:
        yield response
    finally:
        await response.aclose()


def _is_within(url: httpx2.URL, other: httpx2.URL) -> bool:
    if other.userinfo and other.userinfo != url.userinfo:
        return False
    is_same = (url.scheme, url.host, url.port) == (other.scheme, other.host, other.port)
    is_upgrade = (url.scheme, url.port, other.scheme, other.port) == ("http", None, "https", None)
    return is_same or (is_upgrade and url.host == other.host)
