"""Limit the size of a history that a request reads, and the memory that all histories take at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from antwort.api.items import InputItem
from antwort.api.limits import Limits
from antwort.engine.history.recent_responses import HistorySource
from antwort.errors import ContextTooLong, HistoryMemoryFull
from antwort.identity import Identity
from antwort.storage.base import Bound, HistoryTooLarge, Link

T = TypeVar("T")

SMALL_BYTES = 2**20
"""A history up to this size is not counted: nearly all are far smaller."""
WAIT_SECONDS = 60.0
"""How long a request waits for memory that others hold."""


class HistoryMemory:
    """Admit large histories into memory, first come, first served, up to a number of bytes.

    No tenant gets more than half of them, unless for a single history.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        """Bytes, by tenant."""
        self._waiting: dict[asyncio.Future[None], tuple[str, int, int]] = {}
        """The tenant, the bytes, and the bytes that the same request holds already."""

    @property
    def held(self) -> int:
        """Bytes of all histories that were admitted and not released."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def admit(self, tenant: str, size: int, seconds: float | None, before: int = 0) -> None:
        """Wait for so many bytes. Raises `HistoryMemoryFull` after so many seconds; None: no limit. `before` are the
        bytes that the same request holds already: it does not wait for itself.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = tenant, size, before
        self._admit_next()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self.release(tenant, size)
            else:
                del self._waiting[turn]
                self._admit_next()
            if isinstance(exc, TimeoutError):
                raise HistoryMemoryFull(size, self._most) from exc
            raise

    def release(self, tenant: str, size: int) -> None:
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]
        self._admit_next()

    def _admit_next(self) -> None:
        """Admit waiting histories in order. Only a tenant that has its share is passed over."""
        for turn, (tenant, size, before) in [*self._waiting.items()]:
            own, held = self._held[tenant], self.held
            if turn.done() or (own > before and own + size > self._most // 2):
                continue
            if held > before and held + size > self._most:
                break
            del self._waiting[turn]
            self._held[tenant] += size
            turn.set_result(None)


class HistoryReader:
    """Read the history of one request within the limits, and hold its memory until `release`."""

    def __init__(
        self,
        memory: HistoryMemory,
        limits: Limits,
        source: HistorySource,
        identity: Identity,
        *,
        truncates: bool,
        seconds: float | None,
    ) -> None:
        """`truncates`: of a history that is too large, the newest part is read."""
        self._memory, self._limit, self._tenant = memory, limits.history_bytes, identity.tenant
        self._source, self._identity = source, identity
        self._truncates, self._seconds = truncates, seconds
        self.size = 0
        """Bytes that it holds; 0 for a small history."""
        self.is_cut = False
        """Whether the oldest part was left out."""

    async def items(self, ids: Iterable[str]) -> Mapping[str, InputItem]:
        """Return the newest item under each id, as far as found."""
        wanted = [*dict.fromkeys(ids)]
        return await self.read(lambda bound: self._source.items(self._identity, wanted, bound), "input")

    async def chain(self, response_id: str) -> tuple[Link, ...]:
        """Return the response and its ancestors, oldest first; nothing if not found."""
        return await self.read(
            lambda bound: self._source.chain(self._identity, response_id, bound), "previous_response_id"
        )

    async def read(self, ask: Callable[[Bound], Awaitable[T]], param: str) -> T:
        """Return what `ask` finds within a bound. Most histories are small, and read by the first call.

        Raises `ContextTooLong`, naming `param`, and `HistoryMemoryFull`.
        """
        try:
            return await ask(Bound(most=min(SMALL_BYTES, self._limit)))
        except HistoryTooLarge as found:
            size, recent = found.size, found.recent
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
        await self._memory.admit(self._tenant, size, 0 if self.size else self._seconds, self.size)
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
