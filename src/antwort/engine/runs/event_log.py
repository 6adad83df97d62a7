"""Number the events of a run, record them by policy, and buffer them for its readers."""

from __future__ import annotations

import asyncio
import math
import sys
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Protocol, Self, TypeAlias

import msgspec

from antwort.api.events import TERMINAL, UNSENT, Batch, StreamEvent
from antwort.api.payload import PIECE, fitting, payload
from antwort.engine.loop.fold import Run
from antwort.engine.settings import LoopSettings
from antwort.errors import ServerFault
from antwort.storage.run_log import EventRecord

EVENT_OVERHEAD_BYTES = 256
"""What a buffered event takes beside its text, about."""
MAX_READ_EVENTS = 512
"""Events that one read returns, about."""
MAX_LAG_BATCHES, MAX_LAG_BYTES = 4096, 2**22
"""How far a reader that does not hold the run back may be behind in a log that buffers only unread events."""
_UNSENT = frozenset(UNSENT)
_is_unsent = _UNSENT.__contains__
_MAY_HOLD_MARKS = _UNSENT | frozenset(TERMINAL)
"""The kinds of events that a batch with marks ends with."""


class NumberedBatch(msgspec.Struct, frozen=True, gc=False):
    """Events to send: event i has the number `first + i`. Without events it is a keep-alive."""

    first: int
    events: list[StreamEvent]
    size: int = 0
    """Characters of text."""
    recorded: Batch = []
    """The batch as it is recorded: with marks, which are never sent and have no number."""
    end: int = 0
    """Characters of text up to its end, from a beginning that all buffered batches share."""

    def after(self, number: int) -> NumberedBatch:
        """Return the part behind the event of that number."""
        skipped = max(number + 1 - self.first, 0)
        return NumberedBatch(self.first + skipped, self.events[skipped:], self.size)


def numbered(records: Sequence[EventRecord]) -> list[NumberedBatch]:
    """Return the events of recorded batches that are sent."""
    batches: list[NumberedBatch] = []
    for record in records:
        events = [event for event in record.events if not isinstance(event, UNSENT)]
        if events:
            batches.append(NumberedBatch(record.first, events, payload(*events)))
    return batches


class Recorder:
    """Put the events of a run on record before they are published. This one records nothing."""

    records_each_batch = False
    """Whether each batch is recorded, or only the last one, which has the outcome."""
    failure: Exception | None = None
    """Why the run, or its outcome, could not be recorded."""

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:  # noqa: ARG002
        """Return the batch to publish once it is durable. `first` is the number of its first event, and `run` the run
        after it.
        """
        return batch

    async def checkpoint(self, run: Run) -> None:
        """Record the turns so far, if they are not: the model is asked next."""

    async def record_again(self, run: Run) -> None:
        """Record the outcome, if it could not be recorded when the run ended. Raises what is wrong."""

    def leave(self, *, is_lost: bool = False) -> None:
        """Stop retrying a write that fails. With `is_lost`, another process has the run: write nothing more."""


NO_RECORD = Recorder()
_first_of = attrgetter("first")
_events_of = attrgetter("events")
_position_of = attrgetter("position")


