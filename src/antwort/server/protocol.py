"""HTTP/1.1 connections, for uvicorn's setting `http`: limits on heads, bodies, trailers and slow clients.

uvicorn accepts connections, runs the event loop and stops the server. Its own protocol for HTTP has none of these
limits and makes two writes for a short answer, so this one takes its place (docs/performance.md has the figures). Of
uvicorn it uses how a server makes a connection (the parameters of `HttpProtocol`), `ServerState`, and that the server
calls `shutdown()`; tests/server/test_uvicorn.py fails for another minor version.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.server import ServerState

from antwort.errors import (
    AntwortError,
    BadUpgrade,
    HeadTooLarge,
    RequestError,
    RequestTooSlow,
    ShuttingDown,
    UnknownTransferCoding,
    WrongSocketVersion,
)
from antwort.ids import new_id
from antwort.server.errors import Headers, failure
from antwort.server.exchange import CONNECTION

if TYPE_CHECKING:
    from uvicorn import Config

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[..., Awaitable[None]]

logger = logging.getLogger("antwort.connection")
logger.setLevel(logging.ERROR)  # the WebSocket library would log the address of each connection

HEAD_LIMIT = 64 * 1024
READ_AHEAD_LIMIT = 64 * 1024
"""Bytes that are buffered of requests sent before the answer to the first is complete."""
REQUEST_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 75.0
"""How long an idle connection is kept: longer than clients keep theirs, so that they are the ones who close it."""
CLOSING_SECONDS = 2.0
"""How long a refused client is still read from: closed at once, the connection might lose the answer."""
CHUNK_FRAMING_BYTES = 32
"""The framing that each chunk may have for free: a body of single bytes is slow, and not wrong."""
MAX_CHUNKS_PER_READ = 4096
"""Chunks in one read after which other connections are served first: a loop reads up to 32 times in a row."""
SWEEP_SECONDS = 0.1
"""At most so often the deadlines of connections are checked."""
BODY_BUFFER_BYTES = 64 * 1024
"""Bytes of an unread body after which reading pauses."""
MAX_JOINED_BYTES = 64 * 1024
"""A larger body is not copied to be written together with its head."""

_NO_BODY = (204, 304)
_NEVER = math.inf
_COMMON_HEADERS = frozenset({b"content-type", b"x-request-id", b"cache-control", b"vary"})
"""Names that are valid, and say nothing of the body or the connection."""
_INVALID_IN_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]').search
_INVALID_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)}


class RefusedRequest(msgspec.Struct, frozen=True):
    """What a client sent that never reached the application. The method and the path are given if they are known."""

    request_id: str
    error: AntwortError
    seconds: float
    method: str = "-"
    path: str = "-"


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`head`: bytes of a request's address and headers. `seconds`: from the first byte of a request, or from the start
    of the connection, to its last. `on_refusal` is told of requests that are refused before the application sees
    them; `strict` gives their errors the standard's types.
    """

    head: int = HEAD_LIMIT
    seconds: float = REQUEST_SECONDS
    on_refusal: Callable[[RefusedRequest], None] | None = None
    strict: bool = False


