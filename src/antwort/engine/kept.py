"""What is kept in memory for keys: how much, whose it is, and which goes first. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

Name: TypeAlias = tuple[str, str, str]
"""Tenant, owner, key."""

MOST_KEPT = 1000
"""Responses that have ended and are kept here for their keys; a stored one is found in the store as well."""
MOST_BYTES = 64 * 2**20
"""What they may take, about."""


class Holding:
    """What one identity has, the oldest first."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[Name, int] = OrderedDict()
        self.size = 0


class Kept:
    """The names of what is kept, with their sizes. When it is too much, whoever has most gives up the oldest: so one
    who sends much does not drive out what others have.
    """

    def __init__(self, max_count: int = MOST_KEPT, max_bytes: int = MOST_BYTES) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._holdings: dict[tuple[str, str], Holding] = {}
        self._count = self._size = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: Name) -> bool:
        return (holding := self._holdings.get(name[:2])) is not None and name in holding.sizes

    @property
    def size(self) -> int:
        return self._size

    def add(self, name: Name, size: int) -> None:
        holding = self._holdings.setdefault(name[:2], Holding())
        holding.sizes[name] = size
        holding.size += size
        self._count += 1
        self._size += size

    def remove(self, name: Name) -> None:
        """It need not be there."""
        if name not in self:
            return
        holding = self._holdings[name[:2]]
        size = holding.sizes.pop(name)
        holding.size -= size
        self._count -= 1
        self._size -= size
        if not holding.sizes:
            del self._holdings[name[:2]]

    def surplus(self) -> Name | None:
        """The next one to go, as long as there is too much."""
        if self._size > self._max_bytes:
            most = max(self._holdings.values(), key=lambda holding: holding.size)
        elif self._count > self._max_count:
            most = max(self._holdings.values(), key=lambda holding: len(holding.sizes))
        else:
            return None
        return next(iter(most.sizes))
