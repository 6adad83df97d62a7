"""A tool server behind a login, and an engine that outlives a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antwort import Engine, Identity, Response, Vault
from antwort.api.items import McpCall
from antwort.api.tools import McpTool
from antwort.identity import ANONYMOUS
from antwort.storage.base import ResponseStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition
from engine_kit import CLOCK, ask, function_calls, only

KEY_ONE, KEY_TWO = "one secret of a vault", "another secret of a vault"
URL = "https://tools.example.com/u/sesame1/mcp?k=sesame2"
SERVER = {
    "type": "mcp",
    "server_label": "depot",
    "server_url": URL,
    "authorization": "sesame3",
    "headers": {"X-Key": "sesame4"},
    "require_approval": "never",
}


class Door(ToolServerFake):
    """A server that keeps by which declaration its tools were found and its calls were run."""

    def __init__(self) -> None:
        super().__init__("depot", lookup=self._run)
        self.found: list[McpTool] = []
        self.ran: list[McpTool | None] = []

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        tools = await super().discover(declared, identity)
        if tools is None:
            return None
        self.found.append(declared)
        return [msgspec.structs.replace(tool, declared=declared) for tool in tools]

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        del context
        self.ran.append(call.definition.declared)
        return "found"


class House:
    """An engine, and what of it outlives a restart."""

    def __init__(self, store: ResponseStore, secret: str = KEY_ONE) -> None:
        self.store, self.secret = store, secret
        self.door = Door()

    def engine(self, *turns: Any) -> Engine:
        self.door = Door()
        return Engine(ScriptedProvider(*turns), store=self.store, executors=[self.door], vault=Vault([self.secret]))

    async def paused(self, *tools: Any, identity: Identity = ANONYMOUS) -> Response:
        """A turn in which the client has a call to answer, and the server's call waits for that."""
        engine = self.engine(answer(call("lookup"), call("clock")))
        return await engine.create(ask(tools=[*(tools or (SERVER,)), CLOCK]), identity)

    async def gone_on(self, first: Response, *tools: Any, identity: Identity = ANONYMOUS) -> McpCall:
        engine = self.engine(answer(say("Done.")))
        request = ask([noon(first)], previous_response_id=first.id, tools=list(tools))
        return only(await engine.create(request, identity), McpCall)


def noon(response: Response) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": function_calls(response)[0].call_id, "output": "noon"}
