"""Numbers that grow: plain values in plain dictionaries, made into a library's objects only when they are read.

Counting is for the thread of the event loop. A key is the values of the labels, in the order of the family's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

Key: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """A metric: its name, what it means, and by what it is told apart."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bounds of its buckets, less the last, which has none."""


class Spread(msgspec.Struct, frozen=True):
    """What a histogram knows of one key."""

    counts: tuple[int, ...]
    """One more than there are bounds; not cumulative."""
    sum: float


class Reading(msgspec.Struct, frozen=True):
    """A family as it stood at one moment."""

    family: Family
    numbers: tuple[tuple[Key, float], ...] = ()
    spreads: tuple[tuple[Key, Spread], ...] = ()


class Counter:
    __slots__ = ("_values", "family")

    def __init__(self, family: Family, begin: Iterable[Key] = ()) -> None:
        """Keys to `begin` with are there from the start: what has not happened yet is 0, not unknown."""
        self.family = family
        self._values: dict[Key, float] = dict.fromkeys(begin, 0)

    def add(self, key: Key, amount: float = 1) -> None:
        self._values[key] = self._values.get(key, 0) + amount

    def read(self) -> Reading:
        return Reading(self.family, tuple(self._values.items()))


class Histogram:
    __slots__ = ("_bounds", "_spreads", "family")

    def __init__(self, family: Family) -> None:
        self.family = family
        self._bounds = family.bounds
        self._spreads: dict[Key, list[float]] = {}
        """The counts of each key, and behind them its sum: so that one look into the dictionary finds both."""

    def add(self, key: Key, value: float) -> None:
        spread = self._spreads.get(key)
        if spread is None:
            spread = self._spreads[key] = [0] * (len(self._bounds) + 1) + [0.0]
        spread[bisect_left(self._bounds, value)] += 1
        spread[-1] += value

    def read(self) -> Reading:
        spreads = ((key, Spread(tuple(map(int, counts)), total)) for key, (*counts, total) in self._spreads.items())
        return Reading(self.family, spreads=tuple(spreads))


class Gauge:
    """What stands somewhere else already, and is looked up when it is read."""

    __slots__ = ("_look", "family")

    def __init__(self, family: Family, look: Callable[[], Sequence[tuple[Key, float]]]) -> None:
        self.family, self._look = family, look

    def read(self) -> Reading:
        return Reading(self.family, tuple(self._look()))


Metric: TypeAlias = Counter | Histogram | Gauge
