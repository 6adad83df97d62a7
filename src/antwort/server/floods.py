"""Frames that carry next to nothing: how many of them a client may send. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from websockets.frames import Frame, Opcode

from antwort.server.quotas import Bucket, Clock

CONTROLS = 600
"""Pings, and pongs that nobody asked for: in a minute, or at once."""
FRAGMENTS = 1024
"""Pieces of one message, whatever their size; beyond these, one for each so many bytes of it."""
SMALL = 1024


class Floods:
    """Of one client."""

    __slots__ = ("_controls", "_pieces", "_size")

    def __init__(self, clock: Clock) -> None:
        self._controls = Bucket(CONTROLS, clock)
        self._pieces = self._size = 0

    def seen(self, frames: Iterable[Frame], awaited: bytes | None = None) -> str:
        """What the client has sent too much of with these, if so. `awaited`: the pong that it was asked for."""
        controls = 0
        for frame in frames:
            if frame.opcode is Opcode.PING or (frame.opcode is Opcode.PONG and bytes(frame.data) != awaited):
                controls += 1
            elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and self._is_crumbled(frame):
                return "too many fragments"
        return "too many control frames" if controls and not self._allows(controls) else ""

    def _allows(self, controls: int) -> bool:
        left = self._controls.left
        self._controls.take(controls)
        return left >= controls

    def _is_crumbled(self, frame: Frame) -> bool:
        if frame.opcode is not Opcode.CONT:
            self._pieces = self._size = 0
        self._pieces += 1
        self._size += len(frame.data)
        return self._pieces > FRAGMENTS + self._size // SMALL
