"""Server-sent events, read piece by piece: bytes go in, the payloads of finished events come out. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_MARK = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True):
    """One event with all that its lines say."""

    data: bytes
    kind: bytes = b"message"
    id: bytes | None = None
    retry: int | None = None
    """Milliseconds."""
    size: int = 0
    """Bytes that it took, comments included."""


class _Blocks:
    """Parts a stream into its events.

    What an event still lacks is kept as the pieces it came in and joined once, when its end has come: the cost is
    linear however long a line is and however it was cut.
    """

    __slots__ = ("_after_cr", "_head", "_open", "_special", "open_size")

    def __init__(self) -> None:
        self._open: list[bytes] = []
        self.open_size = 0
        """Bytes of the event whose end has not come."""
        self._head: bytes | None = b""
        """The first bytes, as long as they may be part of a byte order mark; None once that is settled."""
        self._after_cr = False
        self._special = True

    def _blocks(self, data: bytes) -> list[bytes]:
        """Those that `data` completes."""
        if self._special or b"\r" in data:
            data = self._plain(data)
        if self._open:
            if b"\n\n" not in data and not (data.startswith(b"\n") and self._open[-1].endswith(b"\n")):
                if data:
                    self._open.append(data)
                    self.open_size += len(data)
                return []
            self._open.append(data)
            data = b"".join(self._open)
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        self._open = [rest] if rest else []
        self.open_size = len(rest)
        return blocks

    def _rest(self) -> list[bytes]:
        """The event that the end of the stream cut off before its blank line, if there is one."""
        rest, self._open = b"".join(self._open), []
        return [rest.removesuffix(b"\n")]

    def _plain(self, data: bytes) -> bytes:
        """`data` with every line end as LF, and without a byte order mark at the start of the stream."""
        if self._head is not None:
            data = self._without_mark(self._head + data)
        if data:
            if self._after_cr:
                data = data.removeprefix(b"\n")
            self._after_cr = data.endswith(b"\r")
        self._special = self._after_cr or self._head is not None
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_mark(self, data: bytes) -> bytes:
        if len(data) < len(_MARK) and _MARK.startswith(data):
            self._head = data
            return b""
        self._head = None
        return data.removeprefix(_MARK)


class SseParser(_Blocks):
    """Only `data` matters here; comments, `event:`, `id:` and `retry:` lines are passed over."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes."""
        return _payloads(self._blocks(data))

    def finish(self) -> list[bytes]:
        """The payload of an event that the end of the stream cut off before its blank line, if there is one."""
        return _payloads(self._rest())


class EventParser(_Blocks):
    """The events with their types and ids, those without data among them: what a stream is taken up again by."""

    __slots__ = ()

    def feed(self, data: bytes) -> Iterator[SseEvent]:
        """The events that `data` completes, each read when it is asked for: there may be very many."""
        return map(_event, self._blocks(data))

    def finish(self) -> list[SseEvent]:
        return [event for event in map(_event, self._rest()) if event.data]


def _event(block: bytes) -> SseEvent:
    said: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        said[name] = value.removeprefix(b" ")
    retry = said.get(b"retry", b"")
    pause = int(retry[:9]) if retry.isdigit() else None
    return SseEvent(_data(block), said.get(b"event") or b"message", said.get(b"id"), pause, len(block))


def _payloads(blocks: list[bytes]) -> list[bytes]:
    found = []
    for block in blocks:
        payload = block[6:] if block.startswith(b"data: ") and b"\n" not in block else _data(block)
        if payload:
            found.append(payload)
    return found


def _data(block: bytes) -> bytes:
    """The data lines of an event of any shape, as one."""
    lines = block.split(b"\n")
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])
