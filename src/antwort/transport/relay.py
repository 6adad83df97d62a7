"""Reading what another process makes in the foreground: the same request, asked there, and its answer passed on."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias
from urllib.parse import urlencode

from antwort.engine.engine import Engine
from antwort.runs.base import Unavailable
from antwort.transport.exchange import ClientGone, Exchange
from antwort.transport.respond import unless_gone

_log = logging.getLogger("antwort.transport")

RELAYED = b"antwort-relayed"
"""Marks a request that was passed on once: it is not passed on again."""
_LARGEST = 256 * 2**20
_OWN = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"keep-alive",
        b"origin",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
        RELAYED,
    }
)
"""Headers of one connection, and what is answered here."""
_PLAIN = re.compile(rb"[!-~\x80-\xff](?:[ -~\t\x80-\xff]*[!-~\x80-\xff])?")


class PeerGone(Exception):
    """The other process cannot be reached, or its answer broke off."""


class Told(Protocol):
    """What the other process answers."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, limit: int) -> bytes: ...

    def reads(self) -> AsyncIterator[bytes]: ...


Ask: TypeAlias = Callable[[str, str, bytes], AbstractAsyncContextManager[Told]]
"""GET from an address: what, and with which header lines. Raises `PeerGone`, also while the answer is read."""


class Relay:
    """Asks whoever makes a response, where this process cannot tell what it says."""

    def __init__(self, engine: Engine, ask: Ask | None) -> None:
        self._engine, self._ask = engine, ask

    async def answers(self, exchange: Exchange, response_id: str) -> bool:
        """Whether the request was answered so. Where that process cannot be reached, nothing was."""
        if self._ask is None or exchange.method != "GET" or exchange.header(RELAYED) is not None:
            return False
        address = await self._engine.elsewhere(exchange.identity, response_id)
        if address is None:
            return False
        try:
            await unless_gone(exchange, lambda: self._pass_on(exchange, response_id, address))
        except PeerGone as gone:
            _log.warning("what another process makes could not be read there: %s", gone)
            if exchange.status:  # the client may come again, for the rest
                raise ClientGone from gone
            if "starting_after" in exchange.query():
                raise Unavailable(str(gone)) from gone  # nobody else knows what had which number
            return False
        return True

    async def _pass_on(self, exchange: Exchange, response_id: str, address: str) -> None:
        assert self._ask is not None, "it was asked for"
        async with self._ask(address, _target(exchange, response_id), _fields(exchange)) as told:
            if told.headers.get("content-type", "").startswith("text/event-stream"):
                await exchange.open_stream()
                async for data in told.reads():
                    await exchange.write(data)
                await exchange.end_stream()
            else:
                kind = told.headers.get("content-type", "application/json").encode("latin-1")
                await exchange.answer(await told.read(_LARGEST), status=told.status, kind=kind)


def _target(exchange: Exchange, response_id: str) -> str:
    query = urlencode(exchange.query_pairs())
    return f"/v1/responses/{response_id}" + (f"?{query}" if query else "")


def _fields(exchange: Exchange) -> bytes:
    """What the client has sent, who it is included; and that it was passed on."""
    headers: list[tuple[bytes, bytes]] = exchange.scope["headers"]
    sent = [(name, value) for name, value in headers if name not in _OWN and _PLAIN.fullmatch(value)]
    ours = [(b"x-request-id", exchange.request_id.encode()), (RELAYED, b"1")]
    return b"".join([b"%b: %b\r\n" % field for field in (*sent, *ours)])
