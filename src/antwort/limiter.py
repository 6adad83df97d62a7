"""Limit how much is under way at once: calls, lookups, or bytes in memory."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Hashable


class SlotsStuck(Exception):
    """All slots belong to calls that did not end when they were cancelled: it is not known when one will be free."""

    def __init__(self, limiter: Limiter) -> None:
        super().__init__(f"{limiter.limit} slots are stuck.")
        self.limiter = limiter


class _Waiter:
    def __init__(self, owner: Hashable, amount: int, held: int) -> None:
        self.owner, self.amount, self.held = owner, amount, held
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_admitted = False

    def wake(self) -> bool:
        """Wake the waiter from any thread. Return whether that is possible: its event loop may be closed."""
        try:
            self.woken.get_loop().call_soon_threadsafe(self._set)
        except RuntimeError:
            return False
        return True

    def _set(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Limiter:
    """`limit` slots, handed out in the order of the requests, to tasks of any event loop of the process.

    With `per_owner`, no owner gets more of them than that; one that has its share is passed over by the next waiters. A
    request for more than the limit, or the share, is admitted when nothing else is taken.

    A semaphore of asyncio belongs to one event loop, and one of `threading` would block it.
    """

    __slots__ = ("__weakref__", "_by_owner", "_lock", "_per_owner", "_stuck", "_waiters", "limit", "taken")

    def __init__(self, limit: int, per_owner: int | None = None) -> None:
        self.limit, self._per_owner = limit, per_owner
        self.taken = 0
        """Slots that were acquired and not released."""
        self._by_owner: dict[Hashable, int] = {}
        """Empty without `per_owner`."""
        self._stuck = 0
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def acquire(self, owner: Hashable = None, amount: int = 1, held: int = 0) -> None:
        """Wait for `amount` slots and take them. Raises `SlotsStuck`, also while it waits.

        `held` are those of the owner that the caller has already: it does not wait for itself.
        """
        with self._lock:
            own = self._by_owner.get(owner, 0) + amount
            has_share = self._per_owner is None or own <= self._per_owner
            if has_share and self.taken + amount <= self.limit and not self._waiters:
                self._count(owner, amount)
                return
            if self._stuck >= self.limit:
                raise SlotsStuck(self)
            waiter = _Waiter(owner, amount, held)
            self._waiters.append(waiter)
            self._admit()
            must_wait = not waiter.is_admitted
        if not must_wait:
            return
        try:
            await waiter.woken
        except asyncio.CancelledError:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    self._admit()  # those behind it may fit
            if waiter.is_admitted:
                self.release(owner, amount)
            raise
        if not waiter.is_admitted:
            raise SlotsStuck(self)

    def take(self) -> bool:
        """Take a slot if one is free and no request waits for it. Return whether it was taken. Not with `per_owner`."""
        with self._lock:
            if self._waiters or self.taken >= self.limit:
                return False
            self.taken += 1
            return True

    def release(self, owner: Hashable = None, amount: int = 1) -> None:
        """Hand the slots to the next waiters. This may be called from any thread."""
        with self._lock:
            self.taken -= amount
            if self._per_owner is not None:
                self._by_owner[owner] -= amount
                if not self._by_owner[owner]:
                    del self._by_owner[owner]
            if self._waiters:
                self._admit()

    def abandon(self, task: asyncio.Task[object]) -> None:
        """Release a slot when `task` has ended. While all slots are stuck like this, waiting requests are refused."""
        with self._lock:
            self._stuck += 1
            if self._stuck >= self.limit:
                while self._waiters:
                    self._waiters.popleft().wake()
        task.add_done_callback(self._recover)

    def _recover(self, _: asyncio.Task[object]) -> None:
        with self._lock:
            self._stuck -= 1
        self.release()

    def _count(self, owner: Hashable, amount: int) -> None:
        self.taken += amount
        if self._per_owner is not None:
            self._by_owner[owner] = self._by_owner.get(owner, 0) + amount

    def _admit(self) -> None:
        """Hand out slots as far as there are any."""
        while (waiter := self._next_waiter()) is not None:
            self._waiters.remove(waiter)
            waiter.is_admitted = True  # before its event loop, in another thread, may run it
            if waiter.wake():
                self._count(waiter.owner, waiter.amount)
            else:
                waiter.is_admitted = False

    def _next_waiter(self) -> _Waiter | None:
        """Return the first waiter whose owner has less than its share, if there is room for it."""
        for waiter in self._waiters:
            own = self._by_owner.get(waiter.owner, 0)
            if self._per_owner is None or own <= waiter.held or own + waiter.amount <= self._per_owner:
                fits = self.taken <= waiter.held or self.taken + waiter.amount <= self.limit
                return waiter if fits else None
        return None
