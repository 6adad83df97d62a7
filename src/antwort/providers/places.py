"""How many inferences a backend may have under way, and who is next when all places are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence


class Places:
    """So many inferences at once; None: any number. Whoever takes a place gives it back."""

    __slots__ = ("_free", "_hopes", "_queue", "are_endless")

    def __init__(self, most: int | None = None) -> None:
        self._free = most
        self.are_endless = most is None
        """Whether they need not be taken, nor given back."""
        self._queue: deque[asyncio.Future[Places]] = deque()
        self._hopes: deque[asyncio.Future[Places]] = deque()

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
        if self._free is not None and not self._hand_on():
            self._free += 1

    def join(self, waiting: asyncio.Future[Places]) -> None:
        """Stand in line; one who waits may do so in several."""
        self._queue.append(waiting)

    def hope(self, waiting: asyncio.Future[Places]) -> None:
        """Stand in line as soon as they are `reopened`: until then it is of no use."""
        self._hopes.append(waiting)

    def reopened(self) -> None:
        """The backend is well: those who hoped for it are next, as far as there are places."""
        if not self._hopes:
            return
        self._queue.extend(self._hopes)
        self._hopes.clear()
        while self.take():
            if not self._hand_on():
                self.give_back()
                return

    def _hand_on(self) -> bool:
        """Whether somebody waits, who has the place now."""
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.done():
                waiting.set_result(self)
                return True
        return False

    def step_out(self, waiting: asyncio.Future[Places]) -> None:
        for line in (self._queue, self._hopes):
            if waiting in line:
                line.remove(waiting)


async def first_free(places: Sequence[Places], hopes: Sequence[Places] = ()) -> Places:
    """Wait for a place at any of them, or at one of `hopes` that is reopened meanwhile, and take it."""
    waiting: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
    for each in places:
        each.join(waiting)
    for each in hopes:
        each.hope(waiting)
    try:
        return await waiting
    except asyncio.CancelledError:
        if not waiting.cancelled():  # it was given one in the same moment
            waiting.result().give_back()
        raise
    finally:
        for each in (*places, *hopes):
            each.step_out(waiting)
