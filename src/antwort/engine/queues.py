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
    """The turn in a conversation, held until it is given up."""

    __slots__ = ("_leave", "_loop")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave: Callable[[], None] | None = leave

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

    async def take(self, name: Name, seconds: float) -> Place:
        """The turn, once it has come. Who stops waiting leaves the queue.

        Raises `ConversationLocked` when it takes longer than `seconds`, and `ShuttingDown`.
        """
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
        else:
            await self._wait(name, waiting, seconds)
        return Place(partial(self._pass_on, name))

    async def _wait(self, name: Name, waiting: deque[asyncio.Future[bool]], seconds: float) -> None:
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        try:
            async with asyncio.timeout(seconds):
                is_mine = await mine
        except BaseException as exc:
            if mine.done() and not mine.cancelled() and mine.result():
                self._pass_on(name)  # it came in the moment in which it was not waited for any more
            elif mine in waiting:
                waiting.remove(mine)
            if isinstance(exc, TimeoutError):
                raise ConversationLocked from exc
            raise
        if not is_mine:
            raise ShuttingDown

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
