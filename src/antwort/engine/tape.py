"""What a run has sent, kept for readers who come late, and who each go at their own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import TypeAlias

from antwort.api.events import (
    DELTAS,
    ArgumentsDelta,
    CustomInputDelta,
    ItemEvent,
    McpArgumentsDelta,
    OutputTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    StreamEvent,
    SummaryTextDelta,
)
from antwort.api.payload import fitting
from antwort.api.wire import replace
from antwort.engine.pipe import Numbered

Piece: TypeAlias = (
    OutputTextDelta
    | ReasoningTextDelta
    | SummaryTextDelta
    | RefusalDelta
    | ArgumentsDelta
    | CustomInputDelta
    | McpArgumentsDelta
)

AT_ONCE = 512
"""Events that a reader who is behind gets in one piece, unless they hold more text than a piece does."""
LOOSE = 4096
"""Events after which texts that have come in pieces are put together."""


class Tape:
    """All events from the first on. Nobody waits for a reader.

    So that it does not grow without bound, the pieces of a text are put together now and then: one who comes late, or
    is far behind, gets fewer and larger pieces, and what is kept is of the size of the response.
    """

    def __init__(
        self,
        events: Iterable[StreamEvent] = (),
        *,
        is_ended: bool = False,
        has_numbers: Callable[[], bool] = lambda: False,
        merge_after: int = LOOSE,
    ) -> None:
        """Texts are put together after `merge_after` events, unless `has_numbers` says that the events are also read by
        their numbers elsewhere.
        """
        self._events, self._has_numbers = list(events), has_numbers
        self._due = self._merge_after = merge_after
        self._readers: set[TapeReader] = set()
        self.is_ended = is_ended

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Sequence[StreamEvent]) -> None:
        self._events += events
        if len(self._events) > self._due and not self._has_numbers():
            self._put_together()
        self._wake()

    def tick(self) -> None:
        """A sign of life for those who have nothing to read."""
        for reader in self._readers:
            reader.tick()

    def end(self) -> None:
        self.is_ended = True
        self._wake()
        self._readers.clear()  # nothing moves any more

    def reader(self) -> TapeReader:
        """One who reads from the first event on."""
        reader = TapeReader(self)
        if not self.is_ended:
            self._readers.add(reader)
        return reader

    def forget(self, reader: TapeReader) -> None:
        self._readers.discard(reader)

    def part(self, start: int) -> list[StreamEvent]:
        return fitting(self._events, start, AT_ONCE)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()

    def _put_together(self) -> None:
        """What one has read, and another has not, stays apart."""
        marks = sorted({0, len(self._events), *(reader.at for reader in self._readers)})
        moved: dict[int, int] = {0: 0}
        kept: list[StreamEvent] = []
        for start, end in pairwise(marks):
            kept += put_together(self._events[start:end])
            moved[end] = len(kept)
        for reader in self._readers:
            reader.at = moved[reader.at]
        self._events, self._due = kept, max(self._merge_after, 2 * len(kept))


class TapeReader:
    """One reader. Its events are numbered from 0, whatever they were put together of."""

    __slots__ = ("_sent", "_tape", "_ticked", "_waiter", "at")

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._sent = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ticked = False
        self.at = 0
        """How much of the tape it has read."""

    async def read(self) -> list[Numbered]:
        """The next part, a sign of life, or nothing when the stream is over."""
        while not (events := self._tape.part(self.at)):
            if self._tape.is_ended:
                return []
            if self._ticked:
                self._ticked = False
                return [Numbered(self._sent, [])]
            await self._wait()
        first = self._sent
        self.at += len(events)
        self._sent += len(events)
        return [Numbered(first, events)]

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def tick(self) -> None:
        if self._waiter is not None:
            self._ticked = True
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def put_together(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """The same events, with fewer pieces: those of one text that nothing else of its item came between are one."""
    kept: list[StreamEvent] = []
    pieces: dict[int, list[Piece]] = {}
    last: dict[str, int] = {}
    for event in events:
        if isinstance(event, DELTAS):
            at = last.get(event.item_id, -1)
            if at in pieces and _goes_on(kept[at], event):
                pieces[at].append(event)
                continue
            pieces[len(kept)] = [event]
        if isinstance(event, ItemEvent):
            last[event.item_id] = len(kept)
        kept.append(event)
    for at, parts in pieces.items():
        if len(parts) > 1:
            kept[at] = _joined(parts)
    return kept


def _goes_on(before: StreamEvent, event: Piece) -> bool:
    return type(before) is type(event) and _part_of(before) == _part_of(event)


def _part_of(event: StreamEvent) -> int:
    return getattr(event, "content_index", getattr(event, "summary_index", 0))


def _joined(pieces: Sequence[Piece]) -> Piece:
    text = "".join([piece.delta for piece in pieces])
    if isinstance(first := pieces[0], OutputTextDelta):
        logprobs = tuple(chain.from_iterable(piece.logprobs for piece in pieces if isinstance(piece, OutputTextDelta)))
        return replace(first, delta=text, logprobs=logprobs)
    return replace(first, delta=text)
