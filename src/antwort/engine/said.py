"""All that a run in the foreground has sent so far, kept in memory for those who come back to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice

from antwort.api.events import DELTAS, UNSENT, Batch, CallBegun, CallEnded, RunEvent, StreamEvent
from antwort.api.payload import PIECE, payload_of_all
from antwort.engine.pipe import Numbered
from antwort.engine.plan import Plan
from antwort.errors import ServerFault
from antwort.runs.base import Record
from antwort.runs.packed import in_records, pack
from antwort.storage.base import PackedLog

_STEP = 256
"""Batches after which it is looked at how much there is. What is sent pays for no more than that."""
_AN_EVENT = 256
"""Bytes, about, that an event takes beside its text."""
_FAR_BEHIND = 4096
"""Batches that are held for a reader of a run that has said too much to be kept."""
_AT_ONCE = 512
"""Events that one who is behind gets in one piece, unless they hold more text than a piece does."""


class Said:
    """Batches as they were sent, by reference, with the marks among them. When they come to too much, nobody can begin
    anew: those who read go on, as long as they keep up.
    """

    def __init__(self, most: int) -> None:
        """`most`: bytes that it may take, about."""
        self._most = most
        self._batches: list[Batch] = []
        self._start = 0
        """How many batches there were before those that are kept."""
        self._due, self._measured, self._size = _STEP, 0, 0
        self._readers: set[SaidReader] = set()
        self.is_whole = True
        """Whether it is kept from the first event on."""
        self.is_over = False
        """Whether nothing more comes from here."""

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        if len(self._batches) >= self._due:
            self._measure()
        if self._readers:
            self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def let_go(self) -> None:
        """Whoever comes now reads it elsewhere. Those who read here are told what they have not read of it."""
        self.is_whole = False
        self._shorten()
        self.end()

    # ---- the whole of it ----

    @property
    def sent(self) -> int:
        """How many events there are that have a number."""
        return len([None for event in self._events() if not isinstance(event, UNSENT)])

    @property
    def count(self) -> int:
        """How many batches there were."""
        return self._start + len(self._batches)

    def records(self, taken: int, before: Sequence[Record], begun: Sequence[str]) -> list[Record]:
        """For the log of a durable run: what came behind so many batches, which are in the records `before`; and which
        calls have begun.
        """
        events = [event for batch in self.behind(taken) for event in batch]
        return in_records([*events, *[CallBegun(call_id=call_id) for call_id in begun]], before)

    def ended_calls(self) -> set[str]:
        return {event.call_id for event in self._events() if isinstance(event, CallEnded)}

    def packed(self, last: Batch) -> PackedLog | None:
        """With the batch that it ends with; None when it is not all there."""
        return pack([*self._batches, last]) if self.is_whole else None

    def _events(self) -> Iterator[RunEvent]:
        return chain.from_iterable(self._batches)

    # ---- readers ----

    def read(self, after: int, every: float) -> AsyncGenerator[list[Numbered], None]:
        """What comes behind the event of that number, until the run is over here; after `every` seconds without, a sign
        of life. It must be all there now, and may be too much when somebody reads.
        """
        assert self.is_whole, "who begins here begins with the first event"
        reader = SaidReader(self, after)
        self._readers.add(reader)
        return self._read(reader, every)

    async def _read(self, reader: SaidReader, every: float) -> AsyncGenerator[list[Numbered], None]:
        try:
            while True:
                if batches := reader.take():
                    yield batches
                elif self.is_over:
                    return
                elif not await reader.wait(every):
                    yield [Numbered(reader.number, [])]
        finally:
            self._readers.discard(reader)

    def behind(self, at: int) -> Iterator[Batch]:
        return islice(self._batches, at - self._start, None)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.news.set()

    # ---- how much it is ----

    def _measure(self) -> None:
        new = self._batches[self._measured :]
        self._measured = len(self._batches)
        self._due = self._measured + _STEP
        self._size += sum([_size(event) for batch in new for event in batch])
        if self._size > self._most:
            self.is_whole = False
        if not self.is_whole:
            self._shorten()

    def _shorten(self) -> None:
        """To what those who read have not read yet."""
        end = self.count
        for reader in [reader for reader in self._readers if end - reader.at > _FAR_BEHIND]:
            reader.is_lost = True
            self._readers.discard(reader)
            reader.news.set()
        start = min([reader.at for reader in self._readers], default=end)
        del self._batches[: start - self._start]
        self._start = start
        self._measured, self._due = len(self._batches), len(self._batches) + _STEP


class SaidReader:
    """One who reads along, at its own pace."""

    def __init__(self, said: Said, after: int) -> None:
        self._said = said
        self._after = after
        self.at = 0
        """How many batches it has read."""
        self.number = 0
        """Of the event that comes next."""
        self.is_lost = False
        """Whether it was too slow: what it has not read is gone."""
        self.news = asyncio.Event()

    def take(self) -> list[Numbered]:
        """The next batches, as many as are sent in one piece."""
        self.news.clear()
        if self.is_lost:
            raise ServerFault("The reader is too far behind.")
        taken: list[Numbered] = []
        count = size = 0
        for batch in self._said.behind(self.at):
            events: list[StreamEvent] = [event for event in batch if not isinstance(event, UNSENT)]
            seen = min(max(self._after + 1 - self.number, 0), len(events))
            if len(events) > seen:
                taken.append(Numbered(self.number + seen, events[seen:]))
                count += len(events) - seen
                size += payload_of_all(events)
            self.number += len(events)
            self.at += 1
            if count >= _AT_ONCE or size >= PIECE:
                break
        return taken

    async def wait(self, seconds: float) -> bool:
        """Whether there is something new within that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()
        return self.news.is_set()


def said_of(plan: Plan, *, goes_on: bool) -> Said | None:
    """What is kept of what the run sends; None: nothing. A stream that is on record can be read again."""
    most = plan.settings.background.log_bytes
    if not plan.request.is_stored or not (goes_on or (plan.request.stream and most)):
        return None
    said = Said(most)
    said.is_whole = most > 0
    return said


def _size(event: RunEvent) -> int:
    """What others hold as well, the items and the response, takes nothing here."""
    return _AN_EVENT + len(event.delta) if isinstance(event, DELTAS) else _AN_EVENT
