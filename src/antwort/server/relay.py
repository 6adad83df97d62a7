"""Reading what another process makes in the foreground: the same request, asked there, and its answer passed on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeAlias
from urllib.parse import urlencode

from antwort.engine.engine import Engine
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.errors import Headers
from antwort.server.exchange import BrokenOff, Exchange
from antwort.server.lingering import Patience
from antwort.server.passing import Passes
from antwort.server.respond import unless_gone

_log = logging.getLogger("antwort.transport")

RELAYED = b"antwort-relayed"
"""Marks a request that was passed on once: it is not passed on again. And its answer, which shows who gave it."""
_LARGEST = 256 * 2**20
_HINTS = ("retry-after", "retry-after-ms", "x-should-retry")


class PeerGone(Exception):
    """The other process cannot be reached, or its answer broke off."""


class Told(Protocol):
    """What the other process answers."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, limit: int) -> bytes: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


Ask: TypeAlias = Callable[[str, str, bytes], AbstractAsyncContextManager[Told]]
"""GET from an address: what, and with which header lines. Raises `PeerGone`, also while the answer is read."""


class Relay:
    """Asks whoever makes a response, where this process cannot tell what it says."""

    def __init__(self, engine: Engine, ask: Ask | None) -> None:
        self._engine, self._ask = engine, ask
        self._passes = Passes(engine.vault)

    def identity(self, exchange: Exchange, token: bytes) -> Identity:
        """Who a request is made for that another process has passed on; the answer shows that it is one of ours.
        Raises `NotAuthenticated`.
        """
        if exchange.method != "GET":
            raise NotAuthenticated("Only reading is passed on.")
        query = exchange.scope["query_string"].decode("latin-1")
        passed = self._passes.opened(token, exchange.path + (f"?{query}" if query else ""))
        exchange.with_answer.append((RELAYED, self._passes.proof(passed).encode()))
        return passed.identity

    async def answers(self, exchange: Exchange, response_id: str) -> bool:
        """Whether the request was answered so. Where that process cannot be reached, nothing was."""
        if self._ask is None or exchange.headers.get(RELAYED) is not None:
            return False
        address = await self._engine.elsewhere(exchange.identity, response_id)
        if address is None:
            return False
        try:
            await unless_gone(exchange, self._pass_on(exchange, response_id, address))
        except PeerGone as gone:
            _log.warning("what another process makes could not be read there: %s", gone)
            if exchange.status:  # the client may come again, for the rest
                raise BrokenOff from gone
            return False
        return True

    async def _pass_on(self, exchange: Exchange, response_id: str, address: str) -> None:
        assert self._ask is not None, "it was asked for"
        target = _target(exchange, response_id)
        token, nonce = self._passes.issue(exchange.identity, target)
        async with self._ask(address, target, _fields(exchange, token)) as told:
            if not self._passes.is_proof(told.headers.get(RELAYED.decode(), ""), nonce):
                raise PeerGone("whoever answers there is none of ours, or seals with other keys")
            kind = told.headers.get("content-type", "application/json")
            if kind.startswith("text/event-stream"):
                await self._stream(exchange, response_id, told)
            else:
                body = await told.read(_LARGEST)
                await exchange.answer(body, status=told.status, headers=_hints(told), kind=kind.encode("latin-1"))

    async def _stream(self, exchange: Exchange, response_id: str, told: Told) -> None:
        await exchange.open_stream()
        if exchange.method != "HEAD":  # what comes first is all that is asked for
            patience = Patience(exchange, partial(self._engine.until_ended, exchange.identity, response_id))
            try:
                async for data in told:
                    patience.look()
                    await exchange.write(data)
            finally:
                patience.end()
        await exchange.end_stream()


def _target(exchange: Exchange, response_id: str) -> str:
    query = urlencode(exchange.query_pairs())
    return f"/v1/responses/{response_id}" + (f"?{query}" if query else "")


def _fields(exchange: Exchange, token: str) -> bytes:
    """Nothing that the client has sent: whoever listens there may be a stranger."""
    return b"x-request-id: %b\r\n%b: %b\r\n" % (exchange.request_id.encode(), RELAYED, token.encode())


def _hints(told: Told) -> Headers:
    return [(name.encode(), told.headers[name].encode("latin-1")) for name in _HINTS if name in told.headers]
