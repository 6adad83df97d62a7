"""How many inferences a backend may have under way, and who is next when all places are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence


class Places:
    """So many inferences at once; None: any number. Whoever takes a place gives it back."""

    __slots__ = ("_free", "_queue")

    def __init__(self, most: int | None = None) -> None:
        self._free = most
        self._queue: deque[asyncio.Future[Places]] = deque()

    def take(self) -> bool:
        """Whether there was one. It never goes past those who wait: while they do, none is free."""
        if self._free is None:
            return True
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """It goes to whoever has waited longest."""
        if self._free is None:
            return
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.done():
                waiting.set_result(self)
                return
        self._free += 1

    def join(self, waiting: asyncio.Future[Places]) -> None:
        """Stand in line; one who waits may do so in several."""
        self._queue.append(waiting)

    def step_out(self, waiting: asyncio.Future[Places]) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)


async def first_free(places: Sequence[Places]) -> Places:
    """Wait for a place at any of them, and take it."""
    waiting: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
    for each in places:
        each.join(waiting)
    try:
        return await waiting
    except asyncio.CancelledError:
        if not waiting.cancelled():  # it was given one in the same moment
            waiting.result().give_back()
        raise
    finally:
        for each in places:
            each.step_out(waiting)
