"""The way to the client of a WebSocket, over plain ASGI; and past it, where the server is our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from antwort.event_loop import next_turn
from antwort.server.exchange import CONNECTION, ClientGone, Scope, Send
from antwort.server.lingering import Patience
from antwort.server.sse import sliced


class SocketLine(Protocol):
    """The connection itself, as far as those who write to it may touch it."""

    @property
    def is_behind(self) -> bool:
        """Whether a write would wait for the client."""

    def linger(self, seconds: float) -> None:
        """There is no more to come: hang up when the client takes nothing of what is left for so long."""

    def stop_lingering(self) -> None:
        """There is more to come."""

    def abort(self) -> None:
        """Hang up now, whatever is unsent."""

    async def write_texts(self, texts: Sequence[bytes]) -> None:
        """A message for each text, in one write. Waits while the client is slower than we are. Raises `OSError`."""

    async def drained(self) -> None:
        """Until the client has taken what was written, or most of it. Raises `OSError`."""

    async def write_part(self, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """A part of one message. Waits as `write_texts` does."""


class Channel:
    __slots__ = ("_line", "_linger", "_send")

    def __init__(self, scope: Scope, send: Send, linger: float) -> None:
        self._line: SocketLine | None = scope.get(CONNECTION)
        self._send, self._linger = send, linger

    async def write(self, texts: Sequence[bytes]) -> None:
        """A message for each text. Raises `ClientGone`."""
        if not texts:
            return
        try:
            if self._line is not None:
                await self._line.write_texts(texts)
                return
            for text in texts:
                await self._send({"type": "websocket.send", "text": text.decode()})
        except (OSError, RuntimeError) as exc:  # servers have different ways to say so
            raise ClientGone from exc

    async def drained(self) -> None:
        """Until the client has taken what was written, or most of it. Raises `ClientGone`."""
        if self._line is not None:
            try:
                await self._line.drained()
            except OSError as exc:
                raise ClientGone from exc

    async def write_pieces(self, pieces: Iterator[bytes], patience: Patience) -> None:
        """One message, piece by piece. Raises `ClientGone`."""
        if self._line is None:
            await self.write([b"".join(pieces)])
            return
        slices = sliced(pieces)
        ready, is_first = next(slices), True
        while ready:
            await next_turn()
            more = next(slices, b"")
            patience.look()
            try:
                await self._line.write_part(ready, is_first=is_first, is_last=not more)
            except (OSError, RuntimeError) as exc:
                raise ClientGone from exc
            ready, is_first = more, False

    async def tell(self, text: bytes) -> None:
        """A message that is no part of a stream: a client that takes nothing is not waited for much longer. Raises
        `ClientGone`.
        """
        self.linger()  # the client may be behind already
        await self.write([text])
        self.linger()

    async def close(self, code: int, reason: str = "") -> None:
        self.linger()
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError) as exc:
            raise ClientGone from exc

    @property
    def is_behind(self) -> bool:
        """Whether the next write waits for the client."""
        return self._line is not None and self._line.is_behind

    def linger(self) -> None:
        """All is said that will be: a client that has stopped reading is not waited for much longer."""
        if self._line is not None:
            self._line.linger(self._linger)

    def go_on(self) -> None:
        """There is more to say: a client has the time that it takes."""
        if self._line is not None:
            self._line.stop_lingering()

    def abort(self) -> bool:
        """Hang up on the client, if the server lets us; whether it did."""
        if self._line is None:
            return False
        self._line.abort()
        return True
