"""One bounded cache for everything that is worth keeping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Keep the most recently used values, bounded by their number and by the sum of their sizes.

    A value of `None` cannot be told from a missing one. A value larger than `max_size` is not cached. Threads may share
    a cache that has no `max_size`.
    """

    __slots__ = ("_entries", "_max_entries", "_max_size", "_size")

    def __init__(self, max_entries: int, max_size: int | None = None) -> None:
        self._max_entries, self._max_size = max_entries, max_size
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the least recently used first."""
        return iter(self._entries)

    def values(self) -> Iterator[V]:
        return (value for value, _ in self._entries.values())

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            self._entries.move_to_end(key)
        except KeyError:  # another thread has dropped it
            return None
        return entry[0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Add or replace a value, and drop the least recently used ones beyond the bounds."""
        self.discard(key)
        if self._max_size is not None and size > self._max_size:
            return
        self._entries[key] = (value, size)
        self._size += size
        while len(self._entries) > self._max_entries or (self._max_size is not None and self._size > self._max_size):
            self._size -= self._entries.popitem(last=False)[1][1]

    def discard(self, key: K) -> None:
        """Remove a value if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[1]

    def clear(self) -> None:
        self._entries.clear()
        self._size = 0
