"""The log of a run that has ended, as few bytes as it takes: the very same events can be read out of it. Pure.

The pieces of a text stand together as one text, with the length of each; and of a response that comes again, with all
its tools and instructions, only what has changed. What is left repeats itself, and is worth compressing, which is not
done here: whoever keeps it does that where nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
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
from antwort.api.responses import Response
from antwort.api.wire import UNSET, Plain, Wire, decode, encode, replace, to_plain
from antwort.runs.base import Record

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
_decoder: msgspec.json.Decoder[list[_Entry]] = msgspec.json.Decoder(list[_Entry])
_LIFE = (ResponseCreated, ResponseQueued, ResponseInProgress, *TERMINAL)
_BY_NAME = {str(kind.__struct_config__.tag): kind for kind in _LIFE}


def _place_of(kind: type[Piece]) -> Callable[[Piece], object]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name != "delta"])


_PLACES: dict[type, Callable[[Piece], object]] = {kind: _place_of(kind) for kind in DELTAS}


def pack(batches: Iterable[Sequence[RunEvent]]) -> bytes:
    """All that was said, marks included. Where one batch ended and the next began is not kept."""
    packed: list[_Entry] = []
    first, pieces, place = None, list[str](), None
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
        elif first is not None and type(event) is type(first) and _PLACES[type(event)](event) == place:
            pieces.append(event.delta)
        else:
            if first is not None:
                packed.append(_together(first, pieces))
            first, pieces, place = event, [event.delta], _PLACES[type(event)](event)
    if first is not None:
        packed.append(_together(first, pieces))
    return encode(packed)


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


def unpack(packed: bytes) -> list[RunEvent]:
    """The events that `pack` was given, one after the other."""
    events: list[RunEvent] = []
    known: Plain = {}
    for entry in _decoder.decode(packed):
        if isinstance(entry, _Text):
            events += _apart(entry)
        elif isinstance(entry, _Again):
            events.append(_as_it_was(entry, known))
        else:
            events.append(entry)
            if not known and isinstance(entry, _LIFE):
                known = to_plain(entry.response)
    return events


def _as_it_was(again: _Again, known: Plain) -> _Life:
    plain = {name: value for name, value in (known | again.changed).items() if name not in again.missing}
    return _BY_NAME[again.event](response=decode(encode(plain), Response))


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
