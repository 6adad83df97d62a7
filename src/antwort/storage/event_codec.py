"""How the log of a run becomes bytes: records as JSON, and the log of an ended run packed and compressed. Pure.

A packed log holds the same events under the same numbers in fewer bytes: consecutive deltas of a text are one string
with the length of each, and a response that is sent again is stored as its changes. It comes in pieces, so that a
reader holds only a part of it; each can be read alone, or with the first one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from antwort.api.items import OutputItem
from antwort.api.payload import LARGE, payload
from antwort.api.responses import Response
from antwort.api.wire import UNSET, Plain, Wire, encode, replace, to_plain
from antwort.errors import Damaged
from antwort.identity import Identity
from antwort.storage.base import LogPiece, PackedLog
from antwort.storage.rows import INVALID, decode

_COMPRESSION_LEVEL = 3
"""Text that a model wrote gets little smaller with more."""
_MAX_PIECE_EVENTS = 2048

# ---- records ----

_decode_events: msgspec.json.Decoder[list[RunEvent]] = msgspec.json.Decoder(list[RunEvent])
_decode_identity = msgspec.json.Decoder(Identity)

encode_events: Callable[[Sequence[RunEvent]], bytes] = encode
encode_identity: Callable[[Identity], bytes] = encode


def decode_events(raw: bytes) -> list[RunEvent]:
    """Raises `Damaged`."""
    return decode(_decode_events, raw)


def decode_identity(raw: bytes) -> Identity:
    """Raises `Damaged`."""
    return decode(_decode_identity, raw)


def without_output(events: Sequence[RunEvent]) -> list[RunEvent]:
    """Return the events with a terminal one less the output of its response, which is stored item by item."""
    return [
        replace(event, response=replace(event.response, output=())) if isinstance(event, TERMINAL) else event
        for event in events
    ]


def with_output(events: Sequence[RunEvent], output: Callable[[], Sequence[OutputItem]]) -> list[RunEvent]:
    """Undo `without_output`. Earlier versions and foreground runs stored a terminal event with its output."""
    return [
        replace(event, response=replace(event.response, output=tuple(output())))
        if isinstance(event, TERMINAL) and not event.response.output
        else event
        for event in events
    ]


# ---- packed logs ----

_Delta: TypeAlias = (
    OutputTextDelta
    | ReasoningTextDelta
    | SummaryTextDelta
    | RefusalDelta
    | ArgumentsDelta
    | CustomInputDelta
    | McpArgumentsDelta
)
_Lifecycle: TypeAlias = ResponseCreated | ResponseQueued | ResponseInProgress | Terminal


class _Text(Wire, tag="antwort.text"):
    """Consecutive deltas that differ only in their text."""

    whole: _Delta
    lengths: list[int]


class _Again(Wire, tag="antwort.again"):
    """An event with a response that an earlier event has too."""

    event: str
    changed: Plain
    """The fields that differ from the first time."""
    missing: tuple[str, ...] = ()
    """The fields of the first time that are unset."""


_Entry: TypeAlias = RunEvent | _Text | _Again
_decode_entries: msgspec.json.Decoder[list[_Entry]] = msgspec.json.Decoder(list[_Entry])
_UNSENT = frozenset(UNSENT)
_LIFECYCLE = (ResponseCreated, ResponseQueued, ResponseInProgress, *TERMINAL)
_LIFECYCLE_BY_NAME = {str(kind.__struct_config__.tag): kind for kind in _LIFECYCLE}
_PLACES: dict[type, Callable[[RunEvent], object]] = {
    kind: attrgetter(*[name for name in kind.__struct_fields__ if name != "delta"]) for kind in DELTAS
}


def pack(batches: Iterable[Sequence[RunEvent]]) -> list[LogPiece]:
    """Return all events, marks included, in pieces; a large event is a piece of its own. The boundaries between batches
    are not stored. The bytes are not compressed yet: `compress` does that.
    """
    pieces: list[LogPiece] = []
    known: Response | None = None
    first = 0
    for events in _split([*chain.from_iterable(batches)]):
        end = first + len(events) - sum(map(_UNSENT.__contains__, map(type, events)))
        pieces.append(LogPiece(first=first, next=end, data=encode(_to_entries(events, known))))
        if known is None:
            known = next((event.response for event in events if isinstance(event, _LIFECYCLE)), None)
        first = end
    return pieces


def _split(events: list[RunEvent]) -> list[list[RunEvent]]:
    if len(events) <= _MAX_PIECE_EVENTS and payload(*events) <= LARGE:
        return [events]
    pieces: list[list[RunEvent]] = []
    start = total = 0
    for at, event in enumerate(events):
        size = payload(event)
        if at > start and (size > LARGE or total > LARGE or at - start == _MAX_PIECE_EVENTS):
            pieces.append(events[start:at])
            start, total = at, 0
        total += size
    return [*pieces, events[start:]]


def _to_entries(events: Iterable[RunEvent], known: Response | None) -> list[_Entry]:
    """`known` is the response of the first lifecycle event, if it is in an earlier piece."""
    entries: list[_Entry] = []
    deltas: list[_Delta] = []
    place: object = None
    """What all deltas of one text have in common."""
    for event in events:
        if isinstance(event, DELTAS):
            here = (kind := type(event), _PLACES[kind](event))
            if here != place:
                _join(deltas, entries)
                place = here
            deltas.append(event)
            continue
        _join(deltas, entries)
        place = None
        if not isinstance(event, _LIFECYCLE):
            entries.append(event)
        elif known is None:
            known = event.response
            entries.append(event)
        else:
            entries.append(_changes(event, known))
    _join(deltas, entries)
    return entries


def _join(deltas: list[_Delta], entries: list[_Entry]) -> None:
    """Move deltas of one text to the entries, as one."""
    if len(deltas) == 1:
        entries.append(deltas[0])
    elif deltas:
        texts = [event.delta for event in deltas]
        entries.append(_Text(whole=replace(deltas[0], delta="".join(texts)), lengths=[*map(len, texts)]))
    deltas.clear()


def _changes(event: _Lifecycle, known: Response) -> _Again:
    changed: Plain = {}
    missing: list[str] = []
    for name in known.__struct_fields__:
        new, old = getattr(event.response, name), getattr(known, name)
        if new is UNSET and old is not UNSET:
            missing.append(name)
        elif new is not old and new != old:
            changed[name] = new
    return _Again(event=str(event.__struct_config__.tag), changed=changed, missing=tuple(missing))


def unpack(piece: bytes, opening: Callable[[], bytes]) -> list[RunEvent]:
    """Return the events of a piece; `opening` returns the first piece of the log."""
    events: list[RunEvent] = []
    known: Plain = {}
    for entry in _decode_entries.decode(piece):
        if isinstance(entry, _Text):
            events += _deltas(entry)
        elif isinstance(entry, _Again):
            known = known or _first_response(events) or _first_response(_decode_entries.decode(opening()))
            plain = {name: value for name, value in (known | entry.changed).items() if name not in entry.missing}
            events.append(_LIFECYCLE_BY_NAME[entry.event](response=msgspec.convert(plain, Response)))
        else:
            events.append(entry)
    return events


def _deltas(text: _Text) -> Iterator[_Delta]:
    whole = text.whole
    make = partial(type(whole), **{name: getattr(whole, name) for name in whole.__struct_fields__})
    for start, end in pairwise(accumulate(text.lengths, initial=0)):
        yield make(delta=whole.delta[start:end])


def _first_response(entries: Sequence[_Entry]) -> Plain:
    response = next((entry.response for entry in entries if isinstance(entry, _LIFECYCLE)), None)
    return {} if response is None else to_plain(response)


# ---- compressed ----


def compress(log: PackedLog) -> list[LogPiece]:
    return [msgspec.structs.replace(piece, data=zlib.compress(piece.data, _COMPRESSION_LEVEL)) for piece in log]


def decompress(piece: bytes, opening: Callable[[], bytes]) -> list[RunEvent]:
    """Return the events of a compressed piece; `opening` returns the first piece of the log. Raises `Damaged`."""
    try:
        return unpack(zlib.decompress(piece), lambda: zlib.decompress(opening()))
    except (*INVALID, zlib.error) as exc:
        raise Damaged from exc
