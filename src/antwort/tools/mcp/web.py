"""HTTP to a MCP server: our own client, for the SDK and for ourselves. Import it where it is needed: it brings httpx2.

One client for each origin, all of them for one session alone. The server of a stranger is asked within its reach: every
request is judged by its address, every connection by what it connects to. Nothing is taken from the environment (no
proxy, no netrc), no cookie is kept, and no redirect is followed here: the SDK follows those that stay within an origin.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urljoin

import httpx2

from antwort.net.client import HttpClient, HttpResponse, Pool, header_lines
from antwort.net.connection import Timeouts
from antwort.net.response import (
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    HttpError,
    InvalidResponse,
    ResponseTimeout,
)
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, ParsedUrl, parse_url
from antwort.tools.mcp.addresses import canonical_address
from antwort.tools.mcp.base import ServerSpec

_POOL = Pool(max_idle=16, idle_expiry=60.0)
_OURS = frozenset(
    ("host", "user-agent", "accept-encoding", "connection", "content-length", "transfer-encoding", "keep-alive", "te")
)
"""Headers that the client below writes itself, or that only mean something to httpx2's own."""
_A_DAY = 86_400.0
LARGEST_OTHER = 2**20
"""Bytes of one message that others read over this, the SDK first of all: handshakes, tokens, what a server says by
itself. Lists and results go the lean way."""
ONCE = "once"
"""The entry of a request's extensions that says that it is sent at most once."""


class Web:
    """The clients of one session. Close it with the session."""

    def __init__(self, spec: ServerSpec, reach: AddressPolicy | None = None, tls: ssl.SSLContext | None = None) -> None:
        """`reach` is for the servers of strangers; without one, the strictest holds for them."""
        self._reach = (reach or AddressPolicy()) if spec.is_strangers else None
        self._owner = spec.owner
        self._home = self._place(spec.url)
        self._largest, self._connect, self._tls = min(spec.largest, LARGEST_OTHER), spec.connect, tls
        self._own = frozenset(name.lower() for name in spec.headers)
        self._clients: dict[str, HttpClient] = {}

    @property
    def home(self) -> ParsedUrl:
        """Where the server is."""
        return self._home

    @property
    def open_connections(self) -> int:
        return sum(client.open_connections for client in self._clients.values())

    def client(self) -> HttpClient:
        """For the server itself: what `home.target` is asked of. The SDK's requests go over the same connections."""
        return self._client(self._home)

    def http_client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """For the SDK, which calls it by these names. Closing it leaves the connections to this object."""
        waits = httpx2.Timeout(30.0, connect=self._connect, read=300.0) if timeout is None else timeout
        return httpx2.AsyncClient(
            headers=headers, timeout=waits, auth=auth, transport=WebTransport(self), trust_env=False
        )

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Raises httpx2's exceptions; behind a refusal stands `AddressNotAllowed`."""
        with _translated(request):
            place = self._place(str(request.url))
            self._check_home(place)
            body = await request.aread()
            reply = await self._client(place).request(
                request.method,
                place.target,
                body if body or request.method in ("POST", "PUT", "PATCH") else None,
                _timeouts(request, self._connect),
                header_lines(self._headers(request, place)),
                resends=not _is_once(request),
            )
            if self._reach is not None and 300 <= reply.status < 400:
                self._check_redirect(str(request.url), reply)
        return self._response(request, reply)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    # within

    def _place(self, url: str) -> ParsedUrl:
        return parse_url(url) if self._reach is None else self._reach.check(url)

    def _check_home(self, place: ParsedUrl) -> None:
        """A stranger's server is one origin; at most it may ask for TLS."""
        if self._reach is None or place.origin == self._home.origin:
            return
        if place.host != self._home.host or self._home.is_secure or not place.is_secure:
            raise AddressNotAllowed("leads to another server.")

    def _check_redirect(self, url: str, reply: HttpResponse) -> None:
        """An operator's rules go by the address: no redirect of a stranger's server leads around them."""
        target = urljoin(url, reply.headers.get("location", ""))
        try:
            is_same = canonical_address(url) == canonical_address(target)
        except ValueError:
            is_same = False
        if not is_same:
            reply.close()
            raise AddressNotAllowed("leads to another address.")

    def _client(self, place: ParsedUrl) -> HttpClient:
        if (client := self._clients.get(place.origin)) is None:
            client = self._clients[place.origin] = HttpClient(
                place.origin,
                headers={"Accept-Encoding": "identity"},
                timeouts=Timeouts(connect=self._connect, first_byte=_A_DAY, idle=_A_DAY),
                pool=_POOL,
                tls=self._tls,
                resolve=None if self._reach is None else self._reach.resolver(place, self._owner),
                quick_ack=True,
            )
        return client

    def _headers(self, request: httpx2.Request, place: ParsedUrl) -> dict[str, str]:
        """What the server is sent by its own spec is for no other."""
        left_out = _OURS if place.origin == self._home.origin else _OURS | self._own
        return {name: value for name, value in request.headers.items() if name.lower() not in left_out}

    def _response(self, request: httpx2.Request, reply: HttpResponse) -> httpx2.Response:
        kept = [(name, value) for name, value in reply.headers.items() if name != "set-cookie"]
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            reply.close()
            raise httpx2.RemoteProtocolError("the answer is packed, and nobody asked for that", request=request)
        is_stream = reply.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = _Body(request, reply, None if is_stream else self._largest)
        return httpx2.Response(reply.status, headers=kept, stream=body, request=request)


