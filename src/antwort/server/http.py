"""The ASGI application: every request is answered, every failure is JSON, every request leaves one line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from antwort.engine.engine import Engine
from antwort.errors import AntwortError, RequestCancelled, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.server.cors import Cors
from antwort.server.errors import unexpected
from antwort.server.exchange import (
    CONNECTION,
    REQUEST_ID,
    AnswerCut,
    ClientGone,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
    cause_of,
)
from antwort.server.offer import Access, Credentials, offer_of
from antwort.server.quotas import Quotas
from antwort.server.relay import Ask
from antwort.server.resources import Endpoint
from antwort.server.routes import FOLLOWERS, NOTHING, Identify, Routes
from antwort.server.websocket import SocketLimits, WebSockets

if TYPE_CHECKING:
    from antwort.server.protocol import RefusedRequest

logger = logging.getLogger("antwort.transport")

BODY_LIMIT = 64 * 2**20
LINGER = 30.0
FINAL_SECONDS = 2.0
"""How long an answer may still take that another server has cancelled."""


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
        self._open: set[Exchange] = set()
        self._hosted: set[asyncio.Task[None]] = set()
        self._linger, self._cors, self._engine = linger, cors, engine
        self._strict = engine.settings.strict
        self._start, self._stop = start or engine.open, stop or engine.close
        quotas = quotas or Quotas({})
        offer = offer_of(
            engine.settings,
            credentials=credentials or ("none" if identify is everyone_is_anonymous else "own"),
            metrics=metrics,
            tells_quotas=quotas.have_headers,
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
        self._sockets = WebSockets(
            engine,
            identify,
            limits=websocket,
            quotas=quotas,
            cors=cors,
            body_limit=body_limit,
            linger=linger,
            on_begin=self._open.add,
            on_end=self._ended,
        )

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(exchange.is_stream for exchange in self._open)

    @property
    def requests(self) -> int:
        """How many requests are being answered."""
        return len(self._open)

    @property
    def sockets(self) -> int:
        """How many WebSocket connections are open."""
        return len(self._sockets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = CONNECTION in scope
        match scope["type"]:
            case "http":
                exchange = Exchange(scope, receive, send, linger=self._linger)
                await (self._answer(exchange) if is_ours else self._answer_hosted(exchange))
            case "websocket" if is_ours:
                await self._sockets(scope, receive, send)
            case "websocket":
                task = asyncio.current_task()
                assert task is not None
                self._hosted.add(task)
                try:
                    await self._sockets(scope, receive, send)
                finally:
                    self._hosted.discard(task)
            case "lifespan":
                await self._live(receive, send)
            case other:
                raise NotImplementedError(f"{other} is not spoken here")

    def leave(self) -> None:
        """Report that no more is to be sent here. What is sent all the same is answered as ever."""
        self._routes.leave()

    def wind_up(self) -> None:
        """Begin no more turns on WebSockets: idle ones are closed, and the others when their turn has ended."""
        self.leave()
        self._sockets.end()

    async def finish(self) -> None:
        """Wait a moment for what is still being answered on another server."""
        if self._hosted:
            await asyncio.wait(self._hosted, timeout=FINAL_SECONDS)

    async def _answer_hosted(self, exchange: Exchange) -> None:
        """Another server may cancel what takes too long, and cut the answer. In a task of its own, the answer has a
        moment to come to a proper end: the run ends itself, a stream is written to its last event, and what has not
        begun is a 503.
        """
        answering = asyncio.create_task(self._answer(exchange))
        self._hosted.add(answering)
        answering.add_done_callback(self._hosted.discard)
        try:
            await asyncio.shield(answering)
        except asyncio.CancelledError:
            # The server does not say why: it stops, before it tells us so, or has a time limit.
            exchange.cancelled = reason = ShuttingDown() if self._engine.is_draining else RequestCancelled()
            if exchange.run is not None:
                exchange.run.stop(reason)
            if not exchange.is_stream:
                answering.cancel()
            await asyncio.wait((answering,), timeout=FINAL_SECONDS)
            if not answering.done() or answering.cancelled():
                raise
            answering.result()  # the answer is complete: nothing is left to be cancelled
        finally:
            answering.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        began = perf_counter()
        REQUEST_ID.set(exchange.request_id)
        self._open.add(exchange)
        try:
            if self._cors is not None and _is_preflight(exchange, self._cors):
                await exchange.answer_empty()
                return
            self._routes.identify(exchange)
            endpoint, subject = self._routes.find(exchange.method, exchange.path)
            await endpoint(exchange, subject)
        except ClientGone:
            await exchange.give_up()
        except AnswerCut:
            exchange.cut()
        except asyncio.CancelledError:
            if exchange.abort():
                return
            if exchange.status:
                raise
            await self._fail(exchange, exchange.cancelled or ShuttingDown())  # an event loop that ends cancels all
        except AntwortError as error:
            exchange.cause = cause_of(error)
            await self._fail(exchange, error)
        except Exception:
            logger.exception("a request failed in a way nobody expected")
            await self._fail(exchange, unexpected())
        finally:
            self._ended(exchange, perf_counter() - began)

    async def _fail(self, exchange: Exchange, error: AntwortError) -> None:
        exchange.code = error.code
        await exchange.fail(error, strict=self._strict)

    def refused(self, refused: RefusedRequest) -> None:
        """For `Server(on_refusal=...)`: log and count what our server could not read, like all else."""
        scope = {"method": refused.method, "path": refused.path, "headers": [], "query_string": b""}
        exchange = Exchange(scope, _no_message, _ignore, linger=self._linger)
        exchange.request_id = refused.request_id
        exchange.status, exchange.code = refused.error.sent_status(strict=self._strict), refused.error.code
        self._ended(exchange, refused.seconds)

    def _ended(self, exchange: Exchange, seconds: float) -> None:
        self._open.discard(exchange)
        exchange.log(seconds)
        for hook in self._on_request:
            hook(exchange, seconds)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop, as the hosting server says (lifespan)."""
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


async def _no_message() -> Message:
    return {"type": "http.disconnect"}


async def _ignore(_: Message) -> None:
    """It has been answered."""


def _is_preflight(exchange: Exchange, cors: Cors) -> bool:
    """Return whether a browser only asks what it may ask, which it does without a key. The headers of CORS go out with
    the answer, whichever it is.
    """
    origin = exchange.headers.get(b"origin")
    if exchange.method == "OPTIONS":
        method, names = (exchange.headers.get(b"access-control-request-" + what) for what in (b"method", b"headers"))
        if (allowed := cors.preflight(origin, method, names or b"")) is not None:
            exchange.answer_headers += allowed
            return True
    exchange.answer_headers += cors.headers(origin)
    return False
