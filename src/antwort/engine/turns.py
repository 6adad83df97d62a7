"""A turn in a conversation that is also added to in the background, by this process or by others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antwort.engine.queues import Name, Place, Queues
from antwort.errors import ConversationLocked

IsBusy: TypeAlias = Callable[[], Awaitable[bool]]

_SOON, _LATER = 0.02, 0.25
"""Seconds until it is looked again, at first and in the end."""


class Turn:
    """A place in the queue of this process, given up for as long as runs in the background come first: they may be
    waiting behind it.
    """

    def __init__(self, queues: Queues, name: Name, is_busy: IsBusy) -> None:
        self._queues, self._name, self._is_busy = queues, name, is_busy
        self.place = queues.join(name)

    async def turn(self, seconds: float) -> None:
        """As `Place.turn`, and until no run in the background is left that was there before."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        await self.place.turn(seconds)
        while await self._is_busy():
            self.place.give_up()
            await self._until_quiet(until)
            self.place = self._queues.join(self._name)
            await self.place.turn(max(until - clock(), 0.0))

    async def _until_quiet(self, until: float) -> None:
        pause = _SOON
        while await self._is_busy():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise ConversationLocked
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LATER)

    def give_up(self) -> None:
        self.place.give_up()


Waits: TypeAlias = Place | Turn