class SharedState(ServerState):
    """What all connections of a server share."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__()
        self.connections: set[Any] = set()  # uvicorn lists its own classes
        self.limits = limits
        self.is_leaving = False
        """Whether each answer is the last on its connection, so that clients go elsewhere."""
        self.next_sweep, self._last_sweep = _NEVER, -_NEVER
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def default_headers(self) -> Headers:
        return self._default_headers

    @default_headers.setter
    def default_headers(self, fields: Headers) -> None:
        """uvicorn sets them each second, for the date."""
        self._default_headers = fields
        self.default_lines = b"".join([b"%b: %b\r\n" % field for field in fields])

    def sweep_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """Check the deadlines of all connections then. One timer does it for all of them."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.next_sweep = max(when, self._last_sweep + SWEEP_SECONDS)
        self._sweep_timer = loop.call_at(self.next_sweep, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_timer, self.next_sweep = None, _NEVER
        self._last_sweep = now = loop.time()
        for connection in [*self.connections]:
            if now >= connection.next_check:
                connection.check(now)
        earliest = min([connection.next_check for connection in self.connections], default=_NEVER)
        if earliest < self.next_sweep:
            self.sweep_at(earliest, loop)


class ServedConnection(asyncio.Protocol):
    """What HTTP and WebSocket connections have in common: writing to slow clients, and deadlines."""

    transport: asyncio.Transport
    close_sent = False
    """Whether nothing more will be written on a WebSocket."""

    def __init__(self, state: SharedState, loop: asyncio.AbstractEventLoop) -> None:
        self.state, self.loop = state, loop
        self.is_behind = False
        """Whether a write would wait for the client."""
        self.next_check = _NEVER
        self._deadline = self._linger_deadline = _NEVER
        self._linger_seconds = 0.0
        self._resumed = 0
        self._progress = (0, 0)
        self._writable: asyncio.Event | None = None

    def pause_writing(self) -> None:
        self.is_behind = True

    def resume_writing(self) -> None:
        self._resumed += 1
        self.is_behind = False
        if self._writable is not None:
            self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written, or has left."""
        while self.is_behind:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def linger(self, seconds: float) -> None:
        """Hang up once the client has taken nothing of what is left for so long."""
        if (self.is_behind or self.close_sent or self.transport.is_closing()) and self._linger_deadline is _NEVER:
            self._linger_seconds = seconds
            self._note_progress()

    def stop_lingering(self) -> None:
        self._linger_deadline = _NEVER

    def _note_progress(self) -> None:
        """The size alone would not do: what was taken may have been replaced by as much."""
        self._linger_deadline = _NEVER
        if left := self.transport.get_write_buffer_size():
            self._progress = self._resumed, left
            self._linger_deadline = self.loop.time() + self._linger_seconds
            self._check_at(self._linger_deadline)

    def set_deadline(self, deadline: float) -> None:
        """Have `expire` called then. An earlier check, left by a deadline that was put off, finds nothing to do."""
        self._deadline = deadline
        if deadline < self.next_check:
            self._check_at(deadline)

    def _check_at(self, deadline: float) -> None:
        self.next_check = min(self.next_check, deadline)
        if deadline < self.state.next_sweep:
            self.state.sweep_at(deadline, self.loop)

    def check(self, now: float) -> None:
        if now >= self._linger_deadline:
            if self._progress == (self._resumed, self.transport.get_write_buffer_size()):
                self._linger_deadline = _NEVER
                self.abort()
            else:
                self._note_progress()
        if now >= self._deadline:
            self._deadline = _NEVER
            self.expire()
        self.next_check = min(self._deadline, self._linger_deadline)

    def expire(self) -> None:
        """The deadline has passed."""
        raise NotImplementedError

    def abort(self) -> bool:
        """Hang up now, whatever is unsent. Return True: a server of another kind cannot."""
        self.transport.abort()
        return True


class HttpProtocol(ServedConnection):
    """A connection. It reads on while a request is answered, because only reading shows that the client has left.

    What comes before the answer is complete is buffered, within a limit, and parsed afterwards.
    """

    def __init__(
        self,
        config: Config,
        server_state: SharedState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(server_state, _loop or asyncio.get_running_loop())
        self.config, self.limits, self.app_state = config, server_state.limits, app_state
        self.app: App = config.loaded_app
        self.parser: Any = _new_parser(self)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.read_paused = False
        self._base_scope: Scope = {}
        self._scope: Scope = {}
        """Of the request that is being read."""
        self.current: HttpCycle | None = None
        """The request that is answered now, or was answered last."""
        self._newest: HttpCycle | None = None
        """The last of which the head has come in."""
        self._pipelined: deque[tuple[HttpCycle, Scope]] = deque()
        self.read_ahead = bytearray()
        self._upgrade: bytes | None = None
        """What came behind the head of a request for a WebSocket that waits for the answer before it."""
        self._in_head, self._is_complete, self._is_upgrade, self._has_cycle = True, False, False, False
        """Of the request that is being read: whether its head is still coming, whether all of it is there, whether it
        asks for another protocol, and whether it has become `_newest`.
        """
        self.is_closed_for_reading = False
        self._is_idle = self._is_hanging_up = False
        self._error: AntwortError | None = None
        self._head_bytes = self._head_bytes_max = 0
        """Bytes of the head so far: at least, and at most."""
        self._body_bytes = self._body_chunks = self._framing_bytes = self._trailer_bytes = 0
        self._began = 0.0

    # ---- reading ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.state.connections.add(self)
        self._base_scope = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            **connection_scope(self.transport, "http"),
        }
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        if self.is_closed_for_reading:
            return
        cycle = self.current
        if cycle is None or cycle.more_body or cycle.is_answered:
            self._parse(data)
            return
        self.read_ahead += data
        if len(self.read_ahead) > READ_AHEAD_LIMIT:
            self._close_after_answer()

    @property
    def _is_busy(self) -> bool:
        """Whether a request has come in whole and is not answered yet."""
        cycle = self.current
        return cycle is not None and not cycle.more_body and not cycle.is_answered

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        size, was_in_head = len(data), self._in_head
        if was_in_head:
            self._head_bytes_max = size if self._is_complete else size + self._head_bytes_max
            if not self._head_bytes:
                self._began = self.loop.time()
            self._head_bytes += size
        else:
            self._head_bytes_max = size
        self._is_complete = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_upgrade(memoryview(data)[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            self._refuse(self._error or RequestError("Invalid HTTP request received.", code="invalid_http"))
        if self.is_closed_for_reading:
            return
        if not self._in_head:
            self._check_framing(0 if was_in_head else size)
        elif self._head_bytes > self.limits.head:
            self._refuse(HeadTooLarge(self.limits.head))
        if not self.is_closed_for_reading:
            self._update_deadline()

    def _check_framing(self, size: int) -> None:
        """Limit what follows a head and is no body: chunk sizes, chunk extensions and trailers.

        `size` is what this read has brought; 0 for the read with the end of the head, which may be of any length.
        """
        allowed = self._body_bytes + self._body_chunks * CHUNK_FRAMING_BYTES
        self._framing_bytes = max(0, self._framing_bytes + size - allowed)
        if self._framing_bytes > self.limits.head:
            self._refuse(HeadTooLarge(self.limits.head, "chunk extensions and trailers"))
        elif self._body_chunks > MAX_CHUNKS_PER_READ and not self.read_paused:
            self.pause_reading()
            self.loop.call_soon(self._read_on)
        self._body_bytes = self._body_chunks = 0

    def _read_on(self) -> None:
        cycle = self._newest
        if cycle is None or len(cycle.body) <= BODY_BUFFER_BYTES:
            self.resume_reading()

    # ---- callbacks of the parser ----

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._is_complete = self._has_cycle = self._is_upgrade = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value))
            return
        # A trailer is dropped: whatever checks or sets headers in front of us has not seen it (RFC 9110, 6.5.1).
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > self.limits.head:
            self._stop_parsing(HeadTooLarge(self.limits.head, "chunk extensions and trailers"))

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._body_bytes = self._body_chunks = self._framing_bytes = self._trailer_bytes = 0
        headers, parser = self.headers, self.parser
        if self._head_bytes_max > self.limits.head:
            size = len(self.url) + sum([len(name) + len(value) for name, value in headers])
            if size > self.limits.head:
                self._stop_parsing(HeadTooLarge(self.limits.head))
        method, version, fields = parser.get_method(), parser.get_http_version(), dict(headers)
        if b"transfer-encoding" in fields:
            self._check_transfer_coding()
        if b"host" not in fields:
            if version == "1.1":
                self._stop_parsing(RequestError("An HTTP/1.1 request needs a Host header.", code="invalid_http"))
        elif len(fields) < len(headers) and [name for name, _ in headers].count(b"host") > 1:
            self._stop_parsing(RequestError("A request has one Host header.", code="invalid_http"))
        scope = {
            **self._base_scope,
            "http_version": version,
            "method": method.decode("ascii"),
            "headers": headers,
            "state": self.app_state.copy(),
            CONNECTION: self,
        }
        if parser.should_upgrade() and method != b"CONNECT":  # which is an upgrade for the parser as well
            self._is_upgrade, self._scope = True, scope
            return
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        expect = fields.get(b"expect")
        before = self._newest
        self._newest = cycle = HttpCycle(
            self,
            scope["method"],
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=expect is not None and expect.lower() == b"100-continue",
        )
        self._has_cycle = True
        if before is None or before.is_answered:
            self._start(cycle, scope)
        else:
            self.pause_reading()
            self._pipelined.append((cycle, scope))

    def _check_transfer_coding(self) -> None:
        """The parser takes `gzip, chunked` for chunked, and would hand over what is compressed as it is."""
        codings = [value.strip(b" \t").lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings != [b"chunked"]:
            self._stop_parsing(UnknownTransferCoding(b", ".join(codings).decode("latin-1")))

    def _stop_parsing(self, error: AntwortError) -> NoReturn:
        """Make the parser give up; the client is answered with the error."""
        self._error = error
        raise error

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_chunks += 1
        cycle = self._newest
        if cycle is not None and not cycle.is_answered:
            cycle.add_body(body)
            if len(cycle.body) > BODY_BUFFER_BYTES:
                self.pause_reading()

    def on_message_complete(self) -> None:
        self._in_head = self._is_complete = True
        self._head_bytes = 0
        cycle = self._newest
        if cycle is not None and not self._is_upgrade and not cycle.is_answered:
            cycle.more_body, cycle.has_news = False, True
            if cycle.receiver is not None:
                cycle.receiver.set()

    def _start(self, cycle: HttpCycle, scope: Scope) -> None:
        self.current = cycle
        self._linger_deadline = _NEVER
        if self.state.is_leaving:
            cycle.keep_alive = False
        task = self.loop.create_task(cycle.run(self.app, scope))
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    # ---- requests for another protocol ----

    def _parse_upgrade(self, rest: memoryview) -> None:
        """Parse what follows the head of an upgrade. What does not ask for a WebSocket stays with HTTP, for which the
        parser has to read its head again: it has taken the request for one without a body.
        """
        try:
            while self._is_upgrade:
                if _asks_for_websocket(self._scope["method"], self.headers):
                    self._begin_websocket(bytes(rest))
                    return
                head = _without_upgrade(self._scope["method"], self.url, self._scope["http_version"], self.headers)
                self.parser = _new_parser(self)
                self.parser.feed_data(head)
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    rest = rest[int(upgrade.args[0]) :]
        except httptools.HttpParserError:
            self._refuse(self._error or RequestError("Invalid HTTP request received.", code="invalid_http"))

    def _begin_websocket(self, rest: bytes) -> None:
        """Hand the connection over, when all requests before it are answered."""
        if self._is_busy:
            self._upgrade = rest
            return
        try:
            _check_upgrade(self._scope["http_version"], self.headers)
            if len(rest) > READ_AHEAD_LIMIT:
                raise BadUpgrade("A WebSocket is not written to before it is there.")
            from antwort.server.websocket_protocol import WebSocketProtocol

            websocket = WebSocketProtocol(self, rest)
        except RequestError as error:
            self._error = error
            self._refuse(error)
            return
        self.is_closed_for_reading = True
        self.state.connections.discard(self)
        self.transport.set_protocol(websocket)

    # ---- deadlines ----

    def _update_deadline(self) -> None:
        """A request must come in within its time, and an idle connection be used again."""
        cycle = self.current
        if cycle is not None and not cycle.more_body and not cycle.is_answered:
            self._deadline = _NEVER
        elif self._is_complete:
            self._is_idle, self._deadline = True, self.loop.time() + KEEP_ALIVE_SECONDS
            if self._deadline < self.next_check:
                self._check_at(self._deadline)
        elif self._is_idle or self._deadline is _NEVER:
            self._is_idle = False
            self.set_deadline(self.loop.time() + self.limits.seconds)

    def expire(self) -> None:
        if self._is_hanging_up:
            self.transport.abort()
        elif self._is_idle or not self._interrupt_body(RequestTooSlow()):
            if self.transport.get_write_buffer_size():  # of the last answer, which nobody reads
                self.transport.abort()
            self.transport.close()

    # ---- ending ----

    def connection_lost(self, exc: Exception | None) -> None:
        """Of pipelined requests the oldest runs, and is told. The others are dropped."""
        self.state.connections.discard(self)
        self.is_closed_for_reading = True
        self.resume_writing()
        self._pipelined.clear()
        self._disconnect()
        if exc is None:
            self.transport.close()
        self.parser = None  # the parser and this object hold each other

    def _disconnect(self) -> None:
        cycle = self.current
        self.current = self._newest = None
        if cycle is not None and not cycle.is_answered:
            cycle.disconnect()

    def _interrupt_body(self, error: AntwortError) -> bool:
        """Have the request fail that waits for the rest of its body. Return whether there is one."""
        cycle = self.current
        if cycle is None or not cycle.more_body or cycle.is_started:
            return False
        cycle.error = error
        cycle.wake()
        return True

    def _refuse(self, error: AntwortError) -> None:
        """Answer what never becomes a request, in JSON; it is the last on its connection. A request that is being
        answered answers for itself, and one that has been answered needs no second answer.
        """
        cycle = self.current
        if cycle is not None and not cycle.is_answered:
            self._interrupt_body(error)
            self._close_after_answer()
            return
        self.is_closed_for_reading = True
        if self._in_head or cycle is None or not self._has_cycle or cycle is not self._newest:
            self._answer_refused(error)
        self._is_hanging_up = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.set_deadline(self.loop.time() + CLOSING_SECONDS)
        else:
            self.transport.close()

    def _answer_refused(self, error: AntwortError) -> None:
        seconds, method, path = self.loop.time() - self._began, "-", "-"
        if self._error is not None:
            method = self.parser.get_method().decode("latin-1")
            path = self.url.partition(b"?")[0].decode("latin-1")
        refused = RefusedRequest(new_id("req"), error, seconds, method, path)
        sent = failure(error, strict=self.limits.strict)
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(sent.body)),
            (b"x-request-id", refused.request_id.encode()),
            *sent.headers,
            (b"connection", b"close"),
        ]
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINES[sent.status], lines, sent.body))
        if self.limits.on_refusal is not None:
            self.limits.on_refusal(refused)

    def _close_after_answer(self) -> None:
        """Drop what was sent ahead: it will not be answered."""
        self.is_closed_for_reading = True
        self._deadline = _NEVER
        self.read_ahead.clear()
        self._pipelined.clear()
        if self.current is not None:
            self.current.keep_alive = False

    @property
    def is_new(self) -> bool:
        """Whether no request has come in yet."""
        return self.current is None and not self.is_closed_for_reading

    def leave(self) -> None:
        """Make the answer under way the last here. An idle client may still send a request."""
        if self.current is not None:
            self.current.keep_alive = False

    def response_complete(self) -> None:
        self.state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.read_paused:
            self.resume_reading()
        if self._pipelined:
            self._start(*self._pipelined.popleft())
        if self.is_closed_for_reading:
            return
        if self._upgrade is not None and not self._is_busy:
            rest, self._upgrade = self._upgrade, None
            self._begin_websocket(rest + self.read_ahead)
        elif self.read_ahead and not self._is_busy:
            ahead, self.read_ahead = self.read_ahead, bytearray()
            self._parse(bytes(ahead))
        else:
            self._update_deadline()

    # ---- what our own application cannot do with ASGI alone (`ClientConnection`) ----

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """It is about the current request, as they are answered one after the other. Reading shows a disconnect."""
        if self.current is None:
            on_disconnect()
        else:
            self.current.on_disconnect = on_disconnect  # until it is answered
            if self.read_paused:
                self.resume_reading()

    def abort(self) -> bool:
        self._disconnect()
        self.transport.abort()
        return True

    def cut(self) -> None:
        """Hang up behind what is unsent, without the end of the answer."""
        self._disconnect()
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops: the answer under way is the last, and nothing more is read of a request."""
        if self._is_busy:
            self._close_after_answer()
        elif not self._interrupt_body(ShuttingDown()):
            if self._newest is None or self._newest.is_answered:
                self.transport.close()
            else:
                self._newest.keep_alive = False


class HttpCycle:
    """A request and its answer: plain ASGI."""

    more_body = True
    body: bytes | bytearray = b""
    """What has come in and was not received yet."""
    is_started = is_answered = is_disconnected = False
    error: AntwortError | None = None
    """Why the rest of the body does not come; `receive` raises it."""
    has_news = False
    """Whether there is something for `receive`."""
    receiver: asyncio.Event | None = None
    on_disconnect: Callable[[], None] | None = None
    _held_head = b""
    """The head of an answer whose length is known: it is written with the body."""
    _is_chunked = False
    _left: int | None = None
    """How many bytes of the body are still to come, where the head says how many there are."""

    def __init__(self, connection: HttpProtocol, method: str, *, keep_alive: bool, expects_continue: bool) -> None:
        self._connection, self._transport, self._method = connection, connection.transport, method
        self.keep_alive, self._expects_continue = keep_alive, expects_continue

    async def run(self, app: App, scope: Scope) -> None:
        """Have the application answer. One that does not is defective, and its client is told so."""
        try:
            await app(scope, self.receive, self.send)
        except BaseException as exc:
            if exc is not self.error:
                logger.error("Exception in ASGI application\n", exc_info=exc)
            await self._fail()
        else:
            if not self.is_answered and not self.is_disconnected:
                missing = "completing" if self.is_started else "starting"
                logger.error("ASGI callable returned without %s response.", missing)
                await self._fail()

    async def _fail(self) -> None:
        if self.is_answered:
            return  # the connection may carry the next request already
        if self.is_started:
            self._transport.write(self._held_head)
            self._transport.close()
            return
        body = b"Internal Server Error"
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    # ---- the request ----

    def add_body(self, body: bytes) -> None:
        """A piece that comes alone is not copied."""
        if not self.body:
            self.body = body
        elif isinstance(self.body, bytearray):
            self.body += body
        else:
            self.body = bytearray(self.body + body)
        self.has_news = True
        if self.receiver is not None:
            self.receiver.set()

    def wake(self) -> None:
        self.has_news = True
        if self.receiver is not None:
            self.receiver.set()

    async def receive(self) -> Message:
        """Raise why the rest of the body does not come, if the connection has refused it."""
        connection = self._connection
        if self._expects_continue and not self.is_started and not self._transport.is_closing():
            self._transport.write(_CONTINUE)
            self._expects_continue = False
        if not self.has_news and not self.is_disconnected and not self.is_answered:
            connection.resume_reading()
            self.receiver = self.receiver or asyncio.Event()
            self.receiver.clear()
            await self.receiver.wait()
        if self.is_disconnected or self.is_answered:
            return {"type": "http.disconnect"}
        if self.error is not None:
            raise self.error
        self.has_news = False
        body, self.body = self.body, b""
        if connection.read_paused:
            connection.resume_reading()
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    def disconnect(self) -> None:
        """The client has left, or is hung up on."""
        self.is_disconnected = True
        self.wake()
        if self.on_disconnect is not None:
            self.on_disconnect()

    # ---- the answer ----

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.is_behind and not self.is_disconnected:
            await connection.drain()
        if self.is_disconnected:
            return
        if self.is_answered:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}' sent, after response already completed.")
        expected = "http.response.body" if self.is_started else "http.response.start"
        if message["type"] != expected:
            raise RuntimeError(f"Expected ASGI message '{expected}', but got '{message['type']}'.")
        if not self.is_started:
            self._begin(message["status"], message.get("headers", ()))
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._transport.write(chunk + b"0\r\n\r\n" if is_last else chunk)
        elif self._method != "HEAD":
            head, self._held_head = self._held_head, b""
            self._left = (self._left or 0) - len(body)
            if head and len(body) <= MAX_JOINED_BYTES:
                body, head = head + body, b""
            if head:
                self._transport.write(head)
            if self._left < 0:
                raise RuntimeError("Response content longer than Content-Length")
            self._transport.write(body)
            if is_last and self._left:
                raise RuntimeError("Response content shorter than Content-Length")
        if is_last:
            self.is_answered, self.on_disconnect = True, None
            if self.receiver is not None:
                self.receiver.set()
            if not self.keep_alive:
                self._transport.close()
            connection.response_complete()

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [STATUS_LINES[status], self._connection.state.default_lines]
        says_close = says_chunked = False
        for given, value in headers:
            if _INVALID_IN_VALUE(value):
                raise RuntimeError("Invalid HTTP header value.")
            name = given
            if given not in _COMMON_HEADERS:
                if _INVALID_IN_NAME(given):
                    raise RuntimeError("Invalid HTTP header name.")
                name = given.lower()
                if name == b"content-length":
                    self._left = int(value)
                elif name == b"connection" and b"close" in [token.lower().strip() for token in value.split(b",")]:
                    self.keep_alive, says_close = False, True
                elif name == b"transfer-encoding" and value.lower() == b"chunked":
                    says_chunked = True
            lines += (name, b": ", value, b"\r\n")
        self.is_started = True
        if self._expects_continue and self.more_body:  # nobody can tell whether the body still comes
            self.keep_alive = False
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        has_body = self._method != "HEAD"
        if has_body:
            self._is_chunked = says_chunked or (self._left is None and status not in _NO_BODY)
            if self._is_chunked and not says_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if has_body and not self._is_chunked and self._left:
            self._held_head = head
        else:
            self._transport.write(head)


