"""The server to try things on, over standard input and output."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import anyio
from mcp.server.stdio import stdio_server

from antwort.testing.mcp.server import TryServer


async def serve_pipe(server: TryServer) -> None:
    """Until the input ends."""
    wire = os.dup(sys.stdout.fileno())
    server.scribble = lambda garbage: _write(wire, garbage + b"\n")
    made = server.made()
    out = anyio.wrap_file(TextIOWrapper(os.fdopen(wire, "wb", closefd=False), encoding="utf-8"))
    async with stdio_server(stdout=out) as (read, write):
        await made.run(read, write, made.create_initialization_options())


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]
