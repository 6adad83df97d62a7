"""Listen to the notifications of other processes, over a connection to PostgreSQL that does nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread

import psycopg

from antwort.errors import StoreFault
from antwort.storage.notifications import CHANNEL
from antwort.storage.postgres import BoundedConnection

_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 2.0
_CLOSE_SECONDS = 1.0
IDLE_SECONDS = 10.0


class NotificationListener:
    """A thread that keeps a connection open, and opens it again when it is lost. Notifications that were sent meanwhile
    are lost, too: `on_missed` is called then.

    The callbacks run on the event loop that this is made on.
    """

    def __init__(
        self,
        connect: Callable[[], BoundedConnection],
        on_payloads: Callable[[list[str]], object],
        on_missed: Callable[[], object],
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """A connection that is silent for `idle_seconds` is tested."""
        self._connect, self._idle_seconds = connect, idle_seconds
        self._on_payloads, self._on_missed = on_payloads, on_missed
        self._loop = asyncio.get_running_loop()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._is_closed = Event()
        self._is_connected = Event()
        self._thread = Thread(target=self._run, name="antwort-listener", daemon=True)
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        """Whether it receives notifications, as far as is known."""
        return self._is_connected.is_set()

    async def close(self) -> None:
        self._is_closed.set()
        self._wake_sender.send(b"!")
        await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)
        if not self._thread.is_alive():  # else it waits for a server that hangs, and reads from its socket afterwards
            self._wake_receiver.close()
            self._wake_sender.close()

    def _run(self) -> None:
        pause = _FIRST_RETRY_SECONDS
        while not self._is_closed.is_set():
            with suppress(StoreFault, psycopg.Error, OSError):
                with self._connect() as raw:
                    raw.add_notify_handler(lambda notice: self._call(self._on_payloads, [notice.payload]))
                    raw.execute(f"LISTEN {CHANNEL}".encode())
                    pause = _FIRST_RETRY_SECONDS
                    self._is_connected.set()
                    self._call(self._on_missed)
                    self._listen(raw)
                continue
            self._is_connected.clear()
            self._is_closed.wait(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)

    def _listen(self, raw: BoundedConnection) -> None:
        """Return when this is closed; raise when the connection is lost."""
        with DefaultSelector() as selector:
            selector.register(raw.fileno(), EVENT_READ)
            selector.register(self._wake_receiver, EVENT_READ)
            while not self._is_closed.is_set():
                raw.pgconn.consume_input()
                payloads: list[str] = []
                while (notice := raw.pgconn.notifies()) is not None:
                    payloads.append(notice.extra.decode())
                if payloads:
                    self._call(self._on_payloads, payloads)
                if not selector.select(self._idle_seconds):
                    raw.execute(b"SELECT 1")  # what arrives with its answer goes to the notify handler

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)
