"""What one connection remembers: the latest response of its own that no store keeps, and all that came before it.

A store is asked for everything else. So a response that is deleted is gone, and a connection that only makes stored
responses remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from antwort.api.items import InputItem
from antwort.api.wire import encode
from antwort.identity import Identity
from antwort.storage.base import Link

LIMIT = 32 * 2**20


class Records(Protocol):
    """Where earlier responses and their items are found. Every store is one."""

    async def chain(self, identity: Identity, response_id: str) -> tuple[Link, ...]:
        """The response and its ancestors, oldest first; empty when it is not found."""
        ...

    async def items(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, InputItem]:
        """The newest item under each id, as far as found."""
        ...


class Recent:
    """Belongs to one connection, and so to one identity. A chain of more than `limit` bytes is not kept."""

    __slots__ = ("_chain", "_limit", "_size")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._chain: tuple[Link, ...] = ()
        self._size = 0

    @property
    def response_id(self) -> str | None:
        """Of the response that can be continued from here."""
        return self._chain[-1].response.id if self._chain else None

    @property
    def size(self) -> int:
        """Bytes of what is remembered, as JSON."""
        return self._size

    def keep(self, chain: tuple[Link, ...]) -> None:
        """Remember the response that the chain ends with, instead of the one before. One that is stored, that is a turn
        of a conversation, or that has failed, is not continued from here.
        """
        latest = chain[-1].response
        is_ours = not latest.store and not latest.conversation and latest.status != "failed"
        size = self._size_of(chain) if is_ours else 0
        self._chain, self._size = (chain, size) if is_ours and size <= self._limit else ((), 0)

    def evict(self, response_id: str | None) -> None:
        """Forget the response: it was to be continued, and that has failed."""
        if response_id is not None and response_id == self.response_id:
            self.clear()

    def clear(self) -> None:
        self._chain, self._size = (), 0

    def before(self, records: Records) -> Records:
        """Both, and what is remembered here first."""
        return _Both(self, records) if self._chain else records

    def chain(self, response_id: str) -> tuple[Link, ...]:
        return self._chain if response_id == self.response_id else ()

    def items(self, ids: Sequence[str]) -> dict[str, InputItem]:
        wanted = set(ids)
        return {item.id: item for item in self._said() if item.id in wanted}

    def _said(self) -> Iterator[InputItem]:
        for link in self._chain:
            yield from link.input
            yield from link.output

    def _size_of(self, chain: tuple[Link, ...]) -> int:
        """What goes on from what is remembered needs only its own part counted."""
        known = len(self._chain)
        if known and len(chain) > known and chain[known - 1] is self._chain[-1]:
            return self._size + sum(map(_weight, chain[known:]))
        return sum(map(_weight, chain))


def _weight(link: Link) -> int:
    return len(link.request) + len(encode(link.response))


class _Both:
    __slots__ = ("_recent", "_records")

    def __init__(self, recent: Recent, records: Records) -> None:
        self._recent, self._records = recent, records

    async def chain(self, identity: Identity, response_id: str) -> tuple[Link, ...]:
        return self._recent.chain(response_id) or await self._records.chain(identity, response_id)

    async def items(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, InputItem]:
        found = self._recent.items(ids)
        missing = [item_id for item_id in ids if item_id not in found]
        return {**await self._records.items(identity, missing), **found} if missing else found
