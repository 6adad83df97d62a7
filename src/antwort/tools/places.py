"""Who may run at once: calls of the same tool, and of the same server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
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

    @asynccontextmanager
    async def one(self, tool: ToolDefinition, limits: ToolLimits, identity: Identity) -> AsyncGenerator[None, None]:
        """Waits for a place of the tool's, then for one of its server's: who waits for a tool that hangs takes no place
        of its neighbours'.
        """
        server = server_of(tool, identity)
        of_tool = self._places((server, tool.own_name), limits.concurrency_of(tool.own_name))
        of_server = self._places(server, limits.total)
        async with of_tool, of_server:
            yield

    def _places(self, key: Hashable, number: int) -> asyncio.Semaphore:
        return self._taken.setdefault(key, asyncio.Semaphore(number))


def server_of(tool: ToolDefinition, identity: Identity | None = None) -> Hashable:
    """Whose the tool is. A label that a request has given an address is not the operator's of the same name; and what
    one client does there takes no place of another's.
    """
    url = UNSET if tool.declared is None else tool.declared.server_url
    if url is UNSET:
        return (tool.server_label,)
    return (url,) if identity is None else (url, identity.tenant, identity.owner)
