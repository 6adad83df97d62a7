"""Places among several workers, and who has them: processes that are started, told to leave, and missed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from antwort.cli.berth import HURRY, Order, Ready
from antwort.concurrency import backoff
from antwort.notes import note

if TYPE_CHECKING:
    from antwort.cli.crew import Crew

_log = logging.getLogger("antwort.cli")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before another takes the place of one that was lost; they double as long as none lasts."""
_LASTING = 60.0
"""Seconds after which one has lasted."""


class Lost(Exception):
    """A worker has ended before it was ready."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Unborn(Lost):
    """There is no process to be had for it."""

    def __init__(self, fault: OSError) -> None:
        super().__init__(1)
        self.why = os.strerror(fault.errno) if fault.errno else "there is no process to be had"


class Member:
    """A worker, as the process that started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket, index: int, patience: float) -> None:
        """`patience`: seconds that it may take to leave."""
        self._process, self._link = process, link
        self._index, self._patience = index, patience
        self._last_call: asyncio.TimerHandle | None = None
        self.began = monotonic()

    @classmethod
    async def start(cls, order: Order, front: socket.socket, patience: float) -> Member:
        """Raises `Unborn`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *_interpreter(),
                    *("-m", "antwort.cli.crew_member", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), front.fileno()),
                    start_new_session=True,  # a terminal's signals are for the one who leads
                )
            except OSError as exc:
                ours.close()
                raise Unborn(exc) from exc
        ours.setblocking(False)
        member = cls(process, ours, order.index, patience)
        with suppress(OSError):  # it has ended already, and whoever waits for it sees that
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
        if self._last_call is not None:
            self._last_call.cancel()
        self._link.close()
        return status

    def stop(self) -> None:
        """In order, and once: one that takes longer than it may does not come to an end by itself."""
        if self._last_call is None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            self._last_call = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    def hurry(self) -> None:
        """It is told by the link: it may have had the signal from elsewhere too, as when a whole group is told."""
        with suppress(OSError):
            self._link.send(HURRY)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _give_up(self) -> None:
        note(
            _log,
            logging.WARNING,
            f"worker {self._index} was told to stop {self._patience:g} s ago, and is killed",
            said={"event": "worker_killed", "worker": self._index},
        )
        self.kill()


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
        self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    @property
    def member(self) -> Member | None:
        return self._member

    async def fill(self, *, speaks: bool = False) -> Ready:
        """Raises `Lost`."""
        self._is_ready.clear()
        order = self._crew.order(self._index, speaks=speaks)
        self._member = await Member.start(order, self._crew.front, self._crew.patience)
        if self._crew.is_stopping:  # since it was started: it has not been told
            self._member.stop()
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
            if not await self._fill_again():
                return 0

    async def _fill_again(self) -> bool:
        """Whether somebody has had it, if only for a moment: False when it is time to stop."""
        while True:
            try:
                await self.fill()
            except Unborn as unborn:
                if await self._put_off(f"worker {self._index} cannot be started: {unborn.why}; tried again"):
                    return False
                continue
            except Lost:
                pass  # as with any other that ends
            return True

    async def _mourn(self, member: Member, status: int) -> bool:
        """Give it a while; whether it is time to stop by then."""
        if monotonic() - member.began > _LASTING:
            self._pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return await self._put_off(f"worker {self._index} has ended {how}; another takes its place", status)

    async def _put_off(self, words: str, status: int | None = None) -> bool:
        pause = next(self._pauses)
        note(
            _log,
            logging.WARNING,
            f"{words} in {pause:g} s",
            said={"event": "worker_lost", "worker": self._index, "status": status},
        )
        return await self._crew.stops_within(pause)

    async def renew(self) -> None:
        """Another takes its place, and is ready."""
        self._is_due = True
        self._is_ready.clear()
        if self._member is not None:
            self._member.stop()
        await self._is_ready.wait()
