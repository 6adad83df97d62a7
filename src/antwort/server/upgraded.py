"""A connection after its upgrade: uvicorn's WebSocket, which lets a turn under way come to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from antwort.errors import BadUpgrade
from antwort.server.exchange import CONNECTION
from antwort.server.lingering import Lingers
from antwort.server.paced import Paced

_HANDSHAKE = (b"connection", b"upgrade")
_EARLY = 2**17
"""Bytes that are kept of what a client says before it is let in."""
_CLOSING = 2.0
"""Seconds for a client to answer a close, or to take the last that was said to it."""

# uvicorn's own, which repeats whole addresses.
_logger = logging.getLogger("antwort.connection")


class Upgraded(Lingers, Paced):
    """Serves `take_over` in the place of the protocol that has read the request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _logger
        self.close_timeout = _CLOSING
        # The request has been read, and within our own limits: what is to be parsed from here on are frames. They are
        # not compressed, which would take more memory than all the rest of a connection.
        self.conn = ServerProtocol(state=State.OPEN, max_size=self.config.ws_max_size, logger=_logger)
        self.conn.state = State.CONNECTING
        self.on_shutdown: Callable[[], None] | None = None
        """Who sees to it that the connection ends when the server stops."""
        self.on_lost: Callable[[], None] | None = None
        """Who wants to know that it has ended, and may not be reading."""
        self._early = bytearray()

    def take_over(
        self,
        transport: asyncio.Transport,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        is_behind: bool,
        early: bytes = b"",
    ) -> None:
        """Raises `BadUpgrade` for a head that cannot be that of a WebSocket; then nothing has happened. `early`: what
        came right behind the head.
        """
        request = Request(_text(url), Headers([(_text(name), _text(value)) for name, value in _own(headers)]))
        self._check(request)
        self._early += early
        self.connection_made(transport)
        if is_behind:
            self.pause_writing()
        self.handle_connect(request)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment] # a typed dict, and ours is one key more
        scope |= {"headers": headers, CONNECTION: self}

    def _check(self, request: Request) -> None:
        """uvicorn would have it refused in words that are not ours, and that nobody counts."""
        try:
            self.conn.process_request(request)
        except InvalidHandshake as exc:
            name = exc.name if isinstance(exc, InvalidHeader) else "Upgrade"
            raise BadUpgrade(f"The header {name} is missing, not valid, or there more than once.") from exc

    # ---- what comes in ----

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            return
        if self.handshake_complete:
            super().data_received(data)
            return
        self._early += data
        if len(self._early) > _EARLY:
            self.abort()

    def _hear_early(self) -> None:
        """A client is to wait for the answer; what it says before is heard when it has been let in."""
        early, self._early = bytes(self._early), bytearray()
        if early and self.handshake_complete:
            self.data_received(early)

    def send_receive_event_to_app(self) -> None:
        """A text that is none is told to the client alone: uvicorn would log, each time, how it was found out."""
        self.frames = [b"".join(self.frames)]
        if self.close_sent or self.curr_msg_data_type != "text" or _is_text(self.frames[0]):
            super().send_receive_event_to_app()
            return
        self.conn.send_close(CloseCode.INVALID_DATA)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """A client that is hung up on at once, while it writes, may lose what it is told."""
        closing = self.conn.close_sent
        assert closing is not None, "what cannot be read is answered with a close"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason})
        self.is_deaf = self.close_sent = True
        self.stop_keepalive()
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(_CLOSING, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_lingering()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    # ---- signs of life ----

    def send_keepalive_ping(self) -> None:
        """Where the answer could not be read, none is waited for; but to write shows whether anybody is there. A client
        that is behind is the business of those who write to it.
        """
        if not self.read_paused and not self.is_behind:
            super().send_keepalive_ping()
            return
        if not self.is_behind and self.conn.state is State.OPEN:
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.schedule_ping()

    def keepalive_timeout(self) -> None:
        """A client that was not listened to is asked again."""
        if self.read_paused or self.is_behind:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # nobody takes what is left

    # ---- what goes out ----

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._hear_early()
        elif message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # with a refusal, of which the server would say that it was forgotten

    async def write_texts(self, texts: Sequence[bytes]) -> None:
        """A message for each text, in one write."""
        await self.drained()
        self.transport.write(b"".join([_framed(text) for text in texts]))

    async def write_part(self, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """A message in several frames (RFC 6455, 5.4)."""
        await self.drained()
        self.transport.write(_framed(data, (0x80 if is_last else 0) | (0x01 if is_first else 0)))

    async def drained(self) -> None:
        """Until the client has taken what was written, or most of it."""
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected

    @property
    def is_behind(self) -> bool:
        return not self.writable.is_set()

    @property
    def is_ending(self) -> bool:
        return self.close_sent or super().is_ending

    def resume_writing(self) -> None:
        self.has_resumed()
        super().resume_writing()

    def shutdown(self) -> None:
        """The turn under way is the last."""
        if self.close_sent or self.on_shutdown is None:
            super().shutdown()
        else:
            self.on_shutdown()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _own(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The headers that the handshake is about. What else a client sends is not looked at on the way."""
    return ((name, value) for name, value in headers if name in _HANDSHAKE or name.startswith(b"sec-websocket-"))


def _text(value: bytes) -> str:
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError as exc:
        raise BadUpgrade("The head of a request for a WebSocket is ASCII.") from exc
    if not text.isprintable():
        raise BadUpgrade("The head of a request for a WebSocket has no control characters.")
    return text


def _framed(text: bytes, kind: int = 0x81) -> bytes:
    """One frame, as a server sends it: without a mask (RFC 6455, 5.2); by default a whole text."""
    size = len(text)
    if size < 126:
        return b"%c%c%b" % (kind, size, text)
    if size < 2**16:
        return b"%c\x7e%b%b" % (kind, size.to_bytes(2, "big"), text)
    return b"%c\x7f%b%b" % (kind, size.to_bytes(8, "big"), text)
