"""Check the health of backends, and refresh their lists of models, in the background.

Between checks there is a timer, but no task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeAlias, TypeVar

from antwort.concurrency import backoff, stop
from antwort.errors import AntwortError, BackendUnavailable
from antwort.providers.member import Member
from antwort.providers.retry_policy import most_useful_error

_log = logging.getLogger("antwort.providers")

FIRST_CHECK_DELAY_SECONDS = 1.0
"""Until a backend that became unreachable is checked; the next delays double."""
READINESS_TTL_SECONDS = 1.0
"""For which the outcome of `check_ready` is cached."""
_STOP_GRACE_SECONDS = 1.0
T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]


def call_later(seconds: float, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, call, context=Context())


class HealthMonitor:
    """Refresh all members every `refresh` seconds after `start`, and check unreachable ones every `health` seconds."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        refresh: float,
        health: float | None,
        clock: Callable[[], float] = time.monotonic,
        later: CallLater = call_later,
    ) -> None:
        self._members = members
        self._refresh_seconds, self._health_seconds = refresh, health
        self._clock, self._later = clock, later
        self._timers: dict[str, Timer] = {}
        """By the name of the member; that of the next refresh of all has the empty name."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = float("-inf")
        self._checking: asyncio.Task[AntwortError | None] | None = None
        self._checked_at = float("-inf")
        self._is_closed = False

    def start(self) -> None:
        """Refresh all, now and from now on. Returns at once."""
        self._refresh_all()
        self._set_timer("", self._refresh_seconds, self.start)

    async def close(self) -> None:
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await stop(self._tasks, _STOP_GRACE_SECONDS)

    # ---- lists of models ----

    def refresh(self, oldest: float) -> None:
        """Begin to refresh all if the last refresh is that many seconds old."""
        if self._refreshing is None and self._clock() - self._refreshed_at >= oldest:
            self._refresh_all()

    async def wait_for_refresh(self, oldest: float, timeout: float) -> None:
        """Wait for a refresh of all that is under way, or due because the last is that old; at most for `timeout`."""
        self.refresh(oldest)
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing}, timeout=timeout)

    def _refresh_all(self) -> None:
        async def refresh_all() -> None:
            try:
                # Unreachable ones have timers of their own, so that the others do not wait for them.
                reachable = [member for member in self._members if member.name not in self._timers]
                await asyncio.gather(*map(self._refresh, reachable))
                self._refreshed_at = self._clock()
            finally:
                self._refreshing = None

        if self._refreshing is None and not self._is_closed:
            self._refreshing = self._start(refresh_all())

    # ---- health of one member ----

    def watch(self, member: Member, pauses: Iterator[float] | None = None) -> None:
        """Check an unreachable member until it recovers; one whose health check is due is checked now. Each has
        one timer, which stays until its check has ended. `pauses` are those before the next checks.
        """
        is_due = bool(member.breakers.awaiting_check)
        if self._health_seconds is None or not (is_due or member.is_unreachable) or member.name in self._timers:
            return

        pauses = pauses or backoff(FIRST_CHECK_DELAY_SECONDS, self._health_seconds)

        def check() -> None:
            self._start(self._refresh(member, pauses))

        self._set_timer(member.name, 0 if is_due else next(pauses), check)

    async def _refresh(self, member: Member, pauses: Iterator[float] | None = None) -> None:
        """`pauses` are those of its timer, if that has called."""
        try:
            await member.refresh()
        except Exception:
            _log.exception("looking after the backend %s failed", member.name)
            member.breakers.awaiting_check.clear()
        if pauses is not None:
            self._timers.pop(member.name, None)
        self.watch(member, pauses)

    # ---- readiness ----

    async def check_ready(self) -> None:
        """Raise `BackendUnavailable` unless one member takes inferences. All are checked, once for all that ask."""
        if self._checking is None or (
            self._checking.done() and self._clock() - self._checked_at >= READINESS_TTL_SECONDS
        ):
            self._checking = self._start(self._check_all())
        checking = self._checking
        await asyncio.wait({checking})  # a caller that is cancelled does not cancel it for the others
        problem = BackendUnavailable("The server is about to stop.") if checking.cancelled() else checking.result()
        if problem is not None:
            raise problem.with_traceback(None)

    async def _check_all(self) -> AntwortError | None:
        """Return None as soon as one is healthy, else the most useful error. The other checks go on to their end."""

        async def check(member: Member) -> AntwortError | None:
            try:
                await member.check()
            except AntwortError as error:
                self.watch(member)
                return error
            return None

        under_way = {self._start(check(member)) for member in self._members}
        problems: list[AntwortError] = []
        while under_way:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            self._checked_at = self._clock()
            for each in done:
                if (problem := each.result()) is None:
                    return None
                problems.append(problem)
        return most_useful_error(problems)

    # ---- timers and tasks ----

    def _set_timer(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if (old := self._timers.pop(name, None)) is not None:
            old.cancel()
        if not self._is_closed:
            self._timers[name] = self._later(seconds, call)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends with the monitor at the latest. Its context is empty: what it logs carries no id of
        the request that happened to start it.
        """
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
