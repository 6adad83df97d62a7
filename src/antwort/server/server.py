"""uvicorn through its public configuration, told how to end: no new work is taken, and every stream in progress gets
its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import FrameType

import msgspec
import uvicorn

from antwort.server.protocol import (
    HEAD_LIMIT,
    REQUEST_SECONDS,
    HttpLimits,
    HttpProtocol,
    RefusedRequest,
    ServedConnection,
    SharedState,
)
from antwort.server.websocket import MESSAGE_LIMIT

RECORD_SECONDS = 10.0
"""How much longer a drain may take than it is told, where the record of an end cannot be written."""
WRITE_SECONDS = 5.0
"""How long after the drain a slow reader may still take its last frames."""
CANCEL_SECONDS = 1.0
"""After which whatever still does not end is cancelled."""
SEND_BUFFER_BYTES = 2**16
"""What the system buffers for a client that does not read. By itself it would buffer megabytes for each, and a run
would not notice for as long that nobody reads it.
"""
ACCEPTS_PER_TURN = 32
"""Connections that are accepted in one turn of the event loop. uvloop accepts one for each socket that it watches, so
that a new client would wait as many turns as others have connected before it: half a second behind 500 streams.
"""
POLL_SECONDS = 0.1
FIRST_REQUEST_SECONDS = 0.2
"""How long a client that connected before the server was told to stop may take to send a request."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""Those that ask for an end, as far as the system has them."""


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """How a WebSocket client is noticed that has gone without closing."""

    interval: float = 30.0
    """Seconds between two pings; 0: none are sent."""
    timeout: float = 60.0
    """Seconds in which one must be answered."""


class Server(uvicorn.Server):
    """Serve an ASGI application until a signal says to stop; a second signal stops at once."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        drain: Callable[[float], Awaitable[None]],
        drain_seconds: float,
        notice: float = 0.0,
        leave: Callable[[], None] = lambda: None,
        started: Callable[[], Coroutine[None, None, None]] | None = None,
        is_led: bool = False,
        head_limit: int = HEAD_LIMIT,
        request_time: float = REQUEST_SECONDS,
        on_refusal: Callable[[RefusedRequest], None] | None = None,
        message_limit: int = MESSAGE_LIMIT,
        ping: Ping = Ping(),  # noqa: B008 - a frozen value
        strict: bool = False,
        peers: socket.socket | None = None,
    ) -> None:
        """`drain` is told how many seconds work in progress may take; `started` is called when requests are answered,
        and cancelled by a signal. `leave` is called at once when the server is told to stop; for `notice` seconds
        requests are taken all the same, and their answers end their connections. `is_led`: a supervisor says when to
        hurry, and signals do not, however many come.

        `head_limit`, `request_time`, `on_refusal` and `strict` are the `HttpLimits`. `message_limit`: bytes of a
        message on a WebSocket. `peers`: where other processes ask for what is made here, until the drain is over.
        """
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",  # the protocol sees to an upgrade itself
            ws_max_size=message_limit,
            ws_ping_interval=ping.interval or None,
            ws_ping_timeout=ping.timeout,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(drain_seconds + RECORD_SECONDS + WRITE_SECONDS + CANCEL_SECONDS),
        )
        super().__init__(config)
        limits = HttpLimits(head=head_limit, seconds=request_time, on_refusal=on_refusal, strict=strict)
        self.server_state = self._state = SharedState(limits)
        self._drain, self._drain_seconds, self._started = drain, drain_seconds, started
        self._peers, self._peer_servers = peers, list[asyncio.base_events.Server]()
        self._notice, self._leave, self._is_led = notice, leave, is_led
        self._abort_timer: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """Serve in the running event loop, without signal handlers, until `shutdown` is called."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        watched = [sock if at == 0 else sock.dup() for sock in sockets or () for at in range(ACCEPTS_PER_TURN)]
        await super().startup(watched if self._peers is None else [*watched, self._peers])
        if self._peers is not None:  # they can read what is made here as long as it is made
            self._peer_servers.append(self.servers.pop())
        if self._started is not None:
            await self._unless_told_to_stop(self._started())

    async def _unless_told_to_stop(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        try:
            while not task.done() and not self.should_exit:
                await asyncio.wait([task], timeout=POLL_SECONDS)
        finally:
            task.cancel()  # which means nothing to one that is done
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn keeps the connections under way open until they are answered; the drain sees to it that they are."""
        await self._give_notice()
        await self._await_first_requests()
        draining = asyncio.create_task(self._drain_all())
        await super().shutdown(sockets)
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.force_exit:
            self._close_peer_servers()
            draining.cancel()
        await asyncio.gather(draining, return_exceptions=self.force_exit)

    async def _give_notice(self) -> None:
        """Wait for load balancers to notice, unless a second signal comes."""
        self._announce_end()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._notice
        while not self.force_exit and loop.time() < end:  # noqa: ASYNC110 - a signal has no event of its own
            await asyncio.sleep(min(self._notice, POLL_SECONDS))

    async def _await_first_requests(self) -> None:
        """Accept no more connections. Clients that have just connected may send a request."""
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + FIRST_REQUEST_SECONDS
        while not self.force_exit and loop.time() < end and self._has_new_clients():  # noqa: ASYNC110 - as above
            await asyncio.sleep(FIRST_REQUEST_SECONDS / 10)

    def _has_new_clients(self) -> bool:
        return any(isinstance(each, HttpProtocol) and each.is_new for each in self.server_state.connections)

    def _announce_end(self) -> None:
        """Tell clients and load balancers to go elsewhere. Once more does no harm."""
        self._leave()
        self._state.is_leaving = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.leave()

    async def _drain_all(self) -> None:
        """Drain as long as a request is being answered: one that was read already may yet become work."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_seconds
        await self._drain(self._drain_seconds)
        self._abort_timer = loop.call_at(max(end, loop.time()) + WRITE_SECONDS, self._abort_all)
        while self.server_state.tasks:
            await asyncio.sleep(POLL_SECONDS)
            await self._drain(max(end - loop.time(), 0))
        self._close_peer_servers()

    def _close_peer_servers(self) -> None:
        for server in self._peer_servers:
            server.close()

    def _abort_all(self) -> None:
        """A client that has not taken its answer by now will not; its run ends as for any client that is gone."""
        self._close_peer_servers()
        for connection in list(self.server_state.connections):
            if isinstance(connection, ServedConnection):
                connection.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """SIGHUP is left to whoever runs the server."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in _SIGNALS}
        try:
            yield
        finally:
            for sig, heard in before.items():
                if not self._is_led:  # who is told once may hear of it late, while it closes
                    signal.signal(sig, heard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what a signal brings
        """A signal asks for an orderly end, which is a success: it is not raised again afterwards."""
        if self.should_exit and not self._is_led:
            self.hurry()
        else:
            self.told_to_stop()

    def hurry(self) -> None:
        """As by a second signal."""
        self.told_to_stop()
        self.force_exit = True

    def told_to_stop(self) -> None:
        """As by a signal. Once more changes nothing."""
        self.should_exit = True
        self._state.is_leaving = True
        self._leave()


def reason(fault: OSError) -> str:
    """Return why the address cannot be listened on, in the system's words: what Python adds is for programs."""
    is_known = fault.errno is not None and fault.errno > 0  # names that are not found have numbers of their own
    return os.strerror(fault.errno) if is_known and fault.errno else fault.strerror or str(fault)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. `::` is every address, also of IPv4. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_both = host == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_both)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections have it from here
    return listening
