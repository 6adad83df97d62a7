"""Small wounds for a stream: each makes a new list of events from a sound one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from antwort.api import events as ev
from antwort.api.events import StreamEvent
from antwort.api.wire import replace
from conformance.sample_streams import Events

Mutation: TypeAlias = Callable[[Events], Events]


def _at(events: Events, kind: type[StreamEvent], nth: int) -> int:
    return [i for i, event in enumerate(events) if isinstance(event, kind)][nth]


def drop(kind: type[StreamEvent], nth: int = 0) -> Mutation:
    return lambda events: [e for i, e in enumerate(events) if i != _at(events, kind, nth)]


def repeat(kind: type[StreamEvent], nth: int = 0) -> Mutation:
    return lambda events: insert(events[_at(events, kind, nth)], after=kind, nth=nth)(events)


def insert(event: StreamEvent, *, after: type[StreamEvent], nth: int = 0) -> Mutation:
    def mutate(events: Events) -> Events:
        at = _at(events, after, nth) + 1
        return [*events[:at], event, *events[at:]]

    return mutate


def swap(one: type[StreamEvent], other: type[StreamEvent], *, nth: int = 0, other_nth: int = 0) -> Mutation:
    def mutate(events: Events) -> Events:
        i, j = _at(events, one, nth), _at(events, other, other_nth)
        mixed = list(events)
        mixed[i], mixed[j] = mixed[j], mixed[i]
        return mixed

    return mutate


def move(kind: type[StreamEvent], nth: int = 0, *, behind: type[StreamEvent], behind_nth: int = 0) -> Mutation:
    def mutate(events: Events) -> Events:
        event, other = events[_at(events, kind, nth)], events[_at(events, behind, behind_nth)]
        rest = [each for each in events if each is not event]
        at = next(at for at, each in enumerate(rest, 1) if each is other)
        return [*rest[:at], event, *rest[at:]]

    return mutate


def change(kind: type[StreamEvent], nth: int = 0, **fields: object) -> Mutation:
    def mutate(events: Events) -> Events:
        at = _at(events, kind, nth)
        return [*events[:at], replace(events[at], **fields), *events[at + 1 :]]

    return mutate


def change_item(kind: type[ev.OutputItemAdded | ev.OutputItemDone], nth: int = 0, **fields: object) -> Mutation:
    def mutate(events: Events) -> Events:
        event = events[_at(events, kind, nth)]
        assert isinstance(event, ev.OutputItemAdded | ev.OutputItemDone)
        return change(kind, nth, item=replace(event.item, **fields))(events)

    return mutate


def change_part(kind: type[StreamEvent], nth: int = 0, **fields: object) -> Mutation:
    def mutate(events: Events) -> Events:
        event = events[_at(events, kind, nth)]
        assert isinstance(event, ev.ContentPartAdded | ev.ContentPartDone | ev.SummaryPartAdded | ev.SummaryPartDone)
        return change(kind, nth, part=replace(event.part, **fields))(events)

    return mutate


def change_response(kind: type[StreamEvent], **fields: object) -> Mutation:
    def mutate(events: Events) -> Events:
        event = events[_at(events, kind, 0)]
        assert isinstance(event, ev.ResponseCreated | ev.ResponseQueued | ev.ResponseInProgress | ev.Terminal)
        return change(kind, response=replace(event.response, **fields))(events)

    return mutate


def become(events: Events) -> Mutation:
    """Another stream altogether."""
    return lambda _: events
