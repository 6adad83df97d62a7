"""Whoever owns a session enters and leaves all that the SDK makes of it, in one task; everybody else only asks it.

A failure to connect is told to all who wait, and followed by a pause in which nobody tries again.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from antwort.concurrency import Once, stop
from antwort.net.ssrf import AddressPolicy
from antwort.notes import note, reason_behind
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.messages import NOT_AN_ANSWER, UNAUTHORIZED
from antwort.tools.mcp.pauses import Pauses
from antwort.tools.mcp.quiet import own_context
from antwort.tools.mcp.unsolicited_traffic import FLOODED, Allowance, Flooded

if TYPE_CHECKING:
    from antwort.tools.mcp.connecting import Mode
    from antwort.tools.mcp.connection import Connection

_log = logging.getLogger(__name__)

SLOW = "The MCP server takes too long to connect to."
FRUITLESS = "The MCP server ends its sessions before it has answered anything."
ALL_CLOSING = "The MCP servers are being closed."
_UNREACHED = "The MCP server cannot be reached."
_SESSIONS = "antwort.tools.mcp.connecting"
_GOODBYE = 3.0
"""Seconds in which a session is left in good order; then it is broken off, which may take as long again."""


class Owner:
    """Of the session with one server: one connection at a time, made when somebody asks for it."""

    def __init__(self, spec: ServerSpec, reach: AddressPolicy | None, changed: Callable[[], None]) -> None:
        self._spec = spec
        self._reach = reach
        self._changed = changed
        self._pauses = Pauses()
        self._allowance = Allowance(spec)
        self.worked = self._pauses.worked
        """To be told that the server has answered something."""
        self._failure: ServerUnavailable | None = None
        self._details = ""
        self._standing: Connection | None = None
        self._has_stood = False
        self._coming: Once[Connection] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, one that is being made, or one that is being left."""
        return bool(self._tasks)

    def at_hand(self) -> Connection | None:
        """The one that stands, so that nobody has to wait."""
        standing = self._standing
        return standing if standing is not None and standing.is_usable else None

    async def connection(self) -> Connection:
        """The one that stands, or a fresh one. Raises `ServerUnavailable`, at most `spec.connect` seconds later; at
        once while a pause lasts.
        """
        if (standing := self.at_hand()) is not None:
            return standing
        self._judge(self._standing)
        if self._coming is None:
            self._check_pause()
            self._coming = self._begin()
        return await self._coming.wait()

    def replace(self, connection: Connection) -> None:
        """It is of no use any more: whoever asks next gets another."""
        connection.retire()
        self._judge(connection)
        if self._standing is connection:
            self._standing = None

    def renew(self) -> None:
        """As `replace`, for the one that stands."""
        if self._standing is not None:
            self.replace(self._standing)

    def leave(self) -> Coroutine[Any, Any, None]:
        """Leave the server now: whoever asks next connects anew. What is given back waits until all is closed, and
        breaks off what will not end.
        """
        standing, self._standing = self._standing, None
        coming, self._coming = self._coming, None
        tasks = set(self._tasks)
        if standing is not None:
            standing.is_unproven = False  # nobody has asked it anything, and that is not its fault
            standing.end()
        if coming is not None:
            coming.fail(ServerUnavailable(ALL_CLOSING))
            for task in tasks:
                task.cancel()
        return _ended(tasks)

    # within

    def _check_pause(self) -> None:
        left = self._pauses.left(asyncio.get_running_loop().time())
        if left and self._failure is not None:
            again = type(self._failure)(f"{self._failure} The next attempt is made in {math.ceil(left)} s.")
            again.details = self._failure.details
            raise again
        if pause := self._allowance.pause():
            raise Flooded(f"{FLOODED} The next attempt is made in {math.ceil(pause)} s.")

    def _begin(self) -> Once[Connection]:
        coming: Once[Connection] = Once()
        # Nothing of the run that asks: the session outlives it.
        task = asyncio.create_task(self._own(coming), name="mcp session", context=own_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return coming

    async def _own(self, coming: Once[Connection]) -> None:
        fault: ServerUnavailable | None = ServerUnavailable(ALL_CLOSING)
        guard: asyncio.TimerHandle | None = None
        try:
            await load_sdk()
            guard = asyncio.get_running_loop().call_later(self._spec.connect, self._give_up, coming)
            fault = await self._attempt(coming)
        finally:
            if guard is not None:
                guard.cancel()
            if self._standing is not None and self._standing.has_ended:
                self._judge(self._standing)
                self._standing = None
            if not coming.is_set:
                self._fail(coming, fault or ServerUnavailable(NOT_AN_ANSWER))

    def _judge(self, ended: Connection | None) -> None:
        """A session that ends before it has answered anything counts as one that could not be had."""
        if ended is not None and ended.is_unproven:
            ended.is_unproven = False
            self._failure = ServerUnavailable(FRUITLESS)
            self._pauses.failed(asyncio.get_running_loop().time())

    async def _attempt(self, coming: Once[Connection]) -> ServerUnavailable | None:
        deadline = asyncio.get_running_loop().time() + self._spec.connect
        if self._spec.transport == "sse":  # older than what there is to ask for
            return await self._held(coming, "legacy", deadline)
        fault = await self._held(coming, "auto", deadline)
        is_odd = fault is not None and type(fault) is ServerUnavailable
        if coming.is_set or not is_odd:
            return fault
        return await self._held(coming, "legacy", deadline)  # some break at what they do not know

    async def _held(self, coming: Once[Connection], mode: Mode, deadline: float) -> ServerUnavailable | None:
        """Hold a connection to its end. Whatever comes out of the SDK ends here, the cancellations that it makes up
        itself among it.
        """
        import anyio

        from antwort.tools.mcp.connecting import Setting, hold

        scope = anyio.CancelScope(deadline=deadline)

        def ready(connection: Connection) -> None:
            scope.deadline = math.inf
            self._stand(connection, coming)

        def left() -> None:
            scope.deadline = anyio.current_time() + _GOODBYE

        def explain(details: str) -> None:
            self._details = details

        setting = Setting(
            spec=self._spec,
            reach=self._reach,
            allowance=self._allowance,
            explain=explain,
            ready=ready,
            left=left,
            changed=self._changed,
        )
        try:
            with scope:
                await hold(setting, mode)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise asyncio.CancelledError from error  # whoever leaves the server, or ends the event loop
            fault = fault_behind(error)
            text = f"A session with an MCP server has ended{reason_behind(fault)}."
            note(_log, logging.DEBUG, text, server=self._spec.label)
            return fault
        return NotReached(SLOW) if scope.cancelled_caught and not coming.is_set else None

    def _stand(self, connection: Connection, coming: Once[Connection]) -> None:
        if self._coming is not coming:  # nobody waits for it any more
            connection.end()
            return
        if self._has_stood:
            self._changed()  # while nobody listened
        self._has_stood = True
        self._standing, self._failure, self._coming = connection, None, None
        coming.set(connection)

    def _give_up(self, coming: Once[Connection]) -> None:
        if not coming.is_set:
            self._fail(coming, NotReached(SLOW))

    def _fail(self, coming: Once[Connection], fault: ServerUnavailable) -> None:
        self._failure = fault
        fault.details, self._details = self._details, ""
        self._pauses.failed(asyncio.get_running_loop().time())
        if self._coming is coming:
            self._coming = None
        coming.fail(fault)


class _Sdk:
    """The SDK, imported once for all who ask. A module is known long before it is there, so that says nothing."""

    def __init__(self) -> None:
        self._is_there = False
        self._coming: Future[None] | None = None

    async def load(self) -> None:
        if self._is_there:
            return
        if (coming := self._coming) is None:
            coming = self._coming = Future()
            coming.set_running_or_notify_cancel()  # one who stops waiting does not stop it
            threading.Thread(target=self._load, args=(coming,), name="mcp import").start()
        await asyncio.wrap_future(coming)

    def _load(self, coming: Future[None]) -> None:
        try:
            importlib.import_module(_SESSIONS)
        except BaseException as exc:
            self._coming = None
            coming.set_exception(exc)
        else:
            self._is_there = True
            coming.set_result(None)


_SDK = _Sdk()


async def load_sdk() -> None:
    """The first time it takes over a second, in a thread: streams go on meanwhile."""
    await _SDK.load()


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_GOODBYE)
        await stop(tasks, _GOODBYE)


