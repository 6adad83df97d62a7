"""Limit how many calls run at once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class SlotsStuck(Exception):
    """All slots belong to calls that did not end when they were cancelled: it is not known when one will be free."""

    def __init__(self, limiter: Limiter) -> None:
        super().__init__(f"{limiter.limit} slots are stuck.")
        self.limiter = limiter


class _Waiter:
    def __init__(self) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_slot = False

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

    A semaphore of asyncio belongs to one event loop, and one of `threading` would block it.
    """

    __slots__ = ("__weakref__", "_free", "_lock", "_stuck", "_waiters", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self._free = limit
        self._stuck = 0
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return self._free == self.limit

    async def acquire(self) -> None:
        """Wait for a slot and take it. Raises `SlotsStuck`, also while it waits."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            if self._stuck >= self.limit:
                raise SlotsStuck(self)
            waiter = _Waiter()
            self._waiters.append(waiter)
        try:
            await waiter.woken
        except asyncio.CancelledError:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.has_slot:
                self.release()
            raise
        if not waiter.has_slot:
            raise SlotsStuck(self)

    def release(self) -> None:
        """Hand the slot to the first waiter."""
        with self._lock:
            while self._waiters:
                waiter = self._waiters.popleft()
                waiter.has_slot = True  # before its event loop, in another thread, may run it
                if waiter.wake():
                    return
                waiter.has_slot = False
            self._free += 1

    def abandon(self, task: asyncio.Task[object]) -> None:
        """Release the slot when `task` has ended. Nobody waits while all slots are stuck like this."""
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
