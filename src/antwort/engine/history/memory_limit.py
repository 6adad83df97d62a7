"""Read the history of a request, and limit its size and the memory that all histories take at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from antwort.api.decoding import Limits
from antwort.api.items import InputItem
from antwort.engine.history.recent_responses import RecentResponses
from antwort.errors import ContextTooLong, HistoryMemoryFull
from antwort.identity import Identity
from antwort.limiter import Limiter
from antwort.storage.base import Bound, HistoryTooLarge, Link, ResponseStore

T = TypeVar("T")

SMALL_BYTES = 2**20
"""A history up to this size is not counted: nearly all are far smaller."""
WAIT_SECONDS = 60.0
"""How long a request waits for memory that others hold."""


class HistoryReader:
    """Read the history of one request within the limits, and hold its memory until `release`."""

    def __init__(
        self,
        memory: Limiter,
        limits: Limits,
        store: ResponseStore,
        recent: RecentResponses | None,
        identity: Identity,
        *,
        truncates: bool,
        seconds: float | None,
    ) -> None:
        """`memory` has bytes for slots, and an owner is a tenant. What the connection remembers as `recent` is found
        before what the store has. `truncates`: of a history that is too large, the newest part is read. A request waits
        `seconds` for memory; None: as long as it takes.
        """
        self._memory, self._limit, self._tenant = memory, limits.history_bytes, identity.tenant
        self._store, self._recent, self._identity = store, recent, identity
        self._latest = None if recent is None else recent.response_id
        self._recent_links: tuple[Link, ...] | None = None
        """Decoded once."""
        self._truncates, self._seconds = truncates, seconds
        self.size = 0
        """Bytes that it holds; 0 for a small history."""
        self.is_cut = False
        """Whether the oldest part was left out."""

    async def items(self, ids: Iterable[str]) -> Mapping[str, InputItem]:
        """Return the newest item under each id, as far as found."""
        wanted = dict.fromkeys(ids)

        async def find(bound: Bound) -> Mapping[str, InputItem]:
            links = self._remembered(bound)
            found = {item.id: item for link in links for item in (*link.input, *link.output) if item.id in wanted}
            missing = [item_id for item_id in wanted if item_id not in found]
            return {**await self._store.items(self._identity, missing, bound), **found} if missing else found

        return await self.read(find, "input")

    async def chain(self, response_id: str) -> tuple[Link, ...]:
        """Return the response and its ancestors, oldest first; nothing if not found."""

        async def find(bound: Bound) -> tuple[Link, ...]:
            found = self._remembered(bound) if response_id == self._latest else ()
            return found or await self._store.chain(self._identity, response_id, bound)

        return await self.read(find, "previous_response_id")

    def _remembered(self, bound: Bound) -> tuple[Link, ...]:
        if self._recent_links is None:
            self._recent_links = () if self._recent is None else self._recent.links(bound)
        return self._recent_links

    async def read(self, ask: Callable[[Bound], Awaitable[T]], param: str) -> T:
        """Return what `ask` finds within a bound. Most histories are small, and read by the first call.

        Raises `ContextTooLong`, naming `param`, and `HistoryMemoryFull`.
        """
        try:
            return await ask(Bound(most=min(SMALL_BYTES, self._limit)))
        except HistoryTooLarge as found:
            size, recent = found.size, found.recent
            found.__traceback__ = None  # its frames would hold what is read below until a garbage collection
        left = self._limit - self.size
        needed = size if size <= left else recent
        if needed > left and not self._truncates:
            raise self._too_long(size, param)
        await self._hold(min(needed, left))
        try:
            read = await ask(Bound(most=left, cut="oldest" if self._truncates else "compacted"))
        except HistoryTooLarge as found:
            raise self._too_long(found.size, param) from None
        self.is_cut = self.is_cut or size > left
        return read

    def check(self, size: int, param: str) -> None:
        """Raise `ContextTooLong` if what was put together of the parts is too large."""
        if size > self._limit:
            raise self._too_long(size, param)

    async def _hold(self, size: int) -> None:
        """A request that holds memory does not wait for more: two could wait for one another."""
        try:
            async with asyncio.timeout(0 if self.size else self._seconds):
                await self._memory.acquire(self._tenant, size, held=self.size)
        except TimeoutError as exc:
            raise HistoryMemoryFull(size, self._memory.limit) from exc
        self.size += size

    def release(self) -> None:
        if self.size:
            self._memory.release(self._tenant, self.size)
            self.size = 0

    def _too_long(self, size: int, param: str) -> ContextTooLong:
        what = f"The history that {param!r} continues has"
        advice = "Compact it before it gets there, or let the oldest turns be left out with 'truncation': 'auto'."
        if param == "input":
            what, advice = "The items that 'input' refers to have", "Refer to fewer of them."
        elif self._truncates:
            advice = "Its last turn is too large by itself."
        message = (
            f"{what} {size:,} bytes, and this server reads {self._limit:,} at most (limits.history_bytes). {advice}"
        )
        return ContextTooLong(message, param=param)
