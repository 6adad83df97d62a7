"""A session with one server, in one name: its list of tools, cached while it is good, and calls of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import TypeVar

from antwort.concurrency import Once
from antwort.net.ssrf import AddressPolicy
from antwort.notes import note
from antwort.tools.base import Progress
from antwort.tools.mcp.base import CallOutcome, NotReached, ServerSpec, ServerTool, ServerTools, ServerUnavailable
from antwort.tools.mcp.client import Call, Connection
from antwort.tools.mcp.connector import ALL_CLOSING, Connector
from antwort.tools.mcp.conversion import MAX_UNTRUSTED_LIST_BYTES, ToolList
from antwort.tools.mcp.messages import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    NOT_AN_ANSWER,
    Refused,
    Unsent,
    outcome_of,
    refusal_outcome,
    refused_with,
)

_log = logging.getLogger(__name__)

SLOW_LIST = "The MCP server takes too long to list its tools."
_LIST_SECONDS = 60.0
"""Time for a whole list. Those who wait for it give up sooner; whoever asks later has it."""
_REFRESH_SECONDS = 1.0
"""Time between lists that a server makes us ask for by saying that it has changed."""
_LOG_SECONDS = 600.0
"""Time between two lines of the log about what a server lists."""
_MAX_CHANGE_LINES = 100
"""Changed tools that are logged in that time: the log is not a server's to fill."""
_RETRY_SECONDS = 10.0
"""Time after which a list that could not be had is asked for again; meanwhile the old one serves."""

T = TypeVar("T")


