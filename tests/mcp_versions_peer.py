"""The SDK's server in one version of the protocol, by one transport, with a tool that asks its client for something.

As a program it speaks on its standard input and output.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antwort.testing.mcp import Faults, TryServer, served
from antwort.testing.mcp.pipe import serve_pipe
from antwort.testing.mcp.tools import Context, TryTool, text
from antwort.testing.mcp.web import quiet
from antwort.tools.mcp.base import ServerSpec

TRANSPORTS = ("http", "http, in JSON", "http, without sessions", "sse", "stdio")
NO_CHANNEL = "There is no way to ask the client."

Restart: TypeAlias = Callable[[], Awaitable[None]]


async def _ask(_: TryServer, context: Context, __: Mapping[str, Any]) -> Any:
    """Ask for the client's folders: in the middle of the call, or by its result where the version wants that."""
    request = types.ListRootsRequest()
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return types.InputRequiredResult(input_requests={"roots": request})
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        await context.session.send_request(request, types.ListRootsResult, metadata=metadata)
    except NoBackChannelError:
        return text(NO_CHANNEL)
    except MCPError as exc:
        return text(exc.error.message)
    return text("The client has answered.")


def server_in(version: str) -> TryServer:
    faults = Faults(oldest=None if version in MODERN_PROTOCOL_VERSIONS else version)
    server = TryServer(many=600, faults=faults, is_mortal=True)
    server.tools["ask"] = TryTool("ask", "Ask the client for its folders.", _ask)
    return server


@asynccontextmanager
async def peer(version: str, transport: str) -> AsyncGenerator[tuple[ServerSpec, Restart | None], None]:
    """Yield how the server is reached, and what restarts it; a program is restarted by its client."""
    if transport == "stdio":
        command = (sys.executable, __file__, version)
        yield ServerSpec(label="x", transport="stdio", command=command, connect=20.0), None
        return
    server, stack, port = server_in(version), AsyncExitStack(), 0
    is_json, is_stateless = transport.endswith("JSON"), transport.endswith("sessions")

    async def start() -> ServerSpec:
        nonlocal port
        web = served(server, port=port, json_answers=is_json, is_stateless=is_stateless)
        at = await stack.enter_async_context(web)
        port = at.port
        if transport == "sse":
            return ServerSpec(label="x", url=at.sse_url, transport="sse")
        return ServerSpec(label="x", url=at.url)

    async def restart() -> None:
        await stack.aclose()
        await start()

    async with stack:
        yield await start(), restart


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("version")
    quiet()
    asyncio.run(serve_pipe(server_in(parser.parse_args().version)))