def connection_scope(transport: asyncio.Transport, scheme: str) -> dict[str, Any]:
    """Return the parts of a scope that are the same for all requests of a connection."""
    local, remote = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    return {
        "server": (str(local[0]), int(local[1])) if isinstance(local, tuple) else None,
        "client": (str(remote[0]), int(remote[1])) if isinstance(remote, tuple) else None,
        "scheme": scheme + "s" if is_encrypted else scheme,
        "root_path": "",
    }


def _new_parser(protocol: HttpProtocol) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's: the first request gets its answer
    return parser


def _asks_for_websocket(method: str, headers: Headers) -> bool:
    upgrades = [value.strip().lower() for name, value in headers if name == b"upgrade"]
    return method == "GET" and upgrades == [b"websocket"]


def _check_upgrade(http_version: str, headers: Headers) -> None:
    """Check a request for a WebSocket, as far as it is not about single headers of it (RFC 6455, 4.2)."""
    if http_version != "1.1":
        raise BadUpgrade(f"A WebSocket is asked for over HTTP/1.1, not HTTP/{http_version}.")
    if [value for name, value in headers if name == b"sec-websocket-version"] != [b"13"]:
        raise WrongSocketVersion
    if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers):
        raise BadUpgrade("A request for a WebSocket has no body.")


def _without_upgrade(method: str, url: bytes, http_version: str, headers: Headers) -> bytes:
    """Return the head of the request without what asks for another protocol."""
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, http_version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            lines.append(b"connection: " + b", ".join(tokens))
        elif name != b"upgrade":
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
