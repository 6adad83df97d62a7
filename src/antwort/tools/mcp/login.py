"""What is sent to a MCP server to log in, and what is done when it is not taken. Import it where it is needed.

The SDK's requests and our own carry the same token: it is held here, for one session, in memory alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

import httpx2

from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.tokens import Token, announced, direct
from antwort.tools.mcp.web import Web


class Login(Protocol):
    """Of one session."""

    @property
    def auth(self) -> httpx2.Auth | None:
        """For the SDK's client, beside the headers of the spec; None: those are all."""
        ...

    async def headers(self) -> Mapping[str, str]:
        """What a request to the server carries now, those of the spec among them. The same object as long as they are
        the same. Raises `ServerUnavailable` when it must be logged in first, and that comes to nothing.
        """
        ...

    async def renew(self, used: Mapping[str, str]) -> bool:
        """After a 401 to a request with the headers `used`: whether there are others now, and it is worth one more try.
        Those who come at the same time wait for one renewal. Raises `ServerUnavailable`.
        """
        ...


def log_in(spec: ServerSpec, web: Web) -> Login:
    """How the server of the spec is logged in to. Nothing is asked yet. Whoever only names a server brings what it is
    sent: for a stranger's there is no OAuth.
    """
    if spec.oauth is None or spec.is_strangers:
        return FixedLogin(spec.headers)
    credentials = spec.oauth
    if credentials.token_url is not None:
        return TokenLogin(spec.headers, lambda: direct(credentials, web))
    return TokenLogin(spec.headers, lambda: announced(spec.url, credentials, web))


class FixedLogin:
    """Headers that stay the same: a token, or what a request has brought."""

    auth = None

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    async def renew(self, used: Mapping[str, str]) -> bool:
        del used  # there are no others
        return False


class TokenLogin:
    """A token that is given out for a while, beside headers that stay the same."""

    def __init__(self, headers: Mapping[str, str], fetch: Callable[[], Awaitable[Token | None]]) -> None:
        """`fetch` gives None when the server wants no token. It raises `ServerUnavailable`."""
        self.auth: httpx2.Auth = _TokenAuth(self)
        self._fixed, self._fetch = dict(headers), fetch
        self._headers: Mapping[str, str] | None = None
        self._good_until: float | None = None
        self._renewing = asyncio.Lock()

    async def headers(self) -> Mapping[str, str]:
        if self._headers is None or self._is_old():
            await self._renewed(self._headers)
        assert self._headers is not None, "a renewal sets them, or raises"
        return self._headers

    async def renew(self, used: Mapping[str, str]) -> bool:
        await self._renewed(used)
        return self._headers != used

    def _is_old(self) -> bool:
        return self._good_until is not None and asyncio.get_running_loop().time() >= self._good_until

    async def _renewed(self, used: Mapping[str, str] | None) -> None:
        async with self._renewing:
            if self._headers != used and not self._is_old():
                return  # somebody else was faster
            token = await self._fetch()
            now = asyncio.get_running_loop().time()
            self._good_until = None if token is None or token.seconds is None else now + token.seconds
            more = {} if token is None else {"Authorization": f"Bearer {token.value}"}
            self._headers = {**self._fixed, **more}


class _TokenAuth(httpx2.Auth):
    """The same for the requests of the SDK's client. Other than the SDK's own, it holds nobody up while an answer is
    waited for: a stream that is opened and stays silent is one.
    """

    def __init__(self, login: TokenLogin) -> None:
        self._login = login

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        used = await self._sent(request)
        response = yield request
        if response.status_code == 401 and used is not None and await self._is_renewed(used):
            await response.aread()
            await self._sent(request)
            yield request

    async def _sent(self, request: httpx2.Request) -> Mapping[str, str] | None:
        """Without a token the server says what it thinks of that, and its answer is what counts."""
        try:
            headers = await self._login.headers()
        except ServerUnavailable:
            return None
        request.headers.update(headers)
        return headers

    async def _is_renewed(self, used: Mapping[str, str]) -> bool:
        try:
            return await self._login.renew(used)
        except ServerUnavailable:
            return False
