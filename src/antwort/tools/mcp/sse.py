"""HTTP with SSE, the predecessor of streamable HTTP: one event stream from the server, and a POST for each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from antwort.concurrency import Once
from antwort.net.client import HttpResponse
from antwort.net.response import ConnectFailed, ConnectTimeout, HttpError
from antwort.net.sse import EventParser, SseEvent
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import MAX_HANDSHAKE_BYTES, UNCODED, McpEndpoint
from antwort.tools.mcp.http import EVENTS
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_LONG,
    UNAUTHORIZED,
    JsonRpcMessage,
    Request,
    Unsent,
    http_status_error,
)
from antwort.tools.mcp.transport import DuplexTransport

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import McpConnection

_GET = {"Accept": EVENTS, "Cache-Control": "no-store"}
_POST = {"Content-Type": "application/json"}


class SseTransport(DuplexTransport):
    """The transport of one connection. It ends with its stream."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, connection: McpConnection) -> None:
        """Raises `AddressNotAllowed`."""
        super().__init__(connection)
        self._max_bytes = spec.largest
        self._endpoint = McpEndpoint(spec, policy)
        self._opened = Once[None]()
        """Whether the server's first event has named the address for messages."""
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            reply = await self._endpoint.send("GET", _GET)
        except (ConnectFailed, ConnectTimeout, AddressNotAllowed) as exc:
            raise Unsent from exc
        except (HttpError, ValueError) as exc:  # ValueError: a header that cannot be sent
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        self._reader = asyncio.create_task(self._read(reply))
        await self._opened.wait()

    async def send(self, request: Request) -> None:
        """Start a POST without waiting for it: the answer comes in the stream."""
        self._connection.spawn(self._post_request(request))

    async def notify(self, message: JsonRpcMessage) -> None:
        await self._post(msgspec.json.encode(message))

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self._endpoint.close()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _post_request(self, request: Request) -> None:
        """Post a request. If that fails, only this request fails, and the connection takes no further ones."""
        fault: ServerUnavailable | Unsent
        try:
            await self._post(request.body, resends=request.is_repeatable)
        except (ConnectFailed, ConnectTimeout, AddressNotAllowed):
            fault = Unsent()
        except ServerUnavailable as exc:
            fault = exc
        except (HttpError, ValueError):
            fault = ServerUnavailable(BROKEN)
        else:
            return
        self._connection.retire()
        self.settle(request.id, fault)

    async def _post(self, body: bytes, *, resends: bool = True) -> None:
        async with await self._endpoint.send("POST", _POST, body, resends=resends) as reply:
            if reply.status in (401, 403):
                raise Unauthorized(UNAUTHORIZED)
            if reply.status >= 300:
                raise http_status_error(reply.status)
            reply.release()

    async def _read(self, reply: HttpResponse) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        try:
            async with reply:
                if reply.status in (401, 403):
                    raise Unauthorized(UNAUTHORIZED)
                if reply.status != 200 or reply.headers.coding not in UNCODED:
                    return
                parser = EventParser()
                async for data in reply:
                    for event in parser.feed(data):
                        await self._take(event)
                    if parser.open_size > self._max_bytes:
                        raise ServerUnavailable(TOO_LONG)
                    if not self.is_waiting and parser.open_size > MAX_HANDSHAKE_BYTES:
                        raise self._connection.allowance.closed()
        except ServerUnavailable as exc:
            fault = exc
        except HttpError:
            pass  # the stream has ended
        finally:
            self._opened.fail(fault)
            self._connection.end()
            self.fail_all()

    async def _take(self, event: SseEvent) -> None:
        if event.kind == b"endpoint" and not self._opened.is_set:
            self._endpoint.move_to(event.data.decode("utf-8", "replace"))
            self._opened.set(None)
        elif event.kind == b"message" and event.data:
            await self.receive(event.data, event.size)
        else:
            await self._connection.skip(event.size)
