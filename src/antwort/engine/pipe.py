"""The way out: recorded, then numbered and handed to the reader."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from antwort.api.events import MARKS, TERMINAL, UNSENT, Batch, ResponseFailed, StreamEvent, Terminal
from antwort.api.payload import CUT_FROM, payload_of_all
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.api.wire import replace
from antwort.engine.approvals import asked_for
from antwort.engine.control import Control
from antwort.engine.draft import Run, error_of
from antwort.engine.plan import Plan
from antwort.engine.rows import new_entries
from antwort.engine.stream_observer import StreamObserver
from antwort.errors import AntwortError, ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage.base import PackedLog, ResponseStore

_log = logging.getLogger("antwort.engine")


_RECORD_PAUSES = (0.1, 0.4, 1.5)
"""Seconds between the tries to record a turn."""
_UNSENT_KINDS = frozenset(UNSENT)


class Numbered(msgspec.Struct, frozen=True):
    """A batch as it is sent: event i has the number `first + i`. Without events it is a sign of life."""

    first: int
    events: list[StreamEvent]
    is_large: bool = False
    """Whether it is best written bit by bit."""


Log: TypeAlias = Callable[[Batch], PackedLog | None]


def no_log(_: Batch) -> None:
    """Nothing of it is kept but the response."""


async def record_outcome(batch: Batch, store: ResponseStore, plan: Plan, control: Control, log: Log = no_log) -> Batch:
    """Commit the outcome of the run before its terminal event goes out, and return the batch to send: where the commit
    fails, the response has failed. `log` gives all that was sent, with this batch behind it: it is committed along.
    """
    if not isinstance(last := batch[-1], TERMINAL):
        return batch
    return [*batch[:-1], await committed(last, store, plan, control, log(batch))]


async def committed(
    event: Terminal, store: ResponseStore, plan: Plan, control: Control, log: PackedLog | None
) -> Terminal:
    """The event, or what goes out in its place."""
    try:
        await control.last_call.race(lambda: _commit(event.response, store, plan, control, log))
    except Exception as error:
        _log.error("the response %s could not be stored", event.response.id, exc_info=error)
        control.error = _store_fault(error)
        control.is_recorded = not event.response.store  # else there is nothing to write again
        failed = _as_failed(event.response, control.error)
        control.run = msgspec.structs.replace(control.run, response=failed)
        return ResponseFailed(response=failed)
    return event


async def _commit(
    response: Response, store: ResponseStore, plan: Plan, control: Control, log: PackedLog | None
) -> None:
    """Of a response that is not kept, what it adds to its conversation is."""
    entries, conversation = new_entries(plan, response), plan.request.conversation
    asked = asked_for(plan, response)
    if plan.request.is_stored:
        await store.finish(plan.identity, response, control.run.marks, entries, asked, log)
    elif entries and conversation is not None:
        await store.add_entries(plan.identity, conversation, entries, asked)


def _store_fault(error: Exception) -> AntwortError:
    return error if isinstance(error, StoreFault) else StoreFault("The response could not be stored.")


def _as_failed(response: Response, error: AntwortError) -> Response:
    """Instead of the end it would have had: no end that is not on record goes out."""
    return replace(response, status="failed", error=error_of(error), incomplete_details=None, completed_at=None)


class TurnRecorder:
    """Records the turns of a stored foreground run while it goes on, so that they survive the process."""

    def __init__(self, store: ResponseStore, identity: Identity) -> None:
        self._store, self._identity = store, identity
        self._items = self._marks = 0  # how many are on record

    async def record(self, run: Run) -> None:
        """Record all that has ended since the last time: turns, and calls with their results. Raises `StoreFault` if
        that fails for some seconds, or another process has ended the response: then the model must not be asked again.
        """
        if len(run.marks) == self._marks:
            return
        for pause in (*_RECORD_PAUSES, None):
            try:
                await self._store.record_turn(self._identity, run.response, run.marks, self._items)
                break
            except (IllegalTransition, ResponseNotFound) as error:
                raise StoreFault("The response was ended by another process.") from error
            except StoreFault:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        self._items, self._marks = len(run.output), len(run.marks)


class Heard(Protocol):
    """Where the events of a run go, for those who say something beside it."""

    @property
    def is_read(self) -> bool:
        """Whether somebody waits for the next batch."""
        ...

    @property
    def sent(self) -> int:
        """How many events there were so far."""
        ...

    def publish(self, batch: Batch) -> None: ...

    def tick(self) -> None:
        """A sign of life for a reader who has nothing to read."""
        ...


class Outlet:
    """Numbers what is sent, and holds it for one reader: the one place that counts."""

    _held = 0
    _held_text = 0
    _next = 0
    _reader: asyncio.Future[None] | None = None
    _room: asyncio.Future[None] | None = None
    _is_ended = False
    _is_abandoned = False

    def __init__(
        self,
        bound: int,
        keep: Callable[[Batch], None] | None = None,
        *,
        text_bound: int = 2**16,
        observer: StreamObserver | None = None,
    ) -> None:
        """It is full with so many events, or so many characters of text in those behind the first batch. `keep` is
        given each batch in its turn, marks included, until it is kept no more; the `observer`, to the end.
        """
        self._bound, self._text_bound, self._keep, self._observer = bound, text_bound, keep, observer
        self._waiting: deque[Numbered] = deque()

    @property
    def is_read(self) -> bool:
        """Whether somebody waits for the next batch."""
        return self._reader is not None

    @property
    def sent(self) -> int:
        """How many events there were so far."""
        return self._next

    @property
    def is_full(self) -> bool:
        is_full = self._held >= self._bound or self._held_text >= self._text_bound
        return is_full and not self._is_abandoned

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody reads any more."""
        return self._is_abandoned

    def publish(self, batch: Batch) -> None:
        """Number the batch and hand it on. Never waits; `wait_for_room` is for those who can."""
        if self._keep is not None:
            self._keep(batch)
        if self._observer is not None:
            self._observer.on_batch(self._next, batch)
        if self._is_abandoned:
            self._next += len(batch) - sum(map(_UNSENT_KINDS.__contains__, map(type, batch)))
            return
        events: list[StreamEvent] = batch  # type: ignore[assignment]  # marks are taken out below
        if isinstance(batch[-1], MARKS):
            events = [event for event in batch if not isinstance(event, UNSENT)]
        first = self._next
        self._next += len(events)
        if events:
            size = payload_of_all(events)
            self._hand_on(Numbered(first, events, size > CUT_FROM), size)

    def tick(self) -> None:
        """A sign of life for a reader who has nothing to read."""
        if self.is_read and not self._waiting and not self._is_ended:
            self._hand_on(Numbered(self._next, []), 0)

    async def wait_for_room(self) -> None:
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def keep_no_more(self) -> None:
        self._keep = None

    def end(self) -> None:
        self._is_ended = True
        _wake(self._reader)

    def abandon(self) -> None:
        """Nobody reads any more: what still comes is numbered and dropped."""
        self._is_abandoned = True
        self._waiting.clear()
        self._held = self._held_text = 0
        _wake(self._room)

    async def read(self) -> list[Numbered]:
        """All that is waiting, at least one batch; nothing when the stream is over."""
        while not self._waiting:
            if self._is_ended:
                return []
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        batches = list(self._waiting)
        self._waiting.clear()
        self._held = self._held_text = 0
        _wake(self._room)
        return batches

    def _hand_on(self, batch: Numbered, size: int) -> None:
        if self._waiting:  # of what is taken at once, nobody asks how large it is
            self._held_text += size
        self._waiting.append(batch)
        self._held += len(batch.events)
        _wake(self._reader)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
