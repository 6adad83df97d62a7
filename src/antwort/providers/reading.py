"""What all readers of an answer have in common. Pure.

What an answer may say is bounded while it comes: a reader that has read more ends it there, with `MAX_OUTPUT_BYTES` for
its finish, and whoever carries it hangs up.

There are two verbs. `feed` never raises: what came before a failure is handed out first, and `finish` says what went
wrong. So the deltas are the same however the bytes were cut into reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar, cast

from antwort.api.surrogates import repair_surrogates
from antwort.errors import AntwortError, BackendCut, BackendError
from antwort.net.sse import SseParser
from antwort.providers.base import (
    MAX_OUTPUT_BYTES,
    CallDelta,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.providers.errors import NOBODY, Asked

T = TypeVar("T")

OUTPUT_BYTES = 8 * 2**20
"""How much an answer may say, unless its reader is told otherwise."""
CALL_BYTES = 1024
"""What a call counts for besides its name and its arguments: calls that say nothing take memory, too."""
_JSON_FACTOR = 4
_LEAST_CAP = 16 * 2**20
UNREADABLE = (ValueError, RecursionError)
"""Bad JSON, a field of a wrong type, bytes that are not UTF-8: all of them are ValueErrors."""


class Reader(Protocol):
    """Bytes of one answer go in, deltas come out."""

    ended: bool
    """Whether the answer has said its last word, though more bytes may come."""
    is_cut: bool
    """Whether it was ended here, and goes on at the backend."""

    def feed(self, data: bytes) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """What was held back to the end. Raises what went wrong: a `BackendCut` where the last word is missing."""
        ...


class Tally:
    """How many bytes an answer has said so far."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class EventReader(ABC):
    """Reads an answer that comes as server-sent events. What reads an event adds to the tally what it says but texts,
    which are counted together.
    """

    __slots__ = ("_asked", "_events", "_failure", "_most", "_tally", "ended", "is_cut")

    def __init__(self, asked: Asked = NOBODY, most: int = OUTPUT_BYTES) -> None:
        self._asked = asked
        self._events = SseParser()
        self._failure: AntwortError | None = None
        self._most = most
        self._tally = Tally()
        self.ended = self.is_cut = False

    def feed(self, data: bytes) -> list[Delta]:
        out: list[Delta] = []
        for payload in self._events.feed(data):
            if self.ended:
                break
            try:
                self._read(payload, out)
            except UNREADABLE as exc:
                self._read_repaired(payload, out, exc)
        if (size := self._events.open_size) > _LEAST_CAP and size > json_cap(self._most) and not self.ended:
            self._fail(BackendError("The backend sent an event that is too large."))
        self._count_text(out)
        return out if self._tally.size <= self._most else self._cut(out)

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        if not self.ended:
            self._read_torn(out)
        if not self.ended:
            self._end(out)
        self._count_text(out)
        if self._tally.size > self._most and not self.is_cut:
            return self._cut(out)
        if self._failure is not None:
            raise self._failure
        return out

    def _count_text(self, out: list[Delta]) -> None:
        if texts := [delta.text for delta in out if delta.__class__ is TextDelta]:
            self._tally.size += size_of("".join(texts))

    def _cut(self, out: list[Delta]) -> list[Delta]:
        """What there is room for of what came last."""
        self.ended = self.is_cut = True
        self._failure = None
        before = self._tally.size - sum(map(said_by, out))
        kept = within(out, self._most - before)
        if not (kept and isinstance(kept[-1], Finished)):  # what was too much is held back still
            kept.append(Finished(MAX_OUTPUT_BYTES))
        return kept

    @abstractmethod
    def _read(self, payload: bytes, out: list[Delta]) -> None:
        """Take the payload of one event in. One that cannot be decoded changes nothing."""

    def _read_repaired(self, payload: bytes, out: list[Delta], problem: Exception) -> None:
        """Once more, with what stands for halves of characters in the place of them."""
        try:
            if (repaired := repair_surrogates(payload)) != payload:
                self._read(repaired, out)
                return
        except UNREADABLE as exc:
            problem = exc
        error = BackendError("The backend sent an event that cannot be understood.")
        error.__cause__ = problem
        self._fail(error)

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

    __slots__ = ("_asked", "_most", "_pieces", "_size", "ended", "is_cut")

    def __init__(self, asked: Asked = NOBODY, most: int = OUTPUT_BYTES) -> None:
        self._asked = asked
        self._most = most
        self._pieces: list[bytes] = []
        self._size = 0
        self.ended = self.is_cut = False

    def feed(self, data: bytes) -> list[Delta]:
        self._pieces.append(data)
        self._size += len(data)
        self.ended = self.is_cut = self._size > json_cap(self._most)
        return []

    def finish(self) -> list[Delta]:
        if self.is_cut:
            raise BackendError("The backend's answer is too large.")
        body, self._pieces = b"".join(self._pieces), []
        return within_body(self._read(body), body, self._most)

    @abstractmethod
    def _read(self, body: bytes) -> list[Delta]:
        """The deltas of the whole answer, `Finished` last."""


