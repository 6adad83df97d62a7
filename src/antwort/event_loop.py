"""Share the event loop fairly between tenants.

Work that may take long is done in pieces, with a wait for the next turn of the event loop between them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import TypeVar
from weakref import WeakKeyDictionary

from antwort.identity import TENANT

T = TypeVar("T")

_LONG_SECONDS = 0.005
"""Work that takes longer yields to others."""
SHORT_PER_TURN = 32
"""Pieces of work that a tenant may begin in one turn of the event loop, where each takes about 0.2 ms."""


class Turns:
    """Share the event loop between tenants.

    In one turn of the event loop a tenant begins at most `SHORT_PER_TURN` short pieces of work. Further ones wait for
    the next turns, in order, so that a burst of requests of one tenant does not block the others. Of all long pieces
    that wait, one is done in a turn, and tenants alternate.
    """

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        """Short pieces of each tenant in the current turn."""
        self._short: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._long: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_counting = False

    def begin_short(self, tenant: str, cost: int = 1) -> asyncio.Future[None] | None:
        """Return None if work that takes as long as `cost` short pieces may begin at once, otherwise what to await."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        begun = self._begun.get(tenant, 0)
        if begun < SHORT_PER_TURN and tenant not in self._short:
            self._begun[tenant] = begun + cost
            return None
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._short.setdefault(tenant, deque()).append((cost, place))
        return place

    def begin_long(self, tenant: str) -> asyncio.Future[None]:
        """Return what to await before a long piece of work: a later turn."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
            asyncio.get_running_loop().call_soon(self._next_turn)


def _wake(place: asyncio.Future[None]) -> bool:
    """Return whether the future is still awaited."""
    if place.done():
        return False
    place.set_result(None)
    return True


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
_latest: tuple[asyncio.AbstractEventLoop, Turns] | None = None
"""The turns of the event loop that asked last: a process usually has one event loop."""


def turns() -> Turns:
    """Return the turns of the running event loop."""
    global _latest
    loop = asyncio.get_running_loop()
    if _latest is None or _latest[0] is not loop:
        _latest = loop, _turns.setdefault(loop, Turns())
    return _latest[1]


async def short_turn(cost: int) -> None:
    """Yield to others, and wait until the current tenant may do work that takes as long as `cost` short pieces."""
    place = turns().begin_short(TENANT.get(), cost)
    await (asyncio.sleep(0) if place is None else place)


async def next_turn() -> None:
    """Wait for the turn of the event loop in which the current tenant may do a long piece of work."""
    await turns().begin_long(TENANT.get())


class Pace:
    """Yield to others between pieces of work that take long."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def pause(self) -> None:
        """Wait for the next turn if the work since the last one has taken long."""
        if time.perf_counter() - self._began > _LONG_SECONDS:
            await next_turn()
            self._began = time.perf_counter()


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run steps and return their result; yield to others between steps that take long."""
    began = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        if time.perf_counter() - began > _LONG_SECONDS:
            await next_turn()
            began = time.perf_counter()
