"""Asking other processes that share the records of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antwort.net.client import HttpClient, HttpResponse, Timeouts
from antwort.net.response import HttpError
from antwort.server.relay import Ask, PeerGone

_CONNECT, _FIRST = 1.5, 10.0
"""Seconds that another process has to take a connection, and to begin its answer."""
_QUIET = 30.0
"""Seconds that it may be silent beyond two signs of life."""


def peer_asker(keepalive: float) -> Ask:
    """`keepalive`: seconds between its signs of life. Each answer has a connection of its own: they are few, and what
    logs a client in is not kept.
    """
    timeouts = Timeouts(connect=_CONNECT, first_byte=_FIRST, idle=2 * keepalive + _QUIET)

    @asynccontextmanager
    async def ask(address: str, target: str, fields: bytes) -> AsyncIterator[HttpResponse]:
        try:
            client = HttpClient(address, timeouts=timeouts)
        except ValueError as exc:
            raise PeerGone("it has no address") from exc
        try:
            async with await client.request("GET", target, fields=fields) as reply:
                yield reply
        except HttpError as exc:
            raise PeerGone(str(exc)) from exc
        finally:
            await client.close()

    return ask
