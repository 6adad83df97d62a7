"""Responses that a connection remembers: the latest one that no store keeps, and all that came before it.

A store is asked for everything else. So a response that is deleted is gone, and a connection that only makes stored
responses remembers nothing. Responses are held as JSON, the smallest form, and decoded when they are continued: most
connections are idle most of the time.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from antwort.api.events import Span
from antwort.api.items import Compaction, InputItem, KnownItem, OpaqueItem, is_additional
from antwort.api.requests import less_input
from antwort.api.responses import Response
from antwort.api.wire import Plain, encode
from antwort.caching import Cache
from antwort.storage.base import Bound, Link
from antwort.storage.bounds import declaring_links, first_within

CONNECTION_BYTES = 32 * 2**20
"""The most that one connection remembers, by default."""
TOTAL_BYTES = 256 * 2**20
"""The most that all connections remember together, by default."""

_LINK_OVERHEAD_BYTES = 600
"""The size of a packed response without its contents, approximately."""


RecentMemory: TypeAlias = Cache["RecentResponses", tuple["PackedLink", ...]]
"""The memory of all connections together, in bytes. Where it is full, the connections that were idle longest forget."""


class RecentResponses:
    """What one connection remembers, and so one identity. A chain of more than `limit` bytes is not kept."""

    __slots__ = ("_limit", "_memory")

    def __init__(self, limit: int = CONNECTION_BYTES, memory: RecentMemory | None = None) -> None:
        self._limit = limit
        self._memory = RecentMemory(max_size=TOTAL_BYTES) if memory is None else memory

    @property
    def _chain(self) -> tuple[PackedLink, ...]:
        return self._memory.get(self, ())

    @property
    def response_id(self) -> str | None:
        """The id of the response that can be continued from here."""
        chain = self._chain
        return chain[-1].response_id if chain else None

    @property
    def size(self) -> int:
        """Bytes that are remembered."""
        return sum(link.size for link in self._chain)

    def keep(self, chain: tuple[Link, ...]) -> None:
        """Remember the response that the chain ends with, instead of the one before. One that is stored, that is a turn
        of a conversation, or that has failed, is not continued from here.
        """
        latest = chain[-1].response
        if latest.store or latest.conversation or latest.status == "failed":
            self.clear()
            return
        known = self._chain[: len(chain)]  # links that are packed already
        if any(ours.response_id != theirs.response.id for ours, theirs in zip(known, chain, strict=False)):
            known = ()
        packed_chain = (*known, *map(packed, chain[len(known) :]))
        size = sum(link.size for link in packed_chain)
        if size > self._limit:
            self.clear()
            return
        self._memory.put(self, packed_chain, size)

    def evict(self, response_id: str | None) -> None:
        """Forget the response: the request that continues it has failed."""
        if response_id is not None and response_id == self.response_id:
            self.clear()

    def clear(self) -> None:
        self._memory.discard(self)

    def links(self, bound: Bound | None = None) -> tuple[Link, ...]:
        """Raises `HistoryTooLarge`."""
        chain = self._chain
        first = first_within([(link.size, link.is_compacted) for link in chain], bound)
        left_out = chain[:first] if bound is not None and bound.cut == "oldest" else ()
        declaring = declaring_links(link.unpacked() for link in left_out if link.is_declaring)
        return (*declaring, *(link.unpacked() for link in chain[first:]))


# ---- packed responses ----


class PackedLink(msgspec.Struct, frozen=True):
    """A response of a chain as JSON."""

    response_id: str
    data: bytes
    is_compacted: bool
    """Whether it has a compaction."""
    is_declaring: bool
    """Whether its input declares tools in items."""

    @property
    def size(self) -> int:
        return _LINK_OVERHEAD_BYTES + len(self.data)

    def unpacked(self) -> Link:
        found = _read_link.decode(self.data)
        return Link(
            response=found.response,
            request=bytes(found.request),
            input=tuple(map(_item, found.input)),
            turn_ends=found.turn_ends,
            abandoned=found.abandoned,
        )


class _PackedItem(msgspec.Struct, omit_defaults=True):
    """An item of a known type, or the fields of another one."""

    item: KnownItem | None = None
    opaque: Plain | None = None


class _LinkData(msgspec.Struct):
    response: Response
    request: msgspec.Raw
    input: list[_PackedItem]
    turn_ends: tuple[int, ...]
    abandoned: tuple[Span, ...]


_read_link = msgspec.json.Decoder(_LinkData)


def packed(link: Link) -> PackedLink:
    items = [
        _PackedItem(opaque=dict(item.fields)) if isinstance(item, OpaqueItem) else _PackedItem(item=item)
        for item in link.input
    ]
    request = msgspec.Raw(less_input(link.request))
    data = encode(_LinkData(link.response, request, items, link.turn_ends, link.abandoned))
    return PackedLink(
        link.response.id,
        bytes(memoryview(data)),  # a copy of its own size: the encoder's buffer is up to half again as large
        is_compacted=any(isinstance(item, Compaction) for item in (*link.input, *link.output)),
        is_declaring=any(map(is_additional, link.input)),
    )


def _item(stored: _PackedItem) -> InputItem:
    if stored.opaque is not None:
        return OpaqueItem(stored.opaque["type"], stored.opaque["id"], stored.opaque)
    assert stored.item is not None, "one of both is there"
    return stored.item
