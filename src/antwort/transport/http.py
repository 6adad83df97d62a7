"""The ASGI application: every request is answered, every failure is JSON, every request leaves one line in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

from antwort.engine.engine import Engine
from antwort.errors import AntwortError
from antwort.identity import ANONYMOUS, Identity
from antwort.transport.errors import unexpected
from antwort.transport.exchange import REQUEST_ID, ClientGone, Exchange, Receive, Scope, Send
from antwort.transport.routes import NOTHING, Endpoint, Identify, Routes

logger = logging.getLogger("antwort.transport")

BODY_LIMIT = 64 * 2**20
LINGER = 30.0


def everyone_is_anonymous(_: Scope) -> Identity:
    return ANONYMOUS


class Transport:
    """An ASGI 3 application over an engine. `start` and `stop` run with the server that hosts it (lifespan)."""

    def __init__(
        self,
        engine: Engine,
        *,
        identify: Identify = everyone_is_anonymous,
        extra: Mapping[str, Endpoint] = NOTHING,
        body_limit: int = BODY_LIMIT,
        linger: float = LINGER,
        start: Callable[[], Awaitable[None]] | None = None,
        stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`extra`: more to read, by path (`/metrics`), open to all unless the endpoint itself raises.

        `linger`: seconds in which a client must take something of an answer that has ended, or be hung up on.
        """
        self._linger = linger
        self._routes = Routes(engine, identify, body_limit=body_limit, extra=extra)
        self._strict = engine.settings.strict
        self._start, self._stop = start or engine.open, stop or engine.close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(Exchange(scope, receive, send, linger=self._linger))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            raise NotImplementedError(f"{scope['type']} is not spoken here")

    async def _answer(self, exchange: Exchange) -> None:
        began = perf_counter()
        REQUEST_ID.set(exchange.request_id)
        try:
            self._routes.identify(exchange)
            endpoint, subject = self._routes.find(exchange.method, exchange.path)
            await endpoint(exchange, subject)
        except ClientGone:
            await exchange.give_up()
        except asyncio.CancelledError:
            if not exchange.abort():
                raise
        except AntwortError as error:
            _note(error)
            await exchange.fail(error, strict=self._strict)
        except Exception:
            logger.exception("a request failed in a way nobody expected")
            await exchange.fail(unexpected(), strict=self._strict)
        finally:
            _log(exchange, perf_counter() - began)

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
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})


def _note(error: AntwortError) -> None:
    """A fault of ours is worth a line of its own, with what is behind it; a wrong request is not."""
    if error.status >= 500:
        logger.warning("%s: %s%s", error.code, error.message, f" ({error.__cause__!r})" if error.__cause__ else "")


def _log(exchange: Exchange, seconds: float) -> None:
    """One line: never content, and nothing in the path that could be taken for the end of it or for another field."""
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "%s %s %d %.1f ms request=%s response=%s",
            exchange.method,
            exchange.path[:200].replace("=", "%3D"),
            exchange.status,
            seconds * 1000,
            exchange.request_id,
            exchange.response_id or "-",
        )
