"""One connection: uvicorn's, with limits on what a client may send, and on how long it may take.

What uvicorn's parser reads becomes requests, and they are answered one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from antwort.errors import (
    AntwortError,
    BadUpgrade,
    HeadTooLarge,
    RequestError,
    RequestTooSlow,
    ShuttingDown,
    UnknownTransferCoding,
)
from antwort.ids import new_id
from antwort.server.cycle import Cycle, Scope
from antwort.server.errors import Headers
from antwort.server.exchange import CONNECTION
from antwort.server.handshake import fault_of, wants_socket, without_upgrade
from antwort.server.lingering import Lingers
from antwort.server.refused import Refused, nobody_asks, refusal

# uvicorn's own, which says of a request that it cannot read less than our line does, and of an upgrade what to install.
_logger = logging.getLogger("antwort.connection")
_logger.setLevel(logging.ERROR)

_BODY_FRAMING = "chunk extensions and trailers"
_LAST_LOOK = 2.0
"""Seconds in which what a refused client still sends is dropped: hung up on at once, it might lose the answer."""
_CHUNK_FRAMING_BYTES = 32
"""What the size and the line ends of a chunk may take: a body of single bytes is slow, and not wrong."""
_MANY_CHUNKS = 4096
"""Chunks in one read after which other connections have their turn: a loop reads up to 32 times in a row."""


class State(ServerState):
    """What the connections of a server share."""

    is_leaving = False
    """Whether each answer is the last on its connection: the next request is to go elsewhere."""
    always = b""
    """What every answer says, as lines of its head: the `default_headers`, which uvicorn sets anew each second."""

    @property
    def default_headers(self) -> Headers:
        return self._default_headers

    @default_headers.setter
    def default_headers(self, fields: Headers) -> None:
        self._default_headers = fields
        self.always = b"".join([b"%b: %b\r\n" % field for field in fields])


class Connection(Lingers, HttpToolsProtocol):
    """Reads on while a request is answered, since only reading shows that the client has left.

    What comes ahead of its turn is kept, within a limit, and parsed when the answer is out. A request must arrive in
    one span of time, measured by one timer, which a request that comes in one piece never starts.
    """

    head_limit: ClassVar[int] = 64 * 1024
    ahead_limit: ClassVar[int] = 64 * 1024
    request_time: ClassVar[float] = 60.0
    """Seconds from the first byte of a request, or from the start of the connection, to its last."""
    on_refusal: ClassVar[Callable[[Refused], None]] = staticmethod(nobody_asks)
    strict: ClassVar[bool] = False
    """Whether errors have the standard's types."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.server_state, State)
        self.state = self.server_state
        self.logger = _logger
        self._answering: Cycle | None = None
        self._newest: Cycle | None = None
        """The last whose head has come in."""
        self._waiting: deque[tuple[Cycle, Scope]] = deque()
        """Those that came before it was their turn."""
        self._is_known = False
        """Whether what is being read has become the newest."""
        self._is_whole = False
        self._wants_upgrade = False
        """Whether it wants to go on in another protocol."""
        self._fault: AntwortError | None = None
        self._in_head = True
        self._head_bytes = 0
        self._most_bytes = 0
        """How many bytes the head may have at most, by what has come so far."""
        self._body_bytes = self._body_pieces = 0
        """Of the body under way, as far as the framing has not been held against them."""
        self._framing_bytes = self._trailer_bytes = 0
        self._idle_since: float | None = None
        self._always_so: dict[str, Any] = {}
        self.refusal: AntwortError | None = None
        self._ahead = bytearray()
        self._upgrading: bytes | None = None
        self._began = 0.0
        self._is_deaf = False
        self._clock: asyncio.TimerHandle | None = None

    # ---- what comes in ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._always_so = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
        }
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
            self._refuse(HeadTooLarge(self.head_limit, _BODY_FRAMING))
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
        self._waiting.clear()
        self._disconnect()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment] # as uvicorn has it: each holds the other

    def _disconnect(self) -> None:
        cycle = self._answering
        self._answering = self._newest = None  # each holds the other
        if cycle is not None and not cycle.response_complete:
            cycle.disconnect()

    # ---- requests ----

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._is_whole = self._is_known = self._wants_upgrade = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value))
            return
        # A trailer. It is no header: whatever checks or sets headers in front of us has not seen it (RFC 9110, 6.5.1).
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > self.head_limit:
            self._stop_parsing(HeadTooLarge(self.head_limit, _BODY_FRAMING))

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._body_bytes = self._body_pieces = self._framing_bytes = self._trailer_bytes = 0
        if self._most_bytes > self.head_limit:
            self._check_head()
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        fields = dict(self.headers)
        if b"transfer-encoding" in fields:
            self._check_transfer_coding()
        if b"host" not in fields:
            if version == "1.1":
                self._stop_parsing(RequestError("An HTTP/1.1 request needs a Host header.", code="invalid_http"))
        elif len(fields) < len(self.headers) and [name for name, _ in self.headers].count(b"host") > 1:
            self._stop_parsing(RequestError("A request has one Host header.", code="invalid_http"))
        scope: dict[str, Any] = {
            **self._always_so,
            "http_version": version,
            "method": method.decode("ascii"),
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        if parser.should_upgrade() and method != b"CONNECT":  # which is an upgrade for the parser as well
            self._wants_upgrade = True
            self.scope = scope  # type: ignore[assignment] # a typed dict, and ours says less
            return
        url = httptools.parse_url(self.url)
        raw = url.path
        path = raw.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw
        scope["query_string"] = url.query or b""
        expected = fields.get(b"expect")
        before = self._newest
        self._newest = scope[CONNECTION] = cycle = Cycle(
            self,
            scope["method"],
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects=expected is not None and expected.lower() == b"100-continue",
        )
        self._is_known = True
        if before is None or before.response_complete:
            self._start(cycle, scope)
        else:  # behind those that came before it
            self.flow.pause_reading()
            self._waiting.append((cycle, scope))

    def _check_head(self) -> None:
        if len(self.url) + sum([len(name) + len(value) for name, value in self.headers]) > self.head_limit:
            self._stop_parsing(HeadTooLarge(self.head_limit))

    def _check_transfer_coding(self) -> None:
        """The parser takes `gzip, chunked` for chunked, and would hand over what is compressed as it is."""
        codings = [value.strip(b" \t").lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings != [b"chunked"]:
            self._stop_parsing(UnknownTransferCoding(b", ".join(codings).decode("latin-1")))

    def _stop_parsing(self, fault: AntwortError) -> NoReturn:
        """For the parser's callbacks: it gives up, and `fault` is what is answered."""
        self._fault = fault
        raise fault

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_pieces += 1
        cycle = self._newest
        if cycle is not None and not cycle.response_complete:
            cycle.add(body)
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._in_head = self._is_whole = True
        self._head_bytes = 0
        cycle = self._newest
        if cycle is not None and not self._wants_upgrade and not cycle.response_complete:
            cycle.more_body = False
            cycle.tell()

    def _start(self, cycle: Cycle, scope: Scope) -> None:
        self._answering = cycle
        if self.state.is_leaving:
            cycle.keep_alive = False
        if self._lingering is not None:
            self.stop_lingering()
        task = self.loop.create_task(cycle.run(self.app, scope))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

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
        from antwort.server.upgraded import Upgraded

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
        self.state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._waiting:
            self._start(*self._waiting.popleft())
        else:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._look_in(self.timeout_keep_alive)
        if self._is_deaf:
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

    # ---- connections that are not used ----

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """One timer goes on whatever comes and goes: it looks for how long nothing has."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the next answer sets it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
            return
        if self.transport.get_write_buffer_size():  # of the last answer: nobody reads it
            self.transport.abort()
        self.transport.close()


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
