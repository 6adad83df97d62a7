"""WebSocket on `/v1/responses`: who is let in, for how long, and how a connection ends. Plain ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import NoReturn

import msgspec

from antwort.engine.history.recent_responses import CONNECTION_BYTES, TOTAL_BYTES
from antwort.errors import (
    AntwortError,
    BadUpgrade,
    BodyTooLarge,
    ConnectionTooOld,
    NotFound,
    NotPermitted,
    ShuttingDown,
    SocketsOff,
    TooManySockets,
)
from antwort.identity import TENANT, Identity
from antwort.notes import note
from antwort.server.channel import Channel
from antwort.server.cors import Cors
from antwort.server.errors import failure, unexpected
from antwort.server.exchange import CONNECTION, ClientGone, Exchange, Receive, Scope, Send
from antwort.server.inbox import Inbox
from antwort.server.lifetime import Lifetime
from antwort.server.session import Session, Terms

_logger = logging.getLogger("antwort.transport")

PATH = "/v1/responses"
TURN = "WS"
"""The method by which the log and the metrics know a turn."""
_KEY = "openai-insecure-api-key."
"""How a web page, which can set no headers, brings a key: as one of the protocols that it offers to speak."""
_PROTOCOLS = ("responses", "realtime")
"""What a page offers beside it: a browser gives up where none of what was offered is chosen, and a key never is."""
_LONGEST_SHOWN = 100

NORMAL, GOING_AWAY, TOO_BIG, INTERNAL, RESTART = 1000, 1001, 1009, 1011, 1012
"""How a connection is closed (RFC 6455)."""


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    connections: int = 4096
    """How many may be open at once."""
    lifetime: float = 3600.0
    """Seconds that one may be open; a response under way then is made to its end."""
    queue: int = 16
    """How many messages wait on one before it is not read on."""
    memory: int = CONNECTION_BYTES
    """Bytes of a conversation that is not stored, which one connection remembers."""
    total_memory: int = TOTAL_BYTES
    """And which all of them remember together: then those forget that have been idle for longest."""


class WebSockets:
    """All connections there are."""

    def __init__(
        self,
        terms: Terms,
        identify: Callable[[Scope], Identity],
        *,
        limits: SocketLimits,
        cors: Cors | None,
        linger: float,
    ) -> None:
        self._terms, self._identify, self._limits, self._cors = terms, identify, limits, cors
        self._linger = linger
        self._open: set[Inbox] = set()
        self._strict = terms.engine.settings.strict

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def end(self) -> None:
        """No further turns; those under way come to their end."""
        for inbox in self._open:
            inbox.end(ShuttingDown())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        scope = {**scope, "method": "GET"}
        exchange = Exchange(scope, receive, send, linger=self._linger)
        await receive()
        try:
            protocol = self._admit(exchange)
        except AntwortError as error:
            await self._refuse(exchange, send, error, began)
        except Exception:
            _logger.exception("a connection was refused in a way nobody expected")
            await self._refuse(exchange, send, unexpected(), began)
        else:
            await self._serve(exchange, receive, send, protocol)

    async def _refuse(self, exchange: Exchange, send: Send, error: AntwortError, began: float) -> None:
        exchange.status, exchange.code = error.sent_status(strict=self._strict), error.code
        await deny(exchange.scope, send, error, exchange.request_id, strict=self._strict)
        self._terms.answered(exchange, perf_counter() - began)

    # ---- who is let in ----

    def _admit(self, exchange: Exchange) -> str | None:
        """Which protocol is spoken, of those that the client offers. Raises why it is not let in."""
        offered = [name.strip() for name in exchange.scope.get("subprotocols", ())]
        keys = [name.removeprefix(_KEY) for name in offered if name.startswith(_KEY)]
        brings_key = bool(keys) and exchange.headers.get(b"authorization") is None
        if brings_key:
            headers = [*exchange.scope["headers"], (b"authorization", f"Bearer {keys[0]}".encode())]
            exchange.scope["headers"] = headers
        exchange.identity = self._identify(exchange.scope)
        TENANT.set(exchange.identity.tenant)
        if exchange.path != PATH:
            problem = f"There is no WebSocket at {exchange.path[:_LONGEST_SHOWN]!r}; connect to {PATH!r}."
            raise NotFound(problem, code="unknown_url")
        self._check_origin(exchange)
        if not self._limits.enabled:
            raise SocketsOff
        if self._terms.engine.is_draining:
            raise ShuttingDown
        if len(self._open) >= self._limits.connections:
            raise TooManySockets
        protocol = next((name for name in offered if name in _PROTOCOLS), None)
        if brings_key and protocol is None:
            raise BadUpgrade(f"Offer the protocol {_PROTOCOLS[0]!r} beside your key: a key is not chosen as one.")
        return protocol

    def _check_origin(self, exchange: Exchange) -> None:
        """Any web page can have a browser open a connection to anywhere, and read what comes: nothing but this asks us
        before. Our own pages may, and those that may use the API otherwise.
        """
        origins = exchange.header_values(b"origin")
        if len(origins) > 1:
            _refuse_origin(b", ".join(origins))
        if not origins or (self._cors is not None and self._cors.allows(origins[0])):
            return
        own = (exchange.headers.get(b"host") or b"").lower()
        if not own or origins[0].partition(b"://")[2].lower() != own:
            _refuse_origin(origins[0])

    # ---- a connection ----

    async def _serve(self, exchange: Exchange, receive: Receive, send: Send, protocol: str | None) -> None:
        began = perf_counter()
        headers = [(b"x-request-id", exchange.request_id.encode())]
        accept = {"type": "websocket.accept", "subprotocol": protocol, "headers": headers}
        try:
            await send(accept)
        except (OSError, RuntimeError):
            return  # it has gone already
        inbox = Inbox(receive, self._limits.queue, self._terms.body_limit)
        channel = Channel(exchange.scope, send, self._linger)
        session = Session(self._terms, channel, inbox, lambda number: _turn_of(exchange, number))
        self._open.add(inbox)
        lifetime = Lifetime(self._limits.lifetime, self._linger, session, inbox, channel)
        _tell_of_the_end(exchange, inbox)
        try:
            await self._converse(session, inbox, channel)
        finally:
            lifetime.end()
            session.forget()
            channel.linger()
            self._open.discard(inbox)
            await inbox.close()
            _log_end(exchange, session.turns, perf_counter() - began)

    async def _converse(self, session: Session, inbox: Inbox, channel: Channel) -> None:
        try:
            await session.run()
            if inbox.ending is None:
                return
            were_told = await session.dismiss(inbox.ending)
            if isinstance(inbox.ending, ConnectionTooOld):
                if not were_told:
                    await session.refuse(inbox.ending)
                await channel.close(GOING_AWAY, inbox.ending.code)
            else:
                await channel.close(RESTART, inbox.ending.code)
        except BodyTooLarge as error:
            await channel.close(TOO_BIG, error.code)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not channel.abort():
                raise


def _tell_of_the_end(exchange: Exchange, inbox: Inbox) -> None:
    """That the server stops, and that the client has gone: the connection hears of both first."""
    line = exchange.scope.get(CONNECTION)
    if line is not None:
        line.on_shutdown, line.on_lost = (lambda: inbox.end(ShuttingDown())), inbox.leave


def _refuse_origin(origin: bytes) -> NoReturn:
    shown = origin[:_LONGEST_SHOWN].decode("latin-1")
    problem = f"Web pages of {shown!r} may not open a connection here: list the origin under cors.origins."
    raise NotPermitted(problem, code="origin_not_allowed")


def _turn_of(exchange: Exchange, number: int) -> Exchange:
    """A turn as a request of its own, in the name of the one that opened the connection."""
    turn = Exchange({**exchange.scope, "method": TURN}, exchange.receive, _nobody_sends, linger=0)
    turn.request_id, turn.identity = f"{exchange.request_id}.{number}", exchange.identity
    return turn


async def _nobody_sends(_: object) -> None:
    """A turn is answered on its connection."""


def _log_end(exchange: Exchange, turns: int, seconds: float) -> None:
    ms = round(seconds * 1000, 1)
    note(
        _logger,
        logging.INFO,
        f"a WebSocket was open for {ms:.1f} ms, with {turns} turn{'' if turns == 1 else 's'}",
        said={"event": "websocket", "duration_ms": ms, "turns": turns},
        request_id=exchange.request_id,
        key=exchange.identity.key or None,
    )


async def deny(scope: Scope, send: Send, error: AntwortError, request_id: str, *, strict: bool) -> None:
    """Refuse a connection, in words where the server can carry them."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": NORMAL})
        return
    sent = failure(error, strict=strict)
    own = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": sent.status, "headers": [*own, *sent.headers]})
    await send({"type": "websocket.http.response.body", "body": sent.body})
