"""The server to try things on: its tools, its record and its faults, behind the SDK's own server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError

from antwort.testing.mcp.faults import METHODS, Faults, garbage_for
from antwort.testing.mcp.record import Entry, Record, What
from antwort.testing.mcp.tools import TOOLS, Context, TryTool, plain, session_of

INSTRUCTIONS = "These tools are for trying things out."
_PAGE = 500


class _Announcing(Server[Any]):
    """It says from the start that its list of tools may change, whichever way it is served."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        told = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(told, experimental_capabilities, extensions)


class TryServer:
    """`many` adds as many plain tools, `tool_0` and on. `is_mortal`: whether the tool `die` ends this process."""

    def __init__(
        self,
        *,
        many: int = 0,
        faults: Faults = Faults(),  # noqa: B008 - a frozen value
        record: Record | None = None,
        is_mortal: bool = False,
    ) -> None:
        self.faults = faults
        self.record = record or Record()
        self.is_mortal = is_mortal
        self.scribble: Callable[[bytes], None] | None = None
        """Writes past the SDK, where garbage must go to a stream that it holds."""
        self.tools = {tool.name: tool for tool in (*TOOLS, *(plain(f"tool_{i}") for i in range(many)))}
        self._latches: dict[str, asyncio.Event] = {}
        self._met: dict[str, int] = {}
        self._counts: dict[str | None, int] = {}
        self._calls = 0
        self._sessions: dict[str | None, ServerSession] = {}
        self._bus = InMemorySubscriptionBus()

    def made(self) -> Server[Any]:
        """A server of the SDK with all of this behind it; each way of being served takes its own."""
        server = _Announcing(
            "try",
            version="1.0",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._bus),
            get_tool_input_schema=self._schema,  # else the SDK asks for the list with each call, and that is recorded
        )
        server.middleware.append(self._inspect)
        return server

    # ---- what the tools share ----

    def latch(self, name: str) -> asyncio.Event:
        return self._latches.setdefault(name, asyncio.Event())

    async def meet(self, name: str, party: int) -> None:
        """Wait until that many wait here."""
        self._met[name] = self._met.get(name, 0) + 1
        if self._met[name] >= party:
            self.latch(name).set()
        await self.latch(name).wait()

    def next_count(self, session: str | None) -> int:
        self._counts[session] = self._counts.get(session, 0) + 1
        return self._counts[session]

    async def change(self, name: str) -> None:
        """Add a plain tool of that name, and tell all who listen."""
        await self.replace_tools(*self.tools.values(), plain(name))

    async def replace_tools(self, *tools: TryTool) -> None:
        """Offer these tools from now on, and tell all who listen."""
        self.tools = {tool.name: tool for tool in tools}
        for session in list(self._sessions.values()):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, MCPError):
                await session.send_tool_list_changed()
        await self._bus.publish(ToolsListChanged())

    # ---- what is asked ----

    async def _inspect(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        step, faults = METHODS.get(ctx.method), self.faults
        if step == "initialize":
            self._note("opened", ctx)
        if step in faults.hang:
            await self._hang(step, ctx)
        if step in faults.slow:
            await self.latch("slow").wait()
        if step in faults.garbage and self.scribble is not None:
            self.scribble(garbage_for(faults.garbage_as, ctx.request_id))
            await asyncio.Event().wait()
        if faults.oldest is not None and ctx.method == "server/discover":
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        result = await call_next(ctx)
        if ctx.method == "initialize" and faults.oldest is not None and isinstance(result, dict):
            return {**result, "protocolVersion": faults.oldest}
        return result

    async def _hang(self, step: str | None, context: Context) -> None:
        number = self._called(context) if step == "call" else 0
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._note("cancelled", context, number)
            raise

    def _schema(self, name: str) -> dict[str, Any] | None:
        tool = self.tools.get(name)
        return None if tool is None else tool.listed.input_schema

    async def _list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self._sessions[session_of(context)] = context.session
        begin = int(params.cursor) if params is not None and params.cursor else 0
        tools = [tool.listed for tool in self.tools.values()]
        if begin == 0:
            self._note("listed", context)
        rest = str(begin + _PAGE) if len(tools) > begin + _PAGE else None
        return types.ListToolsResult(tools=tools[begin : begin + _PAGE], next_cursor=rest)

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = self.tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        number = self._called(context)
        try:
            result = await tool.run(self, context, params.arguments or {})
        except asyncio.CancelledError:
            self._note("cancelled", context, number)
            raise
        except Exception as exc:
            self._note("failed", context, number)
            raise MCPError(types.INTERNAL_ERROR, f"{type(exc).__name__}: {exc}") from exc
        self._note("answered", context, number)
        return result

    def _called(self, context: Context) -> int:
        self._calls += 1
        self._note("called", context, self._calls)
        return self._calls

    def _note(self, what: What, context: Context, number: int = 0) -> None:
        asked = (context.params or {}) if METHODS.get(context.method) == "call" else {}
        self.record.add(
            Entry(
                what=what,
                tool=asked.get("name"),
                number=number,
                arguments=asked.get("arguments") or {},
                session=session_of(context),
                version=context.protocol_version,
            )
        )
