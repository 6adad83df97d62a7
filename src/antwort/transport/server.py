"""The HTTP server: uvicorn, told how to end. No new work is taken, and every stream under way gets its end."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from antwort.errors import RequestError
from antwort.ids import new_id
from antwort.transport.errors import failure

_KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than clients keep theirs, so that it is they who close."""
_LAST_WRITES = 5.0
"""Seconds after the drain in which a slow reader may still take its last frames."""
_LOOK_AGAIN = 0.1


class Connection(HttpToolsProtocol):
    """uvicorn's, made right in two places."""

    _answering: RequestResponseCycle | None = None

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP never become a request; their error is JSON all the same."""
        sent = failure(RequestError(msg, code="invalid_http"))
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-request-id: %b\r\nx-should-retry: false\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (len(sent.body), new_id("req").encode()) + sent.body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of pipelined requests, uvicorn tells only the newest that its client is gone; it is the oldest that runs."""
        super().connection_lost(exc)
        cycle, self._answering = self._answering, None
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()


class Server(uvicorn.Server):
    """Serves an ASGI application until a signal says to stop; a second signal stops at once."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        drain: Callable[[float], Awaitable[None]],
        drain_seconds: float,
        started: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`drain` is told how many seconds work under way may take; `started` is called when requests are answered."""
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=math.ceil(drain_seconds + _LAST_WRITES),
        )
        super().__init__(config)
        self._drain, self._drain_seconds, self._started = drain, drain_seconds, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._started is not None:
            await self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn keeps the connections under way open until they are answered; the drain sees to it that they are."""
        draining = asyncio.create_task(self._drain_all())
        await super().shutdown(sockets)
        if self.force_exit:
            draining.cancel()
        await asyncio.gather(draining, return_exceptions=self.force_exit)

    async def _drain_all(self) -> None:
        """Drain as long as a request is being answered: one that was read already may yet become work."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_seconds
        await self._drain(self._drain_seconds)
        while self.server_state.tasks:
            await asyncio.sleep(_LOOK_AGAIN)
            await self._drain(max(end - loop.time(), 0))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what a signal brings
        """A signal asks for an orderly end, which is a success: it is not raised again when all is done."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)
