"""Interrupt a task with a reason, share a value that comes later, and run coroutines with limits on their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import coroutine
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
CANCEL_SECONDS = 1.0


class Signal:
    """Ask one task to stop, without cancelling it: the `race` that it awaits is interrupted, and raises the reason.

    A task that is not in a `race` gets the reason from its next one. So it can close what it has open, and end.
    """

    reason: Exception | None = None
    """Why the task is to stop, once the signal is set."""
    stops_after_step = False
    """Whether it is to stop when it has ended its current step, which is not interrupted."""
    task: asyncio.Task[Any] | None = None
    """The task that calls `race`, if it is always the same one; None: it is looked up for each call."""
    _fired: asyncio.Event | None = None
    _waiting: asyncio.Task[Any] | None = None
    _has_cancelled = False

    @property
    def fired(self) -> asyncio.Event:
        """An event that is set with the signal. It is created when it is first used."""
        if self._fired is None:
            self._fired = asyncio.Event()
            if self.reason is not None:
                self._fired.set()
        return self._fired

    def set(self, reason: Exception) -> None:
        """Interrupt the task. Only the first reason counts."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._fired is not None:
            self._fired.set()
        if self._waiting is not None:
            self._has_cancelled = True
            self._waiting.cancel()

    async def race(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return what `start()` returns. If the signal is set first, cancel it and raise the reason."""
        if self.reason is not None:
            raise self.reason
        task = self.task or asyncio.current_task()
        assert task is not None, "race is for tasks"
        self._waiting = task
        try:
            return await start()
        except (asyncio.CancelledError, Exception) as error:
            # The reason replaces any error, because the cancellation may have caused it; not if the task was cancelled
            # by others, too.
            if self._has_cancelled and task.cancelling() == 1 and self.reason is not None:
                raise self.reason from (None if isinstance(error, asyncio.CancelledError) else error)
            raise
        finally:
            self._waiting = None
            if self._has_cancelled:
                self._has_cancelled = False
                task.uncancel()


class Once(Generic[T]):
    """A value or an error that is set once, and that any number of tasks can await.

    Unlike a future, it is not affected by the cancellation of a task that awaits it.
    """

    is_set = False
    _value: T
    error: Exception | None = None
    """What was set in place of the value."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the tasks that wait, if it is known: on Python 3.11, each lookup is a system call."""
    _waiters: tuple[asyncio.Future[None], ...] = ()

    def set(self, value: T) -> None:
        """Set the value. Only what is set first counts."""
        if self.is_set:
            return
        self._value = value
        self.is_set = True
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Set an error, which `wait` raises. Only what is set first counts."""
        if not self.is_set:
            self.error = error
            self.set(cast("T", None))

    async def wait(self) -> T:
        """Return the value as soon as it is set."""
        while not self.is_set:
            waiter = (self.loop or asyncio.get_running_loop()).create_future()
            self._waiters += (waiter,)
            await waiter
        if self.error is not None:
            raise self.error
        return self._value


def backoff(first: float = 0.05, most: float = 2.0) -> Iterator[float]:
    """Yield the pauses between retries in seconds: each is twice the one before, up to `most`."""
    pause = first
    while True:
        yield min(pause, most)
        pause = min(2 * pause, most)


async def stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> set[asyncio.Task[Any]]:
    """Cancel the tasks, wait at most `grace` seconds for them, and return those that have not ended."""
    waiting = {task for task in tasks if not task.done()}
    for task in waiting:
        task.cancel()
    if not waiting:
        return set()
    _, late = await asyncio.wait(waiting, timeout=grace)
    return late


async def side_by_side(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order. The first error cancels the others and is raised
    as it is. Coroutines that ignore being cancelled are waited for no longer than `CANCEL_SECONDS`.
    """
    if len(work) <= 1:
        return [await each for each in work]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stop(tasks, CANCEL_SECONDS)


async def within(seconds: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with a timeout of `seconds()`. Work that never waits costs no timer: it is started first, and the
    timeout is set when it waits for the first time.
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
    """Continue a coroutine that was started with `send` and has yielded `waits`."""
    try:
        while True:
            try:
                sent = yield waits
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                waits = work.throw(error)
            else:
                waits = work.send(sent)
    except StopIteration as done:
        value: T = done.value
        return value