def fault_behind(error: BaseException) -> ServerUnavailable:
    """What is behind all that the SDK has wrapped around it, in a sentence for everybody."""
    from antwort.tools.mcp.web import refusal

    if (refused := refusal(error)) is not None:
        return _caused(NotReached(f"The address of the MCP server {refused}"), refused)
    for leaf in _leaves(error):
        if isinstance(leaf, ServerUnavailable):
            return leaf
        if (fault := _judged(leaf)) is not None:
            return _caused(fault, leaf)
    return _caused(ServerUnavailable(NOT_AN_ANSWER), error)


def _judged(leaf: BaseException) -> ServerUnavailable | None:
    import httpx2
    from mcp.client.auth import OAuthFlowError
    from mcp.shared.exceptions import MCPError

    if isinstance(leaf, MCPError) and isinstance(leaf.error.data, ServerUnavailable):  # from a transport of our own
        return leaf.error.data
    if isinstance(leaf, httpx2.ConnectError | httpx2.ConnectTimeout):
        return NotReached(_UNREACHED)
    if isinstance(leaf, OAuthFlowError):
        return Unauthorized(UNAUTHORIZED)
    if isinstance(leaf, httpx2.HTTPStatusError) and leaf.response.status_code in (401, 403):
        return Unauthorized(UNAUTHORIZED)
    return None


def _caused(fault: ServerUnavailable, cause: BaseException) -> ServerUnavailable:
    fault.__cause__ = cause
    return fault


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
