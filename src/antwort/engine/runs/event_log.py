"""Number the events of a run, record them by policy, and buffer them for its readers."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Protocol, Self, TypeAlias

import msgspec

from antwort.api.events import TERMINAL, UNSENT, Batch, StreamEvent
from antwort.api.payload import PIECE, fitting, payload_of_all
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


def numbered(records: Sequence[EventRecord]) -> list[NumberedBatch]:
    """Return the events of recorded batches that are sent."""
    batches: list[NumberedBatch] = []
    for record in records:
        events = [event for event in record.events if not isinstance(event, UNSENT)]
        if events:
            batches.append(NumberedBatch(record.first, events, payload_of_all(events)))
    return batches


class Recorder(Protocol):
    """Put the events of a run on record before they are published."""

    failure: Exception | None
    """Why the run, or its outcome, could not be recorded."""

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:
        """Return the batch to publish once what the policy asks for is durable. `first` is the number of its first
        event, and `run` the run after it.
        """
        ...

    async def checkpoint(self, run: Run) -> None:
        """Record the turns so far, if they are not: the model is asked next."""
        ...

    async def record_again(self, run: Run) -> None:
        """Record the outcome, if it could not be recorded when the run ended. Raises what is wrong."""
        ...

    def leave(self, *, is_lost: bool = False) -> None:
        """Stop retrying a write that fails. With `is_lost`, another process has the run: write nothing more."""
        ...


_first_of = attrgetter("first")


class EventLog:
    """The events of one run in this process: the place that numbers them, and their buffer.

    `append` records a batch with the `recorder`, where there is one, and publishes it. Readers subscribe at any number
    that is buffered. The first reader may hold the run back: the log `is_full` when that reader has not read
    `buffer_events` events, or `buffer_bytes` characters of text behind the next batch.

    With `replay_bytes`, all batches are buffered from the first on, up to about so many bytes, for later readers.
    Without, or beyond that, only what present readers have not read is buffered.
    """

    def __init__(
        self,
        *,
        recorder: Recorder | None = None,
        replay_bytes: int = 0,
        buffer_events: int = 1024,
        buffer_bytes: int = 2**16,
        first: int = 0,
        observer: StreamObserver | None = None,
    ) -> None:
        """`first` is the number of the next event, where another process has written those before it."""
        self.recorder = recorder
        self._observer = observer
        self._replay_bytes, self._buffer_events, self._buffer_bytes = replay_bytes, buffer_events, buffer_bytes
        self._next = first
        self._batches: list[NumberedBatch] = []
        """All batches, while `is_whole`."""
        self.buffered_bytes = 0
        """Size of the buffer for replays, about."""
        self._readers: list[LogReader] = []
        self._primary: LogReader | None = None
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

    @property
    def failure(self) -> Exception | None:
        """Why the run, or its outcome, could not be recorded."""
        return None if self.recorder is None else self.recorder.failure

    # ---- writing ----

    @property
    def next(self) -> int:
        """The number of the next event: how many there were so far."""
        return self._next

    async def append(self, batch: Batch, run: Run) -> Batch:
        """Number, record and publish a batch; `run` is the run after it. Return the batch as it was published."""
        first, count = self._number(batch)
        if self.recorder is not None:
            batch = await self.recorder.record(first, batch, run)
        if self._readers or self.is_whole or self._observer is not None:
            self._publish(first, count, batch)
        return batch

    async def checkpoint(self, run: Run) -> None:
        """Record the turns so far, where the policy asks for it: the model is asked next."""
        if self.recorder is not None:
            await self.recorder.checkpoint(run)

    async def record_again(self, run: Run) -> None:
        """Record the outcome of a run that has ended, if that was not possible then."""
        if self.recorder is not None:
            await self.recorder.record_again(run)

    def leave(self, *, is_lost: bool = False) -> None:
        """Do not wait for a record that cannot be written. With `is_lost`, another process has the run."""
        if self.recorder is not None:
            self.recorder.leave(is_lost=is_lost)

    def publish(self, batch: Batch) -> None:
        """Number and publish a batch that is not recorded, such as a keep-alive event of a run without a record."""
        first, count = self._number(batch)
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

    def finish_observation(self) -> None:
        """Notify the observer that the run has a result."""
        if self._observer is not None:
            self._observer.on_end()

    def end(self) -> None:
        """Nothing more comes from this process."""
        self.is_ended = True
        for reader in self._readers:
            reader.wake()

    def _number(self, batch: Batch) -> tuple[int, int]:
        """Return the number of the batch's first event, and how many of its events have one."""
        first, count = self._next, len(batch)
        if type(batch[-1]) in _MAY_HOLD_MARKS:
            count -= sum(map(_is_unsent, map(type, batch)))
        self._next = first + count
        return first, count

    def _publish(self, first: int, count: int, batch: Batch) -> None:
        if self._observer is not None:
            self._observer.on_batch(first, batch)
        if not self.is_whole and not (self._readers and count):
            return
        events: list[StreamEvent] = batch  # type: ignore[assignment]  # marks are taken out below
        if count < len(batch):
            events = [event for event in events if type(event) not in _UNSENT]
        numbered_batch = NumberedBatch(first, events, payload_of_all(batch), batch)
        if count:
            for reader in self._readers:
                reader.add(numbered_batch)
        if self.is_whole:
            self._batches.append(numbered_batch)
            self.buffered_bytes += numbered_batch.size + EVENT_OVERHEAD_BYTES * len(batch)
            if self.buffered_bytes > self._replay_bytes:
                self.is_whole, self._batches, self.buffered_bytes = False, [], 0
        if not self.is_whole and (self._primary is None or len(self._readers) > 1):
            for reader in [*self._readers]:
                if reader is not self._primary and reader.lags:
                    reader.lose()

    # ---- back-pressure ----

    @property
    def is_full(self) -> bool:
        reader = self._primary
        return reader is not None and (
            reader.unread_events >= self._buffer_events or reader.unread_bytes >= self._buffer_bytes
        )

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
        return any(reader.is_waiting for reader in self._readers)

    # ---- readers ----

    def can_replay(self, after: int) -> bool:
        """Whether a reader can begin behind the event of that number."""
        return self.is_whole or after + 1 >= self._next

    def read(self, after: int = -1, *, holds_back: bool = False) -> LogReader:
        """Read the events with numbers greater than `after`. A reader that `holds_back` makes the run wait for it."""
        start = max(bisect_right(self._batches, after + 1, key=_first_of) - 1, 0)
        reader = LogReader(self, self._batches[start:], after)
        if not self.is_ended:
            self._readers.append(reader)
        if holds_back:
            self._primary = reader
        return reader

    def batches(self) -> list[Batch] | None:
        """All batches so far with their marks; None where not all are buffered."""
        return [each.recorded for each in self._batches] if self.is_whole else None

    def remove(self, reader: LogReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        if self._primary is reader:
            self._primary = None
        self.on_read()

    def on_read(self) -> None:
        """A reader has read, or left: let a run continue that waits for room."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


class LogReader:
    """A position in an event log, for one reader that goes at its own pace."""

    __slots__ = (
        "_after",
        "_bytes",
        "_has_tick",
        "_is_closed",
        "_log",
        "_unread",
        "_waiter",
        "is_lost",
        "unread_events",
    )

    def __init__(self, log: EventLog, unread: Sequence[NumberedBatch], after: int) -> None:
        self._log, self._after = log, after
        self._waiter: asyncio.Future[None] | None = None
        self._has_tick = self._is_closed = False
        self._unread = deque(unread)
        self.unread_events = sum([len(each.events) for each in unread])
        self._bytes = sum([each.size for each in unread])
        self.is_lost = False
        """Whether it was too slow: what it has not read is gone."""

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None

    @property
    def unread_bytes(self) -> int:
        """Characters of text behind the batch that is read next."""
        return self._bytes - self._unread[0].size if self._unread else 0

    @property
    def lags(self) -> bool:
        """Whether it is too far behind in a log that buffers only unread events."""
        return len(self._unread) > MAX_LAG_BATCHES or self.unread_bytes > MAX_LAG_BYTES

    async def read(self) -> list[NumberedBatch]:
        """Return the next batches, a keep-alive, or nothing when the log has ended or the reader is closed."""
        while True:
            while self._unread:
                if batches := self._take():
                    return batches
            if self.is_lost:
                raise ServerFault("The reader is too far behind.")
            if self._log.is_ended or self._is_closed:
                self._log.remove(self)
                return []
            if self._has_tick:
                self._has_tick = False
                return [NumberedBatch(self._log.next, [])]
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def batches(self) -> AsyncGenerator[list[NumberedBatch], None]:
        """Yield what `read` returns, to the end of the log."""
        while batches := await self.read():
            yield batches

    def _take(self) -> list[NumberedBatch]:
        """Take as many batches as are sent at once."""
        unread = self._unread
        taken: list[NumberedBatch] = []
        count = size = 0
        while unread and count < MAX_READ_EVENTS and size < PIECE:
            batch = unread.popleft()
            count += len(batch.events)
            size += batch.size
            if batch.first <= self._after:
                skipped = self._after + 1 - batch.first
                batch = NumberedBatch(batch.first + skipped, batch.events[skipped:], batch.size)
            if batch.events:
                taken.append(batch)
        self.unread_events -= count
        self._bytes -= size
        self._has_tick = False
        self._log.on_read()
        return taken

    def add(self, batch: NumberedBatch) -> None:
        """Take note of a new batch, and wake the reader."""
        self._unread.append(batch)
        self.unread_events += len(batch.events)
        self._bytes += batch.size
        self.wake()

    def tick(self) -> None:
        if self._waiter is not None:
            self._has_tick = True
            self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """Stop reading: `read` returns nothing from now on."""
        self._is_closed = True
        self._give_up()

    def lose(self) -> None:
        """Give the reader up: it is too slow, and what it has not read is dropped."""
        self.is_lost = True
        self._give_up()

    def _give_up(self) -> None:
        self._unread.clear()
        self._log.remove(self)
        self.wake()


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
