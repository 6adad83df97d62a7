"""One connection: uvicorn's, with limits on what a client may send, and on how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from antwort.errors import AntwortError, BadUpgrade, HeadTooLarge, RequestError, RequestTooSlow, ShuttingDown
from antwort.ids import new_id
from antwort.transport.handshake import fault_of, wants_socket, without_upgrade
from antwort.transport.incoming import BODY_FRAMING, Incoming
from antwort.transport.refused import Refused, nobody_asks, refusal

_LAST_LOOK = 2.0
"""Seconds in which what a refused client still sends is dropped: hung up on at once, it might lose the answer."""


_CHUNK_FRAMING_BYTES = 32
"""What the size and the line ends of a chunk may take: a body of single bytes is slow, and not wrong."""
_MANY_CHUNKS = 4096
"""Chunks in one read after which other connections have their turn: a loop reads up to 32 times in a row."""


class Connection(Incoming):
    """Reads on while a request is answered, since only reading shows that the client has left.

    What comes ahead of its turn is kept, within a limit, and parsed when the answer is out. A request must arrive in
    one span of time, measured by one timer, which a request that comes in one piece never starts.
    """

    ahead_limit: ClassVar[int] = 64 * 1024
    request_time: ClassVar[float] = 60.0
    """Seconds from the first byte of a request, or from the start of the connection, to its last."""
    on_refusal: ClassVar[Callable[[Refused], None]] = staticmethod(nobody_asks)
    strict: ClassVar[bool] = False
    """Whether errors have the standard's types."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refusal: AntwortError | None = None
        self._ahead = bytearray()
        self._upgrading: bytes | None = None
        self._began = 0.0
        self._is_deaf = False
        self._clock: asyncio.TimerHandle | None = None
        self._on_gone: Callable[[], None] | None = None

    # ---- what comes in ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._mind_the_clock()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        cycle = self._answering
        if cycle is None or cycle.response_complete or cycle.more_body:
            self._parse(data)
        else:
            self._keep(data)

    @property
    def _is_busy(self) -> bool:
        """A request has come in whole and is not answered yet."""
        cycle = self._answering
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _keep(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > self.ahead_limit:
            self._close_after_answer()

    def _parse(self, data: bytes) -> None:
        size = len(data)
        self._most_bytes = size + (self._most_bytes if self._in_head and not self._is_whole else 0)
        if self._in_head:
            if not self._head_bytes:
                self._began = self.loop.time()
            self._head_bytes += size
        framed = 0 if self._in_head else size
        self._is_whole = False
        self._idle_since = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_rest(memoryview(data)[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._is_deaf:
            return
        if self._head_bytes > self.head_limit and self._in_head:
            self._refuse(HeadTooLarge(self.head_limit))
        elif not self._in_head:
            self._count_framing(framed)
        if not self._is_deaf:
            self._mind_the_clock()

    def _count_framing(self, size: int) -> None:
        """Bound what comes behind a head and is no body: chunk sizes, chunk extensions and trailers.

        `size` is what this read has brought; 0 for the read with the end of the head, which may be of any length.
        """
        body = self._body_bytes + self._body_pieces * _CHUNK_FRAMING_BYTES
        self._framing_bytes = max(0, self._framing_bytes + size - body)
        if self._framing_bytes > self.head_limit:
            self._refuse(HeadTooLarge(self.head_limit, BODY_FRAMING))
        elif self._body_pieces > _MANY_CHUNKS and not self.flow.read_paused:
            self.flow.pause_reading()
            self.loop.call_soon(self._read_on)
        self._body_bytes = self._body_pieces = 0

    def _read_on(self) -> None:
        cycle = self._newest
        if cycle is None or len(cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _feed_rest(self, rest: memoryview) -> None:
        """The parser takes the `rest` for another protocol. uvicorn loses what comes behind the head of an upgrade."""
        try:
            while self._wants_upgrade:
                if wants_socket(self.scope["method"], self.headers):
                    self._take_up(bytes(rest))
                    return
                self._read_again()
                if (stop := self._fed(rest)) is None:
                    return
                rest = rest[stop:]
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _fed(self, data: memoryview) -> int | None:
        """Where the parser has stopped, if it takes the rest for another protocol."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        return None

    def _read_again(self) -> None:
        """A request that stays with HTTP. The parser has taken it for one without a body."""
        head = without_upgrade(self.scope["method"], self.url, self.scope["http_version"], self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.parser.feed_data(head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of pipelined requests, it is the oldest that runs; those behind it never do."""
        self.connections.discard(self)
        self._is_deaf = True
        self._unset_keepalive_if_required()
        self._stop_clock()
        self.stop_lingering()
        self.flow.resume_writing()
        self._disconnect()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment] # as uvicorn has it: each holds the other

    def _disconnect(self) -> None:
        cycle, self._answering = self._answering, None
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.tell()
            gone, self._on_gone = self._on_gone, None
            if gone is not None:
                gone()

    def watch(self, gone: Callable[[], None] | None) -> None:
        """For the request that is being answered. To know that its client has left, one must read."""
        self._on_gone = gone
        if gone is None:
            return
        if self._answering is None:
            gone()
        else:
            self.flow.resume_reading()

    # ---- the time a request takes to come in ----

    def _mind_the_clock(self) -> None:
        if self._is_whole or self._is_busy:
            if self._clock is not None:
                self._stop_clock()
        elif self._clock is None:
            self._clock = self.loop.call_later(self.request_time, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._clock = None
        if not self._break_off(RequestTooSlow()):
            self.transport.close()

    def _break_off(self, refusal: AntwortError) -> bool:
        """Tell whoever waits for the rest of a body that it is not to come; whether there is one."""
        cycle = self._answering
        if cycle is None or not cycle.more_body or cycle.response_started:
            return False
        self.refusal = refusal
        cycle.tell()
        return True

    # ---- connections that become WebSockets ----

    def _take_up(self, rest: bytes) -> None:
        """A WebSocket begins when all that came before it is answered. `rest` came behind the head."""
        if self._is_busy:
            self._upgrading = rest
        elif (fault := fault_of(self.scope["http_version"], self.headers)) is not None:
            self._refuse_upgrade(fault)
        elif len(rest) > self.ahead_limit:
            self._refuse_upgrade(BadUpgrade("A WebSocket is not written to before it is there."))
        else:
            self._hand_over(rest)

    def _hand_over(self, rest: bytes) -> None:
        from antwort.transport.upgraded import Upgraded

        upgraded = Upgraded(self.config, self.server_state, self.app_state, self.loop)
        try:
            upgraded.take_over(self.transport, self.url, self.headers, is_behind=self.is_behind, early=rest)
        except BadUpgrade as error:
            self._refuse_upgrade(error)
            return
        self._is_deaf = True
        self._stop_clock()
        self._unset_keepalive_if_required()
        self.stop_lingering()
        self.connections.discard(self)
        self.transport.set_protocol(upgraded)

    def _refuse_upgrade(self, error: AntwortError) -> None:
        self._fault = error
        self._refuse(error)

    # ---- refusals that no request answers ----

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._fault or RequestError(msg, code="invalid_http"))

    def _refuse(self, error: AntwortError) -> None:
        """What never becomes a request is answered in JSON all the same, and is the last on its connection. A request
        that is under way answers for itself, and one that is answered needs no second answer.
        """
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            self._break_off(error)
            self._close_after_answer()
            return
        self._is_deaf = True
        if self._in_head or cycle is None or not self._is_known or cycle is not self._newest:
            refused = self._refused(error)
            self.transport.write(refusal(refused, strict=self.strict))
            type(self).on_refusal(refused)
        self._hang_up()

    def _hang_up(self) -> None:
        self._stop_clock()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._clock = self.loop.call_later(_LAST_LOOK, self.transport.abort)
        else:
            self.transport.close()

    def _refused(self, error: AntwortError) -> Refused:
        request_id, seconds = new_id("req"), self.loop.time() - self._began
        if self._fault is None:
            return Refused(request_id, error, seconds)
        method, path = self.parser.get_method(), self.url.partition(b"?")[0]
        return Refused(request_id, error, seconds, method.decode("latin-1"), path.decode("latin-1"))

    def _close_after_answer(self) -> None:
        """What came ahead of its turn will not be answered."""
        self._is_deaf = True
        self._stop_clock()
        self._ahead.clear()
        self._waiting.clear()
        if self._answering is not None:
            self._answering.keep_alive = False

    # ---- answers ----

    @property
    def is_new(self) -> bool:
        """Whether no request has come in yet, at least not whole."""
        return self._answering is None and not self._is_deaf

    def part(self) -> None:
        """The answer under way is the last here, and says so. An idle client may yet ask."""
        if self._answering is not None:
            self._answering.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_deaf or self.transport.is_closing():
            return
        if self._upgrading is not None and not self._is_busy:
            rest, self._upgrading = self._upgrading, None
            self._take_up(rest + self._ahead)
        elif self._ahead and not self._is_busy:
            ahead, self._ahead = self._ahead, bytearray()
            self._parse(bytes(ahead))
        else:
            self._mind_the_clock()

    @property
    def is_behind(self) -> bool:
        return self.flow.write_paused

    def resume_writing(self) -> None:
        self.has_resumed()
        super().resume_writing()

    def abort(self) -> None:
        self._disconnect()
        self.transport.abort()

    def cut(self) -> None:
        """Behind what is unsent, without the end of the answer."""
        self._disconnect()
        self.transport.close()

    def shutdown(self) -> None:
        """The answer under way is the last; a request that is not all there is not waited for."""
        if self._is_busy:
            self._close_after_answer()
        elif not self._break_off(ShuttingDown()):
            if self._newest is None or self._newest.response_complete:
                self.transport.close()
            else:
                self._newest.keep_alive = False


def connection_within(
    head_limit: int, request_time: float, on_refusal: Callable[[Refused], None] = nobody_asks, *, strict: bool = False
) -> type[Connection]:
    """A kind of connection with these limits: the server makes connections by their class alone.

    `on_refusal` is told of what was answered with an error and never became a request. `strict` gives those errors the
    standard's types.
    """

    class Limited(Connection):
        pass

    Limited.head_limit, Limited.request_time = head_limit, request_time
    Limited.on_refusal, Limited.strict = staticmethod(on_refusal), strict
    return Limited
