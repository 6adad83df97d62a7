"""The log of a run that has ended, as few bytes as it takes: the very same events can be read out of it. Pure.

The pieces of a text stand together as one text, with the length of each; and of a response that comes again, with all
its tools and instructions, only what has changed. What is left repeats itself, and is worth compressing, which is not
done here: whoever keeps it does that where nobody waits for it. It comes in pieces: nobody has to hold it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import TypeAlias

import msgspec

from antwort.api.events import (
    DELTAS,
    TERMINAL,
    UNSENT,
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
from antwort.api.payload import LARGE, payload, payload_of_all
from antwort.api.responses import Response
from antwort.api.wire import UNSET, Plain, Wire, encode, replace, to_plain
from antwort.storage.base import LogPiece
from antwort.storage.run_log import Record

LargeRecords: TypeAlias = MutableMapping[tuple[str, int], Record]
"""Records that somebody reads right now, by the id of the response and their place: the others share them."""

_AT_ONCE = 512
"""Events in a record of what a run in the foreground has sent."""
_MOST = 2048
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
_decoder: msgspec.json.Decoder[list[_Entry]] = msgspec.json.Decoder(list[_Entry])
_UNSENT = frozenset(UNSENT)
_LIFE = (ResponseCreated, ResponseQueued, ResponseInProgress, *TERMINAL)
_BY_NAME = {str(kind.__struct_config__.tag): kind for kind in _LIFE}


def _place_of(kind: type[Piece]) -> Callable[[Piece], object]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name != "delta"])


_PLACES: dict[type, Callable[[Piece], object]] = {kind: _place_of(kind) for kind in DELTAS}


def pack(batches: Iterable[Sequence[RunEvent]]) -> list[LogPiece]:
    """All that was said, marks included, in pieces; an event that is large is one of its own. Where one batch ended and
    the next began is not kept.
    """
    pieces: list[LogPiece] = []
    known: Response | None = None
    first = 0
    groups = _grouped([*chain.from_iterable(batches)])
    for events in groups:
        behind = first + len(events) - sum(map(_UNSENT.__contains__, map(type, events)))
        pieces.append(LogPiece(first=first, next=behind, data=encode(_entries(events, known))))
        if known is None and len(groups) > 1:
            known = next((event.response for event in events if isinstance(event, _LIFE)), None)
        first = behind
    return pieces


def _grouped(events: list[RunEvent]) -> list[list[RunEvent]]:
    """Those of each piece."""
    if len(events) <= _MOST and payload_of_all(events) <= LARGE:
        return [events]
    groups: list[list[RunEvent]] = []
    start = total = 0
    for at, event in enumerate(events):
        size = payload(event)
        if at > start and (size > LARGE or total > LARGE or at - start == _MOST):
            groups.append(events[start:at])
            start, total = at, 0
        total += size
    return [*groups, events[start:]]


def _entries(events: Iterable[RunEvent], known: Response | None) -> list[_Entry]:
    """`known`: the response as it came the first time, if it has."""
    packed: list[_Entry] = []
    first, pieces, place = None, list[str](), None
    for event in events:
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
        elif first is not None and type(event) is type(first) and _PLACES[type(event)](event) == place:
            pieces.append(event.delta)
        else:
            if first is not None:
                packed.append(_together(first, pieces))
            first, pieces, place = event, [event.delta], _PLACES[type(event)](event)
    if first is not None:
        packed.append(_together(first, pieces))
    return packed


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


def unpack(piece: bytes, opening: Callable[[], bytes]) -> list[RunEvent]:
    """The events of a piece of what `pack` gave; `opening` gives the first piece of it."""
    events: list[RunEvent] = []
    known: Plain = {}
    for entry in _decoder.decode(piece):
        if isinstance(entry, _Text):
            events += _apart(entry)
        elif isinstance(entry, _Again):
            known = known or _first_response(events) or _first_response(_decoder.decode(opening()))
            events.append(_as_it_was(entry, known))
        else:
            events.append(entry)
    return events


def _first_response(entries: Sequence[_Entry]) -> Plain:
    """As it came the first time; nothing, when it has not."""
    for entry in entries:
        if isinstance(entry, _LIFE):
            known: Plain = to_plain(entry.response)
            return known
    return {}


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
