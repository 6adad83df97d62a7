"""Counters, gauges and histograms of plain values, for the thread of the event loop.

They become objects of `prometheus_client` only when they are read: its histograms take a lock and walk through the
buckets for each value, and the library takes longer to load than the rest of the server takes to start. A key is the
values of the labels, in the order of the family's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Times
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import msgspec

MAX_NEW_VALUES = 128
"""Values of a series that are collected before they are counted."""

Key: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """The name, meaning and labels of a metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets. The last bucket has none."""


class Spread(msgspec.Struct, frozen=True):
    """The distribution of one key's values."""

    counts: tuple[int, ...]
    """One more than there are bounds; not cumulative."""
    sum: float


class Reading(msgspec.Struct, frozen=True):
    """A metric's values at one moment."""

    family: Family
    numbers: tuple[tuple[Key, float], ...] = ()
    spreads: tuple[tuple[Key, Spread], ...] = ()


class Counter(dict[Key, float]):
    """`counter[key] += amount`: what is not there is 0."""

    def __init__(self, family: Family, begin: Iterable[Key] = ()) -> None:
        """Keys to `begin` with are 0 from the start."""
        super().__init__(dict.fromkeys(begin, 0))
        self.family = family

    def __missing__(self, key: Key) -> float:
        return 0

    def read(self) -> Reading:
        return Reading(self.family, tuple(self.items()))


class Series:
    """The values of one key of a histogram. They are collected, and counted many at a time, which costs much less."""

    __slots__ = ("_bounds", "_new", "_spread")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._new: list[float] = []
        self._spread: Spread | None = None

    def add(self, value: float) -> None:
        new = self._new
        new.append(value)
        if len(new) >= MAX_NEW_VALUES:
            self.read()

    def read(self) -> Spread | None:
        """Return all values so far, or None if there are none."""
        if not self._new:
            return self._spread
        counts, total = ([0] * (len(self._bounds) + 1), 0.0)
        if self._spread is not None:
            counts, total = list(self._spread.counts), self._spread.sum
        for bucket, times in Times(map(partial(bisect_left, self._bounds), self._new)).items():
            counts[bucket] += times
        self._spread = Spread(tuple(counts), sum(self._new, total))
        self._new.clear()
        return self._spread


class Histogram(dict[Key, Series]):
    """`histogram[key].add(value)`: a series is made when it is first asked for."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.family = family

    def __missing__(self, key: Key) -> Series:
        self[key] = series = Series(self.family.bounds)
        return series

    def read(self) -> Reading:
        spreads = ((key, series.read()) for key, series in self.items())
        return Reading(self.family, spreads=tuple((key, spread) for key, spread in spreads if spread is not None))


class Gauge:
    """Values that are looked up when they are read."""

    __slots__ = ("_look", "family")

    def __init__(self, family: Family, look: Callable[[], Sequence[tuple[Key, float]]]) -> None:
        self.family, self._look = family, look

    def read(self) -> Reading:
        return Reading(self.family, tuple(self._look()))


Metric: TypeAlias = Counter | Histogram | Gauge
