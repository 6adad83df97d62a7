"""`GET /metrics`."""

from __future__ import annotations

import asyncio

from antwort.errors import NotFound
from antwort.telemetry.access import Guard
from antwort.telemetry.exposition import exposition
from antwort.telemetry.metrics import Metrics
from antwort.transport.exchange import Exchange

PATH = "/metrics"


class MetricsEndpoint:
    """For `Transport(extra={PATH: …})`, or a port of its own."""

    def __init__(self, metrics: Metrics, guard: Guard) -> None:
        self._metrics, self._guard = metrics, guard

    async def __call__(self, exchange: Exchange, _: str) -> None:
        """The numbers are read here; to write them out takes a while, and is left to a thread."""
        self._guard.check(exchange)
        await self._metrics.runs.look()
        accept = (exchange.header(b"accept") or b"").decode("latin-1")
        body, kind = await asyncio.to_thread(exposition, self._metrics.read(), accept)
        await exchange.answer(body, kind=kind.encode())


class Elsewhere:
    """Stands on a port that several processes share: the numbers would be now one's, now another's."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def __call__(self, exchange: Exchange, _: str) -> None:
        self._guard.check(exchange)
        message = "Each of several workers has metrics of its own: set metrics.port to read them."
        raise NotFound(message, code="unknown_url")