class ServerSession:
    """What `Session` promises, for those who ask through the pool."""

    def __init__(
        self, spec: ServerSpec, policy: AddressPolicy | None = None, grown: Callable[[], None] | None = None
    ) -> None:
        """`grown` is called when the list takes more than before."""
        self.spec = spec
        self._grown = grown
        self._connector = Connector(spec, policy, self._change)
        self._list: ServerTools | None = None
        self.list_bytes = 0
        """What its list takes, as JSON."""
        self._tools: dict[str, ServerTool] = {}
        self._stale_at = 0.0
        self._changes = RefreshTimer(self._refresh, _REFRESH_SECONDS)
        self._log = _ListLog(spec)
        self._listing: Once[ServerTools] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self._connector.is_open or self._listing is not None

    async def tools(self) -> ServerTools:
        return self.cached() or await self._first()

    async def refresh(self) -> ServerTools:
        """Return the list as it is from now on: one that is under way may be of before."""
        if self._listing is not None:
            with suppress(ServerUnavailable):
                await self._first()
        return await self._first()

    def cached(self) -> ServerTools | None:
        """Return the list that there is, without waiting; one that has aged is asked for beside."""
        if self._list is not None and self._now() >= self._stale_at:
            self._refresh()
        return self._list

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> CallOutcome:
        """Run a tool, as `Session` says."""

        def ask(connection: Connection) -> Awaitable[object]:
            return connection.call(Call(name, arguments, key, progress, self._tools.get(name)))

        try:
            try:
                return outcome_of(await self._ask(ask))
            except Refused as refused:
                if refused.code != HEADER_MISMATCH:
                    raise
            # What the tool takes is not what it took: the server says so before it runs anything.
            await self._first()
            return outcome_of(await self._ask(ask))
        except Refused as refused:
            return refusal_outcome(refused)

    def leave(self) -> Coroutine[None, None, None]:
        """Leave the server now, and keep the list; the coroutine that is returned waits until all is closed."""
        listing, self._listing = self._listing, None
        if listing is not None:
            self._changes.end()
            listing.fail(ServerUnavailable(ALL_CLOSING))
        self._changes.stop()
        if self._task is not None:
            self._task.cancel()
        return _left(self._task, self._connector.leave())

    def forget(self) -> None:
        """Drop the list, too: nobody will ask for it any more."""
        self._list, self._tools, self.list_bytes = None, {}, 0

    async def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask over the connection that there is, and over a fresh one where the first has certainly not carried it."""
        is_second = False
        while True:
            connection = self._connector.usable() or await self._connector.connection()
            try:
                answer = await question(connection)
            except Refused:
                self._connector.succeeded()
                raise
            except Unsent as exc:
                if is_second and exc.status is not None:  # over a session that it knows: it means the request
                    raise refused_with(exc.status) from exc
                self._connector.replace(connection)
                if is_second:
                    raise ServerUnavailable(NOT_AN_ANSWER) from exc
                is_second = True
            else:
                self._connector.succeeded()
                return answer

    # ---- the list ----

    async def _first(self) -> ServerTools:
        """Return the next list to come."""
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
            if is_unwanted and self._task is not None:  # nobody waits any more for what an untrusted server sends
                self._listing = None
                self._changes.end()
                self._task.cancel()

    def _refresh(self) -> Once[ServerTools]:
        """Begin to ask for the list, unless that is under way."""
        if self._listing is None:
            self._listing = Once()
            self._changes.begin()
            self._task = asyncio.create_task(self._fetch(self._listing), name="mcp list", context=Context())
        return self._listing

    async def _fetch(self, listing: Once[ServerTools]) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listed = await self._ask(self._pages)
            if listed != self._list:
                self._log.changes(self._list, listed)
                self._list = listed
            self._tools = {tool.name: tool for tool in self._list.tools}
            listing.set(self._list)
        except ServerUnavailable as exc:
            fault = exc
        except TimeoutError:
            fault = NotReached(SLOW_LIST)
            self._connector.replace()
        except Refused as refused:
            fault.__cause__ = refused
        finally:
            if self._listing is listing:
                self._listing = None
                self._changes.end()
            if not listing.is_set:
                self._stale_at = self._now() + min(self.spec.list_age, _RETRY_SECONDS)
                note(_log, logging.INFO, f"An MCP server has not listed its tools: {fault}", server=self.spec.label)
                listing.fail(fault)

    async def _pages(self, connection: Connection) -> ServerTools:
        found = ToolList(connection.allows, MAX_UNTRUSTED_LIST_BYTES if self.spec.is_untrusted else None)
        self._stale_at = self._now() + self.spec.list_age
        self._changes.cover()
        cursor: str | None = None
        try:
            while (cursor := found.feed(await connection.page(cursor))) is not None:
                pass
        except Refused as refused:
            if refused.code != METHOD_NOT_FOUND:  # a server without tools
                raise
        self._log.left_out(found)
        before, self.list_bytes = self.list_bytes, found.size
        if self.list_bytes > before and self._grown is not None:
            self._grown()
        return ServerTools(tools=found.tools, instructions=connection.agreement.instructions)

    def _change(self) -> None:
        """The server says that its list has changed, or may have unheard."""
        self._stale_at = 0.0
        if self._list is not None or self._listing is not None:
            self._changes.hear()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _left(listing: asyncio.Task[None] | None, ended: Coroutine[None, None, None]) -> None:
    await ended
    if listing is not None:
        await asyncio.wait([listing])


class _ListLog:
    """What is logged of a server's lists. They come as often as the server wants; the log is not its to fill."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._left_out_at = self._changed_at = float("-inf")
        self._lines = 0
        """Changed tools that may be logged until `_LOG_SECONDS` have passed since the first."""

    def left_out(self, found: ToolList) -> None:
        now = asyncio.get_running_loop().time()
        if found.left_out and now - self._left_out_at >= _LOG_SECONDS:
            self._left_out_at = now
            level = logging.WARNING if self._spec.owner is None else logging.DEBUG
            text = f"An MCP server's list of tools is not taken whole: {found.left_out}."
            note(_log, level, text, server=self._spec.label, tools=len(found.tools))

    def changes(self, before: ServerTools | None, after: ServerTools) -> None:
        """Log each tool that is another one under the same name, and nothing of what is said of it."""
        known = {} if before is None else {tool.name: tool for tool in before.tools}
        changed = [tool.name for tool in after.tools if tool.name in known and _is_other(known[tool.name], tool)]
        now = asyncio.get_running_loop().time()
        if changed and now - self._changed_at >= _LOG_SECONDS:
            self._changed_at, self._lines = now, _MAX_CHANGE_LINES
        level = logging.WARNING if self._spec.owner is None else logging.INFO
        for name in changed[: self._lines]:
            text = "An MCP server has changed a tool."
            note(_log, level, text, event="tool_changed", server=self._spec.label, tool=name)
        if len(changed) > self._lines > 0:
            text = "An MCP server changes more tools than are logged; it is heard again in ten minutes."
            note(_log, level, text, event="tool_changed", server=self._spec.label, tools=len(changed))
        self._lines = max(0, self._lines - len(changed))


def _is_other(tool: ServerTool, now: ServerTool) -> bool:
    """Return whether something else is said to the model, or about the tool's use."""
    fields = ("title", "description", "input_schema", "annotations")
    return any(getattr(tool, field) != getattr(now, field) for field in fields)


class RefreshTimer:
    """Has a changed list asked for again: soon, at most once in `seconds`, and whether or not anybody asks for it."""

    def __init__(self, ask: Callable[[], object], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._begun_at = float("-inf")
        self._is_busy = self._has_changed = False
        self._timer: asyncio.TimerHandle | None = None

    def hear(self) -> None:
        """The list has changed, or may have."""
        self._has_changed = True
        self._follow()

    def begin(self) -> None:
        """The list is asked for, for whatever reason."""
        self._is_busy = True
        self._begun_at = asyncio.get_running_loop().time()
        self.cover()

    def cover(self) -> None:
        """What has changed up to here will be in the list that is asked for."""
        self._has_changed = False
        self.stop()

    def end(self) -> None:
        """The list has come, or not."""
        self._is_busy = False
        self._follow()

    def stop(self) -> None:
        """Ask no more until the next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _follow(self) -> None:
        if self._has_changed and not self._is_busy and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._begun_at + self._seconds, self._go)

    def _go(self) -> None:
        self._timer = None
        self._ask()
