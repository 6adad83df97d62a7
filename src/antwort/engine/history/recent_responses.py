"""What one connection remembers: the latest response of its own that no store keeps, and all that came before it.

A store is asked for everything else. So a response that is deleted is gone, and a connection that only makes stored
responses remembers nothing. What is remembered is kept as JSON, which is the least that it can be, and read again when
it is continued: most connections wait most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from antwort.api.items import InputItem
from antwort.engine.history.packing import Packed, packed
from antwort.identity import Identity
from antwort.storage.base import Bound, HistoryTooLarge, Link
from antwort.storage.rules import declaring_links, first_within

LIMIT = 32 * 2**20
TOTAL = 256 * 2**20


class Records(Protocol):
    """Where earlier responses and their items are found. Every store is one."""

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        """The response and its ancestors, oldest first; empty when it is not found. Raises `HistoryTooLarge`."""
        ...

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        """The newest item under each id, as far as found. Raises `HistoryTooLarge`."""
        ...


class Budget:
    """What all connections may remember together. Where it does not suffice, those whose latest turn is longest ago
    forget.
    """

    __slots__ = ("_held", "_limit", "_size")

    def __init__(self, limit: int = TOTAL) -> None:
        self._limit = limit
        self._held: dict[Recent, int] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes, of all connections."""
        return self._size

    def hold(self, recent: Recent, size: int) -> None:
        self.release(recent)
        self._held[recent] = size
        self._size += size
        while self._size > self._limit:
            next(iter(self._held)).clear()

    def release(self, recent: Recent) -> None:
        self._size -= self._held.pop(recent, 0)


class Recent:
    """Belongs to one connection, and so to one identity. A chain of more than `limit` bytes is not kept."""

    __slots__ = ("_budget", "_chain", "_limit", "_size")

    def __init__(self, limit: int = LIMIT, budget: Budget | None = None) -> None:
        self._limit = limit
        self._budget = budget or Budget()
        self._chain: tuple[Packed, ...] = ()
        self._size = 0

    @property
    def response_id(self) -> str | None:
        """Of the response that can be continued from here."""
        return self._chain[-1].response_id if self._chain else None

    @property
    def size(self) -> int:
        """Bytes of what is remembered."""
        return self._size

    def keep(self, chain: tuple[Link, ...]) -> None:
        """Remember the response that the chain ends with, instead of the one before. One that is stored, that is a turn
        of a conversation, or that has failed, is not continued from here.
        """
        latest = chain[-1].response
        if latest.store or latest.conversation or latest.status == "failed":
            self.clear()
            return
        kept = self._packed(chain)
        size = sum(link.size for link in kept)
        if size > self._limit:
            self.clear()
            return
        self._chain, self._size = kept, size
        self._budget.hold(self, size)

    def evict(self, response_id: str | None) -> None:
        """Forget the response: it was to be continued, and that has failed."""
        if response_id is not None and response_id == self.response_id:
            self.clear()

    def clear(self) -> None:
        self._chain, self._size = (), 0
        self._budget.release(self)

    def before(self, records: Records) -> Records:
        """Both, and what is remembered here first."""
        return _Both(self, records) if self._chain else records

    def chain(self, response_id: str) -> tuple[Link, ...]:
        return self.links() if response_id == self.response_id else ()

    def links(self, bound: Bound | None = None) -> tuple[Link, ...]:
        """Raises `HistoryTooLarge`."""
        first = first_within([(link.size, link.is_compacted) for link in self._chain], bound)
        if isinstance(first, HistoryTooLarge):
            raise first
        left_out = self._chain[:first] if bound is not None and bound.cut == "oldest" else ()
        declaring = declaring_links(link.unpacked() for link in left_out if link.is_declaring)
        return (*declaring, *(link.unpacked() for link in self._chain[first:]))

    def _packed(self, chain: tuple[Link, ...]) -> tuple[Packed, ...]:
        """What goes on from what is remembered needs only its own part packed."""
        known = self._chain[: len(chain)]
        if any(ours.response_id != theirs.response.id for ours, theirs in zip(known, chain, strict=False)):
            known = ()
        return (*known, *map(packed, chain[len(known) :]))


class _Both:
    """For the time of one plan: what is remembered is read once."""

    __slots__ = ("_latest", "_links", "_recent", "_records")

    def __init__(self, recent: Recent, records: Records) -> None:
        self._recent, self._records = recent, records
        self._latest = recent.response_id
        self._links: tuple[Link, ...] | None = None

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        found = self._remembered(bound) if response_id == self._latest else ()
        return found or await self._records.chain(identity, response_id, bound)

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        wanted = set(ids)
        found = {item.id: item for item in _said(self._remembered(bound)) if item.id in wanted} if wanted else {}
        missing = [item_id for item_id in ids if item_id not in found]
        return {**await self._records.items(identity, missing, bound), **found} if missing else found

    def _remembered(self, bound: Bound | None) -> tuple[Link, ...]:
        if self._links is None:
            self._links = self._recent.links(bound)
        return self._links


def _said(chain: Sequence[Link]) -> Iterator[InputItem]:
    for link in chain:
        yield from link.input
        yield from link.output
