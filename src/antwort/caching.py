"""A bounded cache."""

from __future__ import annotations

import math
import threading
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dict with bounds on the number of its values and the sum of their sizes, which `put` enforces.

    The oldest values are dropped first, whether they were used or not: tracking the order of use would make reading
    five times as expensive. A value larger than `max_size` is not cached. Several threads may use it.
    """

    __slots__ = ("_lock", "_max_entries", "_max_size", "_sizes", "size")

    def __init__(self, max_entries: float = math.inf, max_size: int | None = None) -> None:
        super().__init__()
        self._max_entries, self._max_size = max_entries, max_size
        self._sizes: dict[K, int] = {}
        self._lock = threading.Lock()
        self.size = 0
        """The sum of the sizes, if it is bounded."""

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Add or replace a value as the newest one, and drop the oldest ones beyond the bounds."""
        with self._lock:
            if key in self:
                self._remove(key)
            if self._max_size is not None:
                if size > self._max_size:
                    return
                self._sizes[key] = size
                self.size += size
            self[key] = value
            while len(self) > self._max_entries or (self._max_size is not None and self.size > self._max_size):
                self._remove(next(iter(self)))

    def discard(self, key: K) -> None:
        """Remove a value, if there is one."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        self.pop(key, None)
        self.size -= self._sizes.pop(key, 0)

    def clear(self) -> None:
        with self._lock:
            super().clear()
            self._sizes.clear()
            self.size = 0
