"""One connection to a server at a time, made when somebody asks for it, and closed by the task that has made it.

A failure to connect is told to all who wait, and followed by a pause in which nobody tries again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextvars import Context

from antwort.concurrency import Once, stop
from antwort.net.ssrf import AddressPolicy
from antwort.notes import note, reason_behind
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable
from antwort.tools.mcp.client import Connection
from antwort.tools.mcp.throttle import FLOODED, Allowance, Backoff, Flooded

_log = logging.getLogger(__name__)

SLOW = "The MCP server takes too long to connect to."
FRUITLESS = "The MCP server ends its sessions before it has answered anything."
ALL_CLOSING = "The MCP servers are being closed."
_CLOSE_SECONDS = 3.0
"""Time in which a session is left in good order; then it is broken off, which may take as long again."""


class Connector:
    """`changed` is called when the list of tools is another one, or may be."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, changed: Callable[[], None]) -> None:
        self._spec = spec
        self._policy = policy
        self._changed = changed
        self._backoff = Backoff()
        self._allowance = Allowance(spec)
        self.succeeded = self._backoff.succeeded
        """To be called when the server has answered something."""
        self._failure: ServerUnavailable | None = None
        self._connection: Connection | None = None
        self._had_connection = False
        self._coming: Once[Connection] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, one that is being made, or one that is being closed."""
        return bool(self._tasks)

    def usable(self) -> Connection | None:
        """Return the connection that there is, without waiting."""
        connection = self._connection
        return connection if connection is not None and connection.is_usable else None

    async def connection(self) -> Connection:
        """Return the connection that there is, or a fresh one. Raises `ServerUnavailable`, at most `spec.connect`
        seconds later; at once while a pause lasts.
        """
        if (connection := self.usable()) is not None:
            return connection
        self._judge(self._connection)
        if self._coming is None:
            self._check_pause()
            self._coming = Once()
            self._spawn(self._run(self._coming))
        return await self._coming.wait()

    def replace(self, connection: Connection | None = None) -> None:
        """Give up a connection, or the one that there is: whoever asks next gets another."""
        if (connection := connection or self._connection) is None:
            return
        connection.retire()
        self._judge(connection)
        if self._connection is connection:
            self._connection = None

    def leave(self) -> Coroutine[None, None, None]:
        """Leave the server now: whoever asks next connects anew. The coroutine that is returned waits until all is
        closed, and breaks off what will not end.
        """
        connection, self._connection = self._connection, None
        coming, self._coming = self._coming, None
        tasks = set(self._tasks)
        if connection is not None:
            connection.is_unproven = False  # nobody has asked it anything, and that is not its fault
            connection.end()
        if coming is not None:
            coming.fail(ServerUnavailable(ALL_CLOSING))
            for task in tasks:
                task.cancel()
        return _ended(tasks)

    # ---- internals ----

    def _check_pause(self) -> None:
        left = self._backoff.left(asyncio.get_running_loop().time())
        if left and self._failure is not None:
            again = type(self._failure)(f"{self._failure} The next attempt is made in {math.ceil(left)} s.")
            again.details = self._failure.details
            raise again
        if pause := self._allowance.pause():
            raise Flooded(f"{FLOODED} The next attempt is made in {math.ceil(pause)} s.")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        # Nothing of the run that asks: the session outlives it.
        task = asyncio.create_task(work, name="mcp session", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, coming: Once[Connection]) -> None:
        """Connect, and close the connection when it is over."""
        deadline = asyncio.get_running_loop().time() + self._spec.connect
        fault = ServerUnavailable(ALL_CLOSING)
        try:
            is_old = self._spec.transport == "sse"  # older than the modern version
            if not is_old and (again := await self._hold(coming, deadline, tries_modern=True)) is not None:
                fault, is_old = again, True  # some break at what they do not know
            if (
                is_old
                and not coming.is_set
                and (failure := await self._hold(coming, deadline, tries_modern=False)) is not None
            ):
                fault = failure
        finally:
            self._fail(coming, fault)

    async def _hold(self, coming: Once[Connection], deadline: float, *, tries_modern: bool) -> ServerUnavailable | None:
        """Hold a connection to its end. Return why there was none, if it is worth another try in another way."""
        connection = Connection(self._spec, self._policy, self._allowance, self._changed)
        fault: ServerUnavailable | None = None
        try:
            async with asyncio.timeout_at(deadline):
                await connection.open(tries_modern=tries_modern)
            if self._coming is coming:  # otherwise nobody waits for it any more
                self._begin(connection, coming)
                await connection.over.wait()
        except TimeoutError:
            self._fail(coming, NotReached(SLOW))
        except ServerUnavailable as exc:
            fault = exc
            text = f"A session with an MCP server has ended{reason_behind(exc)}."
            note(_log, logging.DEBUG, text, server=self._spec.label)
            is_last = not tries_modern or type(exc) is not ServerUnavailable
            if is_last and self._spec.transport != "stdio":  # how a program ended is known when it is closed
                self._fail(coming, exc)
        finally:
            await connection.close()
            if self._connection is connection:
                self._judge(connection)
                self._connection = None
        if fault is None:
            return None
        fault.details = connection.details
        if type(fault) is ServerUnavailable:
            return fault
        self._fail(coming, fault)
        return None

    def _begin(self, connection: Connection, coming: Once[Connection]) -> None:
        if self._had_connection:
            self._changed()  # while nobody listened
        self._had_connection = True
        self._connection, self._failure, self._coming = connection, None, None
        connection.is_unproven = True  # whatever it answered in the handshake
        coming.set(connection)

    def _judge(self, ended: Connection | None) -> None:
        """A session that ends before it has answered anything counts as one that could not be had."""
        if ended is not None and ended.is_unproven:
            ended.is_unproven = False
            self._failure = ServerUnavailable(FRUITLESS)
            self._backoff.failed(asyncio.get_running_loop().time())

    def _fail(self, coming: Once[Connection], fault: ServerUnavailable) -> None:
        if coming.is_set:
            return
        self._failure = fault
        self._backoff.failed(asyncio.get_running_loop().time())
        if self._coming is coming:
            self._coming = None
        coming.fail(fault)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await stop(tasks, _CLOSE_SECONDS)
