"""Limit how many inferences a backend has under way, and queue those that wait for a slot."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence


class Slots:
    """`limit` slots; None: no limit. Each slot that is taken must be given back."""

    __slots__ = ("_free", "queue", "waiting_for_recovery")

    def __init__(self, limit: int | None = None) -> None:
        self._free = limit
        self.queue: deque[asyncio.Future[Slots]] = deque()
        self.waiting_for_recovery: deque[asyncio.Future[Slots]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free. None is free while others wait in the queue."""
        if self._free is None:
            return True
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """Hand the slot to the first in the queue."""
        if self._free is not None and not self._hand_over():
            self._free += 1

    def on_recovery(self) -> None:
        """Move those that wait for the backend's recovery to the queue, and hand out the free slots."""
        if not self.waiting_for_recovery:
            return
        self.queue.extend(self.waiting_for_recovery)
        self.waiting_for_recovery.clear()
        while self.take():
            if not self._hand_over():
                self.give_back()
                return

    def _hand_over(self) -> bool:
        """Give a slot to the first that still waits, and return whether there is one."""
        while self.queue:
            waiting = self.queue.popleft()
            if not waiting.done():
                waiting.set_result(self)
                return True
        return False

    @staticmethod
    async def take_first(slots: Sequence[Slots], after_recovery: Sequence[Slots] = ()) -> Slots:
        """Wait for a slot of any of `slots`, or of `after_recovery` when its backend recovers, and take it."""
        waiting: asyncio.Future[Slots] = asyncio.get_running_loop().create_future()
        queues = [each.queue for each in slots] + [each.waiting_for_recovery for each in after_recovery]
        for queue in queues:
            queue.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled():  # a slot was handed over in the same moment
                waiting.result().give_back()
            raise
        finally:
            for each in (*slots, *after_recovery):
                for queue in (each.queue, each.waiting_for_recovery):
                    if waiting in queue:
                        queue.remove(waiting)
