"""A slim HTTP/1.1 client for one backend: pooled connections, bodies read as they come, an end that is felt at once.

An exchange (one request and its answer) owns what it reads; a connection only carries it, and is free for the next
exchange as soon as the answer is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from antwort.api.wire import Wire
from antwort.net.connection import Connection, Timeouts
from antwort.net.exchange import ConnectFailed, ConnectTimedOut, Cut
from antwort.net.reply import Reply
from antwort.version import __version__

__all__ = ["HttpClient", "Pool", "Reply", "Resolve", "Timeouts", "header_lines"]

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses to connect to for a name and a port, in the order to try them in. Raises `OSError` or `HttpFault`."""

_ONE_WRITE = 64 * 1024
_JSON = b"Content-Type: application/json\r\n"
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[ -~]*")
_MOST_TRIED = 4
"""Addresses of one name."""
_MOST_HEADS = 64
PROMPT = 8
"""Answers that came in one piece, after which a server that never sent one in several is trusted to go on like that."""


class Pool(Wire):
    max_idle: int = 256
    idle_expiry: float = 30.0


class HttpClient:
    """Speaks to one origin, `http://host:port` or `https://…`. It follows no redirect: whoever asks decides that.

    With `resolve`, names are looked up by it, and connections are made to the very addresses that it gives out; the
    certificate is still held against the name. It is asked for each new connection; one that was kept open has the
    address that was good when it was made.
    """

    def __init__(
        self,
        origin: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        pool: Pool | None = None,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
        is_prompt: bool = False,
    ) -> None:
        url = urlsplit(origin)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("a backend's address starts with http:// or https:// and names a host")
        self.host = _ascii(url.hostname)
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._is_secure = url.scheme == "https"
        self._tls = tls
        self._resolve = resolve
        self._may_be_prompt = self.is_prompt = is_prompt
        """Whether answers are acknowledged at once, which is a call to the system for each."""
        self._whole_answers = 0
        self._fields = header_lines(
            {"Host": _authority(self.host, url.port), "User-Agent": f"antwort/{__version__}", **(headers or {})}
        )
        self._heads: dict[tuple[str, str, bytes], bytes] = {}
        self.timeouts = timeouts or Timeouts()
        self.pool = pool or Pool()
        self.idle_expiry, self.most_idle = self.pool.idle_expiry, self.pool.max_idle
        self.idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._is_closed = False

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    def idle_connections(self) -> int:
        return len(self.idle)

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        timeouts: Timeouts | None = None,
        fields: bytes = _JSON,
        *,
        resends: bool = True,
    ) -> Reply:
        """Send a request and wait for the head of its answer. The caller closes the reply.

        `fields` are what `header_lines` has made of the headers of this request; where it has a body, of its type, too.

        A pooled connection that turns out to be closed is replaced by a fresh one, once: it was idle, and the
        backend had every right to close it. It may also have ended over this very request: whoever must not ask for
        the same thing twice says so, and gets the `Cut`.
        """
        head = self._heads.get((method, target, fields))
        if body is None or head is None or (size := len(body)) > _ONE_WRITE:
            message = self._message(method, target, body, fields)
        else:  # as it mostly is
            message = (b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body),)
        timeouts = timeouts or self.timeouts
        pooled = self.idle.pop() if self.idle else None
        connection = pooled or await self._connect(timeouts.to_connect())
        while True:
            reply = connection.ask(message, timeouts)
            try:
                await reply.waiter
            except BaseException:
                reply.close()  # a complete answer has set the connection free for others
                raise
            if reply.answered:
                return reply
            if connection is not pooled or not resends or not isinstance(reply.failure, Cut) or reply.heard:
                raise reply.failure or Cut(heard=reply.heard)
            connection = await self._connect(timeouts.to_connect())

    async def close(self) -> None:
        """Close every connection, whatever it carries."""
        self._is_closed = True
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    # called by connections

    def welcome(self, connection: Connection) -> None:
        if self._is_closed:
            connection.abort()
        else:
            self._connections.add(connection)

    def note_reads(self, reads: int) -> None:
        """Whoever was once seen to send head and body apart is believed to do it again."""
        if self._may_be_prompt:
            self._whole_answers = -sys.maxsize if reads > 1 else self._whole_answers + 1
            self.is_prompt = self._whole_answers < PROMPT

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self.idle.remove(connection)

    # within

    async def _connect(self, seconds: float) -> Connection:
        try:
            async with asyncio.timeout(seconds):
                if self._resolve is None:
                    return await self._connect_to(self.host)
                addresses = await self._resolve(self.host, self._port)
                return await self._connect_in_turn(addresses[:_MOST_TRIED], seconds)
        except TimeoutError as exc:
            raise ConnectTimedOut("connecting took too long") from exc
        except (OSError, UnicodeError) as exc:
            raise ConnectFailed("no connection could be made") from exc

    async def _connect_in_turn(self, addresses: Sequence[str], seconds: float) -> Connection:
        """One that does not answer takes no more than its share of the time."""
        for address in addresses[:-1]:
            with contextlib.suppress(OSError):  # a timeout is one
                async with asyncio.timeout(seconds / len(addresses)):
                    return await self._connect_to(address)
        if not addresses:
            raise OSError("a name without addresses")
        return await self._connect_to(addresses[-1])

    async def _connect_to(self, host: str) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop)
        tls = self._context()
        name = None if tls is None else self.host
        try:
            await loop.create_connection(lambda: connection, host, self._port, ssl=tls, server_hostname=name)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _context(self) -> ssl.SSLContext | None:
        if self._is_secure and self._tls is None:
            self._tls = ssl.create_default_context()  # reads the system's certificates: once, and only for https
        return self._tls if self._is_secure else None

    def _message(self, method: str, target: str, body: bytes | None, fields: bytes = _JSON) -> tuple[bytes, ...]:
        if body is None:
            return (self._head(method, target, b"" if fields is _JSON else fields) + b"\r\n",)
        head = self._heads.get((method, target, fields)) or self._head(method, target, fields)
        size = len(body)
        if size > _ONE_WRITE:
            return (b"%bContent-Length: %d\r\n\r\n" % (head, size), body)
        return (b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body),)

    def _head(self, method: str, target: str, fields: bytes) -> bytes:
        """But for its end. The same is asked for again and again."""
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
        head = self._heads[method, target, fields] = b"%b%b%b" % (line, self._fields, fields)
        return head


def _ascii(host: str) -> str:
    """A name in any script, as names are asked for and written in a head."""
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as exc:
        raise ValueError("a backend's address names a host that cannot be one") from exc


def _authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def header_lines(headers: Mapping[str, str]) -> bytes:
    """As they are sent. Raises `ValueError` for what cannot be: it could end the head, or begin another field."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent: only printable ASCII can")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
