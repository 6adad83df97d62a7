"""Not waiting for ever for a client that does not take what is left for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol


class Lingering(Protocol):
    @property
    def is_behind(self) -> bool: ...

    def linger(self) -> None: ...


class Patience:
    """With the client of a run: a slow one has all the time that the run takes, and is waited for less when the run has
    `ended`.
    """

    __slots__ = ("_ended", "_ending", "_line")

    def __init__(self, line: Lingering, ended: Callable[[], Awaitable[None]]) -> None:
        self._line, self._ended = line, ended
        self._ending: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Before something is written that may have to wait."""
        if not self._line.is_behind:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._wait())
        elif self._ending.done():
            self._line.linger()

    async def _wait(self) -> None:
        await self._ended()
        self._line.linger()

    def end(self) -> None:
        if self._ending is not None:
            self._ending.cancel()


class Lingers:
    """A part of a protocol that writes to a transport."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _resumed = 0
    _lingering: asyncio.TimerHandle | None = None

    @property
    def is_behind(self) -> bool:
        """Whether a write would wait for the client."""
        raise NotImplementedError

    @property
    def is_ending(self) -> bool:
        """Whether nothing more will be written."""
        return self.transport.is_closing()

    def linger(self, seconds: float) -> None:
        """Hang up when the client takes nothing of what is left for so long.

        A little that an open connection has left is looked at when the connection has been idle for long.
        """
        if self._lingering is None and (self.is_behind or self.is_ending):
            self._look_again(seconds)

    def abort(self) -> None:
        """Hang up now, whatever is unsent."""
        self.transport.abort()

    def has_resumed(self) -> None:
        """The client has taken something."""
        self._resumed += 1

    def stop_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _look_again(self, seconds: float) -> None:
        if left := self.transport.get_write_buffer_size():
            self._lingering = self.loop.call_later(seconds, self._look, seconds, (self._resumed, left))

    def _look(self, seconds: float, before: tuple[int, int]) -> None:
        """The size alone would not do: what was taken may have been replaced by as much."""
        self._lingering = None
        if (self._resumed, self.transport.get_write_buffer_size()) == before:
            self.abort()
        else:
            self._look_again(seconds)
