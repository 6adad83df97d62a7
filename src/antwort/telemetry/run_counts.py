"""What is counted of the log of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from antwort.storage.run_log import Load
from antwort.telemetry import families
from antwort.telemetry.counting import Counter, Gauge, Histogram, Key, Metric

_PATIENCE = 1.0
"""Seconds that a reader of the metrics waits for how the queue stands."""
KINDS = ("new", "handed_over", "taken_over")
HOW = ("handed_over", "lost")


class RunCounts:
    def __init__(self) -> None:
        self.wait = Histogram(families.RUN_WAIT)
        self.claims = Counter(families.RUN_CLAIMS, [(kind,) for kind in KINDS])
        self.left = Counter(families.RUN_LEFT, [(how,) for how in HOW])
        self.time = Histogram(families.RUN_LOG_TIME)
        self._load: Callable[[], Awaitable[Load]] | None = None
        self._known: Load | None = None

    def watch(self, load: Callable[[], Awaitable[Load]]) -> None:
        """Where to ask how the queue stands."""
        self._load = load

    async def look(self) -> None:
        """Before they are read: how the queue stands has to be asked for. What is not told in time is not known."""
        self._known = None
        if self._load is not None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    self._known = await self._load()
            except Exception:  # whatever it is, those who work with the log say it
                self._known = None

    def all(self) -> Iterable[Metric]:
        known = () if self._known is None else (self._known,)
        yield Gauge(families.RUNS_QUEUED, lambda: [(_ONLY, load.queued) for load in known])
        yield Gauge(families.RUNS_HELD, lambda: [(_ONLY, load.running) for load in known])
        yield Gauge(families.OLDEST_RUN, lambda: [(_ONLY, load.oldest) for load in known])
        yield from (self.wait, self.claims, self.left, self.time)


_ONLY: Key = ()
