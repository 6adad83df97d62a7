"""Who may run at once: calls of the same tool, and of the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from weakref import WeakValueDictionary

from antwort.api.wire import UNSET
from antwort.identity import Identity
from antwort.tools.base import ToolDefinition
from antwort.tools.bounds import ToolLimits


class Places:
    """Those of one executor. Kept as long as somebody uses them: what tools are called may come from anywhere."""

    def __init__(self) -> None:
        self._taken: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._taken)

    def one(self, tool: ToolDefinition, limits: ToolLimits, identity: Identity) -> Place:
        server = server_of(tool, identity)
        of_tool = self._places((server, tool.own_name), limits.concurrency_of(tool.own_name))
        return Place(of_tool, self._places(server, limits.total))

    def _places(self, key: Hashable, number: int) -> asyncio.Semaphore:
        places = self._taken.get(key)
        if places is None:
            places = self._taken[key] = asyncio.Semaphore(number)
        return places


class Place:
    """Of a tool, and of its server. Who waits for a tool that hangs takes no place of its neighbours'."""

    __slots__ = ("_of_server", "_of_tool")

    def __init__(self, of_tool: asyncio.Semaphore, of_server: asyncio.Semaphore) -> None:
        self._of_tool, self._of_server = of_tool, of_server

    async def take(self) -> None:
        """Wait for it; it is to be left again."""
        await self._of_tool.acquire()
        try:
            await self._of_server.acquire()
        except BaseException:
            self._of_tool.release()
            raise

    def leave(self) -> None:
        self._of_server.release()
        self._of_tool.release()


def server_of(tool: ToolDefinition, identity: Identity | None = None) -> Hashable:
    """Whose the tool is. A label that a request has given an address is not the operator's of the same name; and what
    one client does there takes no place of another's.
    """
    url = UNSET if tool.declared is None else tool.declared.server_url
    if url is UNSET:
        return (tool.server_label,)
    return (url,) if identity is None else (url, identity.tenant, identity.owner)
