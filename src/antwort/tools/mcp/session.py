"""A session with one server for one owner: the cached list of its tools, and calls of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Self, TypeVar

from antwort.concurrency import Once
from antwort.net.ssrf import AddressPolicy
from antwort.notes import note
from antwort.tools.base import Progress
from antwort.tools.mcp.base import McpCallResult, NotReached, ServerSpec, ServerTool, ServerTools, ServerUnavailable
from antwort.tools.mcp.connection import McpConnection
from antwort.tools.mcp.connector import ALL_CLOSING, Connector
from antwort.tools.mcp.conversion import MAX_UNTRUSTED_LIST_BYTES, ToolList
from antwort.tools.mcp.messages import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    NOT_AN_ANSWER,
    JsonRpcError,
    Unsent,
    call_result,
    error_result,
    http_status_error,
)
from antwort.tools.mcp.throttle import LogThrottle

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


class McpSession:
    """A session with a server. It connects when it is used, and again after a failure, with backoff.

    `SessionPool.session` returns it for a `with` block. Until that ends, it is in use.
    """

    def __init__(
        self,
        spec: ServerSpec,
        policy: AddressPolicy | None = None,
        on_growth: Callable[[], None] | None = None,
        on_release: Callable[[McpSession], None] | None = None,
    ) -> None:
        """`on_growth` is called when the list takes more bytes than before, `on_release` at the end of each use."""
        self.spec = spec
        self.uses = 0
        """The `with` blocks that have not ended."""
        self.used_at = 0.0
        self.list_bytes = 0
        """Size of the list as JSON."""
        self._on_growth, self._on_release = on_growth, on_release
        self._connector = Connector(spec, policy, self._mark_changed)
        self._list: ServerTools | None = None
        self._tools: dict[str, ServerTool] = {}
        self._stale_at = 0.0
        self._listed_at = float("-inf")
        self._has_changed = False
        """Whether the server announced a change after the last list was requested."""
        self._timer: asyncio.TimerHandle | None = None
        self._cut_log = LogThrottle(_LOG_SECONDS)
        self._change_log = LogThrottle(_LOG_SECONDS, _MAX_CHANGE_LINES)
        self._listing: Once[ServerTools] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uses -= 1
        self.used_at = monotonic()
        if self._on_release is not None:
            self._on_release(self)

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self._connector.is_open or self._listing is not None

    async def tools(self) -> ServerTools:
        """Return the cached list, or request one. A list that has expired, or that the server says has changed, is
        refreshed in the background. Raises `ServerUnavailable`.
        """
        return self.cached() or await self._next_list()

    def cached(self) -> ServerTools | None:
        """Return the cached list, if there is one, without waiting. An expired one is refreshed in the background."""
        if self._list is not None and self._now() >= self._stale_at:
            self._refresh()
        return self._list

    async def refresh(self) -> ServerTools:
        """Return the list as it is now; one that is already requested may be older. Raises `ServerUnavailable`."""
        if self._listing is not None:
            with suppress(ServerUnavailable):
                await self._next_list()
        return await self._next_list()

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> McpCallResult:
        """Run a tool. `arguments` is the text of a JSON object, which the caller has checked: it is sent as it is.
        `key` is the call's idempotency key. The server is notified of a cancelled call. Raises `ServerUnavailable`.
        """

        def ask(connection: McpConnection) -> Awaitable[object]:
            return connection.call(name, arguments, key, progress, self._tools.get(name))

        try:
            try:
                return call_result(await self._ask(ask))
            except JsonRpcError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            # The parameters of the tool have changed. Servers check that before they run anything.
            await self._next_list()
            return call_result(await self._ask(ask))
        except JsonRpcError as error:
            return error_result(error)

    def close(self) -> Coroutine[None, None, None]:
        """Close the connection now, and keep the list. The returned coroutine waits until all is closed."""
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.fail(ServerUnavailable(ALL_CLOSING))
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
        return _closed(self._task, self._connector.close())

    def forget(self) -> None:
        """Drop the list, too: no caller will want it again."""
        self._list, self._tools, self.list_bytes = None, {}, 0

    async def _ask(self, question: Callable[[McpConnection], Awaitable[T]]) -> T:
        """Ask over the current connection, and once more over a new one if the first has certainly not carried it."""
        is_second = False
        while True:
            connection = self._connector.usable() or await self._connector.connection()
            try:
                answer = await question(connection)
            except JsonRpcError:
                self._connector.succeeded()
                raise
            except Unsent as exc:
                if is_second and exc.status is not None:  # a session that the server knows: it refuses the request
                    raise http_status_error(exc.status) from exc
                self._connector.replace(connection)
                if is_second:
                    raise ServerUnavailable(NOT_AN_ANSWER) from exc
                is_second = True
            else:
                self._connector.succeeded()
                return answer

    # ---- the list ----

    async def _next_list(self) -> ServerTools:
        """Return the list that is being requested, or else request one."""
        listing = self._refresh()
        self._waiting += 1
        try:
            async with asyncio.timeout(self.spec.connect):
                return await listing.wait()
        except TimeoutError as exc:
            raise NotReached(SLOW_LIST) from exc
        finally:
            self._waiting -= 1
            is_unwanted = self.spec.is_untrusted and not self._waiting and self._listing is listing
            if is_unwanted and self._task is not None:  # no caller waits any more for an untrusted server
                self._listing = None
                self._refresh_if_changed()
                self._task.cancel()

    def _refresh(self) -> Once[ServerTools]:
        """Request the list, unless it is already requested."""
        if self._listing is None:
            self._listing = Once()
            self._listed_at = self._now()
            self._has_changed = False
            self._stop_timer()
            self._task = asyncio.create_task(self._fetch(self._listing), name="mcp list", context=Context())
        return self._listing

    async def _fetch(self, listing: Once[ServerTools]) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listed = await self._ask(self._pages)
            if listed != self._list:
                self._log_changes(listed)
                self._list = listed
            self._tools = {tool.name: tool for tool in self._list.tools}
            listing.set(self._list)
        except ServerUnavailable as exc:
            fault = exc
        except TimeoutError:
            fault = NotReached(SLOW_LIST)
            self._connector.replace()
        except JsonRpcError as error:
            fault.__cause__ = error
        finally:
            if self._listing is listing:
                self._listing = None
                self._refresh_if_changed()
            if not listing.is_set:
                self._stale_at = self._now() + min(self.spec.list_age, _RETRY_SECONDS)
                note(_log, logging.INFO, f"An MCP server has not listed its tools: {fault}", server=self.spec.label)
                listing.fail(fault)

    async def _pages(self, connection: McpConnection) -> ServerTools:
        found = ToolList(connection.allows, MAX_UNTRUSTED_LIST_BYTES if self.spec.is_untrusted else None)
        self._stale_at = self._now() + self.spec.list_age
        self._has_changed = False
        cursor: str | None = None
        try:
            while (cursor := found.feed(await connection.page(cursor))) is not None:
                pass
        except JsonRpcError as error:
            if error.code != METHOD_NOT_FOUND:  # a server without tools
                raise
        if found.left_out and self._cut_log.take():
            level = logging.WARNING if self.spec.owner is None else logging.DEBUG
            text = f"An MCP server's list of tools is not taken whole: {found.left_out}."
            note(_log, level, text, server=self.spec.label, tools=len(found.tools))
        before, self.list_bytes = self.list_bytes, found.size
        if self.list_bytes > before and self._on_growth is not None:
            self._on_growth()
        return ServerTools(tools=found.tools, instructions=connection.agreement.instructions)

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
        if self._list is not None or self._listing is not None:
            self._has_changed = True
            self._refresh_if_changed()

    def _refresh_if_changed(self) -> None:
        """Schedule a refresh of a changed list, also if no caller wants it: at most one in `_REFRESH_SECONDS`."""
        if self._has_changed and self._listing is None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._listed_at + _REFRESH_SECONDS, self._refresh)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _closed(listing: asyncio.Task[None] | None, ended: Coroutine[None, None, None]) -> None:
    await ended
    if listing is not None:
        await asyncio.wait([listing])


def _has_changed(before: ServerTool | None, after: ServerTool) -> bool:
    """Return whether a known tool is described to the model, or annotated, in another way."""
    fields = ("title", "description", "input_schema", "annotations")
    return before is not None and any(getattr(before, field) != getattr(after, field) for field in fields)
