"""One at a time, in the whole process: for tools whose calls must not overlap."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Hashable
from weakref import WeakValueDictionary


class StillAtWork(Exception):
    """An earlier call would not stop and is at work still: nobody can say for how long."""


class _Waiter:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.may_enter: asyncio.Future[bool] = self.loop.create_future()
        self.is_let_in = False

    def wake(self, *, may_enter: bool) -> bool:
        """Says whether it could be: its loop may have ended."""
        try:
            self.loop.call_soon_threadsafe(self._tell, may_enter)
        except RuntimeError:
            return False
        self.is_let_in = may_enter
        return True

    def _tell(self, may_enter: bool) -> None:
        if not self.may_enter.done():
            self.may_enter.set_result(may_enter)


class Turnstile:
    """Lets one through at a time, in the order they came, on whichever event loop of the process they wait.

    A lock of asyncio belongs to one event loop, and a lock of threads would hold up all of it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._is_blocked = False
        self._waiting: deque[_Waiter] = deque()

    async def enter(self) -> Passage:
        """Raises `StillAtWork` where one that went through before was left behind."""
        with self._guard:
            if self._is_blocked:
                raise StillAtWork
            if not self._is_taken:
                self._is_taken = True
                return Passage(self)
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            may_enter = await waiter.may_enter
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        if not may_enter:
            raise StillAtWork
        return Passage(self)

    def _give_up(self, waiter: _Waiter) -> None:
        with self._guard:
            will_not_come = waiter.is_let_in
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if will_not_come:
            self.let_in()

    def let_in(self) -> None:
        """The next one, if there is any."""
        with self._guard:
            self._is_taken = self._is_blocked = False
            while self._waiting and not self._is_taken:
                self._is_taken = self._waiting.popleft().wake(may_enter=True)

    def block(self) -> None:
        """Nobody is let in, and nobody waits for it."""
        with self._guard:
            self._is_blocked = True
            while self._waiting:
                self._waiting.popleft().wake(may_enter=False)


class Passage:
    """The way through, of one who was let in. It is left once, by whoever says so first."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._is_over = False

    def leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._turnstile.let_in()

    def leave_behind(self, task: asyncio.Task[object]) -> None:
        """Go without being done: nobody enters before `task` has ended."""
        self._is_over = True
        self._turnstile.block()
        task.add_done_callback(lambda _: self._turnstile.let_in())


_known: WeakValueDictionary[Hashable, Turnstile] = WeakValueDictionary()
_finding = threading.Lock()


def turnstile_of(key: Hashable) -> Turnstile:
    """The same for all who ask with the same key, as long as one of them holds it."""
    with _finding:
        return _known.setdefault(key, Turnstile())
