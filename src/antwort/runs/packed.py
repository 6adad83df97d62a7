"""The log of a run that has ended, as few bytes as it takes: the very same events can be read out of it. Pure.

The pieces of a text stand together as one text, with the length of each; and of a response that comes again, with all
its tools and instructions, only what has changed. What is left repeats itself, and is worth compressing, which is not
done here: whoever keeps it does that where nobody waits for it. Each entry is a line, so that a log can be read piece
by piece (`Unpacker`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from operator import attrgetter
from typing import TypeAlias

import msgspec

from antwort.api.events import (
    DELTAS,
    TERMINAL,
    ArgumentsDelta,
    CustomInputDelta,
    McpArgumentsDelta,
    OutputTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    ResponseCreated,
    ResponseInProgress,
    ResponseQueued,
    RunEvent,
    SummaryTextDelta,
    Terminal,
)
from antwort.api.payload import LARGE, PIECE
from antwort.api.responses import Response
from antwort.api.wire import UNSET, Plain, Wire, encode, replace, to_plain
from antwort.runs.base import Record

LargeRecords: TypeAlias = MutableMapping[tuple[str, int], Record]
"""Large records that somebody reads right now, by the id of the response and their place: the others share them."""

_AT_ONCE = 512
"""Events in a piece of a log that was packed."""

Piece: TypeAlias = (
    OutputTextDelta
    | ReasoningTextDelta
    | SummaryTextDelta
    | RefusalDelta
    | ArgumentsDelta
    | CustomInputDelta
    | McpArgumentsDelta
)


_Life: TypeAlias = ResponseCreated | ResponseQueued | ResponseInProgress | Terminal


class _Text(Wire, tag="antwort.text"):
    """Pieces that came one after the other, and are alike but for what they say."""

    whole: Piece
    lengths: list[int]


class _Again(Wire, tag="antwort.again"):
    """An event with the response once more."""

    event: str
    changed: Plain
    """Its fields that are not as they were the first time."""
    missing: tuple[str, ...] = ()
    """Those of the first time that it has not."""


_Entry: TypeAlias = RunEvent | _Text | _Again
_decoder: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)
_TEXT_OPENING = b'{"type":"antwort.text"'
_LIFE = (ResponseCreated, ResponseQueued, ResponseInProgress, *TERMINAL)
_BY_NAME = {str(kind.__struct_config__.tag): kind for kind in _LIFE}


def _place_of(kind: type[Piece]) -> Callable[[Piece], object]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name != "delta"])


_PLACES: dict[type, Callable[[Piece], object]] = {kind: _place_of(kind) for kind in DELTAS}


def pack(batches: Iterable[Sequence[RunEvent]]) -> bytes:
    """All that was said, marks included. Where one batch ended and the next began is not kept."""
    packed: list[_Entry] = []
    first, pieces, place, size = None, list[str](), None, 0
    known: Response | None = None
    for event in chain.from_iterable(batches):
        if not isinstance(event, DELTAS):
            if first is not None:
                packed.append(_together(first, pieces))
                first = None
            if not isinstance(event, _LIFE):
                packed.append(event)
            elif known is None:
                known = event.response
                packed.append(event)
            else:
                packed.append(_again(event, known))
        elif first is not None and size < LARGE and type(event) is type(first) and _PLACES[type(event)](event) == place:
            pieces.append(event.delta)
            size += len(event.delta)
        else:
            if first is not None:
                packed.append(_together(first, pieces))
            first, pieces, place, size = event, [event.delta], _PLACES[type(event)](event), len(event.delta)
    if first is not None:
        packed.append(_together(first, pieces))
    return b"".join([line for entry in packed for line in (encode(entry), b"\n")])


def _together(first: Piece, pieces: list[str]) -> Piece | _Text:
    if len(pieces) == 1:
        return first
    return _Text(whole=replace(first, delta="".join(pieces)), lengths=[*map(len, pieces)])


def _again(event: _Life, known: Response) -> _Again:
    response = event.response
    pairs = [(name, getattr(response, name), getattr(known, name)) for name in response.__struct_fields__]
    changed = {name: new for name, new, old in pairs if new is not old and new != old}
    return _Again(
        event=str(event.__struct_config__.tag),
        changed={name: new for name, new in changed.items() if new is not UNSET},
        missing=tuple(name for name, new in changed.items() if new is UNSET),
    )


class Unpacker:
    """Gives the events that `pack` was given, piece by piece: what it holds is about as large as what it is fed, or as
    one entry.
    """

    def __init__(self, response_id: str, shared: LargeRecords) -> None:
        self._id, self._shared = response_id, shared
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._read = 0  # entries
        self._at = self._first = 0
        self._apart: Iterator[Piece] = iter(())
        self._known: Plain = {}

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        end = data.rfind(b"\n")
        if end < 0:
            self._rest += [data] if data else []
            return
        lines = b"".join([*self._rest, data[:end]])
        self._rest = [data[end + 1 :]] if end + 1 < len(data) else []
        self._lines += lines.split(b"\n")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left of an entry whose end has not come."""
        return not self._rest

    def take(self) -> Record | None:
        """The next piece of what was fed; None: nothing is left of it. A large event is a piece of its own."""
        events, size = [*islice(self._apart, _AT_ONCE)], 0
        while len(events) < _AT_ONCE and size < PIECE and self._lines:
            if len(self._lines[0]) > LARGE and not self._lines[0].startswith(_TEXT_OPENING):
                return self._record(events) if events else self._take_large()
            size += len(self._lines[0])
            entry = _decoder.decode(self._lines.popleft())
            self._read += 1
            if isinstance(entry, _Text):
                self._apart = _apart(entry)
                events += islice(self._apart, _AT_ONCE - len(events))
            else:
                events.append(self._event(entry))
        return self._record(events) if events else None

    def _take_large(self) -> Record:
        line = self._lines.popleft()
        name = (self._id, -1 - self._read)  # places of logs that are not packed are not negative
        self._read += 1
        record = self._shared.get(name)
        if record is None:
            entry = _decoder.decode(line)
            assert not isinstance(entry, _Text), "it does not begin like one"
            record = Record(self._at, self._first, [self._event(entry)])
            self._shared[name] = record
        self._learn(record.events[0])
        self._at, self._first = record.at + 1, record.next
        return record

    def _event(self, entry: RunEvent | _Again) -> RunEvent:
        if isinstance(entry, _Again):
            return _as_it_was(entry, self._known)
        self._learn(entry)
        return entry

    def _learn(self, event: RunEvent) -> None:
        """The first time that the response comes."""
        if not self._known and isinstance(event, _LIFE):
            self._known = to_plain(event.response)

    def _record(self, events: list[RunEvent]) -> Record:
        record = Record(self._at, self._first, events)
        self._at, self._first = record.at + 1, record.next
        return record


def unpack(packed: bytes) -> list[RunEvent]:
    """The events that `pack` was given, one after the other."""
    unpacker = Unpacker("", {})
    unpacker.feed(packed)
    return [event for record in iter(unpacker.take, None) for event in record.events]


def _as_it_was(again: _Again, known: Plain) -> _Life:
    plain = {name: value for name, value in (known | again.changed).items() if name not in again.missing}
    return _BY_NAME[again.event](response=msgspec.convert(plain, Response))


def _apart(text: _Text) -> Iterator[Piece]:
    whole = text.whole
    make = partial(type(whole), **{name: getattr(whole, name) for name in whole.__struct_fields__})
    for start, end in pairwise(accumulate(text.lengths, initial=0)):
        yield make(delta=whole.delta[start:end])


def in_records(events: Sequence[RunEvent], before: Sequence[Record] = ()) -> list[Record]:
    """The events behind those of the records `before` them, in pieces that can be sent as they are."""
    records: list[Record] = []
    at, first = (before[-1].at + 1, before[-1].next) if before else (0, 0)
    for start in range(0, len(events), _AT_ONCE):
        record = Record(at + len(records), first, [*events[start : start + _AT_ONCE]])
        records.append(record)
        first = record.next
    return records
