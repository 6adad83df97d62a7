"""Serve an engine on a loopback port within a test, in the event loop of the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from antwort.engine.engine import Engine
from antwort.server.http import Transport
from antwort.server.server import Server, listen


class EngineServer:
    """A server that answers. `server` stops it early, as signals do; `listening` is its socket."""

    def __init__(self, engine: Engine, server: Server, listening: socket.socket) -> None:
        self.engine, self.server, self.listening = engine, server, listening
        self.port: int = listening.getsockname()[1]

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def serve_engine(
    engine: Engine,
    app: Transport | None = None,
    *,
    drain_seconds: float = 0.5,
    middleware: Callable[[Transport], Callable[..., Awaitable[None]]] | None = None,
    **options: Any,
) -> AsyncIterator[EngineServer]:
    """Open the engine and serve it as `antwort serve` does, without signal handlers; drain and close it at the end.

    `app` is the application where it is not a plain one, `middleware` wraps it, and `options` are those of the server.
    """
    app = app or Transport(engine)
    server = Server(
        app if middleware is None else middleware(app),
        drain=engine.drain,
        drain_seconds=drain_seconds,
        on_refusal=app.refused,
        strict=engine.settings.strict,
        **options,
    )
    listening = listen("127.0.0.1", 0)
    await engine.open()
    await server.start([listening])
    try:
        yield EngineServer(engine, server, listening)
    finally:
        await server.shutdown([listening])
        await engine.close()
