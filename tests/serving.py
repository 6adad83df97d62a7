"""The real application behind the real server, on a loopback port, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from antwort.engine.engine import Engine
from antwort.transport.http import Transport
from antwort.transport.server import Server, listen
from raw_http import Body, Reply, ask


class Serving:
    """A server that answers."""

    def __init__(self, engine: Engine, server: Server, port: int) -> None:
        self.engine, self.server, self.port = engine, server, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def ask(self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        return await ask(self.port, method, path, body, headers)


@asynccontextmanager
async def serving(engine: Engine, app: Transport | None = None, *, drain: float = 0.5) -> AsyncIterator[Serving]:
    """`app` in front of `engine`, started and stopped as `antwort serve` does it, less the wait for a signal."""
    sock = listen("127.0.0.1", 0)
    server = Server(app or Transport(engine), drain=engine.drain, drain_seconds=drain)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await engine.open()
    await server.startup([sock])
    try:
        yield Serving(engine, server, sock.getsockname()[1])
    finally:
        await server.shutdown([sock])
        await engine.close()