def read_body(decode: Callable[[bytes], T], body: bytes) -> tuple[T, bytes]:
    """What a whole answer says, and its JSON: repaired, where it has halves of characters. Raises `BackendError`."""
    try:
        return decode(body), body
    except UNREADABLE:
        repaired = repair_surrogates(body)
    try:
        return decode(repaired), repaired
    except UNREADABLE as exc:
        raise not_understood() from exc


def not_understood() -> BackendError:
    return BackendError("The backend sent an answer that cannot be understood.")


def broken_off() -> BackendCut:
    return BackendCut("The backend's answer broke off.")


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """The deltas with those joined that go on with the same text, reasoning or call."""
    out: list[Delta] = []
    for (kind, index), group in groupby(deltas, _goes_on_with):
        if kind is CallDelta:
            out.append(CallDelta(index, "", "".join([piece.arguments for piece in cast("Iterator[CallDelta]", group)])))
        elif kind is not None:
            out.append(kind("".join([piece.text for piece in cast("Iterator[TextDelta]", group)])))
        else:
            out.extend(group)
    return out


def _goes_on_with(delta: Delta) -> tuple[Any, int]:
    """What a delta may be joined with: those of the same kind, and of the same call. None: with nothing."""
    match delta:
        case TextDelta(logprobs=()) | ReasoningDelta() | RefusalDelta():
            return type(delta), 0
        case CallDelta(name=""):
            return CallDelta, delta.index
    return None, 0


# ---- the bound ----


def json_cap(most: int) -> int:
    """How large the JSON of an event, or of a whole answer, may be: there is more in it than is said, and escapes take
    several times as much.
    """
    return max(_LEAST_CAP, _JSON_FACTOR * most)


def size_of(text: str) -> int:
    """Its bytes. Text is mostly ASCII, or short."""
    return len(text) if text.isascii() else len(text.encode())


def within_body(answer: list[Delta], body: bytes, most: int) -> list[Delta]:
    """The answer that was read from the body, up to so many bytes: it says no more than the body has."""
    return answer if len(body) <= most else within(answer, most)


def within(deltas: Sequence[Delta], room: int) -> list[Delta]:
    """The deltas up to so many bytes of what they say. Where they say more, they end there."""
    out: list[Delta] = []
    for delta in deltas:
        size = said_by(delta)
        if size > room:
            end = deltas[-1]
            out += _beginning(delta, room)
            out.append(Finished(MAX_OUTPUT_BYTES, end.usage if isinstance(end, Finished) else None))
            break
        out.append(delta)
        room -= size
    return out


def said_by(delta: Delta) -> int:
    """How many bytes it says."""
    match delta:
        case Finished():
            return 0
        case CallDelta():
            return size_of(delta.name) + size_of(delta.arguments) + (CALL_BYTES if delta.name else 0)
        case _:
            return size_of(delta.text)


def _beginning(delta: Delta, room: int) -> list[Delta]:
    """As much of it as there is room for. A call whose name has no room is not begun."""
    match delta:
        case CallDelta():
            room -= size_of(delta.name) + (CALL_BYTES if delta.name else 0)
            return [CallDelta(delta.index, delta.name, _cut_text(delta.arguments, room))] if room >= 0 else []
        case TextDelta() | ReasoningDelta() | RefusalDelta() if text := _cut_text(delta.text, room):
            return [type(delta)(text)]
    return []


def _cut_text(text: str, room: int) -> str:
    return text.encode()[:room].decode(errors="ignore")
