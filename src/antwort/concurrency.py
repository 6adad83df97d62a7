"""The few moves of concurrency that the loop needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from time import perf_counter
from types import coroutine
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from antwort.identity import TENANT

T = TypeVar("T")
_BREAKING_OFF = 1.0
_LONG_SECONDS = 0.005
"""Work that takes longer lets others have their turn."""
SHORT_PER_TURN = 32
"""Pieces of work that a tenant may begin in one turn of the event loop, where each takes about 0.2 ms."""


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
    _value: T | None = None
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
        return cast("T", self._value)

    def _wake(self) -> None:
        self.is_set = True
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Turns:
    """Share the event loop between tenants.

    In one turn of the event loop a tenant begins `SHORT_PER_TURN` short pieces of work. The others wait for the next
    turns, in order: hundreds of requests that come at once do not keep everybody else waiting for as long as they all
    take. Of all long pieces that wait, one is done in a turn, and tenants alternate.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun: dict[str, int] = {}
        """Short pieces of each tenant in the current turn."""
        self._short: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._long: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_counting = False

    def begin_short(self, tenant: str, cost: int = 1) -> asyncio.Future[None] | None:
        """Return None where work may begin at once that takes as long as `cost` short pieces, else what to wait for."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next_turn)
        begun = self._begun.get(tenant, 0)
        if begun < SHORT_PER_TURN and tenant not in self._short:
            self._begun[tenant] = begun + cost
            return None
        place: asyncio.Future[None] = self._loop.create_future()
        self._short.setdefault(tenant, deque()).append((cost, place))
        return place

    def begin_long(self, tenant: str) -> asyncio.Future[None]:
        """Return what to wait for before a long piece of work: a later turn."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next_turn)
        place: asyncio.Future[None] = self._loop.create_future()
        self._long.setdefault(tenant, deque()).append(place)
        return place

    def _next_turn(self) -> None:
        self._begun.clear()
        for tenant in [*self._short]:
            begun, places = 0, self._short[tenant]
            while places and begun < SHORT_PER_TURN:
                cost, place = places.popleft()
                begun += _wake(place) * cost
            if not places:
                del self._short[tenant]
            self._begun[tenant] = begun
        has_begun = False
        while self._long and not has_begun:
            tenant = next(iter(self._long))
            waiting = self._long.pop(tenant)
            has_begun = _wake(waiting.popleft())
            if waiting:
                self._long[tenant] = waiting  # behind all other tenants
        self._is_counting = bool(self._begun or has_begun)
        if self._is_counting:
            self._loop.call_soon(self._next_turn)


def _wake(place: asyncio.Future[None]) -> bool:
    """Return whether somebody waits for it still."""
    if place.done():
        return False
    place.set_result(None)
    return True


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turns(loop)
    return found


async def short_turn(cost: int) -> None:
    """Let others have their turn, and wait until the current tenant may do work that takes as long as `cost` short
    pieces.
    """
    place = turns().begin_short(TENANT.get(), cost)
    await (asyncio.sleep(0) if place is None else place)


async def next_turn() -> None:
    """Wait until the current tenant may do a long piece of work: in a later turn of the event loop."""
    await turns().begin_long(TENANT.get())


async def stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> set[asyncio.Task[Any]]:
    """Cancel the tasks and wait at most `grace` seconds; gives those that would not end."""
    waiting = {task for task in tasks if not task.done()}
    for task in waiting:
        task.cancel()
    if not waiting:
        return set()
    _, late = await asyncio.wait(waiting, timeout=grace)
    return late


class Pace:
    """Lets others have their turn between pieces of work, where those take long."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = perf_counter()

    async def pause(self) -> None:
        if perf_counter() - self._began > _LONG_SECONDS:
            await next_turn()
            self._began = perf_counter()


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What the steps lead to. Where they take long, others get their turn between them."""
    began = perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        if perf_counter() - began > _LONG_SECONDS:
            await next_turn()
            began = perf_counter()


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
        return cast("T", done.value)
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
        return cast("T", done.value)
