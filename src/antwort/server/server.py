"""The HTTP server: uvicorn, told how to end. No new work is taken, and every stream under way gets its end."""

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

from antwort.server.connection import Connection, State, connection_within
from antwort.server.lingering import Lingers
from antwort.server.refused import Refused, nobody_asks

_KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than clients keep theirs, so that it is they who close."""
_LAST_RECORDS = 10.0
"""Seconds that a drain may take longer than it is told, where the record of an end cannot be written."""
_LAST_WRITES = 5.0
"""Seconds after the drain in which a slow reader may still take its last frames."""
_LAST_RESORT = 1.0
"""Seconds after which whatever still does not end is broken off."""
_SEND_BUFFER = 2**16
"""Bytes that the system takes for a client that does not read. By itself it would take megabytes for each, and a run
would not notice for as long that nobody reads it."""
_ACCEPTS_PER_TURN = 32
"""Connections that are accepted in one turn of the event loop. uvloop accepts one for each socket that it watches, so
that a new client would wait as many turns as others have connected before it: half a second behind 500 streams.
"""
_LOOK_AGAIN = 0.1
_FIRST_WORDS = 0.2
"""Seconds in which whoever has come in before it was told to stop may ask."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""Those that ask for an end, as far as the system has them."""

MESSAGE_LIMIT = 64 * 2**20


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """How a client on a WebSocket that has gone without a word is noticed."""

    interval: float = 30.0
    """Seconds between two pings; 0: none are sent."""
    timeout: float = 60.0
    """Seconds in which one must be answered."""


class Server(uvicorn.Server):
    """Serves an ASGI application until a signal says to stop; a second signal stops at once."""

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
        head_limit: int = Connection.head_limit,
        request_time: float = Connection.request_time,
        on_refusal: Callable[[Refused], None] = nobody_asks,
        message_limit: int = MESSAGE_LIMIT,
        ping: Ping = Ping(),  # noqa: B008 - a frozen value
        strict: bool = False,
        peers: socket.socket | None = None,
    ) -> None:
        """`drain` is told how many seconds work under way may take; `started` is called when requests are answered, and
        broken off by a signal. `leave` is called at once when it is told to stop; for `notice` seconds requests are
        taken all the same, and their answers end their connections. `is_led`: somebody else says when it has to hurry,
        and signals do not, however many come.

        `head_limit`: bytes of a request's address and headers. `request_time`: seconds it may take to come in.
        `on_refusal` is told of what the application never sees; `strict` says in whose words it is answered.
        `message_limit`: bytes of a message on a WebSocket. `peers`: where other processes ask for what is made here,
        which they can until the drain is over.
        """
        config = uvicorn.Config(
            app,
            http=connection_within(head_limit, request_time, on_refusal, strict=strict),
            ws="none",  # a connection sees to its upgrade itself
            ws_max_size=message_limit,
            ws_ping_interval=ping.interval or None,
            ws_ping_timeout=ping.timeout,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=math.ceil(drain_seconds + _LAST_RECORDS + _LAST_WRITES + _LAST_RESORT),
        )
        super().__init__(config)
        self.server_state = self._state = State()
        self._drain, self._drain_seconds, self._started = drain, drain_seconds, started
        self._peers, self._side_door = peers, list[asyncio.base_events.Server]()
        self._notice, self._leave, self._is_led = notice, leave, is_led
        self._last_call: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """Serve in the running event loop, without signal handlers, until `shutdown` is called."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        watched = [sock if at == 0 else sock.dup() for sock in sockets or () for at in range(_ACCEPTS_PER_TURN)]
        await super().startup(watched if self._peers is None else [*watched, self._peers])
        if self._peers is not None:  # what is made here can be read nowhere else, as long as it is made
            self._side_door.append(self.servers.pop())
        if self._started is not None:
            await self._unless_told_to_stop(self._started())

    async def _unless_told_to_stop(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        try:
            while not task.done() and not self.should_exit:
                await asyncio.wait([task], timeout=_LOOK_AGAIN)
        finally:
            task.cancel()  # which means nothing to one that is done
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn keeps the connections under way open until they are answered; the drain sees to it that they are."""
        await self._give_notice()
        await self._hear_first_words()
        draining = asyncio.create_task(self._drain_all())
        await super().shutdown(sockets)
        if self._last_call is not None:
            self._last_call.cancel()
        if self.force_exit:
            self._close_side_door()
            draining.cancel()
        await asyncio.gather(draining, return_exceptions=self.force_exit)

    async def _give_notice(self) -> None:
        """A second signal does not wait for it."""
        self._part()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._notice
        while not self.force_exit and loop.time() < end:  # noqa: ASYNC110 - a signal has no event of its own
            await asyncio.sleep(min(self._notice, _LOOK_AGAIN))

    async def _hear_first_words(self) -> None:
        """Nobody comes in any more. Those who have just come in may ask what they came for."""
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + _FIRST_WORDS
        while not self.force_exit and loop.time() < end and self._is_anybody_new():  # noqa: ASYNC110 - as above
            await asyncio.sleep(_FIRST_WORDS / 10)

    def _is_anybody_new(self) -> bool:
        return any(isinstance(each, Connection) and each.is_new for each in self.server_state.connections)

    def _part(self) -> None:
        """Whoever looks is to see that no more is to be sent here. Once more does no harm."""
        self._leave()
        self._state.is_leaving = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.part()

    async def _drain_all(self) -> None:
        """Drain as long as a request is being answered: one that was read already may yet become work."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_seconds
        await self._drain(self._drain_seconds)
        self._last_call = loop.call_at(max(end, loop.time()) + _LAST_WRITES, self._abort_all)
        while self.server_state.tasks:
            await asyncio.sleep(_LOOK_AGAIN)
            await self._drain(max(end - loop.time(), 0))
        self._close_side_door()

    def _close_side_door(self) -> None:
        for server in self._side_door:
            server.close()

    def _abort_all(self) -> None:
        """Who has not taken its answer by now will not; what works for it ends as for any client that is gone."""
        self._close_side_door()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Lingers):
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
        """A signal asks for an orderly end, which is a success: it is not raised again when all is done."""
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
    """Why there is no listening there, in the system's words: what Python adds to them is for programs."""
    is_known = fault.errno is not None and fault.errno > 0  # names that are not found have numbers of their own
    return os.strerror(fault.errno) if is_known and fault.errno else fault.strerror or str(fault)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. `::` is every address, those of IPv4 too. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_both = host == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_both)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # connections have it from here
    return listening
