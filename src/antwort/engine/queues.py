"""Who may take a turn in a conversation: one request at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from antwort.errors import ConversationLocked, ShuttingDown

Name: TypeAlias = tuple[str, str, str]
"""Tenant, owner, id of the conversation."""


class Place:
    """A place in the queue of a conversation. Its turn comes, and is held until the place is given up."""

    __slots__ = ("_coming", "_leave", "_loop")

    def __init__(self, leave: Callable[[], None], coming: asyncio.Future[bool] | None = None) -> None:
        """What is `coming` is the turn, where it has not come yet."""
        self._loop = asyncio.get_running_loop()
        self._leave: Callable[[], None] | None = leave
        self._coming = coming

    async def turn(self, seconds: float) -> None:
        """Wait for it. Who stops waiting has left the queue.

        Raises `ConversationLocked` when it takes longer than `seconds`, and `ShuttingDown`.
        """
        try:
            async with asyncio.timeout(seconds):
                is_mine = self._coming is None or await self._coming
        except BaseException as exc:
            self.give_up()
            if isinstance(exc, TimeoutError):
                raise ConversationLocked from exc
            raise
        if not is_mine:
            self.give_up()
            raise ShuttingDown

    def give_up(self) -> None:
        """The next request may go on. Only the first time counts."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def __del__(self) -> None:
        """Who drops a plan instead of launching it holds nobody up. That may be noticed in any thread."""
        if self._leave is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._leave)


class Queues:
    """One for each engine. A conversation has a queue as long as somebody has its turn."""

    def __init__(self) -> None:
        self._waiting: dict[Name, deque[asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        """How many conversations are being added to."""
        return len(self._waiting)

    def join(self, name: Name) -> Place:
        """The place behind all who are there."""
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
            return Place(partial(self._pass_on, name))
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        return Place(partial(self._leave, name, mine), mine)

    def _leave(self, name: Name, mine: asyncio.Future[bool]) -> None:
        waiting = self._waiting.get(name, ())
        if mine.done() and not mine.cancelled() and mine.result():  # it may have come while nobody waited for it
            self._pass_on(name)
        elif mine in waiting:
            self._waiting[name].remove(mine)

    def _pass_on(self, name: Name) -> None:
        waiting = self._waiting[name]
        while waiting:
            first = waiting.popleft()
            if not first.done():  # else it has just stopped waiting
                first.set_result(True)
                return
        del self._waiting[name]

    def close(self) -> None:
        """Nobody's turn comes any more."""
        for waiting in self._waiting.values():
            for each in waiting:
                if not each.done():
                    each.set_result(False)
            waiting.clear()
