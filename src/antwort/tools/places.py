"""Who may run at once: calls of the same tool, and of the same server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from antwort.api.wire import UNSET
from antwort.identity import Identity
from antwort.tools.base import ToolDefinition
from antwort.tools.bounds import ToolLimits


class Crowded(Exception):
    """All places are held by calls that would not stop and are at work still: nobody can say for how long."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Seats(NamedTuple):
    """Where the calls of a tool have their places, and how many there are."""

    server: Hashable
    tool: Hashable
    name: str
    url: str | None
    """Of a server that a request has given an address: there, each client has places of its own."""
    each: int
    total: int

    def keys(self, identity: Identity) -> tuple[Hashable, Hashable]:
        """Of the places of the tool, and of those of its server."""
        if self.url is None:
            return self.tool, self.server
        server = (self.url, identity.tenant, identity.owner)
        return (server, self.name), server


def seats_of(tool: ToolDefinition, limits: ToolLimits) -> Seats:
    server, name = server_of(tool), tool.own_name
    url = None if tool.declared is None or tool.declared.server_url is UNSET else tool.declared.server_url
    return Seats(server, (server, name), name, url, limits.concurrency_of(name), limits.total)


class Places:
    """Those of one executor. Kept as long as somebody uses them: what tools are called may come from anywhere."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    async def take(self, seats: Seats, identity: Identity) -> Taken:
        """One of the tool's, and one of its server's, when both are free; both are to be left again. Who waits for a
        tool that hangs takes no place of its neighbours'. Raises `Crowded`.
        """
        tool, server = seats.keys(identity)
        of_tool = self._row(tool, seats.each)
        await of_tool.take()
        of_server = self._row(server, seats.total)
        try:
            await of_server.take()
        except BaseException:
            of_tool.leave()
            raise
        return of_tool, of_server

    def take_now(self, seats: Seats, identity: Identity) -> Taken | None:
        """As `take`, where nobody has to wait; else None."""
        tool, server = seats.keys(identity)
        rows = self._rows
        of_tool = rows.get(tool) or Row(rows, tool, seats.each)
        of_server = rows.get(server) or Row(rows, server, seats.total)
        if not of_tool.free or not of_server.free:
            return None
        of_tool.free -= 1
        of_server.free -= 1
        rows[tool], rows[server] = of_tool, of_server
        return of_tool, of_server

    def _row(self, key: Hashable, number: int) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(self._rows, key, number)
        return row


class Place:
    """Of a tool, and of its server, for one who may be left behind. It is given back once: by who is done, or when who
    was left behind has ended.
    """

    __slots__ = ("_is_left", "_of_server", "_of_tool")

    def __init__(self, of_tool: Row, of_server: Row) -> None:
        self._of_tool, self._of_server = of_tool, of_server
        self._is_left = False

    def leave(self) -> None:
        if not self._is_left:
            self._of_server.leave()
            self._of_tool.leave()

    def leave_behind(self, task: asyncio.Task[object]) -> None:
        """By one who will not stop: it is free again when `task` has ended, and `leave` is nothing more."""
        self._is_left = True
        for row in (self._of_server, self._of_tool):
            row.stay()
            task.add_done_callback(row.go)


class Row:
    """So many places, given out in the order they are asked for. A semaphore, at a fraction of what asyncio's costs
    where there is room; and with the last who leaves, it goes from among the `others`.
    """

    __slots__ = ("_behind", "_key", "_number", "_others", "_waiting", "free")

    def __init__(self, others: dict[Hashable, Row], key: Hashable, number: int) -> None:
        self._others, self._key = others, key
        self._number = self.free = number
        self._behind = 0  # of those who hold places, how many were left behind
        self._waiting: deque[asyncio.Future[None]] | None = None  # made for the first who waits

    async def take(self) -> None:
        if self.free:
            self.free -= 1
            return
        if self._behind >= self._number:
            raise Crowded(self._behind)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting = deque() if self._waiting is None else self._waiting
        waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.leave()  # it was given the place, and does not come for it
            elif waiter in waiting:
                waiting.remove(waiter)
            raise

    def stay(self) -> None:
        """Who holds a place was left behind. Where that is so of all, nobody waits."""
        self._behind += 1
        if self._behind >= self._number:
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(Crowded(self._behind))

    def go(self, _: object = None) -> None:
        """It has ended after all."""
        self._behind -= 1
        self.leave()

    def leave(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the place goes over to it
                return
        self.free += 1
        if self.free == self._number:
            del self._others[self._key]


Taken: TypeAlias = tuple[Row, Row]
"""Where a tool and its server have given one of their places."""


def server_of(tool: ToolDefinition) -> Hashable:
    """Whose the tool is. A label that a request has given an address is not the operator's of the same name."""
    url = UNSET if tool.declared is None else tool.declared.server_url
    return (tool.server_label,) if url is UNSET else (url,)
