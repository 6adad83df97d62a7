"""Records as bytes, and back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from antwort.api.events import TERMINAL, UNSENT, RunEvent
from antwort.api.items import OutputItem
from antwort.api.wire import encode, replace
from antwort.errors import Damaged
from antwort.identity import Identity
from antwort.storage.run_log import Record

_decode_events: msgspec.json.Decoder[list[RunEvent]] = msgspec.json.Decoder(list[RunEvent])
_decode_identity = msgspec.json.Decoder(Identity)


UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""Other JSON than was written, bytes that are not UTF-8, a value that is no JSON at all."""


def from_events(events: Sequence[RunEvent]) -> bytes:
    return encode(events)


def to_events(raw: bytes) -> list[RunEvent]:
    """Raises `Damaged`."""
    try:
        return _decode_events.decode(raw)
    except UNREADABLE as exc:
        raise Damaged from exc


def without_output(event: RunEvent) -> RunEvent:
    """An event that ends a run, less what its response has for output; any other as it is."""
    if not isinstance(event, TERMINAL):
        return event
    return replace(event, response=replace(event.response, output=()))


def with_output(events: Sequence[RunEvent], output: Callable[[], Sequence[OutputItem]]) -> list[RunEvent]:
    """The way back. One that has its output was written by an earlier version, or has ended in the foreground."""
    return [
        replace(event, response=replace(event.response, output=tuple(output())))
        if isinstance(event, TERMINAL) and not event.response.output
        else event
        for event in events
    ]


def from_identity(identity: Identity) -> bytes:
    return encode(identity)


def to_identity(raw: bytes) -> Identity:
    """Raises `Damaged`."""
    try:
        return _decode_identity.decode(raw)
    except UNREADABLE as exc:
        raise Damaged from exc


def behind(records: Iterable[Record], after: int) -> list[Record]:
    """What of the records stands behind the event with that number; marks that stand before it do not."""
    return [_cut(record, after) if record.first <= after else record for record in records if _reaches(record, after)]


def _reaches(record: Record, after: int) -> bool:
    """Marks alone have no number: they stand behind the event before them."""
    return record.first > after if record.next == record.first else record.next > after + 1


def _cut(record: Record, after: int) -> Record:
    number = record.first
    for place, event in enumerate(record.events):
        if not isinstance(event, UNSENT):
            number += 1
        if number == after + 1:
            return Record(record.at, after + 1, record.events[place + 1 :])
    raise AssertionError("the record ends before that event")


def is_last(record: Record) -> bool:
    """Whether the run ends with it."""
    return any(isinstance(event, TERMINAL) for event in record.events)
