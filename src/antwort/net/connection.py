"""Connections to a backend. Each carries one exchange at a time.

Nothing here runs as a task: the event loop's callbacks and one timer for each connection do all the work, so there is
nothing to leave behind.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from typing import Protocol, cast

from antwort.api.wire import Wire
from antwort.net.exchange import BadAnswer, Cut, Exchange, HttpFault, TimedOut
from antwort.net.reply import Reply

HIGH_WATER = 64 * 1024
"""Unread bytes of an answer above which the connection is read no further."""
DRAIN_SECONDS = 1.0
DRAIN_BYTES = 64 * 1024
"""How long, and how far, the unwanted rest of an answer is read for the sake of its connection."""
CONNECT_SHARE: ContextVar[float | None] = ContextVar("connect_share", default=None)
"""Seconds that the inference being begun has left for connecting; None: as its backend's timeouts say."""
_A_DAY = 86_400.0
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux alone has it."""


_HELD_BACK = 2.0


class Timeouts(Wire):
    """In seconds. An answer that is not streamed has its first byte only when the whole inference is done.

    Connecting takes in the name, the connection and TLS. It is given up before the two seconds are over for which
    `response.created` is held back, so that a backend that is not there shows as an HTTP error.
    """

    connect: float = 1.5
    first_byte: float = 300.0
    idle: float = 120.0

    def to_connect(self) -> float:
        """Seconds for connecting now. A share is for those who connect fast enough to have one: whoever was given
        more than two seconds needs them.
        """
        share = CONNECT_SHARE.get()
        return self.connect if share is None or self.connect > _HELD_BACK else min(self.connect, share)


class Home(Protocol):
    """Where a connection belongs, as far as it knows."""

    @property
    def idle(self) -> list[Connection]:
        """Connections that are open, and carry nothing."""
        ...

    @property
    def most_idle(self) -> int: ...

    @property
    def idle_expiry(self) -> float: ...

    @property
    def is_prompt(self) -> bool:
        """Whether the first piece of an answer is acknowledged at once. Servers that send head and body apart, and
        have not told their socket to hurry, keep the body back until then, for some 40 ms.
        """
        ...

    def note_reads(self, reads: int) -> None:
        """In how many pieces an answer came: where it is one, only those want to know who acknowledge at once."""
        ...

    def welcome(self, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. Its timer is re-armed only when it fires, or when a nearer deadline comes."""

    def __init__(self, home: Home, loop: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._idle = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._armed_for = inf
        self._is_paused = False
        self.is_closed = False

    def ask(self, message: Sequence[bytes], timeouts: Timeouts) -> Reply:
        """Send a request. The reply's waiter is done when the head of the answer has come, or none will."""
        reply = Reply(self._loop.create_future(), carrier=self)
        transport = self._transport
        if transport is None or transport.is_closing():  # what is written then goes nowhere
            reply.end(Cut(heard=False))
            return reply
        self._exchange = reply
        self._idle = timeouts.idle
        self._deadline = deadline = self._loop.time() + timeouts.first_byte
        if deadline < self._armed_for:
            self._arm()
        transport.writelines(message)
        if self._home.is_prompt:
            _acknowledge_at_once(transport)
        return reply

    def abort(self, failure: HttpFault | None = None) -> None:
        """Close at once: this is how a backend learns that nobody waits for it."""
        self.is_closed = True
        self._home.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(failure or Cut(heard=exchange.heard))

    def drain(self) -> None:
        """Let the unwanted rest of the answer run out, within bounds, so that the connection can be used again."""
        if self._exchange is not None:
            self._exchange.is_unwanted = True
            self._exchange.take()
            self._exchange.is_lagging = False
            self.resume()
            self._expect_within(DRAIN_SECONDS)

    def resume(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
            self._expect_within(self._idle)

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        if self.is_closed:  # whoever wanted it has gone
            made.abort()
        else:
            self._transport = made
            self._home.welcome(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nobody asked
            self.abort()
            return
        try:
            exchange.feed(data)
        except BadAnswer as fault:
            self.abort(fault)
            return
        if exchange.complete:
            self._complete(exchange)
        elif exchange.is_unwanted:
            if exchange.size > DRAIN_BYTES:
                self.abort()
        elif exchange.answered:
            self._expect_within(self._idle)
            if exchange.size > HIGH_WATER:
                self._pause()
            exchange.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        exchange.complete = exchange.answered and exchange.until_eof and exc is None
        cut = Cut(heard=exchange.heard)
        cut.__cause__ = exc
        self.abort(cut)

    # within

    def _complete(self, exchange: Exchange) -> None:
        transport, home = self._transport, self._home
        assert transport is not None
        self._exchange = None
        if exchange.arrivals > 1 or home.is_prompt:
            if self._is_paused:  # as it can be only in the midst of an answer
                self.resume()
            home.note_reads(exchange.arrivals)
        if (
            exchange.keeps_alive
            and not transport.get_write_buffer_size()
            and not transport.is_closing()
            and len(idle := home.idle) < home.most_idle
        ):
            idle.append(self)
            self._deadline = deadline = self._loop.time() + home.idle_expiry
            if deadline < self._armed_for:
                self._arm()
        else:
            self.abort()
        exchange.parser = None  # as where it ends otherwise
        if not (waiter := exchange.waiter).done():
            waiter.set_result(None)

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _expect_within(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        if deadline < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = min(self._deadline, self._loop.time() + _A_DAY)
        self._timer = self._loop.call_at(self._armed_for, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer, self._armed_for = None, inf
        if (exchange := self._exchange) is not None:
            was_lagging, exchange.is_lagging = exchange.is_lagging, bool(exchange.pieces)
            if was_lagging or exchange.is_lagging:  # the reader is slow, or was until a moment ago, and not the backend
                self._deadline = self._loop.time() + self._idle
        if self._loop.time() < self._deadline:
            self._arm()
        else:
            self.abort(TimedOut("the answer took too long"))


def _acknowledge_at_once(transport: asyncio.Transport) -> None:
    """The system forgets it with each thing that is sent."""
    link = transport.get_extra_info("socket")
    if _QUICKACK is not None and link is not None:
        with suppress(OSError):  # it is closed already
            link.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
