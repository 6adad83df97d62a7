"""With one server, in one name: its list of tools, kept while it is good, and calls of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from antwort.concurrency import Once
from antwort.net.ssrf import AddressPolicy
from antwort.notes import note
from antwort.tools.base import Progress
from antwort.tools.mcp.base import (
    CallOutcome,
    NotReached,
    ServerSpec,
    ServerTool,
    ServerTools,
    ServerUnavailable,
)
from antwort.tools.mcp.changes import Changes
from antwort.tools.mcp.messages import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    NOT_AN_ANSWER,
    Ask,
    Refused,
    Unsent,
    checked_arguments,
    outcome_of,
    refusal,
    refused_with,
)
from antwort.tools.mcp.owner import ALL_CLOSING, Owner
from antwort.tools.mcp.quiet import own_context
from antwort.tools.mcp.tool_list import STRANGERS_BYTES, ToolList

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import Connection

_log = logging.getLogger(__name__)

SLOW_LIST = "The MCP server takes too long to list its tools."
_LISTING = 60.0
"""Seconds for a whole list. Those who wait for it give up sooner; whoever asks later has it."""
_BETWEEN_CHANGES = 1.0
"""Seconds between lists that a server makes us ask for by saying that it has changed."""
_BETWEEN_WARNINGS = 600.0
"""Seconds between two lines of the log about what a server lists."""
_MOST_CHANGES = 100
"""Changed tools that are logged in that time: the log is not a server's to fill."""
_AFTER_FAILURE = 10.0
"""Seconds after which a list that could not be had is asked for again; meanwhile the old one serves."""

T = TypeVar("T")
_Listed: TypeAlias = tuple[Mapping[str, Any] | None, bool]
"""What a tool takes, as its server says, and whether to run it twice does no more than once."""
_NOT_LISTED: _Listed = (None, False)
_Question: TypeAlias = "Callable[[Connection], Awaitable[T]]"
"""What is asked over a connection, be it the first or a fresh one."""


