"""The ASGI application: every request is answered, every failure is JSON, every request leaves one line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from antwort.engine.engine import Engine
from antwort.engine.history.recent_responses import RecentMemory
from antwort.errors import AntwortError, RequestCancelled, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.server.cors import Cors
from antwort.server.endpoints import Endpoint
from antwort.server.errors import unexpected
from antwort.server.exchange import (
    CONNECTION,
    REQUEST_ID,
    BrokenOff,
    ClientGone,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
)
from antwort.server.line import cause_of, log_request
from antwort.server.offer import Access, Credentials, offer_of
from antwort.server.quotas import Quotas
from antwort.server.relay import Ask
from antwort.server.routes import FOLLOWERS, NOTHING, Identify, Routes
from antwort.server.session import Terms
from antwort.server.websocket import SocketLimits, WebSockets

if TYPE_CHECKING:
    from antwort.server.refused import Refused

logger = logging.getLogger("antwort.transport")

BODY_LIMIT = 64 * 2**20
LINGER = 30.0
LAST_WORDS = 2.0
"""Seconds for the end of an answer that another's server has broken off."""


def everyone_is_anonymous(_: Scope) -> Identity:
    return ANONYMOUS


class Transport:
    """An ASGI 3 application over an engine. `start` and `stop` run with the server that hosts it (lifespan)."""

    def __init__(
        self,
        engine: Engine,
        *,
        identify: Identify = everyone_is_anonymous,
        quotas: Quotas | None = None,
        cors: Cors | None = None,
        extra: Mapping[str, Endpoint] = NOTHING,
        credentials: Credentials | None = None,
        metrics: Access = "open",
        body_limit: int = BODY_LIMIT,
        linger: float = LINGER,
        followers: int = FOLLOWERS,
        websocket: SocketLimits = SocketLimits(),  # noqa: B008 - a frozen value
        on_request: Sequence[Callable[[Exchange, float], None]] = (),
        start: Callable[[], Awaitable[None]] | None = None,
        stop: Callable[[], Awaitable[None]] | None = None,
        ask: Ask | None = None,
    ) -> None:
        """`extra`: more to read, by path (`/metrics`), open to all unless the endpoint itself raises.

        `credentials` and `metrics` are for the server's description alone: what requests must bring to be identified,
        by default what `identify` asks for as it pleases, and what strangers find at `/metrics`.
        `linger`: seconds in which a client must take something of an answer that has ended, or be hung up on.
        `followers`: how many may read streams again at once (`GET /v1/responses/{id}?stream=true`).
        `on_request` are told of each request when it has been answered, and how many seconds that took; they must
        neither wait nor raise. `ask` asks other processes that share the engine's records for what they make.
        """
        self._on_request = tuple(on_request)
        self._under_way: set[Exchange] = set()
        self._hosted: set[asyncio.Task[None]] = set()
        self._linger = linger
        self._cors = cors
        self._engine = engine
        quotas = quotas or Quotas({})
        offer = offer_of(
            engine.settings,
            credentials=credentials or ("none" if identify is everyone_is_anonymous else "own"),
            metrics=metrics,
            tells_quotas=quotas.are_told,
            websocket=websocket.enabled,
        )
        self._routes = Routes(
            engine,
            identify,
            body_limit=body_limit,
            quotas=quotas,
            followers=followers,
            extra=extra,
            offer=offer,
            ask=ask,
        )
        budget = RecentMemory(max_size=websocket.total_memory)
        terms = Terms(engine, quotas, body_limit, websocket.memory, budget, self._under_way.add, self._ended)
        self._sockets = WebSockets(terms, identify, limits=websocket, cors=cors, linger=linger)
        self._strict = engine.settings.strict
        self._start, self._stop = start or engine.open, stop or engine.close

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(exchange.is_stream for exchange in self._under_way)

    @property
    def requests(self) -> int:
        """How many requests are being answered."""
        return len(self._under_way)

    @property
    def sockets(self) -> int:
        """How many WebSocket connections are open."""
        return len(self._sockets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            exchange = Exchange(scope, receive, send, linger=self._linger)
            await (self._answer(exchange) if CONNECTION in scope else self._answer_hosted(exchange))
        elif scope["type"] == "websocket":
            await (self._sockets(scope, receive, send) if CONNECTION in scope else self._hold(scope, receive, send))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            raise NotImplementedError(f"{scope['type']} is not spoken here")

    def leave(self) -> None:
        """Say to those who ask that no more is to be sent here. What is sent all the same is answered as ever."""
        self._routes.leave()

    def wind_up(self) -> None:
        """No more turns on WebSockets: those that are idle are closed, and the others when their turn has ended."""
        self.leave()
        self._sockets.end()

    async def finish(self) -> None:
        """Wait a moment for what another's server is still being answered."""
        if self._hosted:
            await asyncio.wait(self._hosted, timeout=LAST_WORDS)

    async def _hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection that another's server has: it is ended by `finish`, and waited for."""
        task = asyncio.current_task()
        assert task is not None
        self._hosted.add(task)
        try:
            await self._sockets(scope, receive, send)
        finally:
            self._hosted.discard(task)

    async def _answer_hosted(self, exchange: Exchange) -> None:
        """Another's server may break off what takes too long, and cut the answer. In a task of its own, the answer has
        a moment to come to a proper end.
        """
        answering = asyncio.create_task(self._answer(exchange))
        self._hosted.add(answering)
        answering.add_done_callback(self._hosted.discard)
        try:
            await asyncio.shield(answering)
        except asyncio.CancelledError:
            self._break_off(exchange, answering)
            await asyncio.wait((answering,), timeout=LAST_WORDS)
            if not answering.done() or answering.cancelled():
                raise
            answering.result()  # the answer is complete: nothing is left to be broken off
        finally:
            answering.cancel()

    def _break_off(self, exchange: Exchange, answering: asyncio.Task[None]) -> None:
        """The run ends itself. A stream is written to its last event; what has not begun is a 503.

        Whoever breaks it off does not say why: a server that stops, before it tells us so, or a time limit.
        """
        exchange.broken_off = reason = ShuttingDown() if self._engine.is_draining else RequestCancelled()
        if exchange.run is not None:
            exchange.run.stop(reason)
        if not exchange.is_stream:
            answering.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        began = perf_counter()
        REQUEST_ID.set(exchange.request_id)
        self._under_way.add(exchange)
        try:
            if self._cors is not None and _greets(exchange, self._cors):
                await exchange.answer_empty()
                return
            self._routes.identify(exchange)
            endpoint, subject = self._routes.find(exchange.method, exchange.path)
            await endpoint(exchange, subject)
        except ClientGone:
            await exchange.give_up()
        except BrokenOff:
            exchange.cut()
        except asyncio.CancelledError:
            if exchange.abort():
                return
            if exchange.status:
                raise
            reason = exchange.broken_off or ShuttingDown()  # an event loop that ends breaks off all there is
            exchange.code = reason.code
            await exchange.fail(reason, strict=self._strict)
        except AntwortError as error:
            exchange.code, exchange.cause = error.code, cause_of(error)
            await exchange.fail(error, strict=self._strict)
        except Exception:
            logger.exception("a request failed in a way nobody expected")
            fault = unexpected()
            exchange.code = fault.code
            await exchange.fail(fault, strict=self._strict)
        finally:
            self._ended(exchange, perf_counter() - began)

    def refused(self, refused: Refused) -> None:
        """For `Server(on_refusal=…)`: what our server could not read is logged and counted like all else."""
        scope = {"method": refused.method, "path": refused.path, "headers": [], "query_string": b""}
        exchange = Exchange(scope, _nothing_comes, _nobody_reads, linger=self._linger)
        exchange.request_id = refused.request_id
        exchange.status, exchange.code = refused.error.sent_status(strict=self._strict), refused.error.code
        self._ended(exchange, refused.seconds)

    def _ended(self, exchange: Exchange, seconds: float) -> None:
        self._under_way.discard(exchange)
        log_request(exchange, seconds)
        for tell in self._on_request:
            tell(exchange, seconds)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start-up and shutdown, as the hosting server tells them."""
        await receive()
        try:
            await self._start()
        except Exception as exc:
            logger.exception("the server cannot start")
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.wind_up()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})


async def _nothing_comes() -> Message:
    return {"type": "http.disconnect"}


async def _nobody_reads(_: Message) -> None:
    """It has been answered."""


def _greets(exchange: Exchange, cors: Cors) -> bool:
    """Whether this is only a browser that asks what it may ask, which it does without a key. What CORS has to say
    goes out with the answer, whichever it is.
    """
    origin = exchange.headers.get(b"origin")
    if exchange.method == "OPTIONS":
        method, names = (exchange.headers.get(b"access-control-request-" + what) for what in (b"method", b"headers"))
        if (greeting := cors.preflight(origin, method, names or b"")) is not None:
            exchange.with_answer += greeting
            return True
    exchange.with_answer += cors.headers(origin)
    return False