class WebTransport(httpx2.AsyncBaseTransport):
    """What httpx2 sends by."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._web.send(request)


class _Body(httpx2.AsyncByteStream):
    """An answer as it comes. A stream of events may go on for ever: how long one event may be, its reader knows."""

    def __init__(self, request: httpx2.Request, reply: HttpResponse, largest: int | None) -> None:
        self._request, self._reply, self._largest = request, reply, largest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        with _translated(self._request):
            async for data in self._reply:
                size += len(data)
                if self._largest is not None and size > self._largest:
                    raise InvalidResponse("the answer is too long")
                yield data

    async def aclose(self) -> None:
        """What has not come by now is not waited for: the server learns it at once."""
        self._reply.close()


def refusal(error: BaseException) -> AddressNotAllowed | None:
    """What the reach policy said, if that is what is behind an error, however it was wrapped on its way."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        if (found := waiting.pop()) is None or id(found) in seen:
            continue
        if isinstance(found, AddressNotAllowed):
            return found
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
    return None


_IN_THEIR_WORDS: tuple[tuple[type[HttpError], type[httpx2.TransportError]], ...] = (
    (AddressNotAllowed, httpx2.ConnectError),
    (ConnectFailed, httpx2.ConnectError),
    (ConnectTimeout, httpx2.ConnectTimeout),
    (ResponseTimeout, httpx2.ReadTimeout),
    (InvalidResponse, httpx2.RemoteProtocolError),
    (ConnectionLost, httpx2.ReadError),
)


@contextmanager
def _translated(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except HttpError as fault:
        for kind, theirs in _IN_THEIR_WORDS:
            if isinstance(fault, kind):
                raise theirs(str(fault), request=request) from fault
        raise
    except ValueError as exc:  # a header, or a host, that cannot be sent
        raise httpx2.LocalProtocolError(str(exc), request=request) from exc


def _is_once(request: httpx2.Request) -> bool:
    """Whether it may be carried out when nothing is heard of it, and must not be carried out again."""
    return bool(request.extensions.get(ONCE)) or request.headers.get("mcp-method") == "tools/call"


def _timeouts(request: httpx2.Request, connect: float) -> Timeouts:
    """httpx2 says None where there is no limit, and nothing where nobody has said anything."""
    said = request.extensions.get("timeout", {})
    read = said.get("read", _A_DAY)
    wait = _A_DAY if read is None else read
    return Timeouts(connect=said.get("connect") or connect, first_byte=wait, idle=wait)
