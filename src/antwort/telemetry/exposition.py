"""The metrics as Prometheus reads them. The library that writes them is loaded when they are first read: it takes
longer to load than the rest of the server takes to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from antwort.telemetry.counting import Reading, Spread

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_OPENMETRICS = "application/openmetrics-text"


def exposition(readings: Iterable[Reading], accept: str = "") -> tuple[bytes, str]:
    """The text, and its content type: OpenMetrics for those who accept it, else Prometheus' own."""
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
