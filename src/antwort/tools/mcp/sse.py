"""The predecessor of streamable HTTP: one stream in which everything comes, and a POST for each message that goes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from antwort.concurrency import Once
from antwort.net.client import HttpResponse
from antwort.net.response import ConnectFailed, ConnectTimeout, HttpError
from antwort.net.sse import EventParser, SseEvent
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, parse_url
from antwort.tools.mcp.auth import make_login
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import MAX_HANDSHAKE_BYTES, Endpoint, HttpClients, check_coding
from antwort.tools.mcp.http import EVENTS
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_LONG,
    UNAUTHORIZED,
    Message,
    Request,
    Unsent,
    refused_with,
)
from antwort.tools.mcp.transport import Duplex

if TYPE_CHECKING:
    from antwort.tools.mcp.client import Connection

_GET = {"Accept": EVENTS, "Cache-Control": "no-store"}
_POST = {"Content-Type": "application/json"}


class SseTransport(Duplex):
    """The transport of one session. It ends with its stream."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, connection: Connection) -> None:
        """Raises `AddressNotAllowed`."""
        super().__init__(connection)
        self._max_bytes = spec.largest
        self._clients = HttpClients(spec, policy)
        self._login = make_login(spec, self._clients)
        self._outbox: Once[Endpoint] = Once()
        """Where messages go, as the server says first."""
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            reply = await Endpoint(self._clients, self._login).send("GET", _GET)
        except (ConnectFailed, ConnectTimeout, AddressNotAllowed) as exc:
            raise Unsent from exc
        except (HttpError, ValueError) as exc:  # ValueError: a header that cannot be sent
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        self._reader = asyncio.create_task(self._read(reply))
        await self._outbox.wait()

    async def send(self, request: Request) -> None:
        """Begin a POST. It is not waited for: the answer comes by the stream."""
        outbox = await self._outbox.wait()
        self._connection.spawn(self._post_request(outbox, request))

    async def notify(self, message: Message) -> None:
        await self._post(await self._outbox.wait(), msgspec.json.encode(message))

    async def tell(self, message: Message) -> None:
        """A message that does not get through ends the session for those who come later."""
        try:
            await self.notify(message)
        except (HttpError, ServerUnavailable):
            self._connection.retire()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self._clients.close()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _post_request(self, outbox: Endpoint, request: Request) -> None:
        """A message that does not get through fails its request, and no other."""
        fault: ServerUnavailable | Unsent
        try:
            await self._post(outbox, request.body, resends=request.is_repeatable)
        except (ConnectFailed, ConnectTimeout, AddressNotAllowed):
            fault = Unsent()
        except ServerUnavailable as exc:
            fault = exc
        except (HttpError, ValueError):
            fault = ServerUnavailable(BROKEN)
        else:
            return
        self._connection.retire()
        self.fail(request.id, fault)

    async def _post(self, outbox: Endpoint, body: bytes, *, resends: bool = True) -> None:
        async with await outbox.send("POST", _POST, body, resends=resends) as reply:
            if reply.status in (401, 403):
                raise Unauthorized(UNAUTHORIZED)
            if reply.status >= 300:
                raise refused_with(reply.status)
            reply.release()

    async def _read(self, reply: HttpResponse) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        try:
            async with reply:
                if reply.status in (401, 403):
                    raise Unauthorized(UNAUTHORIZED)
                if reply.status != 200:
                    return
                check_coding(reply)
                parser = EventParser()
                async for data in reply:
                    for event in parser.feed(data):
                        await self._take(event)
                    if parser.open_size > self._max_bytes:
                        raise ServerUnavailable(TOO_LONG)
                    if not self.is_waiting and parser.open_size > MAX_HANDSHAKE_BYTES:
                        raise self._connection.unsolicited.allowance.closed()
        except ServerUnavailable as exc:
            fault = exc
        except HttpError:
            pass  # the end, in other words
        finally:
            self._outbox.fail(fault)
            self._connection.end()
            self.fail_all()

    async def _take(self, event: SseEvent) -> None:
        if event.kind == b"endpoint":
            self._outbox.set(self._endpoint(event.data.decode("utf-8", "replace")))
        elif event.kind == b"message" and event.data:
            await self.receive(event.data, event.size)
        else:
            await self._connection.unsolicited.skip(event.size)

    def _endpoint(self, path: str) -> Endpoint:
        home = self._clients.home
        with suppress(ValueError, AddressNotAllowed):
            url = parse_url(urljoin(home.url, path))
            if url.origin == home.origin:
                return Endpoint(self._clients, self._login, url)
        raise ServerUnavailable(NOT_AN_ANSWER)  # it leads elsewhere, with our credentials
