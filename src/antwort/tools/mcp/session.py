"""A session with one server for one owner: the cached list of its tools, and calls of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from antwort.net.ssrf import AddressPolicy
from antwort.notes import note
from antwort.tools.base import Progress
from antwort.tools.mcp.base import McpCallResult, NotReached, ServerSpec, ServerTool, ServerTools, ServerUnavailable
from antwort.tools.mcp.connection import McpConnection
from antwort.tools.mcp.conversion import MAX_LIST_BYTES, MAX_UNTRUSTED_LIST_BYTES, Definitions, read_list
from antwort.tools.mcp.messages import (
    HEADER_MISMATCH,
    NOT_AN_ANSWER,
    JsonRpcError,
    Unsent,
    call_result,
    error_result,
    http_status_error,
)
from antwort.tools.mcp.reconnection import ALL_CLOSING, Reconnector
from antwort.tools.mcp.throttle import LogThrottle

if TYPE_CHECKING:
    from antwort.tools.mcp.pool import SessionPool

_log = logging.getLogger(__name__)

SLOW_LIST = "The MCP server takes too long to list its tools."
_LIST_SECONDS = 60.0
"""Timeout of a whole list. Callers stop waiting sooner; later ones get the list."""
_REFRESH_SECONDS = 1.0
"""Shortest time between two lists that are requested because the server announced a change."""
_LOG_SECONDS = 600.0
_MAX_CHANGE_LINES = 100
"""Changed tools that are logged in that time: a server must not fill the log."""
_RETRY_SECONDS = 10.0
"""Time after which a list that failed is requested again. Until then the old one is used."""

T = TypeVar("T")
P = ParamSpec("P")


class McpSession:
    """A session with a server. It connects when it is used, and again after a failure, with backoff."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None = None, pool: SessionPool | None = None) -> None:
        self.spec = spec
        self.uses = 0
        """The calls and requests for the list in progress."""
        self.used_at = monotonic()
        self.listed: ServerTools | None = None
        """The last list, which may have expired."""
        self.brought_bytes = 0
        """Size of the list as JSON, if a request has named the server by its address."""
        self.definitions: Definitions | None = None
        """What the list was converted to."""
        self._pool = pool
        self._connections = Reconnector(spec, policy, self._mark_changed)
        self._tools: dict[str, ServerTool] = {}
        self._stale_at = 0.0
        self._listed_at = float("-inf")
        self._has_changed = False
        """Whether the server announced a change after the last list was requested."""
        self._timer: asyncio.TimerHandle | None = None
        self._cut_log = LogThrottle(_LOG_SECONDS)
        self._change_log = LogThrottle(_LOG_SECONDS, _MAX_CHANGE_LINES)
        self._listing: asyncio.Task[ServerTools | ServerUnavailable] | None = None
        self._waiting = 0

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self._connections.is_open or self._listing is not None

    async def tools(self) -> ServerTools:
        """Return the cached list, or request one. A list that has expired, or that the server says has changed, is
        refreshed in the background. Raises `ServerUnavailable`.
        """
        return self.cached() or await self._next_list()

    def cached(self) -> ServerTools | None:
        """Return the cached list, if there is one, without waiting. An expired one is refreshed in the background."""
        if self.listed is not None and asyncio.get_running_loop().time() >= self._stale_at:
            self._refresh()
        return self.listed

    async def refresh(self) -> ServerTools:
        """Return the list as it is now; one that is already requested may be older. Raises `ServerUnavailable`."""
        self.uses += 1
        try:
            if self._listing is not None:
                with suppress(ServerUnavailable):
                    await self._next_list()
            return await self._next_list()
        finally:
            self._release()

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> McpCallResult:
        """Run a tool. `arguments` is the text of a JSON object, which the caller has checked: it is sent as it is.
        `key` is the call's idempotency key. The server is notified of a cancelled call. Raises `ServerUnavailable`.
        """
        self.uses += 1
        try:
            tool = self._tools.get(name)
            try:
                return call_result(await self._ask(McpConnection.call, name, arguments, key, progress, tool))
            except JsonRpcError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            # The parameters of the tool have changed. Servers check that before they run anything.
            await self._next_list()
            tool = self._tools.get(name)
            return call_result(await self._ask(McpConnection.call, name, arguments, key, progress, tool))
        except JsonRpcError as error:
            return error_result(error)
        finally:
            self._release()

    def close(self) -> Coroutine[None, None, None]:
        """Close the connection now, and keep the list. The returned coroutine waits until all is closed."""
        listing = self._stop_listing()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return _closed(listing, self._connections.close())

    def forget(self) -> None:
        """Drop the list, too: no caller will want it again."""
        self.listed = self.definitions = None
        self._tools, self.brought_bytes = {}, 0

    def _release(self) -> None:
        self.uses -= 1
        self.used_at = monotonic()
        if self._pool is not None and self._pool.is_over_limit:
            self._pool.evict(self.spec.owner)

    async def _ask(
        self, question: Callable[Concatenate[McpConnection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask over the current connection, and once more over a new one if the first has certainly not carried it."""
        connections, is_second = self._connections, False
        while True:
            connection = connections.current
            if connection is None or not connection.is_usable:
                connection = await connections.connection()
            connection.uses += 1
            try:
                answer = await question(connection, *args, **kwargs)
            except JsonRpcError:
                connection.is_unproven = False
                connections.cooldown.succeeded()
                raise
            except Unsent as exc:
                if is_second and exc.status is not None:  # a session that the server knows: it refuses the request
                    raise http_status_error(exc.status) from exc
                connections.replace(connection)
                if is_second:
                    raise ServerUnavailable(NOT_AN_ANSWER) from exc
                is_second = True
            else:
                connection.is_unproven = False
                if connections.cooldown.failures:
                    connections.cooldown.succeeded()
                return answer
            finally:
                connection.uses -= 1
                if not connection.is_usable:
                    connection.retire()

    # ---- the list ----

    async def _next_list(self) -> ServerTools:
        """Return the list that is being requested, or else request one."""
        listing = self._refresh()
        self.uses += 1
        self._waiting += 1
        try:
            await asyncio.wait([listing], timeout=self.spec.connect)  # it goes on when this caller is cancelled
        finally:
            self._waiting -= 1
            if self.spec.is_untrusted and not self._waiting and not listing.done() and listing is self._listing:
                self._stop_listing()  # no caller waits any more for an untrusted server
                self._refresh_if_changed()
            self._release()
        if not listing.done():
            raise NotReached(SLOW_LIST)
        if listing.cancelled():
            raise ServerUnavailable(ALL_CLOSING)
        if isinstance(listed := listing.result(), ServerUnavailable):
            raise listed.again()
        return listed

    def _refresh(self) -> asyncio.Task[ServerTools | ServerUnavailable]:
        """Request the list, unless it is already requested."""
        if self._listing is None:
            self._listed_at = asyncio.get_running_loop().time()
            self._has_changed = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._listing = asyncio.create_task(self._fetch(), name="mcp list", context=Context())
        return self._listing

    def _stop_listing(self) -> asyncio.Task[ServerTools | ServerUnavailable] | None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.cancel()
            self._stale_at = 0.0
        return listing

    async def _fetch(self) -> ServerTools | ServerUnavailable:
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listed = await self._ask(self._pages)
            if listed != self.listed:
                self._log_changes(listed)
                self.listed = listed
            self._tools = {tool.name: tool for tool in self.listed.tools}
            return self.listed
        except ServerUnavailable as exc:
            fault = exc.again()
        except TimeoutError:
            fault = NotReached(SLOW_LIST)
            if self._connections.current is not None:
                self._connections.replace(self._connections.current)
        except JsonRpcError:
            fault = ServerUnavailable(NOT_AN_ANSWER)
        finally:
            if self._listing is asyncio.current_task():
                self._listing = None
                self._refresh_if_changed()
        self._stale_at = asyncio.get_running_loop().time() + min(self.spec.list_age, _RETRY_SECONDS)
        note(_log, logging.DEBUG, f"An MCP server has not listed its tools: {fault}", server=self.spec.label)
        return fault

    async def _pages(self, connection: McpConnection) -> ServerTools:
        self._stale_at = asyncio.get_running_loop().time() + self.spec.list_age
        self._has_changed = False
        most = MAX_UNTRUSTED_LIST_BYTES if self.spec.is_untrusted else MAX_LIST_BYTES
        found = await read_list(connection.page, connection.allows, most)
        if found.left_out and self._cut_log.take():
            level = logging.WARNING if self.spec.owner is None else logging.DEBUG
            text = f"An MCP server's list of tools is not taken whole: {found.left_out}."
            note(_log, level, text, server=self.spec.label, tools=len(found.tools))
        if self.spec.is_untrusted:
            if self._pool is not None and found.size > self.brought_bytes:
                self._pool.is_over_limit = True  # maybe: the next use checks it
            self.brought_bytes = found.size
        return ServerTools(tools=found.tools, instructions=connection.instructions)

    def _log_changes(self, listed: ServerTools) -> None:
        """Log the names of the tools that have changed. Their descriptions stay out of the log."""
        changed = [tool.name for tool in listed.tools if _has_changed(self._tools.get(tool.name), tool)]
        lines = self._change_log.take(len(changed))
        level = logging.WARNING if self.spec.owner is None else logging.INFO
        for name in changed[:lines]:
            text = "An MCP server has changed a tool."
            note(_log, level, text, event="tool_changed", server=self.spec.label, tool=name)
        if len(changed) > lines > 0:
            text = "An MCP server changes more tools than are logged; it is heard again in ten minutes."
            note(_log, level, text, event="tool_changed", server=self.spec.label, tools=len(changed))

    def _mark_changed(self) -> None:
        """The server says that its list has changed, or it may have changed without notice."""
        self._stale_at = 0.0
        if self.listed is not None or self._listing is not None:
            self._has_changed = True
            self._refresh_if_changed()

    def _refresh_if_changed(self) -> None:
        """Schedule a refresh of a changed list, also if no caller wants it: at most one in `_REFRESH_SECONDS`."""
        if self._has_changed and self._listing is None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._listed_at + _REFRESH_SECONDS, self._refresh)


async def _closed(listing: asyncio.Task[object] | None, ended: Coroutine[None, None, None]) -> None:
    await ended
    if listing is not None:
        await asyncio.wait([listing])


def _has_changed(before: ServerTool | None, after: ServerTool) -> bool:
    """Return whether a known tool is described to the model, or annotated, in another way."""
    fields = ("title", "description", "input_schema", "annotations")
    return before is not None and any(getattr(before, field) != getattr(after, field) for field in fields)
