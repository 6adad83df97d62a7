"""What is sent to a MCP server to log in, and what is done when it is not taken. Import it where it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import httpx2

from antwort.tools.mcp.base import ServerSpec
from antwort.tools.mcp.web import Web


class Login(Protocol):
    """Of one session."""

    @property
    def auth(self) -> httpx2.Auth | None:
        """For the SDK's client, beside the headers of the spec; None: those are all."""
        ...

    async def headers(self) -> Mapping[str, str]:
        """What a request to the server carries now, those of the spec among them. The same object as long as they are
        the same. Raises `Unauthorized` when a login that is needed first is refused.
        """
        ...

    async def renew(self, used: Mapping[str, str]) -> bool:
        """After a 401 to a request with the headers `used`: whether there are others now, and it is worth one more try.
        Those who come at the same time wait for one renewal. Raises nothing but `ServerUnavailable`.
        """
        ...


class FixedLogin:
    """Headers that stay the same: a token, or what a request has brought."""

    auth = None

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    async def renew(self, used: Mapping[str, str]) -> bool:
        del used  # there are no others
        return False


def log_in(spec: ServerSpec, web: Web) -> Login:
    """How the server of the spec is logged in to. Nothing is asked yet."""
    del web
    return FixedLogin(dict(spec.headers))
