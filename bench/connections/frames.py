"""WebSocket frames, as little of them as a client needs that trusts its server. Pure."""

from __future__ import annotations

import os
from typing import NamedTuple

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_CONTINUATION = 0
_FINAL = 0x80
_MASK = 0x80
_SHORT, _LONG = 126, 127


class Frame(NamedTuple):
    opcode: int
    payload: bytes


def written(opcode: int, payload: bytes) -> bytes:
    """One whole message as a client sends it. The mask is zero, which no server can tell from another."""
    size = len(payload)
    if size < _SHORT:
        head = bytes((_FINAL | opcode, _MASK | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, _MASK | _SHORT)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASK | _LONG)) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


def upgrade(host: str, path: str) -> bytes:
    """The request that asks for a WebSocket, without extensions."""
    import base64

    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"host: {host}",
        "upgrade: websocket",
        "connection: Upgrade",
        f"sec-websocket-key: {key}",
        "sec-websocket-version: 13",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class Frames:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._parts = bytearray()
        self._opcode = TEXT

    def feed(self, data: bytes) -> list[Frame]:
        self._bytes += data
        found: list[Frame] = []
        at = 0
        while (end := self._end(at)) is not None:
            first, start = self._bytes[at], end[0]
            payload = bytes(self._bytes[start : end[1]])
            at = end[1]
            if frame := self._joined(first, payload):
                found.append(frame)
        del self._bytes[:at]
        return found

    def _end(self, at: int) -> tuple[int, int] | None:
        """Where the payload of the frame at this place starts and ends, once all of it is there."""
        have = len(self._bytes) - at
        if have < 2:
            return None
        size, start = self._bytes[at + 1], at + 2
        more = 0 if size < _SHORT else 2 if size == _SHORT else 8
        if have < 2 + more:
            return None
        if more:
            size, start = int.from_bytes(self._bytes[start : start + more], "big"), start + more
        return (start, start + size) if have >= start - at + size else None

    def _joined(self, first: int, payload: bytes) -> Frame | None:
        opcode = first & 0x0F
        if opcode >= CLOSE:
            return Frame(opcode, payload)
        if opcode != _CONTINUATION:
            self._opcode = opcode
        self._parts += payload
        if not first & _FINAL:
            return None
        whole, self._parts = bytes(self._parts), bytearray()
        return Frame(self._opcode, whole)
