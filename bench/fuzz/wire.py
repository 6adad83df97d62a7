"""A WebSocket from the side of a client that may say anything: frames as they are given, and what comes back."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from connections.frames import CLOSE, PONG, TEXT, Frame, Frames, upgrade
from fuzz.server import PATIENCE, Hang

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SIZE = 65536


class Closed(Exception):
    """The server has ended the connection; `code` is 0 where it did so without a word."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}" if code else "closed without a word")
        self.code = code


class SocketWire:
    """Use as a context. Whatever does not come in time is a `Hang`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._frames = Frames()
        self._waiting: list[Frame] = []

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
        self._socket.sendall(upgrade("fuzz", "/v1/responses"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._received()
        if not head.startswith(b"HTTP/1.1 101 "):
            raise Hang(f"no WebSocket: {head[:300]!r}")
        self._waiting += self._frames.feed(head.partition(b"\r\n\r\n")[2])
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # what it has said before it closed can still be read
            self._socket.sendall(data)

    def next(self) -> Frame:
        """The next message, pong or close. Raises `Closed` when there will be none, and `Hang`."""
        while not self._waiting:
            data = self._received()
            if not data:
                raise Closed(0)
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(_SIZE)
        except TimeoutError as exc:
            raise Hang(f"nothing in {PATIENCE:.0f} seconds") from exc
        except OSError:
            return b""

    def turn(self) -> list[dict[str, Any]]:
        """The events up to the end of a turn, or one error. Raises `Closed`."""
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in {*TERMINAL, "error"}:
            events += self._events(self.next())
        return events

    def _events(self, frame: Frame) -> Iterator[dict[str, Any]]:
        match frame.opcode:
            case 1:
                event = json.loads(frame.payload)
                if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                    raise ValueError(f"no event: {frame.payload[:300]!r}")
                yield event
            case 8:
                raise Closed(int.from_bytes(frame.payload[:2], "big"))
            case 10:
                return
            case other:
                raise ValueError(f"a frame of the kind {other}")

    def pong(self) -> bytes:
        """What the next pong says; events are passed over."""
        while (frame := self.next()).opcode != PONG:
            if frame.opcode == CLOSE:
                raise Closed(int.from_bytes(frame.payload[:2], "big"))
        return frame.payload

    def ending(self) -> int:
        """The code of the close that comes now, whatever is said before it."""
        try:
            while (frame := self.next()).opcode != CLOSE:
                assert frame.opcode in (TEXT, PONG), frame
        except Closed as closed:
            return closed.code
        return int.from_bytes(frame.payload[:2], "big")


def framed(
    opcode: int, payload: bytes, *, is_final: bool = True, is_masked: bool = True, reserved: int = 0, size: int = -1
) -> bytes:
    """One frame, right or wrong. `size` is what is said of it, where that is not so."""
    told = len(payload) if size < 0 else size
    head = bytes([0x80 * is_final | reserved << 4 | opcode])
    mark = 0x80 * is_masked
    if told < 126:
        head += bytes([mark | told])
    elif told < 1 << 16:
        head += bytes([mark | 126]) + told.to_bytes(2, "big")
    else:
        head += bytes([mark | 127]) + told.to_bytes(8, "big")
    return head + (_mask(payload) if is_masked else payload)


def _mask(payload: bytes) -> bytes:
    """A mask that changes every byte."""
    key = b"\x37\xfa\x21\x3d"
    repeated = (key * (len(payload) // 4 + 1))[: len(payload)]
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return key + mixed.to_bytes(len(payload), "big")


def fragmented(payload: bytes, pieces: int, between: Sequence[bytes] = ()) -> bytes:
    """One text in several frames, with other frames between them."""
    size = max(1, -(-len(payload) // pieces))
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    made = [
        framed(TEXT if at == 0 else 0, part, is_final=at == len(parts) - 1)
        + b"".join(between if at + 1 < len(parts) else ())
        for at, part in enumerate(parts)
    ]
    return b"".join(made)
