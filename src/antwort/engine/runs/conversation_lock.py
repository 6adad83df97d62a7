"""Let one request at a time take a turn in a conversation, in the order in which they came."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from antwort.errors import ConversationLocked, ShuttingDown

ConversationKey: TypeAlias = tuple[str, str, str]
"""Tenant, owner, id of the conversation."""

FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.25
"""Between two checks whether runs of the log still come first."""


class LockRequest:
    """A place in the queue of a conversation's lock. It holds the lock from its turn until it is released."""

    __slots__ = ("_acquired", "_loop", "_release")

    def __init__(self, release: Callable[[], None], acquired: asyncio.Future[bool] | None = None) -> None:
        """`acquired` is the turn, where it has not come yet; False: it never will."""
        self._loop = asyncio.get_running_loop()
        self._release: Callable[[], None] | None = release
        self._acquired = acquired

    async def acquire(self, seconds: float) -> None:
        """Wait for the lock. A caller that stops waiting has left the queue.

        Raises `ConversationLocked` when it takes longer than `seconds`, and `ShuttingDown`.
        """
        try:
            async with asyncio.timeout(seconds):
                is_mine = self._acquired is None or await self._acquired
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
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        """A plan that is dropped instead of launched holds nobody up. It may be collected in any thread."""
        if self._release is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._release)


class ConversationLocks:
    """The locks of an engine. A conversation has a queue as long as its lock is held."""

    def __init__(self) -> None:
        self._waiting: dict[ConversationKey, deque[asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        """How many locks are held."""
        return len(self._waiting)

    def request(self, key: ConversationKey) -> LockRequest:
        """Join the queue behind all that are there."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return LockRequest(partial(self._pass_on, key))
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        return LockRequest(partial(self._leave, key, mine), mine)

    def _leave(self, key: ConversationKey, mine: asyncio.Future[bool]) -> None:
        waiting = self._waiting.get(key, ())
        if mine.done() and not mine.cancelled() and mine.result():  # it may have come while nobody waited for it
            self._pass_on(key)
        elif mine in waiting:
            self._waiting[key].remove(mine)

    def _pass_on(self, key: ConversationKey) -> None:
        waiting = self._waiting[key]
        while waiting:
            first = waiting.popleft()
            if not first.done():  # else it has just stopped waiting
                first.set_result(True)
                return
        del self._waiting[key]

    def close(self) -> None:
        """Give nobody the lock any more."""
        for waiting in self._waiting.values():
            for each in waiting:
                if not each.done():
                    each.set_result(False)
            waiting.clear()


class SharedLockRequest:
    """A lock request that also lets runs of the log go first: background runs of the conversation, here or in other
    processes. Its place in the queue is given up meanwhile, as such a run may wait behind it.
    """

    def __init__(self, locks: ConversationLocks, key: ConversationKey, is_busy: Callable[[], Awaitable[bool]]) -> None:
        """`is_busy` says whether the log has runs of the conversation that have not ended."""
        self._locks, self._key, self._is_busy = locks, key, is_busy
        self.local = locks.request(key)

    async def acquire(self, seconds: float) -> None:
        """As `LockRequest.acquire`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        await self.local.acquire(seconds)
        while await self._is_busy():
            self.local.release()
            await self._wait_until_idle(until)
            self.local = self._locks.request(self._key)
            await self.local.acquire(max(until - clock(), 0.0))

    async def _wait_until_idle(self, until: float) -> None:
        pause = FIRST_POLL_SECONDS
        while await self._is_busy():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise ConversationLocked
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, MAX_POLL_SECONDS)

    def release(self) -> None:
        self.local.release()


ConversationLock: TypeAlias = LockRequest | SharedLockRequest
