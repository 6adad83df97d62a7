"""The connections of a session: one at a time, opened when it is needed, and again after a failure, with backoff."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextvars import Context

from antwort.concurrency import stop
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
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


class Reconnector:
    """Opens the connections of one session.

    When connecting fails, all callers that wait get the error, and further attempts are refused until a pause is over.
    `on_change` is called when the list of tools has changed, or may have.
    """

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, on_change: Callable[[], None]) -> None:
        self._spec = spec
        self._policy = policy
        self._on_change = on_change
        self.cooldown = Cooldown()
        self._allowance = Allowance(spec)
        self._failure: ServerUnavailable | None = None
        self.current: McpConnection | None = None
        self._had_connection = False
        self._connecting: asyncio.Task[McpConnection | ServerUnavailable] | None = None
        self._connections: set[McpConnection] = set()
        """All that are not closed yet."""

    @property
    def is_open(self) -> bool:
        """Whether a connection is open, being opened or being closed."""
        return bool(self._connections) or self._connecting is not None

    async def connection(self) -> McpConnection:
        """Return the current connection, or a new one. Raises `ServerUnavailable` after at most `spec.connect` seconds,
        and at once during a pause.
        """
        if self.current is not None:
            if self.current.is_usable:
                return self.current
            self._count_if_unproven(self.current)
        if self._connecting is None:
            self._check_pause()
            # An empty context: the session outlives the run that opens it.
            self._connecting = asyncio.create_task(self._connect(), name="mcp session", context=Context())
        connecting = self._connecting
        await asyncio.wait([connecting])  # it goes on when this caller is cancelled
        if connecting.cancelled():
            raise ServerUnavailable(ALL_CLOSING)
        if isinstance(connection := connecting.result(), ServerUnavailable):
            raise connection.again()
        return connection

    def replace(self, connection: McpConnection) -> None:
        """Retire a connection. The next caller gets a new one."""
        connection.retire()
        self._count_if_unproven(connection)
        if self.current is connection:
            self.current = None

    def close(self) -> Coroutine[None, None, None]:
        """Close the connection now; the next caller reconnects. The returned coroutine waits until all is closed,
        and cancels what does not end in time.
        """
        self.current = None
        tasks = set[asyncio.Task[object]]()
        if self._connecting is not None:
            self._connecting.cancel()
            tasks.add(self._connecting)
            self._connecting = None
        for connection in self._connections:
            connection.is_unproven = False  # it may not have been asked anything
            tasks.add(connection.end())
        return _ended(tasks)

    # ---- internals ----

    def _check_pause(self) -> None:
        left = self.cooldown.left(asyncio.get_running_loop().time())
        if left and self._failure is not None:
            raise self._failure.again(f" The next attempt is made in {math.ceil(left)} s.")
        if pause := self._allowance.pause():
            raise Flooded(f"{FLOODED} The next attempt is made in {math.ceil(pause)} s.")

    async def _connect(self) -> McpConnection | ServerUnavailable:
        deadline = asyncio.get_running_loop().time() + self._spec.connect
        opened: McpConnection | ServerUnavailable
        try:
            is_old = self._spec.transport == "sse"  # older than the modern version
            opened = await self._open(deadline, tries_modern=not is_old)
            if not is_old and type(opened) is ServerUnavailable:  # some servers break at a method that they do not know
                opened = await self._open(deadline, tries_modern=False)
        finally:
            if self._connecting is asyncio.current_task():
                self._connecting = None
        if isinstance(opened, ServerUnavailable):
            self._failure = opened
            self.cooldown.failed(asyncio.get_running_loop().time())
            return opened
        if self._had_connection:
            self._on_change()  # no change notices came in between
        self._had_connection = True
        self.current, self._failure = opened, None
        return opened

    async def _open(self, deadline: float, *, tries_modern: bool) -> McpConnection | ServerUnavailable:
        try:
            connection = McpConnection(self._spec, self._policy, self._allowance, self._on_change, self._on_end)
        except AddressNotAllowed as exc:
            return NotReached(f"The address of the MCP server {exc}")
        self._connections.add(connection)
        try:
            async with asyncio.timeout_at(deadline):
                await connection.open(tries_modern=tries_modern)
        except TimeoutError:
            connection.end()
            return NotReached(SLOW)
        except ServerUnavailable as exc:
            text = f"A session with an MCP server has ended{reason_behind(exc)}."
            note(_log, logging.DEBUG, text, server=self._spec.label)
            closing = connection.end()
            if self._spec.transport == "stdio":  # the exit status of a program is known when it is closed
                await asyncio.wait([closing])
            return type(exc)(str(exc), connection.transport.details)
        except BaseException:
            connection.end()
            raise
        return connection

    def _on_end(self, connection: McpConnection) -> None:
        if self.current is connection:
            self._count_if_unproven(connection)
            self.current = None
        if connection.closing is not None:
            connection.closing.add_done_callback(lambda _: self._connections.discard(connection))

    def _count_if_unproven(self, ended: McpConnection) -> None:
        """Count a connection that has ended without an answer as a failure to connect."""
        if ended.is_unproven:
            ended.is_unproven = False
            self._failure = ServerUnavailable(FRUITLESS)
            self.cooldown.failed(asyncio.get_running_loop().time())


async def _ended(tasks: set[asyncio.Task[object]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await stop(tasks, _CLOSE_SECONDS)
