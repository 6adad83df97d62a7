"""Sessions with MCP servers that play a script, for tests of whoever uses sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from antwort.tools.base import Progress
from antwort.tools.mcp.base import McpCallResult, ServerSpec, ServerTool, ServerTools
from antwort.tools.mcp.pool import SessionPool
from antwort.tools.mcp.session import McpSession

Answer: TypeAlias = Callable[[str, str], Awaitable[McpCallResult]]
"""What a tool of a name answers to these arguments."""


def text(words: str, *, is_error: bool = False) -> McpCallResult:
    return McpCallResult(content=({"type": "text", "text": words},), is_error=is_error)


async def echo(name: str, arguments: str) -> McpCallResult:
    return text(f"{name} {arguments}")


def tools(*names: str, instructions: str | None = None) -> ServerTools:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    listed = tuple(ServerTool(name=name, description=f"What {name} does.", input_schema=schema) for name in names)
    return ServerTools(tools=listed, instructions=instructions)


class ScriptedSession(McpSession):
    def __init__(self, spec: ServerSpec, server: ScriptedServer) -> None:
        super().__init__(spec)
        self._server = server

    def cached(self) -> None:
        """Each list is asked for anew, so that it may change from one to the next."""

    async def tools(self) -> ServerTools:
        self._server.lists += 1
        if self._server.down is not None:
            raise self._server.down
        self.listed = self._server.listed
        return self.listed

    async def refresh(self) -> ServerTools:
        return await self.tools()

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> McpCallResult:
        self._server.calls.append((name, arguments, key))
        if progress is not None:
            progress(Progress(done=1))
        if self._server.down is not None:
            raise self._server.down
        return await self._server.answer(name, arguments)


class ScriptedServer:
    """What stands behind a label or an address. Set `down` to have it fail."""

    def __init__(self, listed: ServerTools | Sequence[str] = ("echo",), answer: Answer = echo) -> None:
        self.listed = listed if isinstance(listed, ServerTools) else tools(*listed)
        self.answer = answer
        self.down: Exception | None = None
        self.lists = 0
        self.calls: list[tuple[str, str, str]] = []


class ScriptedSessions(SessionPool):
    """One session for each key, as in any pool; `specs` are all that were asked for."""

    def __init__(self, servers: Mapping[str, ScriptedServer] | None = None, **by_label: ScriptedServer) -> None:
        super().__init__()
        self._servers = {**(servers or {}), **by_label}
        self.sessions: dict[bytes, ScriptedSession] = {}
        self.specs: list[ServerSpec] = []
        self.is_closed = False

    def session(self, spec: ServerSpec) -> ScriptedSession:
        self.specs.append(spec)
        server = self._servers.get(spec.url) or self._servers[spec.label]
        return self.sessions.setdefault(spec.key, ScriptedSession(spec, server))

    async def close(self) -> None:
        self.is_closed = True

    @property
    def headers(self) -> list[Mapping[str, Any]]:
        return [spec.headers for spec in self.specs]
