"""Tokens by OAuth 2.1, grant `client_credentials`: from where the server says, or from where we are told."""

from __future__ import annotations

import logging
import re
import warnings
from typing import Any, Protocol
from urllib.parse import quote

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from antwort.tools.mcp.base import ClientCredentials, NotReached, Unauthorized

_LEEWAY = 30.0
"""Seconds before its end at which a token is renewed; of a short-lived one, half of its life."""
_TOKEN = re.compile("[!-~]+")
_PROBE = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_REFUSED = "The server could not be logged in to: no token was given out."
_UNREACHED = "The server could not be logged in to: nobody answers where its tokens are given out."

# It writes the answers of those who give out tokens, and they may repeat what they were sent. Whoever asked tells it.
logging.getLogger("mcp.client.auth.oauth2").addFilter(lambda record: not record.exc_info)


class Clients(Protocol):
    """Where the way to the server and its tokens comes from."""

    def http_client(self, *, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient: ...


class Token(msgspec.Struct, frozen=True):
    """`seconds`: how long it is used; None: until it is refused."""

    value: str
    seconds: float | None = None

    def __repr__(self) -> str:
        return "Token(…)"


async def announced(url: str, credentials: ClientCredentials, clients: Clients) -> Token | None:
    """By what the server announces when it is asked without a token; None when it wants none. Raises
    `ServerUnavailable`.
    """
    storage = _Nowhere()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an issuer is the operator's to name; the server is trusted where none is
        provider = ClientCredentialsOAuthProvider(
            url,
            storage,
            credentials.client_id,
            credentials.client_secret,
            scope=" ".join(credentials.scopes) or None,
            issuer=credentials.issuer,
        )
    try:
        async with clients.http_client(auth=provider) as client:
            headers = {"Accept": "application/json, text/event-stream"}
            async with client.stream("POST", url, json=_PROBE, headers=headers):
                pass  # what it says to that does not matter: it has said whether it wants a token
    except OAuthFlowError as exc:
        raise Unauthorized(_REFUSED) from exc
    except httpx2.HTTPError as exc:
        raise NotReached(_UNREACHED) from exc
    return None if storage.given is None else _checked(storage.given.model_dump())


async def direct(credentials: ClientCredentials, clients: Clients) -> Token:
    """From the address that we are told. Raises `ServerUnavailable`."""
    form = {"grant_type": "client_credentials"}
    if credentials.scopes:
        form["scope"] = " ".join(credentials.scopes)
    who = {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
    url = credentials.token_url or ""
    try:
        async with clients.http_client() as client:
            basic = httpx2.BasicAuth(_quoted(credentials.client_id), _quoted(credentials.client_secret))
            answer = await client.post(url, data=form, auth=basic)
            if answer.status_code in (400, 401):  # some take them in the form alone
                answer = await client.post(url, data={**form, **who})
    except httpx2.HTTPError as exc:
        raise NotReached(_UNREACHED) from exc
    if answer.status_code not in (200, 201):
        raise Unauthorized(_REFUSED)
    try:
        return _checked(msgspec.json.decode(answer.content, type=dict[str, Any]))
    except msgspec.DecodeError as exc:
        raise Unauthorized(_REFUSED) from exc


def _quoted(text: str) -> str:
    """As OAuth wants them written in a basic authorization."""
    return quote(text, safe="")


def _checked(fields: dict[str, Any]) -> Token:
    value, kind, seconds = fields.get("access_token"), fields.get("token_type", "bearer"), fields.get("expires_in")
    if not isinstance(value, str) or not _TOKEN.fullmatch(value) or str(kind).lower() != "bearer":
        raise Unauthorized(_REFUSED)
    try:
        life = None if seconds is None else float(seconds)
    except (TypeError, ValueError):
        life = None
    return Token(value, None if life is None else max(life - _LEEWAY, life / 2))


class _Nowhere:
    """Where the SDK puts a token: with whoever asked for it."""

    def __init__(self) -> None:
        self.given: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.given = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        del client_info  # it is ours already
