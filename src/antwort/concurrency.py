"""The few moves of concurrency that the loop needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_BREAKING_OFF = 1.0


class Signal:
    """Tells one task to stop. Whatever that task awaits inside `race` is broken off, and the reason raised there.

    The task itself is never cancelled from outside: it learns at its next wait, closes what it has open, and ends.
    """

    reason: Exception | None = None
    """Why it is to stop, once that was said."""
    task: asyncio.Task[Any] | None = None
    """The one that waits here, where it is always the same. Else it is looked up for each wait."""
    _fired: asyncio.Event | None = None
    _waiting: asyncio.Task[Any] | None = None
    _kicked = False

    @property
    def fired(self) -> asyncio.Event:
        """Set with the signal. Made for those who ask."""
        if self._fired is None:
            self._fired = asyncio.Event()
            if self.reason is not None:
                self._fired.set()
        return self._fired

    def set(self, reason: Exception) -> None:
        """Only the first reason counts."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._fired is not None:
            self._fired.set()
        if self._waiting is not None:
            self._kicked = True
            self._waiting.cancel()

    async def race(self, start: Callable[[], Awaitable[T]]) -> T:
        """What `start()` gives, unless the signal comes first; then the reason is raised."""
        if self.reason is not None:
            raise self.reason
        self._waiting = task = self.task or _this_task()
        try:
            return await start()
        except (asyncio.CancelledError, Exception) as broken:
            # Ours only when the signal asked for it and nobody else cancelled the task as well. What the break made of
            # it on the way, an error or the end of a generator, is not what happened.
            if self._kicked and task.cancelling() == 1 and self.reason is not None:
                raise self.reason from (None if isinstance(broken, asyncio.CancelledError) else broken)
            raise
        finally:
            self._waiting = None
            if self._kicked:
                self._kicked = False
                task.uncancel()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "race is for tasks"
    return task


class Once(Generic[T]):
    """A value, or an error, that comes once and that any number may wait for. One who stops waiting disturbs nobody."""

    is_set = False
    _value: T
    error: Exception | None = None
    """What has come in place of the value."""
    _waiters: tuple[asyncio.Future[None], ...] = ()

    def set(self, value: T) -> None:
        """Only what comes first counts."""
        if not self.is_set:
            self._value = value
            self._wake()

    def fail(self, error: Exception) -> None:
        if not self.is_set:
            self.error = error
            self._wake()

    async def wait(self) -> T:
        while not self.is_set:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters += (waiter,)
            await waiter
        if self.error is not None:
            raise self.error
        return self._value

    def _wake(self) -> None:
        self.is_set = True
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def backoff(first: float, most: float) -> Iterator[float]:
    """Yield the pauses between retries in seconds: each is twice the one before, up to `most`."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, most)


async def stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> set[asyncio.Task[Any]]:
    """Cancel the tasks and wait at most `grace` seconds; gives those that would not end."""
    waiting = {task for task in tasks if not task.done()}
    for task in waiting:
        task.cancel()
    if not waiting:
        return set()
    _, late = await asyncio.wait(waiting, timeout=grace)
    return late


async def side_by_side(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them gives, in their order. The first error is raised, and the others are broken off."""
    if not work:
        return []
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stop(tasks, _BREAKING_OFF)


async def within(seconds: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """What it gives, unless it takes longer; then `TimeoutError` is raised. It is begun right here: what does not have
    to wait needs no clock, and `seconds` is not asked for.
    """
    try:
        waits = work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    async with asyncio.timeout(seconds()):
        return await rest_of(work, waits)


@coroutine
def rest_of(work: Coroutine[Any, Any, T], waits: Any) -> Generator[Any, Any, T]:
    """The rest of what was begun, and waits for that: all that it is told goes on to it."""
    try:
        while True:
            try:
                told = yield waits
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                waits = work.throw(error)
            else:
                waits = work.send(told)
    except StopIteration as done:
        value: T = done.value
        return value
