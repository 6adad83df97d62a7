"""A server to try things on, as a program."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from antwort.testing.mcp.faults import Faults
from antwort.testing.mcp.pipe import serve_pipe
from antwort.testing.mcp.record import Record
from antwort.testing.mcp.server import TryServer
from antwort.testing.mcp.web import TryWeb, listening, quiet

_STEPS = ("initialize", "list", "call")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m antwort.testing.mcp", description="An MCP server to try things on.")
    made.add_argument("--transport", choices=("http", "sse", "stdio"), default="http")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=8001, help="0: one that is free")
    made.add_argument("--json", action="store_true", help="answer with JSON instead of streams")
    made.add_argument("--stateless", action="store_true", help="keep no sessions")
    made.add_argument("--many", type=int, default=0, metavar="N", help="offer N more tools")
    made.add_argument("--record", type=Path, metavar="FILE", help="write down what is asked, a line of JSON each")
    made.add_argument("--hang", action="append", choices=_STEPS, default=[], help="never answer these")
    made.add_argument("--garbage", action="append", choices=_STEPS, default=[], help="answer these with garbage")
    made.add_argument("--garbage-as", choices=("text", "json", "shape"), default="text")
    made.add_argument("--status", type=int, help="answer everything with this status")
    made.add_argument("--token", help="answer 401 to those who do not bring this bearer token")
    made.add_argument("--oldest", metavar="VERSION", help="speak this version of the protocol and no other")
    return made


def faults_of(chosen: argparse.Namespace) -> Faults:
    return Faults(
        hang=tuple(chosen.hang),
        garbage=tuple(chosen.garbage),
        garbage_as=chosen.garbage_as,
        status=chosen.status,
        token=chosen.token,
        oldest=chosen.oldest,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted, or until the input ends."""
    chosen = parser().parse_args(arguments)
    quiet()
    server = TryServer(many=chosen.many, faults=faults_of(chosen), record=Record(chosen.record), is_mortal=True)
    with contextlib.suppress(KeyboardInterrupt):
        if chosen.transport == "stdio":
            asyncio.run(serve_pipe(server))
        else:
            asyncio.run(_serve_web(server, chosen))


async def _serve_web(server: TryServer, chosen: argparse.Namespace) -> None:
    web = TryWeb(server, json_answers=chosen.json, is_stateless=chosen.stateless)
    path = "sse" if chosen.transport == "sse" else "mcp"
    with listening(chosen.host, chosen.port) as sock:
        host, port = sock.getsockname()[:2]
        config = uvicorn.Config(web, lifespan="off", log_level="warning", ws="none", timeout_graceful_shutdown=0)
        print(f"MCP on http://{host}:{port}/{path} (process {os.getpid()})", flush=True)  # noqa: T201 - a program
        async with web.running():
            await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    main()
