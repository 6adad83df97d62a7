"""Read what another process makes in the foreground: the same request is sent there, and its answer passed on.

The request carries a sealed token that says who it is made for, and nothing that lets anybody in.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeAlias
from urllib.parse import urlencode

import msgspec

from antwort.crypto import CannotOpen, Vault
from antwort.engine.engine import Engine
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.exchange import AnswerCut, Exchange
from antwort.server.respond import SlowClient, unless_gone

_log = logging.getLogger("antwort.transport")

RELAYED = b"antwort-relayed"
"""Marks a request that was passed on once, so that it is not passed on again, and its answer, which shows who gave it.
"""
MAX_ANSWER_BYTES = 256 * 2**20
TOKEN_SECONDS = 60.0
"""How long a token is valid, by clocks that need not agree to the second."""
_PASSED_ON = ("retry-after", "retry-after-ms", "x-should-retry")


class PeerGone(Exception):
    """The other process cannot be reached, or its answer broke off."""


class PeerAnswer(Protocol):
    """What the other process answers."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, limit: int) -> bytes: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


Ask: TypeAlias = Callable[[str, str, bytes], AbstractAsyncContextManager[PeerAnswer]]
"""GET from an address: what, and with which header lines. Raises `PeerGone`, also while the answer is read."""


class RelayToken(msgspec.Struct, frozen=True):
    """A request that is passed on. `target` is its path and query: the token is good for nothing else."""

    identity: Identity
    target: str
    nonce: str
    at: float


class RelayTokens:
    """Issued and checked by processes that seal with the same keys."""

    def __init__(self, vault: Vault, clock: Callable[[], float] = time.time) -> None:
        self._vault, self._clock = vault, clock

    def issue(self, identity: Identity, target: str) -> tuple[str, str]:
        """Return a token, and the nonce with which the process that can open it proves that it has."""
        token = RelayToken(identity, target, secrets.token_hex(16), self._clock())
        return self._vault.seal("relay", "", msgspec.json.encode(token)), token.nonce

    def opened(self, token: bytes, target: str) -> RelayToken:
        """Raise `NotAuthenticated`, the same whatever is wrong with it."""
        problem = "The request says that it was passed on, and does not show by whom, or did so long ago."
        try:
            found = msgspec.json.decode(self._vault.open("relay", "", token.decode("latin-1")), type=RelayToken)
        except (CannotOpen, msgspec.MsgspecError) as exc:
            raise NotAuthenticated(problem) from exc
        if found.target != target or abs(self._clock() - found.at) > TOKEN_SECONDS:
            raise NotAuthenticated(problem)
        return found

    def proof(self, token: RelayToken) -> str:
        """Return what shows, in the answer, that the token was opened."""
        return self._vault.seal("relay answer", "", token.nonce.encode())

    def is_proof(self, proof: str, nonce: str) -> bool:
        try:
            return self._vault.open("relay answer", "", proof) == nonce.encode()
        except CannotOpen:
            return False


class Relay:
    """Ask the process that makes a response, where this one cannot tell what it says."""

    def __init__(self, engine: Engine, ask: Ask | None) -> None:
        self._engine, self._ask = engine, ask
        self._tokens = RelayTokens(engine.vault)

    def identity(self, exchange: Exchange, token: bytes) -> Identity:
        """Return who a request is made for that another process has passed on; the answer will show that it came to
        one of ours. Raises `NotAuthenticated`.
        """
        if exchange.method != "GET":
            raise NotAuthenticated("Only reading is passed on.")
        query = exchange.scope["query_string"].decode("latin-1")
        opened = self._tokens.opened(token, exchange.path + (f"?{query}" if query else ""))
        exchange.answer_headers.append((RELAYED, self._tokens.proof(opened).encode()))
        return opened.identity

    async def answers(self, exchange: Exchange, response_id: str) -> bool:
        """Answer the request with what the other process says. Return False if that cannot be reached: then nothing was
        answered.
        """
        if self._ask is None or exchange.headers.get(RELAYED) is not None:
            return False
        address = await self._engine.elsewhere(exchange.identity, response_id)
        if address is None:
            return False
        try:
            await unless_gone(exchange, self._pass_on(exchange, response_id, address, self._ask))
        except PeerGone as gone:
            _log.warning("what another process makes could not be read there: %s", gone)
            if exchange.status:  # the client may come again, for the rest
                raise AnswerCut from gone
            return False
        return True

    async def _pass_on(self, exchange: Exchange, response_id: str, address: str, ask: Ask) -> None:
        query = urlencode(exchange.query_pairs())
        target = f"/v1/responses/{response_id}" + (f"?{query}" if query else "")
        token, nonce = self._tokens.issue(exchange.identity, target)
        # Nothing that the client has sent is passed on: whoever listens there may be a stranger.
        fields = b"x-request-id: %b\r\n%b: %b\r\n" % (exchange.request_id.encode(), RELAYED, token.encode())
        async with ask(address, target, fields) as peer:
            if not self._tokens.is_proof(peer.headers.get(RELAYED.decode(), ""), nonce):
                raise PeerGone("whoever answers there is none of ours, or seals with other keys")
            kind = peer.headers.get("content-type", "application/json")
            if kind.startswith("text/event-stream"):
                await self._stream(exchange, response_id, peer)
                return
            body = await peer.read(MAX_ANSWER_BYTES)
            hints = [
                (name.encode(), peer.headers[name].encode("latin-1")) for name in _PASSED_ON if name in peer.headers
            ]
            await exchange.answer(body, status=peer.status, headers=hints, kind=kind.encode("latin-1"))

    async def _stream(self, exchange: Exchange, response_id: str, peer: PeerAnswer) -> None:
        await exchange.open_stream()
        if exchange.method != "HEAD":  # only the head is asked for
            client = SlowClient(exchange, partial(self._engine.until_ended, exchange.identity, response_id))
            try:
                async for data in peer:
                    client.check()
                    await exchange.write(data)
            finally:
                client.close()
        await exchange.end_stream(b"")  # the other process has sent the mark of the end
