"""What other processes tell, over a connection to PostgreSQL that does nothing else: one for each process.

It is made anew when it was lost. What was told meanwhile is not told again, so everybody is woken then.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from typing import Protocol

import psycopg

from antwort.errors import StoreFault
from antwort.runs.dialects import CHANNEL
from antwort.storage.postgres import BoundedConnection as Raw

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_CLOSING = 1.0
"""Seconds that it may take to end."""
QUIET_SECONDS = 10.0


class Listened(Protocol):
    def hear(self, payloads: list[str]) -> None: ...

    def hear_all(self) -> None:
        """Something may have been missed."""
        ...


class Listener:
    """A thread. `heard` is called on the event loop that this is made on. After `quiet_seconds` of silence the
    connection is tried.
    """

    def __init__(self, connect: Callable[[], Raw], heard: Listened, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._connect, self._heard, self._quiet_seconds = connect, heard, quiet_seconds
        self._loop = asyncio.get_running_loop()
        self._bell, self._ring = socket.socketpair()
        self._is_closed = Event()
        self._is_connected = Event()
        self._thread = Thread(target=self._work, name="antwort-listener", daemon=True)
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        """Whether it hears what is told, as far as is known."""
        return self._is_connected.is_set()

    async def close(self) -> None:
        self._is_closed.set()
        self._ring.send(b"!")
        await asyncio.to_thread(self._thread.join, _CLOSING)
        if self._thread.is_alive():  # it waits for a server that hangs, and looks at its bell afterwards
            return
        self._bell.close()
        self._ring.close()

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while not self._is_closed.is_set():
            with suppress(StoreFault, psycopg.Error, OSError):
                with self._connect() as raw:
                    raw.add_notify_handler(self._hear)  # what comes together with an answer
                    raw.execute(f"LISTEN {CHANNEL}".encode())
                    pause = _FIRST_PAUSE
                    self._is_connected.set()
                    self._call(self._heard.hear_all)
                    self._listen(raw)
                continue
            self._is_connected.clear()
            self._is_closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _listen(self, raw: Raw) -> None:
        with DefaultSelector() as selector:
            selector.register(raw.fileno(), EVENT_READ)
            selector.register(self._bell, EVENT_READ)
            while not self._is_closed.is_set():
                if payloads := _take(raw):
                    self._call(self._heard.hear, payloads)
                if not selector.select(self._quiet_seconds):
                    raw.execute(b"SELECT 1")

    def _hear(self, notice: psycopg.Notify) -> None:
        self._call(self._heard.hear, [notice.payload])

    def _call(self, told: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits there
            self._loop.call_soon_threadsafe(told, *args)


def _take(raw: Raw) -> list[str]:
    """All that has come. Raises when the connection is lost."""
    raw.pgconn.consume_input()
    payloads: list[str] = []
    while (notice := raw.pgconn.notifies()) is not None:
        payloads.append(notice.extra.decode())
    return payloads
