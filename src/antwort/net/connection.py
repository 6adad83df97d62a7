"""One HTTP/1.1 connection of the client: it carries one request and its response at a time.

It runs no task: the event loop's callbacks and one timer per connection do all the work.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, cast

from antwort.api.wire import Wire
from antwort.net.response import ConnectionLost, HttpError, HttpResponse, InvalidResponse, ResponseTimeout

if TYPE_CHECKING:
    from antwort.net.client import HttpClient

HIGH_WATER_BYTES = 64 * 1024
"""Unread bytes of a response above which reading from the socket pauses."""
DRAIN_SECONDS = 1.0
"""Longest time for discarding the rest of a released response before its connection is closed."""
DRAIN_BYTES = 64 * 1024
"""Most bytes of the rest of a released response that are discarded before its connection is closed."""
CONNECT_LIMIT_SECONDS: ContextVar[float | None] = ContextVar("connect_limit_seconds", default=None)
"""Most seconds that the current inference may take to connect; None: as its backend's timeouts say."""
_MAX_TIMER_SECONDS = 86_400.0
_CREATED_EVENT_DELAY_SECONDS = 2.0
"""How long the server delays `response.created`, so that an early failure becomes an HTTP error."""
_TCP_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only


class Timeouts(Wire):
    """Timeouts of a request in seconds.

    Connecting includes name lookup, TCP and TLS. Its default is below the two seconds for which `response.created`
    is delayed, so that an unreachable backend becomes an HTTP error. A response that is not streamed has its first
    byte only when the whole inference is done.
    """

    connect: float = 1.5
    first_byte: float = 300.0
    idle: float = 120.0

    def connect_seconds(self) -> float:
        """Return the timeout for connecting now. `CONNECT_LIMIT_SECONDS` can shorten it, unless the operator configured
        a longer one than `response.created` is delayed.
        """
        limit = CONNECT_LIMIT_SECONDS.get()
        if limit is None or self.connect > _CREATED_EVENT_DELAY_SECONDS:
            return self.connect
        return min(self.connect, limit)


class HttpConnection(asyncio.Protocol):
    """A connection to one origin. Its timer is re-armed only when it fires, or for an earlier deadline."""

    def __init__(self, owner: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._response: HttpResponse | None = None
        self._idle_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._deadline = 0.0
        self.is_closed = False

    def send(self, message: Sequence[bytes], timeouts: Timeouts) -> HttpResponse:
        """Send a request. The waiter of the response is done when its head has arrived, or never will."""
        response = HttpResponse(self._loop.create_future(), self)
        transport = self._transport
        if transport is None or transport.is_closing():  # it would drop what is written
            response.finish(ConnectionLost(response_started=False))
            return response
        self._response = response
        self._idle_seconds = timeouts.idle
        self._deadline = deadline = self._loop.time() + timeouts.first_byte
        if deadline < self._timer_at:
            self._arm_timer()
        transport.writelines(message)
        if self._owner.quick_ack:
            _set_quick_ack(transport)
        return response

    def abort(self, error: HttpError | None = None) -> None:
        """Close at once, and end the response with `error`. The backend notices that its client is gone."""
        self.is_closed = True
        self._owner.connection_closed(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        response, self._response = self._response, None
        if response is not None:
            response.finish(error or ConnectionLost(response_started=response.has_started))

    def drain(self) -> None:
        """Discard the rest of the response, up to `DRAIN_SECONDS` and `DRAIN_BYTES`, to use the connection again."""
        if self._response is not None:
            self._response.is_draining = True
            self._response.take()
            self._response.reader_lagged = False
            self.resume()
            self._set_deadline(DRAIN_SECONDS)

    def resume(self) -> None:
        """Read from the socket again after a pause."""
        response, transport = self._response, self._transport
        if response is not None and response.is_paused and transport is not None and not transport.is_closing():
            response.is_paused = False
            transport.resume_reading()
            self._set_deadline(self._idle_seconds)

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        if self.is_closed:  # the request was cancelled meanwhile
            made.abort()
        else:
            self._transport = made
            self._owner.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # unsolicited bytes
            self.abort()
            return
        try:
            response.feed(data)
        except InvalidResponse as error:
            self.abort(error)
            return
        seconds = self._idle_seconds
        if response.is_complete:
            if response.is_paused:
                self.resume()
            self._response = response.parser = None  # breaks the reference cycle of response and parser
            transport, owner = self._transport, self._owner
            if response.reads > 1 or owner.quick_ack:
                owner.record_reads(response.reads)
            if (
                response.keep_alive
                and len(owner.idle) < owner.max_idle
                and transport is not None
                and not transport.get_write_buffer_size()
                and not transport.is_closing()
            ):
                owner.idle.append(self)
                seconds = owner.idle_expiry
            else:
                self.abort()
        elif response.is_draining:
            if response.buffered_bytes > DRAIN_BYTES:
                self.abort()
            return
        elif not response.has_head:
            return
        elif response.buffered_bytes > HIGH_WATER_BYTES and not response.is_paused:
            self._pause(response)
        if not self.is_closed:
            self._deadline = deadline = self._loop.time() + seconds
            if deadline < self._timer_at:
                self._arm_timer()
        if not (waiter := response.waiter).done():
            waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        response = self._response
        if response is None:
            self.abort()
            return
        response.is_complete = response.has_head and response.until_eof and exc is None
        error = ConnectionLost(response_started=response.has_started)
        error.__cause__ = exc
        self.abort(error)

    # ---- internals ----

    def _pause(self, response: HttpResponse) -> None:
        if self._transport is not None and not self._transport.is_closing():
            response.is_paused = True
            self._transport.pause_reading()

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        if deadline < self._timer_at:
            self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(self._deadline, self._loop.time() + _MAX_TIMER_SECONDS)
        self._timer = self._loop.call_at(self._timer_at, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer, self._timer_at = None, inf
        if (response := self._response) is not None:
            lagged, response.reader_lagged = response.reader_lagged, bool(response.chunks)
            if lagged or response.reader_lagged:  # the backend is not to blame for a slow reader
                self._deadline = self._loop.time() + self._idle_seconds
        if self._loop.time() < self._deadline:
            self._arm_timer()
        else:
            self.abort(ResponseTimeout("the answer took too long"))


def _set_quick_ack(transport: asyncio.Transport) -> None:
    """Acknowledge the next packet at once. The system resets this option with each write."""
    link = transport.get_extra_info("socket")
    if _TCP_QUICKACK is not None and link is not None:
        with suppress(OSError):  # it is closed already
            link.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)
