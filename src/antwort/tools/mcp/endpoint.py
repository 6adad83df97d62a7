"""HTTP to one server: with its credentials, along redirects within the server, and by the address policy.

For servers that requests name, the policy checks every address as written, and every connection by the IP address that
it connects to. Proxies, netrc files and cookies are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from antwort.net.client import HttpClient, HttpResponse, Pool, header_lines
from antwort.net.connection import Timeouts
from antwort.net.response import InvalidResponse
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, ParsedUrl, parse_url
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable, Unauthorized, canonical_address
from antwort.tools.mcp.messages import NOT_AN_ANSWER, UNAUTHORIZED

if TYPE_CHECKING:
    from antwort.tools.mcp.auth import Login

MAX_HANDSHAKE_BYTES = 2**20
"""Longest answer of a handshake or a token endpoint, and longest unsolicited message."""
_POOL = Pool(max_idle=16, idle_expiry=60.0)
_DAY_SECONDS = 86_400.0
"""No timeout for answers here: the callers limit the time."""
_FETCH_TIMEOUT_SECONDS = 30.0
_MAX_REDIRECTS = 3
_UNCODED = frozenset(("", "identity"))
_RESERVED = frozenset(
    ("host", "user-agent", "accept-encoding", "connection", "content-length", "transfer-encoding", "keep-alive", "te")
)
"""Headers that the HTTP client writes itself."""


class Fetched(msgspec.Struct, frozen=True):
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClients:
    """The HTTP clients of one session, one for each origin."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None = None) -> None:
        """`policy` is for servers that requests name; None: the strictest one. Raises `AddressNotAllowed`."""
        self._policy = (policy or AddressPolicy()) if spec.is_untrusted else None
        self._spec = spec
        self._clients: dict[str, HttpClient] = {}
        self.home = self._parse(spec.url)
        """The address of the server."""

    def at(self, url: ParsedUrl) -> HttpClient:
        if (client := self._clients.get(url.origin)) is None:
            client = self._clients[url.origin] = HttpClient(
                url.origin,
                headers={"Accept-Encoding": "identity"},
                timeouts=Timeouts(connect=self._spec.connect, first_byte=_DAY_SECONDS, idle=_DAY_SECONDS),
                pool=_POOL,
                resolve=None if self._policy is None else self._policy.resolver(url, self._spec.owner),
                quick_ack=True,
            )
        return client

    async def fetch(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Fetched:
        """Return the answer of any server to a request without the credentials of the spec. Raises `HttpError`, and
        `ValueError` for a request that cannot be sent.
        """
        place, fields = self._parse(url), header_lines(headers or {})
        timeouts = Timeouts(self._spec.connect, _FETCH_TIMEOUT_SECONDS, _FETCH_TIMEOUT_SECONDS)
        for _ in range(_MAX_REDIRECTS + 1):
            async with await self.at(place).request(method, place.target, body, timeouts, fields) as reply:
                following = self.following(place, reply, method)
                if following is None:
                    check_coding(reply)
                    return Fetched(reply.status, reply.headers, await reply.read(MAX_HANDSHAKE_BYTES))
                place = following
        raise InvalidResponse("too many redirects")

    def following(self, url: ParsedUrl, reply: HttpResponse, method: str = "POST") -> ParsedUrl | None:
        """Return the target of a redirect if it is to be followed: on the same server, with the same method. Raises
        `AddressNotAllowed` when an untrusted server redirects to another address: the operator's rules go by address.
        """
        if not 300 <= reply.status < 400 or (location := reply.headers.get("location")) is None:
            return None
        try:
            target = self._parse(urljoin(url.url, location))
            is_same = canonical_address(url.url) == canonical_address(target.url)
        except (ValueError, AddressNotAllowed):
            if self._policy is None:
                return None
            raise AddressNotAllowed("leads to another address.") from None
        is_upgrade = (url.host, url.port, target.port) == (target.host, 80, 443) and target.is_secure
        if self._policy is not None and not (is_same and (target.origin == url.origin or is_upgrade)):
            raise AddressNotAllowed("leads to another address.")
        keeps_method = reply.status in (307, 308) or (method == "GET" and reply.status in (301, 302, 303))
        return target if keeps_method and (target.origin == url.origin or is_upgrade) else None

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    def _parse(self, url: str) -> ParsedUrl:
        return parse_url(url) if self._policy is None else self._policy.check(url)


class McpEndpoint:
    """The address to which a session's messages go. A redirect holds for all later messages, too."""

    def __init__(self, clients: HttpClients, login: Login, url: ParsedUrl | None = None) -> None:
        self._clients = clients
        self._login = login
        self._url = url or clients.home
        self._client = clients.at(self._url)
        self._head: tuple[Mapping[str, str], Mapping[str, str], bytes] | None = None
        """The latest headers as bytes, and the two mappings that they were encoded from."""

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        more: bytes = b"",
        resends: bool = True,
        timeouts: Timeouts | None = None,
    ) -> HttpResponse:
        """Return the answer, which the caller closes. A redirect within the server is followed. After a 401 new
        credentials are tried once, if there are any; also after a 403 to a message, because some servers answer an
        expired token so.

        `headers` are the protocol's own, and override those of the spec: pass the same object for the same headers.
        `more` are further header lines.
        Raises `HttpError`, `ServerUnavailable`.
        """
        login = await self._login.headers()
        redirects, is_renewed = 0, False
        while True:
            fields = self._fields(login, headers) + more
            reply = await self._client.request(method, self._url.target, body, timeouts, fields, resends=resends)
            if reply.status < 300:
                return reply
            if not is_renewed and (reply.status == 401 or (reply.status == 403 and method == "POST")):
                reply.close()
                is_renewed = True
                if await self._login.renew(login):
                    login = await self._login.headers()
                elif reply.status == 401:
                    raise Unauthorized(UNAUTHORIZED)
                else:
                    return reply
            elif reply.status < 400:
                reply.close()
                try:
                    following = self._clients.following(self._url, reply, method)
                except AddressNotAllowed as exc:
                    raise NotReached(f"The address of the MCP server {exc}") from exc
                redirects += 1
                if following is None or redirects > _MAX_REDIRECTS:
                    raise ServerUnavailable(NOT_AN_ANSWER)
                self._url, self._client, self._head = following, self._clients.at(following), None
            else:
                return reply

    def _fields(self, login: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        head = self._head
        if head is not None and head[0] is login and head[1] is headers:
            return head[2]
        taken = {name.lower() for name in headers} | _RESERVED
        if self._url.origin != self._clients.home.origin:
            login = {}  # another origin must not get the credentials
        fields = header_lines({**{name: login[name] for name in login if name.lower() not in taken}, **headers})
        self._head = (login, headers, fields)
        return fields


def check_coding(reply: HttpResponse) -> None:
    """Check that an answer is not compressed, because no compression was offered. Raises `InvalidResponse`."""
    if reply.headers.coding not in _UNCODED:
        raise InvalidResponse("the answer is packed")
