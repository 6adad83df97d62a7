"""HTTP/1.1 client for one origin, with pooled connections and bodies that are read as they arrive.

A response owns what it reads. Its connection only carries it, and returns to the pool when the response is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import sys
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from antwort.api.wire import Wire
from antwort.caching import Cache
from antwort.net.connection import HttpConnection, Timeouts
from antwort.net.dns import Resolver
from antwort.net.response import ConnectFailed, ConnectionLost, ConnectTimeout, HttpResponse
from antwort.version import __version__

__all__ = ["HttpClient", "HttpResponse", "Pool", "Timeouts", "header_lines"]

QUICK_ACK_TRIAL = 8
"""Responses that must arrive in one read each before TCP_QUICKACK is left out for a server."""
_MAX_JOINED_BODY_BYTES = 64 * 1024
"""Longest body that is copied behind its head to send both in one write."""
_MAX_ADDRESSES = 4
"""Most addresses of one name that are tried."""
_MAX_CACHED_HEADS = 64
_JSON = b"Content-Type: application/json\r\n"
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[ -~]*")


class Pool(Wire):
    """Limits of the connections that stay open between requests. `idle_expiry` is in seconds."""

    max_idle: int = 256
    idle_expiry: float = 30.0


class HttpClient:
    """Client of one origin, `http://host:port` or `https://…`. It follows no redirects.

    `resolve` replaces the lookup of names for new connections: they are made to the addresses that it returns, while
    the certificate is still checked against the name. A pooled connection keeps its address.
    """

    def __init__(
        self,
        origin: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        pool: Pool | None = None,
        tls: ssl.SSLContext | None = None,
        resolve: Resolver | None = None,
        quick_ack: bool = False,
    ) -> None:
        url = urlsplit(origin)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("a backend's address starts with http:// or https:// and names a host")
        self.host = _ascii(url.hostname)
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._is_secure = url.scheme == "https"
        self._tls = tls
        self._resolve = resolve
        self._may_quick_ack = self.quick_ack = quick_ack
        """Whether the first packet of a response is acknowledged at once (TCP_QUICKACK), for one system call.
        A server that writes head and body separately, without TCP_NODELAY, sends the body only after that: about 40 ms
        later.
        """
        self._single_reads = 0
        self._fields = header_lines(
            {"Host": _authority(self.host, url.port), "User-Agent": f"antwort/{__version__}", **(headers or {})}
        )
        self._head_cache = Cache[tuple[str, str, bytes], bytes](_MAX_CACHED_HEADS)
        self.timeouts = timeouts or Timeouts()
        self.pool = pool or Pool()
        self.idle_expiry, self.max_idle = self.pool.idle_expiry, self.pool.max_idle
        self.idle: list[HttpConnection] = []
        """Open connections that carry nothing."""
        self._connections: set[HttpConnection] = set()
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
    ) -> HttpResponse:
        """Send a request and return its response when the head has arrived. The caller closes the response.

        `fields` are further headers, made by `header_lines`; with a body, they include its content type.

        If a pooled connection turns out to be closed, the request is sent once more over a new one: the backend may
        close idle connections at any time. The connection may also have ended because of this request: pass
        `resends=False` for a request that must not be sent twice, and it raises `ConnectionLost` instead.
        """
        if body is None and fields is _JSON:
            fields = b""
        head = self._head_cache.get((method, target, fields)) or self._head(method, target, fields)
        if body is None:
            message: tuple[bytes, ...] = (head + b"\r\n",)
        elif (size := len(body)) > _MAX_JOINED_BODY_BYTES:
            message = (b"%bContent-Length: %d\r\n\r\n" % (head, size), body)
        else:
            message = (b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body),)
        timeouts = timeouts or self.timeouts
        pooled = self.idle.pop() if self.idle else None
        connection = pooled or await self._connect(timeouts.connect_seconds())
        while True:
            response = connection.send(message, timeouts)
            try:
                await response.waiter
            except BaseException:
                response.close()
                raise
            if response.has_head:
                return response
            error = response.error or ConnectionLost(response_started=response.has_started)
            is_stale = connection is pooled and isinstance(error, ConnectionLost) and not response.has_started
            if not (is_stale and resends):
                raise error
            connection = await self._connect(timeouts.connect_seconds())

    async def close(self) -> None:
        """Close every connection, also those that carry a response."""
        self._is_closed = True
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    # ---- called by connections ----

    def connection_opened(self, connection: HttpConnection) -> None:
        if self._is_closed:
            connection.abort()
        else:
            self._connections.add(connection)

    def record_reads(self, reads: int) -> None:
        """Acknowledge at once until `QUICK_ACK_TRIAL` responses came in one read, and always after one that did not."""
        if self._may_quick_ack:
            self._single_reads = -sys.maxsize if reads > 1 else self._single_reads + 1
            self.quick_ack = self._single_reads < QUICK_ACK_TRIAL

    def connection_closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self.idle.remove(connection)

    # ---- internals ----

    async def _connect(self, seconds: float) -> HttpConnection:
        try:
            async with asyncio.timeout(seconds):
                if self._resolve is None:
                    return await self._connect_to(self.host)
                addresses = await self._resolve(self.host, self._port)
                return await self._connect_to_first(addresses[:_MAX_ADDRESSES], seconds)
        except TimeoutError as exc:
            raise ConnectTimeout("connecting took too long") from exc
        except (OSError, UnicodeError) as exc:
            raise ConnectFailed("no connection could be made") from exc

    async def _connect_to_first(self, addresses: Sequence[str], seconds: float) -> HttpConnection:
        """Connect to the first address that answers. Each gets an equal share of the time."""
        for address in addresses[:-1]:
            with contextlib.suppress(OSError):  # includes TimeoutError
                async with asyncio.timeout(seconds / len(addresses)):
                    return await self._connect_to(address)
        if not addresses:
            raise OSError("a name without addresses")
        return await self._connect_to(addresses[-1])

    async def _connect_to(self, host: str) -> HttpConnection:
        loop = asyncio.get_running_loop()
        connection = HttpConnection(self, loop)
        if self._is_secure and self._tls is None:
            self._tls = ssl.create_default_context()  # reads the system's certificates: once, and only for https
        tls, name = (self._tls, self.host) if self._is_secure else (None, None)
        try:
            await loop.create_connection(lambda: connection, host, self._port, ssl=tls, server_hostname=name)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _head(self, method: str, target: str, fields: bytes) -> bytes:
        """Return a request's head without its end, and cache it: requests to a backend repeat their heads."""
        line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
        head = b"%b%b%b" % (line, self._fields, fields)
        self._head_cache.put((method, target, fields), head)
        return head


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are sent. Raises `ValueError` for characters that could end a field or the head."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent: only printable ASCII can")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


def _ascii(host: str) -> str:
    """Return an internationalized host name in its ASCII form (IDNA)."""
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as exc:
        raise ValueError("a backend's address names a host that cannot be one") from exc


def _authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"
