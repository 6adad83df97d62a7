"""Serve the metrics: who may read them, their text, `GET /metrics`, and a port of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from hmac import compare_digest
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeAlias

from antwort.errors import AntwortError, MethodNotAllowed, NotAuthenticated, NotFound
from antwort.server.errors import unexpected
from antwort.server.exchange import REQUEST_ID, ClientGone, Exchange, Receive, Scope, Send
from antwort.server.readiness import Readiness
from antwort.server.server import Server, listen
from antwort.telemetry.counting import Reading, Spread
from antwort.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_log = logging.getLogger("antwort.telemetry")
PATH = "/metrics"
_LINGER_SECONDS = 5.0
_OPENMETRICS = "application/openmetrics-text"
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


# ---- text ----


def exposition(readings: Iterable[Reading], accept: str = "") -> tuple[bytes, str]:
    """Return the text and its content type: OpenMetrics where it is accepted, else Prometheus' own.

    The library is loaded here: that takes longer than the rest of the server takes to start.
    """
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collected(readings))
    for collector in (ProcessCollector, GCCollector, PlatformCollector):
        collector(registry=registry)
    # Not what the client wrote: it would be repeated in our answer, and not all of it is understood.
    encode, kind = choose_encoder(f"{_OPENMETRICS}; version=1.0.0" if _OPENMETRICS in accept else "")
    return encode(registry), kind


class _Collected:
    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._readings)


def _metric(reading: Reading) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    family = reading.family
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for key, spread in reading.spreads:
            histogram.add_metric(key, _buckets(family.bounds, spread), spread.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    numbers = kind(family.name, family.help, labels=family.labels)
    for key, value in reading.numbers:
        numbers.add_metric(key, value)
    return numbers


def _buckets(bounds: Iterable[float], spread: Spread) -> list[tuple[str, float]]:
    from prometheus_client.utils import floatToGoString

    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, accumulate(spread.counts), strict=True))


# ---- endpoints ----


class MetricsEndpoint:
    """`GET /metrics`, for `Transport(extra={PATH: …})` or a port of its own."""

    def __init__(self, metrics: Metrics, guard: Guard) -> None:
        self._metrics, self._guard = metrics, guard

    async def __call__(self, exchange: Exchange, _: str) -> None:
        """Read the numbers here, and write them out in a thread, as that takes a while."""
        self._guard.check(exchange)
        await self._metrics.runs.look()
        accept = (exchange.headers.get(b"accept") or b"").decode("latin-1")
        body, kind = await asyncio.to_thread(exposition, self._metrics.read(), accept)
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