class ServerSession:
    """What `Session` promises, for those who ask through the pool."""

    def __init__(
        self, spec: ServerSpec, reach: AddressPolicy | None = None, grown: Callable[[], None] | None = None
    ) -> None:
        """`grown` hears that the list takes more than before."""
        self.spec = spec
        self._grown = grown
        self._owner = Owner(spec, reach, self._change)
        self._list: ServerTools | None = None
        self.list_bytes = 0
        """What its list takes, as JSON."""
        self._waiting = 0
        self._by_name: dict[str, _Listed] = {}
        self._stale_at = 0.0
        self._changes = Changes(self._refresh, _BETWEEN_CHANGES)
        self._told_at = self._changed_at = float("-inf")
        self._change_lines = 0
        """Changed tools that may be logged until `_BETWEEN_WARNINGS` have passed since the first."""
        self._listing: Once[ServerTools] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self._owner.is_open or self._listing is not None

    async def tools(self) -> ServerTools:
        return self.at_hand() or await self._first()

    async def refresh(self) -> ServerTools:
        """The list as it is from now on: one that is under way may be of before."""
        if self._listing is not None:
            with suppress(ServerUnavailable):
                await self._first()
        return await self._first()

    def at_hand(self) -> ServerTools | None:
        """The list that there is, so that nobody has to wait; one that has aged is asked for beside."""
        if self._list is not None and self._now() >= self._stale_at:
            self._refresh()
        return self._list

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> CallOutcome:
        """Raises `ValueError` for arguments that are no JSON object, else as `Session` says."""
        text, said = checked_arguments(arguments)
        connection = self._owner.at_hand() or await self._owner.connection()
        try:
            listed = self._by_name.get(name, _NOT_LISTED)
            answer = await connection.call(Ask(name, text, said, key, progress, *listed))
        except Refused as refused:
            self._owner.worked()
            if refused.code != HEADER_MISMATCH:
                return refusal(refused)
            return await self._called_anew(partial(self._put, Ask(name, text, said, key, progress)))
        except Unsent:
            return await self._called_again(partial(self._put, Ask(name, text, said, key, progress)), connection)
        self._owner.worked()
        return outcome_of(answer)

    def leave(self) -> Coroutine[Any, Any, None]:
        """Leave the server now, and keep the list; what is given back waits until all is closed."""
        listing, self._listing = self._listing, None
        if listing is not None:
            self._changes.end()
            listing.fail(ServerUnavailable(ALL_CLOSING))
        self._changes.stop()
        if self._task is not None:
            self._task.cancel()
        return _left(self._task, self._owner.leave())

    def forget(self) -> None:
        """Keep no list, either: nobody will ask for it any more."""
        self._list, self._by_name, self.list_bytes = None, {}, 0

    # calls

    def _put(self, ask: Ask, connection: Connection) -> Coroutine[Any, Any, object]:
        """The call once more, with what the server says of the tool now."""
        schema, is_repeatable = self._by_name.get(ask.name, _NOT_LISTED)
        return connection.call(replace(ask, schema=schema, is_repeatable=is_repeatable))

    async def _called_again(self, put: _Question[object], connection: Connection) -> CallOutcome:
        """A call that the connection has not carried."""
        try:
            return outcome_of(await self._asked_again(put, connection))
        except Refused as refused:
            return await self._called_anew(put) if refused.code == HEADER_MISMATCH else refusal(refused)

    async def _called_anew(self, put: _Question[object]) -> CallOutcome:
        """What it takes is not what it took: the server says so before it runs anything."""
        await self._first()
        try:
            return outcome_of(await self._asked(put))
        except Refused as refused:
            return refusal(refused)

    async def _asked(self, question: _Question[T]) -> T:
        """Asked over a connection, and over a fresh one where the first has not carried it."""
        connection = self._owner.at_hand() or await self._owner.connection()
        try:
            answer = await question(connection)
        except Unsent:
            return await self._asked_again(question, connection)
        except Refused:
            self._owner.worked()
            raise
        self._owner.worked()
        return answer

    async def _asked_again(self, question: _Question[T], connection: Connection) -> T:
        """Over a fresh connection, as the first has not carried it."""
        self._owner.replace(connection)
        fresh = self._owner.at_hand() or await self._owner.connection()
        try:
            answer = await question(fresh)
        except Unsent as exc:
            if exc.status is not None:  # over a session that it knows: it means the request
                raise refused_with(exc.status) from exc
            self._owner.replace(fresh)
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except Refused:
            self._owner.worked()
            raise
        self._owner.worked()
        return answer

    # the list

    async def _first(self) -> ServerTools:
        listing = self._refresh()
        self._waiting += 1
        try:
            async with asyncio.timeout(self.spec.connect):
                return await listing.wait()
        except TimeoutError as exc:
            raise NotReached(SLOW_LIST) from exc
        finally:
            self._waiting -= 1
            if not self._waiting and self.spec.is_strangers:
                self._break_off(listing)

    def _break_off(self, listing: Once[ServerTools]) -> None:
        """Nobody waits any more for what a stranger sends."""
        if self._listing is not listing or self._task is None:
            return
        self._listing = None
        self._changes.end()
        self._task.cancel()

    def _refresh(self) -> Once[ServerTools]:
        """Begin to ask for the list, unless somebody has."""
        if self._listing is None:
            self._listing = Once()
            self._changes.begin()
            work = self._fetch(self._listing)
            self._task = asyncio.create_task(work, name="mcp list", context=own_context())
        return self._listing

    async def _fetch(self, listing: Once[ServerTools]) -> None:
        fault = ServerUnavailable(NOT_AN_ANSWER)
        try:
            async with asyncio.timeout(_LISTING):
                tools = await self._asked(self._pages)
            if tools != self._list:
                self._tell_changes(self._list, tools)
                self._list = tools
            self._by_name = {tool.name: (tool.input_schema, _is_repeatable(tool)) for tool in self._list.tools}
            listing.set(self._list)
        except ServerUnavailable as exc:
            fault = exc
        except TimeoutError:
            fault = NotReached(SLOW_LIST)
            self._owner.renew()
        except Refused as refused:
            fault.__cause__ = refused
        finally:
            if self._listing is listing:
                self._listing = None
                self._changes.end()
            if not listing.is_set:
                self._stale_at = self._now() + min(self.spec.list_age, _AFTER_FAILURE)
                note(_log, logging.INFO, f"An MCP server has not listed its tools: {fault}", server=self.spec.label)
                listing.fail(fault)

    async def _pages(self, connection: Connection) -> ServerTools:
        found = ToolList(connection.takes, STRANGERS_BYTES if self.spec.is_strangers else None)
        self._stale_at = self._now() + self.spec.list_age
        self._changes.cover()  # what changes from here on may not be in it
        cursor: str | None = None
        try:
            while (cursor := found.feed(await connection.page(cursor))) is not None:
                pass
        except Refused as refused:
            if refused.code != METHOD_NOT_FOUND:  # a server without tools
                raise
        self._tell(found)
        before, self.list_bytes = self.list_bytes, found.size
        if self.list_bytes > before and self._grown is not None:
            self._grown()
        return ServerTools(tools=found.tools, instructions=connection.agreed.instructions)

    def _tell(self, found: ToolList) -> None:
        """What was left out. Lists come as often as their server wants; the log is not its to fill."""
        if found.left_out and self._now() - self._told_at >= _BETWEEN_WARNINGS:
            self._told_at = self._now()
            level = logging.WARNING if self.spec.owner is None else logging.DEBUG
            text = f"An MCP server's list of tools is not taken whole: {found.left_out}."
            note(_log, level, text, server=self.spec.label, tools=len(found.tools))

    def _tell_changes(self, before: ServerTools | None, after: ServerTools) -> None:
        """Log each tool that is another one under the same name, and nothing of what is said of it."""
        known = {} if before is None else {tool.name: tool for tool in before.tools}
        changed = [tool.name for tool in after.tools if tool.name in known and _is_other(known[tool.name], tool)]
        if changed and self._now() - self._changed_at >= _BETWEEN_WARNINGS:
            self._changed_at, self._change_lines = self._now(), _MOST_CHANGES
        level = logging.WARNING if self.spec.owner is None else logging.INFO
        for name in changed[: self._change_lines]:
            text = "An MCP server has changed a tool."
            note(_log, level, text, event="tool_changed", server=self.spec.label, tool=name)
        if len(changed) > self._change_lines > 0:
            text = "An MCP server changes more tools than are logged; it is heard again in ten minutes."
            note(_log, level, text, event="tool_changed", server=self.spec.label, tools=len(changed))
        self._change_lines = max(0, self._change_lines - len(changed))

    def _change(self) -> None:
        """The server says that its list has changed, or may have without our hearing of it."""
        self._stale_at = 0.0
        if self._list is not None or self._listing is not None:
            self._changes.hear()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_other(tool: ServerTool, now: ServerTool) -> bool:
    """Whether something is said of it that was not said before, to the model or about its use."""
    return any(getattr(tool, field) != getattr(now, field) for field in _SAID)


_SAID = ("title", "description", "input_schema", "annotations")


def _is_repeatable(tool: ServerTool) -> bool:
    hints = tool.annotations or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


async def _left(listing: asyncio.Task[None] | None, ended: Coroutine[Any, Any, None]) -> None:
    await ended
    if listing is not None:
        await asyncio.wait([listing])
