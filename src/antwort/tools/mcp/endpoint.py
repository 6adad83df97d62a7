"""HTTP to one server: with its credentials, along redirects within the server, and by the address policy.

For servers that requests name, the policy checks every address as written, and every connection by the IP address that
it connects to. Proxies, netrc files and cookies are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

import msgspec

from antwort.net.client import HttpClient, HttpResponse, Pool, header_lines
from antwort.net.connection import Timeouts
from antwort.net.response import InvalidResponse
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, ParsedUrl, parse_url
from antwort.tools.mcp.auth import Token, TokenSource
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable, Unauthorized, canonical_address
from antwort.tools.mcp.messages import NOT_AN_ANSWER, UNAUTHORIZED

MAX_HANDSHAKE_BYTES = 2**20
"""Longest answer of a handshake or a token endpoint, and longest unsolicited message."""
UNCODED = frozenset(("", "identity"))
"""The codings of answers that are read: no compression is offered."""
_POOL = Pool(max_idle=16, idle_expiry=60.0)
_DAY_SECONDS = 86_400.0
"""No timeout for answers here: the callers limit the time."""
_FETCH_TIMEOUT_SECONDS = 30.0
_MAX_REDIRECTS = 3
_RESERVED = frozenset(
    ("host", "user-agent", "accept-encoding", "connection", "content-length", "transfer-encoding", "keep-alive", "te")
)
"""Headers that the HTTP client writes itself."""


class Fetched(msgspec.Struct, frozen=True):
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class McpEndpoint:
    """The address to which a connection's messages go. A redirect holds for all later messages, too."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None = None) -> None:
        """`policy` is for servers that requests name; None: the strictest one. Raises `AddressNotAllowed`."""
        self._spec = spec
        self._policy = (policy or AddressPolicy()) if spec.is_untrusted else None
        self._clients: dict[str, HttpClient] = {}
        """One for each origin."""
        self._home = self._url = self._parse(spec.url)
        self._client = self._client_at(self._url)
        self._tokens: TokenSource | None = None
        if spec.oauth is not None and not spec.is_untrusted:  # to others, only the headers of the request are sent
            self._tokens = TokenSource(spec.url, spec.oauth, self)
        self._head: tuple[Token | None, Mapping[str, str], bytes] | None = None
        """The latest headers as bytes, and what they were made from."""

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        more: bytes = b"",
        resends: bool = True,
    ) -> HttpResponse:
        """Return the answer, which the caller closes. A redirect within the server is followed. After a 401 a new token
        is tried once, if there is any; also after a 403 to a message, because some servers answer an expired token so.

        `headers` are the protocol's own, and override those of the spec: pass the same object for the same headers.
        `more` are further header lines.
        Raises `HttpError`, `ServerUnavailable`, and `ValueError` for a header that cannot be sent.
        """
        token = None if self._tokens is None else await self._tokens.get()
        redirects, is_renewed = 0, False
        while True:
            head = self._head
            if head is not None and head[0] is token and head[1] is headers:
                fields = head[2] + more
            else:
                fields = self._fields(token, headers) + more
            reply = await self._client.request(method, self._url.target, body, None, fields, resends=resends)
            if reply.status < 300:
                return reply
            if not is_renewed and (reply.status == 401 or (reply.status == 403 and method == "POST")):
                reply.close()
                is_renewed = True
                renewed = token if self._tokens is None else await self._tokens.renew(token)
                if renewed != token:
                    token = renewed
                elif reply.status == 401:
                    raise Unauthorized(UNAUTHORIZED)
                else:
                    return reply
            elif reply.status < 400:
                reply.close()
                redirects += 1
                try:
                    following = self._following(self._url, reply, method)
                except AddressNotAllowed as exc:
                    raise NotReached(f"The address of the MCP server {exc}") from exc
                if following is None or redirects > _MAX_REDIRECTS:
                    raise ServerUnavailable(NOT_AN_ANSWER)
                self._go_to(following)
            else:
                return reply

    async def fetch(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Fetched:
        """Return the answer of any server to a request without the credentials of the spec. Raises `HttpError`, and
        `ValueError` for a request that cannot be sent.
        """
        place, fields = self._parse(url), header_lines(headers or {})
        timeouts = Timeouts(self._spec.connect, _FETCH_TIMEOUT_SECONDS, _FETCH_TIMEOUT_SECONDS)
        for _ in range(_MAX_REDIRECTS + 1):
            async with await self._client_at(place).request(method, place.target, body, timeouts, fields) as reply:
                following = self._following(place, reply, method)
                if following is None:
                    if reply.headers.coding not in UNCODED:
                        raise InvalidResponse("the answer is packed")
                    return Fetched(reply.status, reply.headers, await reply.read(MAX_HANDSHAKE_BYTES))
                place = following
        raise InvalidResponse("too many redirects")

    def move_to(self, address: str) -> None:
        """Send further messages to another address of the same origin: others must not get the credentials. Raises
        `ServerUnavailable`.
        """
        try:
            url = parse_url(urljoin(self._home.url, address))
        except (ValueError, AddressNotAllowed) as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        if url.origin != self._home.origin:
            raise ServerUnavailable(NOT_AN_ANSWER)
        self._go_to(url)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    def _go_to(self, url: ParsedUrl) -> None:
        self._url, self._client, self._head = url, self._client_at(url), None

    def _client_at(self, url: ParsedUrl) -> HttpClient:
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

    def _parse(self, url: str) -> ParsedUrl:
        return parse_url(url) if self._policy is None else self._policy.check(url)

    def _fields(self, token: Token | None, headers: Mapping[str, str]) -> bytes:
        own: Mapping[str, str] = {}
        if self._url.origin == self._home.origin:  # another origin must not get the credentials
            login = {} if token is None else {"Authorization": f"Bearer {token.value}"}
            taken = {name.lower() for name in headers} | _RESERVED
            own = {name: value for name, value in {**self._spec.headers, **login}.items() if name.lower() not in taken}
        fields = header_lines({**own, **headers})
        self._head = (token, headers, fields)
        return fields

    def _following(self, url: ParsedUrl, reply: HttpResponse, method: str) -> ParsedUrl | None:
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
