"""An MCP server whose tools write down each call, when it begins and when it ends.

PYTHONPATH=tests python -m chaos.tools --ledger FILE --work 0.2
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from antwort.ids import new_id
from antwort.testing.backend import Message, Receive, Send
from antwort.testing.mcp.web import listening, quiet
from antwort.tools.mcp.messages import IDEMPOTENCY_KEY
from chaos.ledger import Ledger, Line, line_of
from chaos.story import KINDS, LABEL

SERVER_HEADER = "x-server"
"""By which each server process says which one it is."""
_SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
_HINTS = {
    "read": types.ToolAnnotations(read_only_hint=True),
    "put": types.ToolAnnotations(idempotent_hint=True),
    "pay": types.ToolAnnotations(),
}


class LedgerTools:
    """`work` are the seconds that a call takes, on the average."""

    def __init__(self, ledger: Ledger, work: float) -> None:
        self._ledger, self._work = ledger, work

    def made(self) -> Server[Any]:
        return Server(
            LABEL, on_list_tools=self._list, on_call_tool=self._call, get_tool_input_schema=lambda _name: _SCHEMA
        )

    async def _list(self, _: object, __: object) -> types.ListToolsResult:
        tools = [
            types.Tool(name=kind, description=kind, input_schema=_SCHEMA, annotations=_HINTS[kind]) for kind in KINDS
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(
        self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        line = _line(context, params)
        self._ledger.write(line)
        try:
            await asyncio.sleep(self._work * random.Random(line.place).uniform(0.2, 1.8))
        except asyncio.CancelledError:
            self._ledger.write(line_of("cancelled", line))
            raise
        self._ledger.write(line_of("ended", line))
        return types.CallToolResult(content=[types.TextContent(text=line.run)])


def _line(context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> Line:
    headers = {} if context.request is None else context.request.headers
    place = str((params.arguments or {})["place"])
    key = str((context.meta or {}).get(IDEMPOTENCY_KEY, ""))
    return Line("begun", new_id("run"), params.name, place, key, str(headers.get(SERVER_HEADER, "")), time.time())


async def serve(ledger: Path, work: float) -> None:
    manager = StreamableHTTPSessionManager(LedgerTools(Ledger(ledger), work).made(), json_response=True, stateless=True)

    async def web(scope: Message, receive: Receive, send: Send) -> None:
        await manager.handle_request(scope, receive, send)

    with listening("127.0.0.1", 0) as sock:
        config = uvicorn.Config(web, lifespan="off", log_level="critical", ws="none", timeout_graceful_shutdown=0)
        print(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", flush=True)  # noqa: T201 - a program
        async with manager.run():
            await uvicorn.Server(config).serve(sockets=[sock])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.tools", description="Tools that write down their calls.")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE")
    parser.add_argument("--work", type=float, default=0.2, help="seconds that a call takes, on the average")
    chosen = parser.parse_args()
    quiet()
    asyncio.run(serve(chosen.ledger, chosen.work))


if __name__ == "__main__":
    main()
