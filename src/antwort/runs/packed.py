"""The log of a run that has ended, as few bytes as it takes: the very same events can be read out of it. Pure.

The pieces of a text stand together as one text, with the length of each. What is left repeats itself, and is worth
compressing, which is not done here: whoever keeps it does that where nobody waits for it.
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
    ArgumentsDelta,
    CustomInputDelta,
    McpArgumentsDelta,
    OutputTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    RunEvent,
    SummaryTextDelta,
)
from antwort.api.wire import Wire, encode, replace
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


class _Text(Wire, tag="antwort.text"):
    """Pieces that came one after the other, and are alike but for what they say."""

    whole: Piece
    lengths: list[int]


_decoder: msgspec.json.Decoder[list[RunEvent | _Text]] = msgspec.json.Decoder(list[RunEvent | _Text])


def _place_of(kind: type[Piece]) -> Callable[[Piece], object]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name != "delta"])


_PLACES: dict[type, Callable[[Piece], object]] = {kind: _place_of(kind) for kind in DELTAS}


def pack(batches: Iterable[Sequence[RunEvent]]) -> bytes:
    """All that was said, marks included. Where one batch ended and the next began is not kept."""
    packed: list[RunEvent | _Text] = []
    first, pieces, place = None, list[str](), None
    for event in chain.from_iterable(batches):
        if not isinstance(event, DELTAS):
            if first is not None:
                packed.append(_together(first, pieces))
                first = None
            packed.append(event)
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


def unpack(packed: bytes) -> list[RunEvent]:
    """The events that `pack` was given, one after the other."""
    events: list[RunEvent] = []
    for entry in _decoder.decode(packed):
        if isinstance(entry, _Text):
            events += _apart(entry)
        else:
            events.append(entry)
    return events


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