class EventLog:
    """The events of one run in this process: the place that numbers them, and their buffer.

    `append` has a batch recorded, where its recorder wants it, and publishes it. Readers subscribe at any number that
    is buffered. The first reader may hold the run back: the log `is_full` when that reader has not read `buffer_events`
    events, or `buffer_bytes` characters of text behind the next batch.

    With `replay_bytes`, all batches are buffered from the first on, up to about so many bytes, for later readers.
    Without, or beyond that, only what some reader has not read is buffered.
    """

    def __init__(
        self,
        *,
        recorder: Recorder = NO_RECORD,
        replay_bytes: int = 0,
        buffer_events: int = 1024,
        buffer_bytes: int = 2**16,
        first: int = 0,
        observer: StreamObserver | None = None,
    ) -> None:
        """`first` is the number of the next event, where another process has written those before it."""
        self.recorder, self.observer = recorder, observer
        self._replay_bytes, self._buffer_events, self._buffer_bytes = replay_bytes, buffer_events, buffer_bytes
        self.next = first
        """The number of the next event: how many there were so far."""
        self._batches: list[NumberedBatch] = []
        """The buffer. The first batch in it is the one at `_start` of all that were published."""
        self._start = 0
        self.buffered_bytes = 0
        """Size of the buffer for replays, about."""
        self._readers: list[LogReader] = []
        self.clients: list[object] = []
        """A token for each request that has asked for the response; the first one reports the run. (Their subscriptions
        would keep the run in memory until a garbage collection.)
        """
        self.primary: LogReader | None = None
        """The reader that holds the run back."""
        self._room: asyncio.Future[None] | None = None
        self.is_whole = replay_bytes > 0 and first == 0
        """Whether everything is buffered from the first event on."""
        self.is_ended = False
        self._submitted: set[asyncio.Task[Batch]] = set()

    @classmethod
    def of_response(cls, events: Sequence[StreamEvent], first: int = 0) -> Self:
        """Return the log of a response that has ended, with these events."""
        log = cls(first=first)
        log.is_whole, log._replay_bytes = True, sys.maxsize
        at = 0
        while some := fitting(events, at, MAX_READ_EVENTS):
            log.publish([*some])
            at += len(some)
        log.end()
        return log

    # ---- writing ----

    async def append(self, batch: Batch, run: Run) -> Batch:
        """Number, record and publish a batch; `run` is the run after it. Return the batch as it was published."""
        first, count = self._number(batch)
        if self.recorder.records_each_batch or isinstance(batch[-1], TERMINAL):
            batch = await self.recorder.record(first, batch, run)
        self._publish(first, count, batch)
        return batch

    def publish(self, batch: Batch) -> None:
        """Number and publish a batch that is not recorded, or with a later one."""
        first, count = self._number(batch)
        if self._readers or self.is_whole or self.observer is not None:
            self._publish(first, count, batch)

    def submit(self, batch: Batch, run: Run) -> asyncio.Task[Batch]:
        """Append a batch beside those of the loop. If that fails, the run learns of it with its next batch."""
        task = asyncio.get_running_loop().create_task(self.append(batch, run))
        self._submitted.add(task)
        task.add_done_callback(self._on_submitted)
        return task

    def _on_submitted(self, task: asyncio.Task[Batch]) -> None:
        self._submitted.discard(task)
        if not task.cancelled():
            task.exception()

    def tick(self) -> None:
        """Give readers that wait a keep-alive."""
        for reader in self._readers:
            reader.tick()

    def end(self) -> None:
        """Nothing more comes from this process."""
        self.is_ended = True
        for reader in self._readers:
            reader.wake()

    def _number(self, batch: Batch) -> tuple[int, int]:
        """Return the number of the batch's first event, and how many of its events have one."""
        first, count = self.next, len(batch)
        if type(batch[-1]) in _MAY_HOLD_MARKS:
            count -= sum(map(_is_unsent, map(type, batch)))
        self.next = first + count
        return first, count

    def _publish(self, first: int, count: int, batch: Batch) -> None:
        if self.observer is not None:
            self.observer.on_batch(first, batch)
        if not self.is_whole and not (self._readers and count):
            return
        events: list[StreamEvent] = batch  # type: ignore[assignment]  # marks are taken out below
        if count < len(batch):
            events = [event for event in events if type(event) not in _UNSENT]
        size = payload(*batch)
        end = size + (self._batches[-1].end if self._batches else 0)
        self._batches.append(NumberedBatch(first, events, size, batch, end))
        if self.is_whole:
            self.buffered_bytes += size + EVENT_OVERHEAD_BYTES * len(batch)
            if self.buffered_bytes > self._replay_bytes:
                self.is_whole, self.buffered_bytes = False, 0
                self.on_read()
        for reader in [*self._readers]:
            if reader.waiter is not None:
                if count and not reader.waiter.done():
                    reader.waiter.set_result(None)
            elif not self.is_whole and reader is not self.primary:
                at = reader.position - self._start
                if len(self._batches) - at > MAX_LAG_BATCHES or end - self._batches[at].end > MAX_LAG_BYTES:
                    reader.lose()

    # ---- back-pressure ----

    @property
    def is_full(self) -> bool:
        if self.primary is None or self.primary.position == self._start + len(self._batches):
            return False
        first, last = self._batches[self.primary.position - self._start], self._batches[-1]
        unread_events = last.first + len(last.events) - first.first
        return unread_events >= self._buffer_events or last.end - first.end >= self._buffer_bytes

    async def wait_for_room(self) -> None:
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the next batch."""
        return any(reader.waiter is not None for reader in self._readers)

    # ---- readers ----

    def can_replay(self, after: int) -> bool:
        """Whether a reader can begin behind the event of that number."""
        return self.is_whole or after + 1 >= self.next

    def read(self, after: int = -1, *, holds_back: bool = False) -> LogReader:
        """Read the events with numbers greater than `after`. A reader that `holds_back` makes the run wait for it."""
        if self.is_whole:
            position = max(bisect_right(self._batches, after + 1, key=_first_of) - 1, 0)
        else:
            position = self._start + len(self._batches)
        reader = LogReader(self, position, after)
        if not self.is_ended:
            self._readers.append(reader)
        if holds_back:
            self.primary = reader
        return reader

    def batches(self) -> list[Batch] | None:
        """All batches so far with their marks; None where not all are buffered."""
        return [each.recorded for each in self._batches] if self.is_whole else None

    def remove(self, reader: LogReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        if self.primary is reader:
            self.primary = None
        self.on_read()

    def on_read(self) -> None:
        """A reader has read, or left: drop what all have read, and let a run continue that waits for room."""
        if not self.is_whole:
            end = self._start + len(self._batches)
            start = min(map(_position_of, self._readers), default=end)
            del self._batches[: start - self._start]
            self._start = start
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def unread(self, position: int) -> list[NumberedBatch]:
        """Return the batches from that position on, as many as are sent at once."""
        start = position - self._start
        end = start
        count = size = 0
        while end < len(self._batches) and count < MAX_READ_EVENTS and size < PIECE:
            count += len(self._batches[end].events)
            size += self._batches[end].size
            end += 1
        return self._batches[start:end]


class LogReader:
    """A position in an event log, for one reader that goes at its own pace."""

    __slots__ = ("_after", "_has_tick", "_is_closed", "_log", "is_lost", "position", "waiter")

    def __init__(self, log: EventLog, position: int, after: int) -> None:
        self._log, self._after = log, after
        self.position = position
        """Of the batch that is read next, among all batches of the log."""
        self.waiter: asyncio.Future[None] | None = None
        """Where it waits for the next batch."""
        self._has_tick = self._is_closed = False
        self.is_lost = False
        """Whether it was too slow: what it has not read is gone."""

    async def read(self) -> list[NumberedBatch]:
        """Return the next batches, a keep-alive, or nothing when the log has ended or the reader is closed."""
        log = self._log
        while True:
            if self.is_lost:
                raise ServerFault("The reader is too far behind.")
            if not self._is_closed and (batches := log.unread(self.position)):
                self.position += len(batches)
                self._has_tick = False
                log.on_read()
                if batches[0].first <= self._after:
                    batches = [batch.after(self._after) for batch in batches]
                if batches := [*filter(_events_of, batches)]:
                    return batches
                continue
            if log.is_ended or self._is_closed:
                log.remove(self)
                return []
            if self._has_tick:
                self._has_tick = False
                return [NumberedBatch(log.next, [])]
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None

    async def read_within(self, seconds: float) -> list[NumberedBatch]:
        """Do what `read` does, for so long at most: then return a keep-alive. A reader that is lost reads nothing."""
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                return await self.read()
        except TimeoutError:
            return [NumberedBatch(self._log.next, [])]
        except ServerFault:
            return []

    async def batches(self) -> AsyncGenerator[list[NumberedBatch], None]:
        """Yield what `read` returns, to the end of the log."""
        while batches := await self.read():
            yield batches

    def tick(self) -> None:
        if self.waiter is not None:
            self._has_tick = True
            self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def close(self) -> None:
        """Stop reading: `read` returns nothing from now on."""
        self._is_closed = True
        self._log.remove(self)
        self.wake()

    def lose(self) -> None:
        """Give the reader up: it is too slow, and what it has not read is dropped."""
        self.is_lost = True
        self._log.remove(self)


# ---- observers ----


class StreamObserver(Protocol):
    """Follow the events of one run. Its methods must neither wait nor raise."""

    def on_batch(self, first: int, batch: Batch) -> None:
        """Take a batch before it is delivered. `first` is the number of its first event that is sent; marks, which
        are never sent, have no number.
        """
        ...

    def on_end(self) -> None:
        """Take note that the run has a result. It is not called for a run that was broken off or handed over."""
        ...


ObserverFactory: TypeAlias = Callable[[LoopSettings, bool], StreamObserver]
"""Gets the settings of the run, and whether another process has left it in the middle."""

_factory: ObserverFactory | None = None


@contextmanager
def observe_streams(factory: ObserverFactory) -> Iterator[None]:
    """Observe each run that starts within the context, streamed or not, with an observer of its own. The observer of a
    run that continues from the run log gets its recorded events first.
    """
    global _factory
    before, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = before


def new_observer(settings: LoopSettings, records: Sequence[EventRecord] = ()) -> StreamObserver | None:
    """Return the observer of a run that starts now, behind these `records`, or None where none is wanted."""
    if _factory is None:
        return None
    observer = _factory(settings, len(records) > 1)  # the first one is written when a run is queued
    for record in records:
        observer.on_batch(record.first, record.events)
    return observer
