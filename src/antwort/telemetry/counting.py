"""Numbers that grow: plain values in plain dictionaries, made into a library's objects only when they are read.

Counting is for the thread of the event loop. A key is the values of the labels, in the order of the family's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Times
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import msgspec

AT_ONCE = 128
"""Numbers that are kept as they came; then they are counted."""

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
    __slots__ = ("_new", "_spreads", "family")

    def __init__(self, family: Family) -> None:
        self.family = family
        self._new: defaultdict[Key, list[float]] = defaultdict(list)
        """What each key was told of since it was last counted: many at a time cost much less. The keys stay."""
        self._spreads: dict[Key, Spread] = {}

    def add(self, key: Key, value: float) -> None:
        new = self._new[key]
        new.append(value)
        if len(new) >= AT_ONCE:
            self._count(key, new)

    def new_values(self, key: Key) -> list[float]:
        """Return the buffer of a key's new values. Callers that append must call `count` at `AT_ONCE` values."""
        return self._new[key]

    def read(self) -> Reading:
        return Reading(self.family, spreads=self.count())

    def count(self) -> tuple[tuple[Key, Spread], ...]:
        """All of it, as it stands."""
        return tuple([(key, self._count(key, new)) for key, new in self._new.items() if new or key in self._spreads])

    def _count(self, key: Key, new: list[float]) -> Spread:
        """The spread of the key, with what is new."""
        bounds, before = self.family.bounds, self._spreads.get(key)
        if before is not None and not new:
            return before
        counts, total = ([0] * (len(bounds) + 1), 0.0) if before is None else (list(before.counts), before.sum)
        for bucket, times in Times(map(partial(bisect_left, bounds), new)).items():
            counts[bucket] += times
        spread = self._spreads[key] = Spread(tuple(counts), sum(new, total))
        new.clear()
        return spread


class CounterBeside(Counter):
    """A counter of what a histogram is told of, too: so much is read off that one. What it is not told of is added."""

    __slots__ = ("_histogram", "_key")

    def __init__(self, family: Family, histogram: Histogram, key: Callable[[Key], Key]) -> None:
        """`key` is what is counted here under a key of the histogram."""
        super().__init__(family)
        self._histogram, self._key = histogram, key

    def read(self) -> Reading:
        values = Times(self._values)
        for key, spread in self._histogram.count():
            values[self._key(key)] += sum(spread.counts)
        return Reading(self.family, tuple(values.items()))


class Gauge:
    """What stands somewhere else already, and is looked up when it is read."""

    __slots__ = ("_look", "family")

    def __init__(self, family: Family, look: Callable[[], Sequence[tuple[Key, float]]]) -> None:
        self.family, self._look = family, look

    def read(self) -> Reading:
        return Reading(self.family, tuple(self._look()))


Metric: TypeAlias = Counter | Histogram | Gauge
