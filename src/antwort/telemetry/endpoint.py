"""Serve the metrics: who may read them, `GET /metrics`, and a port of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Literal, TypeAlias

from antwort.errors import AntwortError, MethodNotAllowed, NotAuthenticated, NotFound
from antwort.server.errors import unexpected
from antwort.server.exchange import REQUEST_ID, ClientGone, Exchange, Receive, Scope, Send
from antwort.server.readiness import Readiness
from antwort.server.server import Server, listen

if TYPE_CHECKING:
    from antwort.telemetry.metrics import Metrics  # with it, `prometheus_client` is loaded

_log = logging.getLogger("antwort.telemetry")
PATH = "/metrics"
_LINGER_SECONDS = 5.0
_LOCKED = "The metrics need a key. Send it as the header 'Authorization: Bearer KEY'."


# ---- access ----

Verdict: TypeAlias = Literal["open", "locked", "hidden"]


def verdict(*, is_public: bool, has_key: bool, is_key: bool, has_readers: bool, is_reader: bool) -> Verdict:
    """Return whether a request may read the metrics.

    `has_key`: the metrics have a key of their own, `is_key`: the request brings it; `has_readers`: some API keys may
    read them, `is_reader`: the request brings one of those. A key that is set is always required. Where no key could
    open public metrics, they are hidden.
    """
    if is_key or is_reader or not (is_public or has_key):
        return "open"
    return "locked" if has_key or has_readers else "hidden"


class Guard:
    """Check who may read the metrics."""

    def __init__(
        self,
        *,
        is_public: bool,
        key: str | None = None,
        readers: Callable[[Scope], bool] | None = None,
        doorway: Callable[[Scope], object] | None = None,
    ) -> None:
        """`is_public`: the address is reachable from other machines and not made for metrics alone. `readers` returns
        whether a request brings an API key that may read them; None when there are no such keys. `doorway` raises for
        requests that need a key to come in.
        """
        self._is_public, self._readers, self._doorway = is_public, readers, doorway
        self._digest = None if key is None else sha256(key.encode()).digest()

    def check(self, exchange: Exchange) -> None:
        """Raises `NotAuthenticated`, `NotPermitted` or `NotFound`."""
        if self._doorway is not None and self._digest is None:
            self._doorway(exchange.scope)
        found = verdict(
            is_public=self._is_public,
            has_key=self._digest is not None,
            is_key=self._is_key(exchange.headers.get(b"authorization")),
            has_readers=self._readers is not None,
            is_reader=self._readers is not None and self._readers(exchange.scope),
        )
        if found == "locked":
            raise NotAuthenticated(_LOCKED)
        if found == "hidden":
            raise NotFound("There is nothing at '/metrics'.", code="unknown_url")

    def _is_key(self, header: bytes | None) -> bool:
        scheme, _, given = (header or b"").partition(b" ")
        if self._digest is None or scheme.lower() != b"bearer":
            return False
        return compare_digest(sha256(given.strip()).digest(), self._digest)


# ---- endpoints ----


class MetricsEndpoint:
    """`GET /metrics`, for `Transport(extra={PATH: …})` or a port of its own."""

    def __init__(self, metrics: Metrics, guard: Guard) -> None:
        self._metrics, self._guard = metrics, guard

    async def __call__(self, exchange: Exchange, _: str) -> None:
        self._guard.check(exchange)
        body, kind = await self._metrics.text(exchange.headers.get(b"accept", b"").decode("latin-1"))
        await exchange.answer(body, kind=kind.encode())


class MetricsElsewhere:
    """Refuse to serve metrics on a port that several processes share: each has its own."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def __call__(self, exchange: Exchange, _: str) -> None:
        self._guard.check(exchange)
        message = "Each of several workers has metrics of its own: set metrics.port to read them."
        raise NotFound(message, code="unknown_url")


class MetricsPort:
    """Serve `/metrics`, `/healthz` and `/readyz` on a socket of its own, in the event loop of the server."""

    def __init__(self, endpoint: MetricsEndpoint, host: str, port: int) -> None:
        """Listen at once, so that a taken port is known before anything starts. Raises `OSError`."""
        self._endpoint = endpoint
        self._socket = listen(host, port)
        self._server = Server(self._answer, drain=_nothing_to_drain, drain_seconds=0)
        self._is_started = False
        self.readiness: Readiness | None = None

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Start to serve. The main server handles signals."""
        self._is_started = True
        await self._server.start([self._socket])

    async def stop(self) -> None:
        """Stop; may be called again."""
        if self._is_started:
            self._is_started = False
            await self._server.shutdown([self._socket])
        else:
            self._socket.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, linger=_LINGER_SECONDS)
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
        """Return whether the server is ready; the reasons are shown on its own port only."""
        if self.readiness is None:
            return False
        return all(state == "ok" for state in (await self.readiness.verdict()).values())


async def _nothing_to_drain(_: float) -> None:
    """There is nothing to wait for: answers here are short."""
