"""Looking after backends: their lists of models come again and again, and one that is lost is found when it is back.

Nothing here waits in a task of its own: a timer is all there is between two looks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeAlias, TypeVar

from antwort.concurrency import stop
from antwort.providers.member import Member

_log = logging.getLogger("antwort.providers")

FIRST_PAUSE = 1.0
"""Seconds until a lost backend is looked for; the next pauses double."""
_GRACE = 1.0
T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> None: ...


Later: TypeAlias = Callable[[float, Callable[[], None]], Timer]


def call_later(seconds: float, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, call, context=Context())


class Watch:
    """Looks at the members every `refresh` seconds once it has begun, and at lost ones every `health` seconds."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        refresh: float,
        health: float,
        clock: Callable[[], float] = time.monotonic,
        later: Later = call_later,
    ) -> None:
        self._members = members
        self._refresh, self._health = refresh, health
        self._clock, self._later = clock, later
        self._timers: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._round: asyncio.Task[None] | None = None
        self._last_round = float("-inf")
        self._is_closed = False

    def begin(self) -> None:
        """Look at all, now and from now on. Nobody waits for it."""
        self._look_at_all()
        self._set_timer("", self._refresh, self.begin)

    async def catch_up(self, oldest: float, patience: float) -> None:
        """Wait, but not beyond `patience`, for a look at all that is under way, or due: the last is that old."""
        self.refresh(oldest)
        if self._round is not None:
            await asyncio.wait({self._round}, timeout=patience)

    def refresh(self, oldest: float) -> None:
        """Look at all if the last look is that old. Nobody waits for it."""
        if self._round is None and self._clock() - self._last_round >= oldest:
            self._look_at_all()

    def worry(self, member: Member, pause: float = FIRST_PAUSE) -> None:
        """Look after a lost member until it is back; one whose health check is due is looked at now. There is one timer
        for each, which stays until its look has ended.
        """
        is_due = bool(member.breakers.suspects)
        if not (is_due or member.is_out_of_reach) or member.name in self._timers:
            return

        def again() -> None:
            self.start(self._look(member, pause if is_due else 2 * pause, timer=member.name))

        self._set_timer(member.name, 0 if is_due else min(pause, self._health), again)

    async def close(self) -> None:
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await stop(self._tasks, _GRACE)

    # ---- within ----

    def _look_at_all(self) -> None:
        if self._round is None and not self._is_closed:
            self._round = self.start(self._look_around())

    async def _look_around(self) -> None:
        try:
            # Those that are lost are looked for anyway: nobody is to wait for them.
            await asyncio.gather(*(self._look(member) for member in self._members if member.name not in self._timers))
            self._last_round = self._clock()
        finally:
            self._round = None

    async def _look(self, member: Member, next_pause: float = FIRST_PAUSE, timer: str | None = None) -> None:
        try:
            await member.look()
        except Exception:
            _log.exception("looking after the backend %s failed", member.name)
            member.breakers.suspects.clear()
        if timer is not None:
            self._timers.pop(timer, None)
        self.worry(member, next_pause)

    def _set_timer(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if (old := self._timers.pop(name, None)) is not None:
            old.cancel()
        if not self._is_closed:
            self._timers[name] = self._later(seconds, call)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that ends with the watch at the latest. It works for nobody's request, whoever's started it: what is
        logged there carries no request's id.
        """
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
