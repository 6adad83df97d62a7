"""The connection of a session: one at a time, opened when it is needed, closed by the task that has opened it.

When connecting fails, all callers that wait get the error, and further attempts are refused until a pause is over.
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
from antwort.tools.mcp.connection import McpConnection
from antwort.tools.mcp.throttle import FLOODED, Allowance, Cooldown, Flooded

_log = logging.getLogger(__name__)

SLOW = "The MCP server takes too long to connect to."
FRUITLESS = "The MCP server ends its sessions before it has answered anything."
ALL_CLOSING = "The MCP servers are being closed."
_CLOSE_SECONDS = 3.0
"""Time for closing in good order. After that the tasks are cancelled, and waited for as long again."""


class Connector:
    """Opens the connections of one session.

    `on_change` is called when the list of tools has changed, or may have.
    """

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, on_change: Callable[[], None]) -> None:
        self._spec = spec
        self._policy = policy
        self._on_change = on_change
        self._cooldown = Cooldown()
        self._allowance = Allowance(spec)
        self.succeeded = self._cooldown.succeeded
        """To be called when the server has answered."""
        self._failure: ServerUnavailable | None = None
        self._connection: McpConnection | None = None
        self._had_connection = False
        self._connecting: Once[McpConnection] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """Whether a connection is open, being opened or being closed."""
        return bool(self._tasks)

    def usable(self) -> McpConnection | None:
        """Return the current connection, if it takes requests."""
        connection = self._connection
        return connection if connection is not None and connection.is_usable else None

    async def connection(self) -> McpConnection:
        """Return the current connection, or a new one. Raises `ServerUnavailable` after at most `spec.connect` seconds,
        and at once during a pause.
        """
        if (connection := self.usable()) is not None:
            return connection
        self._count_if_unproven(self._connection)
        if self._connecting is None:
            self._check_pause()
            self._connecting = Once()
            self._spawn(self._run(self._connecting))
        return await self._connecting.wait()

    def replace(self, connection: McpConnection | None = None) -> None:
        """Retire a connection, or the current one. The next caller gets a new one."""
        if (connection := connection or self._connection) is None:
            return
        connection.retire()
        self._count_if_unproven(connection)
        if self._connection is connection:
            self._connection = None

    def close(self) -> Coroutine[None, None, None]:
        """Close the connection now; the next caller reconnects. The returned coroutine waits until all is closed,
        and cancels what does not end in time.
        """
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        tasks = set(self._tasks)
        if connection is not None:
            connection.is_unproven = False  # it may not have been asked anything
            connection.end()
        if connecting is not None:
            connecting.fail(ServerUnavailable(ALL_CLOSING))
            for task in tasks:
                task.cancel()
        return _ended(tasks)

    # ---- internals ----

    def _check_pause(self) -> None:
        left = self._cooldown.left(asyncio.get_running_loop().time())
        if left and self._failure is not None:
            again = type(self._failure)(f"{self._failure} The next attempt is made in {math.ceil(left)} s.")
            again.details = self._failure.details
            raise again
        if pause := self._allowance.pause():
            raise Flooded(f"{FLOODED} The next attempt is made in {math.ceil(pause)} s.")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        # An empty context: the session outlives the run that opens it.
        task = asyncio.create_task(work, name="mcp session", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connecting: Once[McpConnection]) -> None:
        """Connect, wait for the end of the connection, and close it."""
        deadline = asyncio.get_running_loop().time() + self._spec.connect
        fault = ServerUnavailable(ALL_CLOSING)
        try:
            is_old = self._spec.transport == "sse"  # older than the modern version
            if not is_old and (again := await self._attempt(connecting, deadline, tries_modern=True)) is not None:
                fault, is_old = again, True  # some servers break at a method that they do not know
            if (
                is_old
                and not connecting.is_set
                and (failure := await self._attempt(connecting, deadline, tries_modern=False)) is not None
            ):
                fault = failure
        finally:
            self._fail(connecting, fault)

    async def _attempt(
        self, connecting: Once[McpConnection], deadline: float, *, tries_modern: bool
    ) -> ServerUnavailable | None:
        """Open a connection and hold it to its end. Return the error if another attempt may succeed in another way."""
        connection = McpConnection(self._spec, self._policy, self._allowance, self._on_change)
        fault: ServerUnavailable | None = None
        try:
            async with asyncio.timeout_at(deadline):
                await connection.open(tries_modern=tries_modern)
            if self._connecting is connecting:  # otherwise the session has been closed meanwhile
                self._begin(connection, connecting)
                await connection.over.wait()
        except TimeoutError:
            self._fail(connecting, NotReached(SLOW))
        except ServerUnavailable as exc:
            fault = exc
            text = f"A session with an MCP server has ended{reason_behind(exc)}."
            note(_log, logging.DEBUG, text, server=self._spec.label)
            is_last = not tries_modern or type(exc) is not ServerUnavailable
            if is_last and self._spec.transport != "stdio":  # the exit status of a program is known after `close`
                self._fail(connecting, exc)
        finally:
            await connection.close()
            if self._connection is connection:
                self._count_if_unproven(connection)
                self._connection = None
        if fault is None:
            return None
        fault.details = connection.details
        if type(fault) is ServerUnavailable:
            return fault
        self._fail(connecting, fault)
        return None

    def _begin(self, connection: McpConnection, connecting: Once[McpConnection]) -> None:
        if self._had_connection:
            self._on_change()  # no change notices came in between
        self._had_connection = True
        self._connection, self._failure, self._connecting = connection, None, None
        connection.is_unproven = True  # a handshake proves nothing
        connecting.set(connection)

    def _count_if_unproven(self, ended: McpConnection | None) -> None:
        """Count a connection that has ended without an answer as a failure to connect."""
        if ended is not None and ended.is_unproven:
            ended.is_unproven = False
            self._failure = ServerUnavailable(FRUITLESS)
            self._cooldown.failed(asyncio.get_running_loop().time())

    def _fail(self, connecting: Once[McpConnection], fault: ServerUnavailable) -> None:
        if connecting.is_set:
            return
        self._failure = fault
        self._cooldown.failed(asyncio.get_running_loop().time())
        if self._connecting is connecting:
            self._connecting = None
        connecting.fail(fault)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await stop(tasks, _CLOSE_SECONDS)
