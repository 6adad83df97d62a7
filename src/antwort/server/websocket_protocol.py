"""WebSocket connections for our own server: frames, pings, limits on tiny frames, and slow clients.

The library `websockets` parses frames and knows the protocol (`ServerProtocol`, without I/O). A client is parsed in
small pieces, so that other clients are served in between, and not read from while a message of it waits.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from websockets.datastructures import Headers as WebSocketHeaders
from websockets.exceptions import InvalidHeader, InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from antwort.errors import BadUpgrade
from antwort.server.exchange import CONNECTION
from antwort.server.protocol import CLOSING_SECONDS, Message, Scope, ServedConnection, connection_scope, logger
from antwort.server.quotas import Clock, TokenBucket

if TYPE_CHECKING:
    from antwort.server.protocol import HttpProtocol

MAX_EARLY_BYTES = 2**17
"""Bytes that are buffered of what a client sends before it is accepted."""
PARSED_AT_ONCE = 2048
"""Bytes that are parsed in one piece: a few hundred frames without content."""
FRAMES_PER_TURN = 100
"""Frames of one client after which other connections are served first."""
CONTROL_FRAMES = 600
"""Pings, and pongs that nobody asked for: in a minute, or at once."""
FRAGMENTS = 1024
"""Fragments of one message, whatever their size; beyond these, one for each `SMALL_FRAGMENT` bytes of it."""
SMALL_FRAGMENT = 1024

_DISCONNECTED = {"type": "websocket.disconnect", "code": 1006}


class ClientDisconnected(OSError):
    """The connection is closed: nothing can be sent on it."""


class WebSocketProtocol(ServedConnection):
    """Take the place of the protocol that has read the request, and serve the application over ASGI.

    Our own application also writes past ASGI: several messages at once, large ones in fragments. Raise `BadUpgrade`,
    before anything has happened, for a head that cannot be that of a WebSocket.
    """

    def __init__(self, http: HttpProtocol, early: bytes) -> None:
        super().__init__(http.state, http.loop)
        config, self.transport, self._app = http.config, http.transport, http.app
        # The head is read, and within our limits: only frames are parsed. They are not compressed, which would take
        # more memory than all the rest of a connection.
        self._protocol = ServerProtocol(state=State.OPEN, max_size=config.ws_max_size, logger=logger)
        self._protocol.state = State.CONNECTING
        request = _request(http.url, http.headers)
        self._response = self._protocol.accept(request)
        if self._response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            fault = self._protocol.handshake_exc
            name = fault.name if isinstance(fault, InvalidHeader) else "Upgrade"
            raise BadUpgrade(f"The header {name} is missing, not valid, or there more than once.") from fault
        self._date_header = list(http.state.default_headers)
        self._interval, self._timeout = config.ws_ping_interval or 0.0, config.ws_ping_timeout or 0.0
        self.is_accepted = False
        """Whether the request was answered, with a refusal too."""
        self.is_disconnected = False
        self.is_closed_for_reading = False
        self.read_paused = False
        """While a message waits for the application."""
        self._is_closing = False
        self._rejection: tuple[int, Iterable[tuple[bytes, bytes]]] | None = None
        self._rejection_body = b""
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._fragments: list[bytes] = []
        self._is_text = False
        self._unparsed = bytearray(early)
        self._parse_later: asyncio.Handle | None = None
        self._frame_limiter = FrameLimiter(self.loop.time)
        self._ping_payload: bytes | None = None
        self._pinged_at = 0.0
        self.unsent_pong = b""
        """The answer to the latest ping of a client that is behind."""
        self._when_due: Callable[[], None] = self.ping
        self.on_shutdown: Callable[[], None] | None = None
        """Called when the server stops, instead of closing the connection."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the connection has ended, also while the application does not read."""
        if http.is_behind:
            self.pause_writing()
        self._messages.put_nowait({"type": "websocket.connect"})
        self._schedule(http.limits.seconds, self._abort)  # until the client is answered, and has taken the answer
        self.state.connections.add(self)
        task = self.loop.create_task(self._run(self._new_scope(http, request)))
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    def _new_scope(self, http: HttpProtocol, request: Request) -> Scope:
        path, _, query = request.path.partition("?")
        offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        return {
            "type": "websocket",
            "asgi": {"version": http.config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            **connection_scope(self.transport, "ws"),
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": http.headers,
            "subprotocols": [name.strip() for name in offered.split(",")] if offered else [],
            "state": http.app_state.copy(),
            "extensions": {"websocket.http.response": {}},
            CONNECTION: self,
        }

    async def _run(self, scope: Scope) -> None:
        try:
            await self._app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            logger.exception("Exception in ASGI application\n")
            self._reject_defective()
        else:
            if not self.is_accepted:
                logger.error("ASGI callable returned without completing handshake.")
                self._reject_defective()
        if not self._is_closing:
            self.transport.close()

    def _reject_defective(self) -> None:
        if not self.is_accepted and self._rejection is None:
            self._protocol.send_response(self._protocol.reject(500, "Internal Server Error"))
            self._flush()

    def _abort(self) -> None:
        self.abort()

    def _flush(self) -> None:
        self.transport.write(b"".join(self._protocol.data_to_send()))

    # ---- reading ----

    def data_received(self, data: bytes) -> None:
        if self.is_closed_for_reading:
            return
        self._unparsed += data
        if not self.is_accepted:
            if len(self._unparsed) > MAX_EARLY_BYTES:
                self.abort()
        elif self._parse_later is None:
            self._parse()

    def _parse(self) -> None:
        """Parse what has come in, up to a message, or to the share of one turn. No more is read before that."""
        self._parse_later = None
        frames = 0
        while self._unparsed and not self.is_closed_for_reading and not self.read_paused:
            if frames >= FRAMES_PER_TURN:
                self.transport.pause_reading()
                self._parse_later = self.loop.call_soon(self._parse)
                return
            frames += self._parse_piece()
        if self.is_closed_for_reading:
            self._unparsed.clear()
        if not self.read_paused:
            self.transport.resume_reading()

    def _parse_piece(self) -> int:
        """Return the number of frames in it."""
        piece = bytes(self._unparsed[:PARSED_AT_ONCE])
        del self._unparsed[:PARSED_AT_ONCE]
        self._protocol.receive_data(piece)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        if self._protocol.parser_exc is not None:
            self._fail()
        elif excess := self._frame_limiter.excess(frames, self._ping_payload):
            self._protocol.fail(CloseCode.POLICY_VIOLATION, excess)
            self._fail()
        else:
            for frame in frames:
                self._handle(frame)
        for frame in frames:
            frame.data = b""  # the parser holds the last frame until the next one comes
        return len(frames)

    def _handle(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY | Opcode.CONT:
                if frame.opcode is not Opcode.CONT:
                    self._is_text, self._fragments = frame.opcode is Opcode.TEXT, []
                self._fragments.append(bytes(frame.data))
                if frame.fin:
                    self._message()
            case Opcode.PING:
                self._pong()
            case Opcode.PONG if self._ping_payload is not None and bytes(frame.data) == self._ping_payload:
                self._ping_payload = None
                self._schedule(self._interval - (self.loop.time() - self._pinged_at), self.ping)
            case Opcode.CLOSE:
                self._client_closes()

    def _message(self) -> None:
        data, self._fragments = b"".join(self._fragments), []
        if self.close_sent:
            return  # only the client's own close is waited for
        message: Message = {"type": "websocket.receive", "bytes": data}
        if self._is_text:
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._protocol.send_close(CloseCode.INVALID_DATA)
                self._fail()
                return
        self._messages.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _pong(self) -> None:
        """Answer a ping. Nothing is written to a client that is behind; when it has caught up, its latest ping is
        answered, which is enough (RFC 6455, 5.5.3).
        """
        pongs = self._protocol.data_to_send()
        if self._protocol.state is State.OPEN and self.is_behind:
            self.unsent_pong = pongs[-1] if pongs else self.unsent_pong
        elif not self.close_sent:
            self.transport.write(b"".join(pongs))

    def _client_closes(self) -> None:
        if self.close_sent:
            if self._is_closing:
                self.transport.close()
        elif not self.transport.is_closing():
            received = self._protocol.close_rcvd
            assert received is not None
            self._messages.put_nowait(
                {"type": "websocket.disconnect", "code": received.code, "reason": received.reason}
            )
            self._flush()
            self.transport.close()

    def _fail(self) -> None:
        """Close because of what the client has sent. It is still read from for a moment: hung up on at once, it might
        lose the reason.
        """
        sent = self._protocol.close_sent
        assert sent is not None, "what cannot be read is answered with a close"
        self._messages.put_nowait({"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason})
        self.is_closed_for_reading = self.close_sent = self._is_closing = True
        self._flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._schedule(CLOSING_SECONDS, self.transport.abort)

    async def receive(self) -> Message:
        message = await self._messages.get()
        if self.read_paused and self._messages.empty():
            self._read_on()
        return message

    def _read_on(self) -> None:
        """Parse first what has come in already."""
        self.read_paused = False
        if not self._unparsed:
            self.transport.resume_reading()
        elif self._parse_later is None and self.is_accepted:
            self._parse_later = self.loop.call_soon(self._parse)

    # ---- pings and deadlines ----

    def _schedule(self, seconds: float, due: Callable[[], None]) -> None:
        self._when_due = due
        self.set_deadline(self.loop.time() + max(seconds, 0.0))

    def expire(self) -> None:
        self._when_due()

    @property
    def awaits_pong(self) -> bool:
        return self._ping_payload is not None

    def ping(self) -> None:
        """Ping the client. Where its answer could not be read, none is waited for, but writing shows whether anybody is
        there. A client that is behind is left to those who write to it.
        """
        if self.close_sent or self.transport.is_closing():
            return
        if not self.is_behind and self._protocol.state is State.OPEN:
            payload = b"" if self.read_paused else os.urandom(4)
            self._protocol.send_ping(payload)
            self._flush()
            if payload:
                self._ping_payload, self._pinged_at = payload, self.loop.time()
                self._schedule(self._timeout, self.pong_missing)
                return
        self._schedule(self._interval, self.ping)

    def pong_missing(self) -> None:
        """Close the connection, unless the client was not listened to: then it is pinged again."""
        self._ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        if self.read_paused or self.is_behind:
            self._schedule(self._interval, self.ping)
            return
        self._protocol.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
        self._flush()
        self.close_sent = True
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # nobody takes what is left

    # ---- writing ----

    async def send(self, message: Message) -> None:
        await self.drain()
        if self.is_disconnected:
            raise ClientDisconnected
        match message["type"]:
            case "websocket.accept" if self._is_undecided:
                self._accept(message)
            case "websocket.close" if self._is_undecided:
                self._reject(Response(403, "Forbidden", self._protocol.reject(403, "").headers, b""))
            case "websocket.http.response.start" if self._is_undecided:
                self._rejection = message["status"], message.get("headers", ())
            case "websocket.http.response.body" if self._rejection is not None and not self.close_sent:
                self._rejection_body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._reject(self._rejection_response(*self._rejection))
            case "websocket.send" | "websocket.close" if self._rejection is None and not self.close_sent:
                try:
                    self._send(message)
                except InvalidState as exc:
                    raise ClientDisconnected from exc
            case kind:
                raise RuntimeError(f"Unexpected ASGI message '{kind}'.")

    def _rejection_response(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> Response:
        headers = WebSocketHeaders([(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields])
        headers.setdefault("Date", formatdate(usegmt=True))
        headers.setdefault("Connection", "close")
        headers.setdefault("Content-Length", str(len(self._rejection_body)))
        headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        return Response(status, HTTPStatus(status).phrase, headers, self._rejection_body)

    @property
    def _is_undecided(self) -> bool:
        return not self.is_accepted and self._rejection is None

    def _accept(self, message: Message) -> None:
        if self.transport.is_closing():
            return
        headers = self._response.headers
        del headers["Date"]
        for name, value in [*self._date_header, *message.get("headers", ())]:
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if protocol := message.get("subprotocol"):
            headers["Sec-WebSocket-Protocol"] = protocol
        self.is_accepted = True
        self._protocol.send_response(self._response)
        self._flush()
        if self._interval > 0:
            self._schedule(self._interval, self.ping)
        else:
            self.set_deadline(math.inf)
        if self._unparsed:  # a client is to wait for the answer; what it sent before is read now
            self._parse()

    def _reject(self, response: Response) -> None:
        self._messages.put_nowait(dict(_DISCONNECTED))
        self._protocol.send_response(response)
        self.close_sent = self.is_accepted = True
        self._flush()
        self.transport.close()

    def _send(self, message: Message) -> None:
        if message["type"] == "websocket.send":
            if (data := message.get("bytes")) is not None:
                self._protocol.send_binary(data)
            elif (text := message.get("text")) is not None:
                self._protocol.send_text(text.encode())
            self._flush()
        elif not self.transport.is_closing():
            code, reason = message.get("code", 1000), message.get("reason") or ""
            self._messages.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self._protocol.send_close(code, reason)
            self._flush()
            self.close_sent = self._is_closing = True
            self._schedule(CLOSING_SECONDS, self.transport.close)
            self._read_on()  # the client's own close may have come in

    async def write_texts(self, texts: Sequence[bytes]) -> None:
        """Send a message for each text, in one write."""
        await self.drained()
        self.transport.write(b"".join([_framed(text) for text in texts]))

    async def write_fragment(self, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """Send a part of one message (RFC 6455, 5.4)."""
        await self.drained()
        self.transport.write(_framed(data, (0x80 if is_last else 0) | (0x01 if is_first else 0)))

    async def drained(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self.drain()
        if self.is_disconnected or self.close_sent or self._protocol.state is not State.OPEN:
            raise ClientDisconnected

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self.unsent_pong = self.unsent_pong, b""
        if pong and self._protocol.state is State.OPEN and not self.is_disconnected:
            self.transport.write(pong)

    # ---- ending ----

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed_for_reading = self.is_accepted = self.is_disconnected = True
        self._unparsed.clear()
        self._messages.put_nowait(dict(_DISCONNECTED))
        self.state.connections.discard(self)
        self.resume_writing()
        if exc is None:
            self.transport.close()
        on_lost, self.on_lost, self.on_shutdown = self.on_lost, None, None  # each holds the other
        if on_lost is not None:
            on_lost()

    def shutdown(self) -> None:
        """The server stops. Our own application makes the response under way the last."""
        if not self.close_sent and self.on_shutdown is not None:
            self.on_shutdown()
            return
        if not self.close_sent and self.is_accepted:
            self._messages.put_nowait({"type": "websocket.disconnect", "code": 1012})
            self._protocol.send_close(CloseCode.SERVICE_RESTART)
            self._flush()
        elif not self.close_sent:
            self._reject_defective()
        self.transport.close()


class FrameLimiter:
    """Limit the frames of one client that carry next to nothing."""

    __slots__ = ("_controls", "_fragments", "_size")

    def __init__(self, clock: Clock) -> None:
        self._controls = TokenBucket(CONTROL_FRAMES, clock)
        self._fragments = self._size = 0

    def excess(self, frames: Iterable[Frame], awaited: bytes | None = None) -> str:
        """Return what the client has sent too much of with these, if so. `awaited` is the payload of our own ping."""
        controls = 0
        for frame in frames:
            if frame.opcode is Opcode.PING or (frame.opcode is Opcode.PONG and bytes(frame.data) != awaited):
                controls += 1
            elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                if frame.opcode is not Opcode.CONT:
                    self._fragments = self._size = 0
                self._fragments += 1
                self._size += len(frame.data)
                if self._fragments > FRAGMENTS + self._size // SMALL_FRAGMENT:
                    return "too many fragments"
        if controls:
            left = self._controls.left
            self._controls.take(controls)
            if left < controls:
                return "too many control frames"
        return ""


def _request(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """Return the request with the headers that the handshake is about. All others are left as they are."""
    own = [
        (name, value)
        for name, value in headers
        if name in (b"connection", b"upgrade") or name.startswith(b"sec-websocket-")
    ]
    return Request(_text(url), WebSocketHeaders([(_text(name), _text(value)) for name, value in own]))


def _text(value: bytes) -> str:
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError as exc:
        raise BadUpgrade("The head of a request for a WebSocket is ASCII.") from exc
    if not text.isprintable():
        raise BadUpgrade("The head of a request for a WebSocket has no control characters.")
    return text


def _framed(text: bytes, kind: int = 0x81) -> bytes:
    """Return one frame, as a server sends it: without a mask (RFC 6455, 5.2); by default a whole text."""
    size = len(text)
    if size < 126:
        return b"%c%c%b" % (kind, size, text)
    if size < 2**16:
        return b"%c\x7e%b%b" % (kind, size.to_bytes(2, "big"), text)
    return b"%c\x7f%b%b" % (kind, size.to_bytes(8, "big"), text)
