"""A bounded cache."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dict with bounds on the number of its values and the sum of their sizes, which `put` enforces.

    The oldest values are dropped first, whether they were used or not: tracking the order of use would make reading
    five times as expensive. A value larger than `max_size` is not cached. Not thread-safe.
    """

    __slots__ = ("_max_entries", "_max_size", "_size", "_sizes")

    def __init__(self, max_entries: int, max_size: int | None = None) -> None:
        super().__init__()
        self._max_entries, self._max_size = max_entries, max_size
        self._sizes: dict[K, int] = {}
        self._size = 0

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Add or replace a value as the newest one, and drop the oldest ones beyond the bounds."""
        self.discard(key)
        if self._max_size is not None:
            if size > self._max_size:
                return
            self._sizes[key] = size
            self._size += size
        self[key] = value
        while len(self) > self._max_entries or (self._max_size is not None and self._size > self._max_size):
            self.discard(next(iter(self)))

    def discard(self, key: K) -> None:
        """Remove a value, if there is one."""
        self.pop(key, None)
        self._size -= self._sizes.pop(key, 0)

    def clear(self) -> None:
        super().clear()
        self._sizes.clear()
        self._size = 0
