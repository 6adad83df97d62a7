"""What all readers of an answer have in common. Pure.

There are two verbs. `feed` never raises: what came before a failure is handed out first, and `finish` says what went
wrong. So the deltas are the same however the bytes were cut into reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from antwort.errors import AntwortError, BackendCut, BackendError
from antwort.net.sse import SseParser
from antwort.providers.base import Delta
from antwort.providers.failures import NOBODY, Asked

WHOLE_ANSWER_CAP = 64 * 2**20
EVENT_CAP = 16 * 2**20
UNREADABLE = (ValueError, RecursionError)
"""Bad JSON, a field of a wrong type, bytes that are not UTF-8: all of them are ValueErrors."""


class Reader(Protocol):
    """Bytes of one answer go in, deltas come out."""

    ended: bool
    """Whether the answer has said its last word, though more bytes may come."""

    def feed(self, data: bytes) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """What was held back to the end. Raises what went wrong: a `BackendCut` where the last word is missing."""
        ...


class EventReader(ABC):
    """Reads an answer that comes as server-sent events."""

    __slots__ = ("_asked", "_events", "_failure", "ended")

    def __init__(self, asked: Asked = NOBODY) -> None:
        self._asked = asked
        self._events = SseParser()
        self._failure: AntwortError | None = None
        self.ended = False

    def feed(self, data: bytes) -> list[Delta]:
        out: list[Delta] = []
        for payload in self._events.feed(data):
            if self.ended:
                break
            try:
                self._read(payload, out)
            except UNREADABLE as exc:
                error = BackendError("The backend sent an event that cannot be understood.")
                error.__cause__ = exc
                self._fail(error)
        if self._events.open_size > EVENT_CAP and not self.ended:
            self._fail(BackendError("The backend sent an event that is too large."))
        return out

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        if not self.ended:
            self._read_torn(out)
        if not self.ended:
            self._end(out)
        if self._failure is not None:
            raise self._failure
        return out

    @abstractmethod
    def _read(self, payload: bytes, out: list[Delta]) -> None:
        """Take the payload of one event in."""

    @abstractmethod
    def _end(self, out: list[Delta]) -> None:
        """The stream is over, and nothing has failed so far."""

    def _fail(self, error: AntwortError) -> None:
        self._failure, self.ended = error, True

    def _read_torn(self, out: list[Delta]) -> None:
        """An event without its blank line is taken if it is whole; if it is not, the stream was cut inside it."""
        for payload in self._events.finish():
            try:
                self._read(payload, out)
            except UNREADABLE:
                return


class BodyReader(ABC):
    """Reads an answer that comes in one piece, as far as the reader's caller can see: all of it at `finish`."""

    __slots__ = ("_asked", "_pieces", "_size", "ended")

    def __init__(self, asked: Asked = NOBODY) -> None:
        self._asked = asked
        self._pieces: list[bytes] = []
        self._size = 0
        self.ended = False

    def feed(self, data: bytes) -> list[Delta]:
        self._pieces.append(data)
        self._size += len(data)
        self.ended = self._size > WHOLE_ANSWER_CAP
        return []

    def finish(self) -> list[Delta]:
        if self.ended:
            raise BackendError("The backend's answer is too large.")
        return self._read(b"".join(self._pieces))

    @abstractmethod
    def _read(self, body: bytes) -> list[Delta]:
        """The deltas of the whole answer, `Finished` last."""


def not_understood() -> BackendError:
    return BackendError("The backend sent an answer that cannot be understood.")


def broken_off() -> BackendCut:
    return BackendCut("The backend's answer broke off.")
