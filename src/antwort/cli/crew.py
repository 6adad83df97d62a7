"""`antwort serve --workers N`: a process that serves nothing itself, and keeps N that do.

It holds the port, so that no client is refused while one of them is away. It starts them, and others in the place of
those that are lost; it tells them to stop, and on SIGHUP lets new ones take their places, one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from antwort.cli.berth import Order, Ready
from antwort.cli.say import complain, say
from antwort.cli.seats import Lost, Member, Seat, Unborn
from antwort.cli.signals import STOPS
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.config.settings import Settings

_log = logging.getLogger("antwort.cli")
_KILL_AFTER = 10.0
"""Seconds that workers get to leave when they are told to leave at once."""
LAST_STEPS_SECONDS = 20.0
_IN_ORDER = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""Exit statuses of those that were told to stop: the signals, before they had begun."""
_HELD = ("host", "port", "workers")
"""What of `server` is not a worker's, but of the process that holds the port."""


async def lead(settings: Settings, given: Mapping[str, object]) -> int:
    """Until a signal says to stop; the exit status. Raises `CannotStart`."""
    from antwort.cli.greeting import headline, written
    from antwort.cli.listening import listen_to_clients

    if os.name == "nt":
        raise CannotStart("Several workers are not to be had on Windows: start one server.")
    with listen_to_clients(settings) as front:
        crew = Crew(front, given, settings)
        crew.heed_signals()
        try:
            rows = await crew.begin()
            say(headline(settings, front.getsockname()[1]), *written(rows))
            return await crew.work()
        except Lost as lost:
            return await crew.give_up(lost)
        finally:
            crew.ignore_signals()


class Crew:
    """All of them. Beside notice and drain they have `last_steps_seconds` when they are told to leave in order."""

    def __init__(
        self,
        front: socket.socket,
        given: Mapping[str, object],
        settings: Settings,
        *,
        last_steps_seconds: float = LAST_STEPS_SECONDS,
    ) -> None:
        self.front, self._last_steps_seconds = front, last_steps_seconds
        self._given, self._settings = dict(given), settings
        self._seats = [Seat(self, index) for index in range(settings.server.workers)]
        self._filling: list[asyncio.Task[Ready]] = []
        self._has_begun = False
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self._renewing: asyncio.Task[None] | None = None
        self._is_to_renew = False
        self._had_terminal = _has_terminal()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def patience(self) -> float:
        """Seconds that a worker that starts now may take to leave."""
        server = self._settings.server
        return server.notice + server.drain + self._last_steps_seconds

    def order(self, index: int, *, speaks: bool) -> Order:
        return Order(given=self._given, front=self.front.fileno(), index=index, workers=len(self._seats), speaks=speaks)

    async def stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    # ---- start and stop ----

    async def begin(self) -> list[tuple[str, str]]:
        """What the first has to say when all are ready. What keeps one from its start mostly keeps all, so the first
        goes first: its complaint is the only one. Raises `Lost`.
        """
        first, *others = self._seats
        said = await first.fill(speaks=True)
        self._filling = [asyncio.create_task(seat.fill()) for seat in others]
        await asyncio.gather(*self._filling)
        return [("workers", str(len(self._seats))), *said.rows]

    async def give_up(self, lost: Lost) -> int:
        """One has ended before all were ready, by itself or because it was told to; the exit status."""
        is_told = self.is_stopping
        if isinstance(lost, Unborn):
            complain(CannotStart(f"A worker cannot be started: {lost.why}."))
        self._end()
        await asyncio.gather(*self._filling, return_exceptions=True)
        status = await self.work()
        return status if is_told else max(lost.status, 1)

    async def work(self) -> int:
        self._has_begun = True
        if self._is_to_renew and not self.is_stopping:
            self.renew()
        statuses = await asyncio.gather(*(seat.keep() for seat in self._seats if seat.member is not None))
        if self._renewing is not None:
            self._renewing.cancel()
        return 1 if self._is_hurried or set(statuses) - _IN_ORDER else 0

    def heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for each in STOPS:
            loop.add_signal_handler(each, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.renew)

    def ignore_signals(self) -> None:
        for each in (*STOPS, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(each)

    def stop(self) -> None:
        """All at once. A second time, without waiting for what is under way."""
        if not self.is_stopping:
            self._end()
        elif not self._is_hurried:
            self._is_hurried = True
            for member in self._members():
                member.hurry()
            asyncio.get_running_loop().call_later(_KILL_AFTER, self._kill)

    def _end(self) -> None:
        self._stopping.set()
        for member in self._members():
            member.stop()

    def _kill(self) -> None:
        for member in self._members():
            member.kill()

    def _members(self) -> Iterator[Member]:
        return (seat.member for seat in self._seats if seat.member is not None)

    # ---- others in their places ----

    def renew(self) -> None:
        """A terminal that is closed says the same, and means the end."""
        if self._had_terminal and not _has_terminal():
            self.stop()
            return
        self._is_to_renew = True
        if self._has_begun and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while self._is_to_renew and not self.is_stopping:
            self._is_to_renew = False
            if not self._can_be_read():
                return
            for seat in self._seats:
                if not self.is_stopping:
                    await seat.renew()
            _log.info("all workers are new")

    def _can_be_read(self) -> bool:
        """What those who come next could not start with is not tried on them."""
        from antwort.cli.serve import checked
        from antwort.config.checks import check, of_worker
        from antwort.config.loading import read

        try:
            settings = read(self._given).settings
            checked(check(of_worker(settings, 0, len(self._seats))))
        except CannotStart as exc:
            _log.error("the workers stay as they are: %s", exc)
            return False
        for name in _HELD:
            if getattr(settings.server, name) != getattr(self._settings.server, name):
                _log.warning("server.%s has changed, which needs a restart: it stays as it was", name)
        self._settings = settings
        return True


def _has_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
