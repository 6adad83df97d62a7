"""An ASGI application behind plain uvicorn, on a loopback port, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import uvicorn
from uvicorn.config import WSProtocolType

from antwort.asgi import Application
from serving import until


@asynccontextmanager
async def run_by_uvicorn(
    app: Any, *, loop: Literal["asyncio", "uvloop"] = "asyncio", ws: WSProtocolType = "none"
) -> AsyncIterator[int]:
    """The port. The server is stopped as a signal would stop it, and has ended when the block is left."""
    config = uvicorn.Config(app, loop=loop, lifespan="on", ws=ws, log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            await until(lambda: server.started or not thread.is_alive(), within=20)
            assert server.started, "the application did not start"
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()


def in_fastapi(ai: Application, prefix: str = "/ai") -> Any:
    from fastapi import FastAPI

    app = FastAPI(lifespan=ai.lifespan)
    app.mount(prefix, ai)
    return app


def in_starlette(ai: Application, prefix: str = "/ai") -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(prefix, app=ai)], lifespan=ai.lifespan)
