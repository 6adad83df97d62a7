"""Tokens for a server by OAuth 2.1 (`client_credentials`).

The token endpoint is discovered by the server's metadata (RFC 9728, RFC 8414), or set by the operator. A token belongs
to one session and is stored in memory only.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from antwort.net.response import HttpError
from antwort.tools.mcp.base import ClientCredentials, NotReached, Unauthorized

if TYPE_CHECKING:
    from antwort.tools.mcp.endpoint import Fetched, McpEndpoint

_LEEWAY_SECONDS = 30.0
"""A token is renewed so long before it expires; a short-lived one at half of its lifetime."""
_TOKEN = re.compile("[!-~]+")
_PROBE = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "ping"})
_REFUSED = "The server could not be logged in to: no token was given out."
_UNREACHED = "The server could not be logged in to: nobody answers where its tokens are given out."
_METADATA_PATH = "/.well-known/oauth-protected-resource"
_ISSUER_PATH = "/.well-known/oauth-authorization-server"
_OPENID_PATH = "/.well-known/openid-configuration"

_Metadata = TypeVar("_Metadata", bound=msgspec.Struct)


class Token(msgspec.Struct, frozen=True):
    """An access token. `seconds`: how long it may be used; None: until it is refused."""

    value: str
    seconds: float | None = None

    def __repr__(self) -> str:
        return "Token(…)"


class _Resource(msgspec.Struct):
    """The used part of RFC 9728."""

    resource: str
    authorization_servers: list[str]
    scopes_supported: list[str] | None = None


class _Issuer(msgspec.Struct):
    """The used part of RFC 8414."""

    issuer: str
    token_endpoint: str
    scopes_supported: list[str] | None = None


class TokenSource:
    """The token for the server at `url`, fetched when it is needed and renewed before it expires."""

    def __init__(self, url: str, credentials: ClientCredentials, endpoint: McpEndpoint) -> None:
        self._url, self._credentials, self._endpoint = url, credentials, endpoint
        self._token: Token | None = None
        self._expires_at = -math.inf
        self._lock = asyncio.Lock()

    async def get(self) -> Token | None:
        """Return the token, the same object until it is renewed; None: the server wants none. Raises
        `ServerUnavailable`.
        """
        if self._has_expired():
            async with self._lock:
                if self._has_expired():  # otherwise another caller has renewed it
                    await self._renew()
        return self._token

    async def renew(self, used: Token | None) -> Token | None:
        """Return another token after `used` was refused, or the same if there is no other. Concurrent callers wait for
        one renewal. Raises `ServerUnavailable`.
        """
        async with self._lock:
            if self._token == used or self._has_expired():
                await self._renew()
        return self._token

    def _has_expired(self) -> bool:
        return asyncio.get_running_loop().time() >= self._expires_at

    async def _renew(self) -> None:
        credentials = self._credentials
        try:
            if credentials.token_url is not None:
                token: Token | None = await self._request(credentials.token_url, credentials.scopes)
            else:
                token = await self._discover()
        except (HttpError, ValueError) as exc:
            raise NotReached(_UNREACHED) from exc
        seconds = math.inf if token is None or token.seconds is None else token.seconds
        self._token, self._expires_at = token, asyncio.get_running_loop().time() + seconds

    async def _discover(self) -> Token | None:
        """Send a request without a token, and follow the challenge in the answer."""
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        answer = await self._endpoint.fetch("POST", self._url, _PROBE, headers)
        challenge = answer.headers.get("www-authenticate", "")
        if answer.status != 401 and not (answer.status == 403 and "insufficient_scope" in challenge):
            return None  # any other answer means that it wants no token
        resource = await self._resource(_parameter(challenge, "resource_metadata"))
        issuer = await self._issuer(resource)
        wanted = self._credentials.issuer
        if wanted is not None and (issuer is None or not _is_same(issuer.issuer, wanted)):
            raise Unauthorized(_REFUSED)
        scopes: Sequence[str] = self._credentials.scopes or (_parameter(challenge, "scope") or "").split()
        for announced in (resource, issuer):
            scopes = scopes or (announced.scopes_supported if announced is not None else None) or ()
        url = f"{_origin(self._url)}/token" if issuer is None else issuer.token_endpoint
        return await self._request(url, scopes, None if resource is None else resource.resource)

    async def _resource(self, announced: str | None) -> _Resource | None:
        """Return the metadata that the server publishes, or None."""
        has_failed = False
        path = urlsplit(self._url).path
        places = [announced, f"{_METADATA_PATH}{path}" if path.strip("/") else None, _METADATA_PATH]
        for place in filter(None, places):
            answer = await self._endpoint.fetch("GET", urljoin(self._url, place))
            has_failed = has_failed or answer.status >= 500 or answer.status == 429
            found = _decoded(answer, _Resource)
            if found is None or not found.authorization_servers:
                continue
            if not _covers(found.resource, self._url):
                raise Unauthorized(_REFUSED)
            return found
        if has_failed:  # so there may be metadata that could not be read
            raise Unauthorized(_REFUSED)
        return None

    async def _issuer(self, resource: _Resource | None) -> _Issuer | None:
        """Return the metadata of the authorization server, or None if it publishes none."""
        url = _origin(self._url)
        if resource is not None:
            servers = resource.authorization_servers
            wanted = self._credentials.issuer
            url = next((each for each in servers if wanted is not None and _is_same(each, wanted)), servers[0])
        for place in _issuer_urls(url, is_announced=resource is not None):
            answer = await self._endpoint.fetch("GET", place)
            if (found := _decoded(answer, _Issuer)) is not None:
                if not _is_same(found.issuer, url):
                    raise Unauthorized(_REFUSED)
                return found
            if answer.status >= 500:
                break
        return None

    async def _request(self, url: str, scopes: Sequence[str], resource: str | None = None) -> Token:
        credentials = self._credentials
        form = {"grant_type": "client_credentials"}
        if scopes:
            form["scope"] = " ".join(scopes)
        if resource is not None:
            form["resource"] = resource
        pair = f"{quote(credentials.client_id, safe='')}:{quote(credentials.client_secret, safe='')}"
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        answer = await self._endpoint.fetch("POST", url, urlencode(form).encode(), {**headers, **basic})
        if answer.status in (400, 401):  # some servers take the credentials in the form only
            form |= {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
            answer = await self._endpoint.fetch("POST", url, urlencode(form).encode(), headers)
        if answer.status not in (200, 201):
            raise Unauthorized(_REFUSED)
        try:
            return read_token(msgspec.json.decode(answer.body, type=dict[str, Any]))
        except (msgspec.DecodeError, RecursionError) as exc:
            raise Unauthorized(_REFUSED) from exc


def read_token(fields: Mapping[str, Any]) -> Token:
    """Return the token in an answer. Raises `Unauthorized` if there is none, or none that can be sent."""
    value, kind, seconds = fields.get("access_token"), fields.get("token_type", "bearer"), fields.get("expires_in")
    if not isinstance(value, str) or not _TOKEN.fullmatch(value) or str(kind).lower() != "bearer":
        raise Unauthorized(_REFUSED)
    try:
        life = None if seconds is None else float(seconds)
    except (TypeError, ValueError, OverflowError):
        life = None
    return Token(value, None if life is None else max(life - _LEEWAY_SECONDS, life / 2))


def _decoded(answer: Fetched, kind: type[_Metadata]) -> _Metadata | None:
    if answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _parameter(challenge: str, name: str) -> str | None:
    """Return a parameter of a `WWW-Authenticate` header."""
    found = re.search(rf'{name}=(?:"([^"]+)"|([^\s,]+))', challenge)
    return None if found is None else found[1] or found[2]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_same(issuer: str, other: str) -> bool:
    """Compare issuers as texts (RFC 8414, 3.3). Without a path, a trailing slash makes no difference."""
    return issuer == other or (issuer.rstrip("/") == other.rstrip("/") == _origin(issuer))


def _covers(resource: str, url: str) -> bool:
    """Return whether tokens for a resource are valid at `url`: that is the same address, or one below it."""
    if _origin(resource).lower() != _origin(url).lower():
        return False
    return f"{urlsplit(url).path.rstrip('/')}/".startswith(f"{urlsplit(resource).path.rstrip('/')}/")


def _issuer_urls(url: str, *, is_announced: bool) -> Iterator[str]:
    """Yield the addresses at which the metadata of an issuer may be, in the order to try. An issuer that is not
    announced is the server's own origin, as in early versions of the protocol.
    """
    origin, path = _origin(url), urlsplit(url).path.rstrip("/")
    yield f"{origin}{_ISSUER_PATH}{path}"
    if is_announced:
        yield f"{origin}{_OPENID_PATH}{path}"
        if path:
            yield f"{origin}{path}{_OPENID_PATH}"
