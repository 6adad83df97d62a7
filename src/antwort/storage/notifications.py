"""Wake up readers of a run and workers without work. Wake-ups are hints: the receiver reads the log, and polls it
from time to time in any case.

Processes that share a PostgreSQL send them with NOTIFY. A payload is the name of the sender, which ignores it, and `w`
(there may be work), `c` (there may be cancels) or `e resp_1,resp_2` (these runs have new events).
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import uniform
from threading import Event, Thread
from typing import TYPE_CHECKING

from antwort.concurrency import backoff
from antwort.errors import StoreFault
from antwort.ids import new_id
from antwort.storage.database import Connection

if TYPE_CHECKING:
    from antwort.storage.postgres import BoundedConnection

CHANNEL = "antwort_runs"
_NOTIFY = "SELECT pg_notify(:channel, :payload)"
KEEPALIVE_SECONDS = (1.0, 5.0)
"""Between the keep-alives of a reader: without notifications, and with them."""
_POLL_SECONDS = (10.0, 15.0)
"""Between the looks of a reader who gets notifications, at random, so that not all look at once."""
_CLOSE_SECONDS = 1.0
_IDLE_SECONDS = 10.0
_MAX_NOTIFIED_RUNS = 150
"""In one payload: PostgreSQL takes less than 8,000 bytes, and an id has 37."""


class Wakeup:
    """A flag that stays set until its waiter clears it, which must happen before the waiter reads the log."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def set_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.set)

    async def wait(self, seconds: float) -> bool:
        """Return whether it was set within that time."""
        if not self._event.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        return self._event.is_set()


class NotificationListener:
    """A thread with a connection of its own, which is opened again when it is lost. Notifications that were sent
    meanwhile are lost, too: `on_missed` is called then.

    The callbacks run on the event loop of the constructor.
    """

    def __init__(
        self,
        connect: Callable[[], BoundedConnection],
        on_payload: Callable[[str], object],
        on_missed: Callable[[], object],
        *,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        """A connection that is silent for `idle_seconds` is tested."""
        self._connect, self._idle_seconds = connect, idle_seconds
        self._on_payload, self._on_missed = on_payload, on_missed
        self._loop = asyncio.get_running_loop()
        self._raw: BoundedConnection | None = None
        self.is_connected = False
        """Whether it receives notifications, as far as is known."""
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="antwort-listener", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        import psycopg

        self._is_closed.set()
        if self._raw is not None:
            # The thread waits for the socket, and finds it closed. To close the connection is up to the thread.
            with suppress(psycopg.Error, OSError), socket.fromfd(self._raw.fileno(), -1, socket.SOCK_STREAM) as waiting:
                waiting.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)  # it may wait for a server that hangs

    def _run(self) -> None:
        import psycopg

        pauses = backoff()
        while not self._is_closed.is_set():
            with suppress(StoreFault, psycopg.Error, OSError), self._connect() as self._raw:
                self._raw.execute(f"LISTEN {CHANNEL}".encode())
                pauses = backoff()
                self.is_connected = True
                self._call(self._on_missed)
                while not self._is_closed.is_set():
                    for notice in self._raw.notifies(timeout=self._idle_seconds):
                        self._call(self._on_payload, notice.payload)
                    self._raw.execute(b"SELECT 1")
            self.is_connected = False
            self._is_closed.wait(next(pauses))

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)


class Notifications:
    """The wake-ups of one process: from itself and, with PostgreSQL, from the other processes."""

    def __init__(
        self,
        connect: Callable[[], BoundedConnection] | None = None,
        poll: float | None = None,
        keepalive_seconds: tuple[float, float] = KEEPALIVE_SECONDS,
    ) -> None:
        """`connect` opens a connection to listen on; None if there are no other processes. `poll` is the number of
        seconds after which a reader looks into the log whatever it is notified of; None leaves that to whether
        notifications arrive.
        """
        self.work, self.cancels = Wakeup(), Wakeup()
        self._readers: defaultdict[str, list[Wakeup]] = defaultdict(list)
        """Those of all readers in this process, by the id of their run."""
        self._sender = new_id("sender")
        self._connect, self._poll = connect, poll
        self._keepalive_seconds = keepalive_seconds
        self._listener: NotificationListener | None = None

    def listen(self) -> None:
        """Start to listen to the other processes, if that has not happened yet."""
        if self._listener is None and self._connect is not None:
            self._listener = NotificationListener(self._connect, self.receive, self.wake_all)

    async def close(self) -> None:
        connect, self._connect = self._connect, None
        if connect is not None and self._listener is not None:
            await self._listener.close()

    @property
    def arrive(self) -> bool:
        """Whether readers can rely on notifications."""
        return self._connect is None or (self._listener is not None and self._listener.is_connected)

    @property
    def keepalive_seconds(self) -> float:
        """How long a reader waits until its next keep-alive."""
        without, with_notifications = self._keepalive_seconds
        return self._poll or (with_notifications if self.arrive else without)

    def poll_seconds(self) -> float:
        """Return after how many seconds, and at least one keep-alive, a reader looks without a notification."""
        return uniform(*_POLL_SECONDS) if self.arrive and self._poll is None else 0.0  # noqa: S311 - only spreads load

    # ---- readers in this process ----

    @contextmanager
    def follow(self, run_id: str) -> Iterator[Wakeup]:
        """Return what is set when the run has new events."""
        wakeup = Wakeup()
        self._readers[run_id].append(wakeup)
        try:
            yield wakeup
        finally:
            self._readers[run_id].remove(wakeup)
            if not self._readers[run_id]:
                del self._readers[run_id]

    def publish(self, run_id: str) -> None:
        """Wake the readers of the run."""
        for wakeup in self._readers.get(run_id, ()):
            wakeup.set()

    # ---- to other processes, once the transaction is committed; with SQLite there are none ----

    def send_work(self, connection: Connection) -> None:
        self._send(connection, "w")

    def send_cancels(self, connection: Connection) -> None:
        self._send(connection, "c")

    def send_events(self, connection: Connection, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _MAX_NOTIFIED_RUNS):
            self._send(connection, f"e {','.join(ids[start : start + _MAX_NOTIFIED_RUNS])}")

    def _send(self, connection: Connection, text: str) -> None:
        if connection.dialect == "postgresql":
            connection.execute(_NOTIFY, {"channel": CHANNEL, "payload": f"{self._sender} {text}"})

    # ---- from other processes ----

    def receive(self, text: str) -> None:
        match text.split(" "):
            case [self._sender, *_]:
                pass
            case [_, "e", ids]:
                for run_id in ids.split(","):
                    self.publish(run_id)
            case [_, "w"]:
                self.work.set()
            case [_, "c"]:
                self.cancels.set()

    def wake_all(self) -> None:
        """Wake all waiters: notifications may have been missed."""
        self.work.set()
        self.cancels.set()
        for run_id in self._readers:
            self.publish(run_id)
