"""uvicorn's WebSocket, which takes only so much from one client at a time: all others have their turns in between."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from antwort.server.floods import Floods

_PIECE = 2048
"""Bytes that are parsed at once: of frames without content, a few hundred."""
_FRAMES = 100
"""Frames of one client after which the others have their turn."""


class Paced(WebSocketsSansIOProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_deaf = False
        """Whether what comes in is dropped: all is said."""
        self._unread = bytearray()
        self._later: asyncio.Handle | None = None
        self._floods = Floods(self.loop.time)
        self._pong = b""

    # ---- what comes in ----

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._later is None:
            self._parse()

    def _parse(self) -> None:
        """What has come in, up to a message, or to the share of one go. No more is read before the rest is parsed."""
        self._later = None
        frames = 0
        while self._unread and not self.is_deaf and not self.read_paused:
            if frames >= _FRAMES:
                self.transport.pause_reading()
                self._later = self.loop.call_soon(self._parse)
                return
            frames += self._parse_piece()
        if self.is_deaf:
            self._unread.clear()
        if not self.read_paused:
            self.transport.resume_reading()

    def _parse_piece(self) -> int:
        """How many frames there were in it."""
        piece = bytes(self._unread[:_PIECE])
        del self._unread[:_PIECE]
        self.conn.receive_data(piece)
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
        elif excess := self._floods.seen(frames, self.pending_ping_payload):
            self.conn.fail(CloseCode.POLICY_VIOLATION, excess)
            self.handle_parser_exception()
        else:
            self.handle_events()
        for frame in frames:
            frame.data = b""  # the parser holds on to the last frame until the next one comes
        return len(frames)

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()
        return message

    def _read_on(self) -> None:
        """First what has come in already."""
        if not self._unread:
            self.transport.resume_reading()
        elif self._later is None:
            self._later = self.loop.call_soon(self._parse)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.close_sent:
            self._read_on()  # the client's own goodbye may be in what has come in

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_deaf = True
        self._unread.clear()
        super().connection_lost(exc)

    # ---- pings of the client ----

    def handle_ping(self) -> None:
        """To a client that is behind nothing is written. When it has caught up, its latest ping is answered, which is
        enough (RFC 6455, 5.5.3). Who was told goodbye is not answered.
        """
        answer = self.conn.data_to_send()
        if self.conn.state is State.OPEN and not self.writable.is_set():
            self._pong = answer[-1] if answer else self._pong
        elif not self.close_sent:
            self.transport.write(b"".join(answer))

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        if pong and self.conn.state is State.OPEN:
            self.transport.write(pong)
