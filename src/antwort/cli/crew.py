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
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from antwort.cli.berth import Order, Ready
from antwort.cli.say import say
from antwort.cli.signals import STOPS
from antwort.config.problems import CannotStart
from antwort.notes import note

if TYPE_CHECKING:
    from antwort.config.settings import Settings

_log = logging.getLogger("antwort.cli")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before another takes the place of one that was lost; they double as long as none lasts."""
_LASTING = 60.0
"""Seconds after which one has lasted."""
_KILL_AFTER = 10.0
"""Seconds that workers get to leave when they are told to leave at once."""
_DID_NOT_BEGIN = -signal.SIGTERM
"""The exit status of one that was told to stop before it had begun."""


async def lead(settings: Settings, given: Mapping[str, object]) -> int:
    """Until a signal says to stop; the exit status. Raises `CannotStart`."""
    from antwort.cli.greeting import headline, written
    from antwort.cli.listening import listen_to_clients

    if os.name == "nt":
        raise CannotStart("Several workers are not to be had on Windows: start one server.")
    with listen_to_clients(settings) as front:
        crew = Crew(front, given, settings.server.workers)
        crew.heed_signals()
        try:
            rows = await crew.begin()
            say(headline(settings, front.getsockname()[1]), *written(rows))
            return await crew.work()
        except Lost as lost:
            return await crew.give_up(lost)
        finally:
            crew.ignore_signals()


class Lost(Exception):
    """A worker has ended before it was ready."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Member:
    """A worker, as the process that started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self._process, self._link = process, link
        self.began = monotonic()

    @classmethod
    async def start(cls, order: Order, front: socket.socket) -> Member:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *_interpreter(),
                *("-m", "antwort.cli.crew_member", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), front.fileno()),
                start_new_session=True,  # a terminal's signals are for the one who leads
            )
        ours.setblocking(False)
        member = cls(process, ours)
        await asyncio.get_running_loop().sock_sendall(ours, msgspec.json.encode(order) + b"\n")
        return member

    async def ready(self) -> Ready:
        """Raises `Lost`."""
        heard = b""
        while not heard.endswith(b"\n"):
            try:
                piece = await asyncio.get_running_loop().sock_recv(self._link, 65536)
            except OSError:
                piece = b""
            if not piece:
                raise Lost(await self.wait())
            heard += piece
        return msgspec.json.decode(heard, type=Ready)

    async def wait(self) -> int:
        status = await self._process.wait()
        self._link.close()
        return status

    def tell(self, what: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(what)


def _interpreter() -> list[str]:
    """This one, which finds its modules where we do."""
    is_here = bool(sys.path) and sys.path[0] in ("", str(Path.cwd()))
    return [sys.executable] if is_here else [sys.executable, "-P"]


class Seat:
    """A place among the workers, and who has it."""

    def __init__(self, crew: Crew, index: int) -> None:
        self._crew, self._index = crew, index
        self._member: Member | None = None
        self._is_due = False
        self._is_ready = asyncio.Event()
        self._pause = _FIRST_PAUSE

    @property
    def is_taken(self) -> bool:
        return self._member is not None

    async def fill(self, *, speaks: bool = False) -> Ready:
        """Raises `Lost`."""
        self._is_ready.clear()
        self._member = await Member.start(self._crew.order(self._index, speaks=speaks), self._crew.front)
        if self._crew.is_stopping:  # since it was started: it has not been told
            self._member.tell(signal.SIGTERM)
        ready = await self._member.ready()
        self._is_ready.set()
        return ready

    async def keep(self) -> int:
        """See that somebody has it; the exit status of the last."""
        assert self._member is not None
        while True:
            status = await self._member.wait()
            if self._crew.is_stopping:
                return status
            if not self._is_due and await self._mourn(self._member, status):
                return 0
            self._is_due = False
            try:
                await self.fill()
            except Lost:
                continue  # as with any other that ends

    async def _mourn(self, member: Member, status: int) -> bool:
        """Give it a while; whether it is time to stop by then."""
        if monotonic() - member.began > _LASTING:
            self._pause = _FIRST_PAUSE
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        note(
            _log,
            logging.WARNING,
            f"worker {self._index} has ended {how}; another takes its place in {self._pause:g} s",
            said={"event": "worker_lost", "worker": self._index, "status": status},
        )
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return await self._crew.stops_within(pause)

    async def renew(self) -> None:
        """Another takes its place, and is ready."""
        self._is_due = True
        self._is_ready.clear()
        self.tell(signal.SIGTERM)
        await self._is_ready.wait()

    def tell(self, what: signal.Signals) -> None:
        if self._member is not None:
            self._member.tell(what)


class Crew:
    """All of them."""

    def __init__(self, front: socket.socket, given: Mapping[str, object], workers: int) -> None:
        self.front = front
        self._given = dict(given)
        self._seats = [Seat(self, index) for index in range(workers)]
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self._renewing: asyncio.Task[None] | None = None
        self._is_to_renew = False
        self._had_terminal = _has_terminal()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

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
        await asyncio.gather(*(seat.fill() for seat in others))
        return [("workers", str(len(self._seats))), *said.rows]

    async def give_up(self, lost: Lost) -> int:
        """One has ended before all were ready, by itself or because it was told to; the exit status."""
        is_told = self.is_stopping
        self._stopping.set()
        self._tell(signal.SIGTERM)
        status = await self.work()
        return status if is_told else max(lost.status, 1)

    async def work(self) -> int:
        statuses = await asyncio.gather(*(seat.keep() for seat in self._seats if seat.is_taken))
        if self._renewing is not None:
            self._renewing.cancel()
        failed = [status for status in statuses if status not in (0, _DID_NOT_BEGIN)]
        return 1 if failed or self._is_hurried else 0

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
        if self.is_stopping and not self._is_hurried:
            self._is_hurried = True
            asyncio.get_running_loop().call_later(_KILL_AFTER, self._tell, signal.SIGKILL)
        self._stopping.set()
        self._tell(signal.SIGTERM)

    def _tell(self, what: signal.Signals) -> None:
        for seat in self._seats:
            seat.tell(what)

    # ---- others in their places ----

    def renew(self) -> None:
        """A terminal that is closed says the same, and means the end."""
        if self._had_terminal and not _has_terminal():
            self.stop()
            return
        self._is_to_renew = True
        if self._renewing is None or self._renewing.done():
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
        from antwort.config.reading import read

        try:
            checked(read(self._given).settings)
        except CannotStart as exc:
            _log.error("the workers stay as they are: %s", exc)
            return False
        return True


def _has_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
