"""A port for the metrics alone."""

from __future__ import annotations

import logging

from antwort.errors import AntwortError, MethodNotAllowed, NotFound
from antwort.telemetry.endpoint import PATH, MetricsEndpoint
from antwort.transport.errors import unexpected
from antwort.transport.exchange import REQUEST_ID, ClientGone, Exchange, Receive, Scope, Send
from antwort.transport.readiness import Readiness
from antwort.transport.server import Server, listen

_log = logging.getLogger("antwort.telemetry")
_LINGER = 5.0


class MetricsPort:
    """Answers `/metrics`, `/healthz` and `/readyz` on a socket of its own, in the event loop of the server."""

    def __init__(self, endpoint: MetricsEndpoint, host: str, port: int) -> None:
        """Listens at once, so that a port that cannot be had is known before anything starts. Raises `OSError`."""
        self._endpoint = endpoint
        self._socket = listen(host, port)
        self._server = Server(self._answer, drain=_nothing_to_drain, drain_seconds=0)
        self._is_started = False
        self.readiness: Readiness | None = None
        """What `/readyz` goes by."""

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Begin to answer. Signals are handled by the server beside this one."""
        self._is_started = True
        await self._server.start([self._socket])

    async def stop(self) -> None:
        """Once more does no harm."""
        if self._is_started:
            self._is_started = False
            await self._server.shutdown([self._socket])
        else:
            self._socket.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, linger=_LINGER)
        REQUEST_ID.set(exchange.request_id)
        try:
            await self._route(exchange)
        except ClientGone:
            await exchange.give_up()
        except AntwortError as error:
            await exchange.fail(error, strict=False)
        except Exception:
            _log.exception("the metrics could not be read")
            await exchange.fail(unexpected(), strict=False)

    async def _route(self, exchange: Exchange) -> None:
        if exchange.path not in (PATH, "/healthz", "/readyz"):
            raise NotFound("There is nothing here but /metrics, /healthz and /readyz.", code="unknown_url")
        if exchange.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(exchange.method, ("GET", "HEAD"))
        if exchange.path == PATH:
            await self._endpoint(exchange, "")
        elif exchange.path == "/readyz" and not await self._is_ready():
            await exchange.answer(b'{"status":"unavailable"}', status=503)
        else:
            await exchange.answer(b'{"status":"ok"}')

    async def _is_ready(self) -> bool:
        """Why not is for those who may come in by the front."""
        if self.readiness is None:
            return False
        return all(state == "ok" for state in (await self.readiness.verdict()).values())


async def _nothing_to_drain(_: float) -> None:
    """An answer here is never long under way."""
