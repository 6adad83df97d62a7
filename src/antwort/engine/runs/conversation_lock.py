"""Let one request at a time take a turn in a conversation, first come first served.

That is for requests in the foreground. Background runs of a conversation are ordered by `RunLog.claim`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antwort.concurrency import backoff
from antwort.errors import ConversationLocked, ShuttingDown

ConversationKey: TypeAlias = tuple[str, str, str]
"""Tenant, owner, id of the conversation."""

FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.25
"""Between two checks whether runs of the log still come first."""


class LockRequest:
    """A place in the queue of a conversation's lock. It holds the lock from its turn until it is released.

    Where the conversation `is_busy`, runs of the log go first: background runs of the conversation, here or in other
    processes. The place in the queue is given up meanwhile, as such a run may wait behind it.
    """

    __slots__ = ("_is_busy", "_is_queued", "_key", "_locks", "_loop", "_turn")

    def __init__(
        self, locks: ConversationLocks, key: ConversationKey, is_busy: Callable[[], Awaitable[bool]] | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._locks, self._key, self._is_busy = locks, key, is_busy
        self._enqueue()

    def _enqueue(self) -> None:
        self._turn, self._is_queued = self._locks.enqueue(self._key), True

    async def acquire(self, seconds: float) -> None:
        """Wait for the lock. A caller that stops waiting has left the queue.

        Raises `ConversationLocked` when it takes longer than `seconds`, and `ShuttingDown`.
        """
        until = self._loop.time() + seconds
        await self._wait_for_turn(seconds)
        while self._is_busy is not None and await self._is_busy():
            self.release()
            pauses = backoff(FIRST_POLL_SECONDS, MAX_POLL_SECONDS)
            while await self._is_busy():
                if (left := until - self._loop.time()) <= 0:
                    raise ConversationLocked
                await asyncio.sleep(min(next(pauses), left))
            self._enqueue()
            await self._wait_for_turn(max(until - self._loop.time(), 0.0))

    async def _wait_for_turn(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                is_mine = self._turn is None or await self._turn
        except BaseException as exc:
            self.release()
            if isinstance(exc, TimeoutError):
                raise ConversationLocked from exc
            raise
        if not is_mine:
            self.release()
            raise ShuttingDown

    def release(self) -> None:
        """Let the next request continue. Only the first call counts."""
        if self._is_queued:
            self._is_queued = False
            self._locks.leave(self._key, self._turn)

    def __del__(self) -> None:
        """Release the lock of a plan that is dropped instead of launched. It may be collected in any thread."""
        if self._is_queued:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no request waits any more
                self._loop.call_soon_threadsafe(self._locks.leave, self._key, self._turn)


class ConversationLocks:
    """The locks of an engine. A conversation has a queue while its lock is taken."""

    def __init__(self) -> None:
        self._waiting: dict[ConversationKey, deque[asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        """How many locks are taken."""
        return len(self._waiting)

    def request(self, key: ConversationKey, is_busy: Callable[[], Awaitable[bool]] | None = None) -> LockRequest:
        """Join the queue behind all that are there. `is_busy` says whether the log has runs of the conversation that
        have not ended.
        """
        return LockRequest(self, key, is_busy)

    def enqueue(self, key: ConversationKey) -> asyncio.Future[bool] | None:
        """Return the turn of one more request, None where it has come at once. False: it never comes."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return None
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        return turn

    def leave(self, key: ConversationKey, turn: asyncio.Future[bool] | None) -> None:
        """Take a request out of the queue, and pass the lock on where it was that one's turn."""
        waiting = self._waiting.get(key, deque())
        if turn is None or (turn.done() and not turn.cancelled() and turn.result()):
            while waiting:
                first = waiting.popleft()
                if not first.done():  # else it has just stopped waiting
                    first.set_result(True)
                    return
            self._waiting.pop(key, None)
        elif turn in waiting:
            waiting.remove(turn)

    def close(self) -> None:
        """Refuse all requests that wait, as the engine closes."""
        for waiting in self._waiting.values():
            for each in waiting:
                if not each.done():
                    each.set_result(False)
            waiting.clear()
