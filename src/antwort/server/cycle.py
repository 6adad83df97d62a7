"""One request on a connection of our own server, and its answer: plain ASGI, and a `Line` for our own application.

Most requests come in whole, and most answers go out whole: those are handed over as they are, without the messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE

from antwort.errors import AntwortError

if TYPE_CHECKING:
    from antwort.server.connection import Connection

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[..., Awaitable[None]]

_NO_BODY = (204, 304)
_FAILED = b"Internal Server Error"

# uvicorn's own would say what an application did; ours says so itself.
_logger = logging.getLogger("antwort.connection")


class Cycle:
    """What has come of a request, and what has gone out of its answer. uvicorn's, with less to do for each."""

    is_told = False
    """Whether there is something new for `receive`."""
    disconnected = False
    more_body = True
    body: bytes | bytearray = b""
    """What has come, and nobody has taken yet."""
    response_started = False
    response_complete = False
    _is_chunked = False
    _left: int | None = None
    """How many bytes of the answer are still to come, where its head says how many there are."""
    _news: asyncio.Event | None = None
    _on_gone: Callable[[], None] | None = None

    def __init__(self, connection: Connection, method: str, *, keep_alive: bool, expects: bool) -> None:
        """`expects`: the client waits for a word before it sends the body."""
        self._connection, self.transport, self.flow = connection, connection.transport, connection.flow
        self._method, self.keep_alive, self.waiting_for_100_continue = method, keep_alive, expects

    async def run(self, app: App, scope: Scope) -> None:
        """Have it answered. An application that does not is a defect, and its client is told so."""
        try:
            await app(scope, self.receive, self.send)
        except BaseException as exc:
            _logger.error("Exception in ASGI application\n", exc_info=exc)
            await self._break_off()
        else:
            if not self.response_complete and not self.disconnected:
                what = "completing" if self.response_started else "starting"
                _logger.error("ASGI callable returned without %s response.", what)
                await self._break_off()

    async def _break_off(self) -> None:
        if self.response_started:
            self.transport.close()
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(_FAILED)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    # ---- the request ----

    def add(self, body: bytes) -> None:
        """A piece of the body. One that comes alone is not copied."""
        if not self.body:
            self.body = body
        elif isinstance(self.body, bytearray):
            self.body += body
        else:
            self.body = bytearray(self.body + body)
        self.tell()

    def tell(self) -> None:
        """There is something new."""
        self.is_told = True
        if self._news is not None:
            self._news.set()

    def take(self, receive: Receive) -> bytes | None:
        """The body, if it is all there and nobody has taken any of it; None: it is to be received. As it is, too, where
        whoever asks has a `receive` of somebody's in between.
        """
        if self.more_body or not self.is_told or self.waiting_for_100_continue or receive != self.receive:
            return None
        return self._taken()

    def _taken(self) -> bytes:
        self.is_told = False
        body, self.body = self.body, b""
        if self.flow.read_paused:
            self.flow.resume_reading()
        return bytes(body)

    async def receive(self) -> Message:
        if self.waiting_for_100_continue and not self.response_started and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.is_told and not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._taken(), "more_body": self.more_body}

    def disconnect(self) -> None:
        """The client has left, or is hung up on."""
        self.disconnected = True
        self.tell()
        if self._on_gone is not None:
            self._on_gone()

    # ---- the line ----

    @property
    def refusal(self) -> AntwortError | None:
        return self._connection.refusal

    @property
    def is_behind(self) -> bool:
        return self.flow.write_paused

    def answer(self, send: Send, status: int, head: bytes, body: bytes, linger: float) -> bool:
        """Who has a `send` of somebody's in between writes by that."""
        if send != self.send or self.response_started or not self.keep_alive:
            return False
        flow = self.flow
        if flow.write_paused or self._method == "HEAD":
            return False
        self.response_started = True
        self.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[status], self._connection.state.always, head, body))
        self._complete()
        if self.flow.write_paused:
            self._connection.linger(linger)
        return True

    def watch(self, gone: Callable[[], None]) -> None:
        """To know that its client has left, one must read."""
        self._on_gone = gone
        if self.disconnected:
            gone()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def linger(self, seconds: float) -> None:
        self._connection.linger(seconds)

    def abort(self) -> None:
        self._connection.abort()

    def cut(self) -> None:
        self._connection.cut()

    # ---- the answer ----

    async def send(self, message: Message) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}' sent, after response already completed.")
        wanted = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != wanted:
            raise RuntimeError(f"Expected ASGI message '{wanted}', but got '{message['type']}'.")
        if self.response_started:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        lines = [STATUS_LINE[status], self._connection.state.always]
        says_close = says_chunked = False
        for name, value in headers:
            if HEADER_RE.search(name):
                raise RuntimeError("Invalid HTTP header name.")
            if HEADER_VALUE_RE.search(value):
                raise RuntimeError("Invalid HTTP header value.")
            kind = name.lower()
            if kind == b"content-length":
                self._left = int(value)
            elif kind == b"connection" and b"close" in [token.lower().strip() for token in value.split(b",")]:
                self.keep_alive, says_close = False, True
            elif kind == b"transfer-encoding" and value.lower() == b"chunked":
                says_chunked = True
            lines.append(b"%b: %b\r\n" % (kind, value))
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        if self._method != "HEAD":
            self._is_chunked = says_chunked or (self._left is None and status not in _NO_BODY)
            if self._is_chunked and not says_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self.transport.write(b"".join(lines))

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(chunk + b"0\r\n\r\n" if is_last else chunk)
        elif self._method != "HEAD":
            self._left = (self._left or 0) - len(body)
            if self._left < 0:
                raise RuntimeError("Response content longer than Content-Length")
            self.transport.write(body)
            if is_last and self._left:
                raise RuntimeError("Response content shorter than Content-Length")
        if is_last:
            self._complete()

    def _complete(self) -> None:
        self.response_complete, self._on_gone = True, None
        self.tell()
        if not self.keep_alive:
            self.transport.close()
        self._connection.on_response_complete()
