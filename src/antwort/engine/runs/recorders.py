"""Put a run on record while it goes on: each turn of a stored foreground run, each batch of a durable one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from antwort.api.events import TERMINAL, Batch, ResponseFailed, RunEvent, Terminal
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.api.wire import replace
from antwort.concurrency import Signal
from antwort.engine.history.approval_records import asked_for
from antwort.engine.loop.fold import Run, error_of
from antwort.engine.plan import Plan
from antwort.engine.runs.rows import new_entries
from antwort.errors import AntwortError, HandedOver, ResponseNotFound, StoreFault
from antwort.storage.base import PackedLog, ResponseStore
from antwort.storage.run_log.base import Ending, Fenced, Lease, Record, RunLog, Unavailable
from antwort.storage.run_log.codec import pack

_log = logging.getLogger("antwort.engine")

TURN_RETRY_SECONDS = (0.1, 0.4, 1.5)
"""Between the attempts to record a turn."""
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0
"""Between the attempts to write a run log that is not available."""


class TurnRecorder:
    """Record a stored foreground run: each turn with its tool results before the next inference, and the outcome before
    the terminal event is published.

    Of a response that is not stored, only what it adds to its conversation is recorded.
    """

    def __init__(self, store: ResponseStore, plan: Plan, events: Callable[[], Sequence[Batch] | None]) -> None:
        """`events` returns all batches so far, where they are to be recorded with the outcome."""
        self._store, self._plan, self._events = store, plan, events
        self._items = self._marks = 0
        """How many are on record."""
        self._commit_deadline = Signal()
        self.failure: AntwortError | None = None
        """Why the outcome is not on record."""
        self.has_events = False
        """Whether the events were recorded with the outcome, so that they can be replayed by their numbers."""

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:  # noqa: ARG002 - packed logs begin at 0
        return await self._record_outcome(batch, last, run) if isinstance(last := batch[-1], TERMINAL) else batch

    async def checkpoint(self, run: Run) -> None:
        """Record the turns and results since the last time. Raises `StoreFault` if that fails for some seconds, or
        another process has ended the response: then the model must not be asked again.
        """
        if not self._plan.request.is_stored or len(run.marks) == self._marks:
            return
        for pause in (*TURN_RETRY_SECONDS, None):
            try:
                await self._store.record_turn(self._plan.identity, run.response, run.marks, self._items)
                break
            except (IllegalTransition, ResponseNotFound) as error:
                raise StoreFault("The response was ended by another process.") from error
            except StoreFault:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        self._items, self._marks = len(run.output), len(run.marks)

    async def _record_outcome(self, batch: Batch, last: Terminal, run: Run) -> Batch:
        """Return the batch; with `response.failed` at its end where the outcome could not be committed."""
        response = last.response
        events: PackedLog | None = None
        if self._plan.request.stream and (before := self._events()) is not None:
            events = pack([*before, batch])
        self.has_events, self._events = events is not None, _no_events  # the log holds this recorder
        try:
            await self._commit_deadline.race(partial(self._commit, response, run, events))
        except Exception as error:
            _log.error("the response %s could not be stored", response.id, exc_info=error)
            self.failure = error if isinstance(error, StoreFault) else StoreFault("The response could not be stored.")
            self.has_events = False
            return [*batch[:-1], ResponseFailed(response=_as_failed(response, self.failure))]
        return batch

    async def _commit(self, response: Response, run: Run, events: PackedLog | None) -> None:
        plan = self._plan
        entries, approvals = new_entries(plan, response), asked_for(plan, response)
        if plan.request.is_stored:
            await self._store.finish(plan.identity, response, run.marks, entries, approvals, events)
        elif entries and plan.request.conversation is not None:
            await self._store.add_entries(plan.identity, plan.request.conversation, entries, approvals)

    def give_up(self) -> None:
        """Stop waiting for the outcome to be committed: the process ends."""
        self._commit_deadline.set(StoreFault("The response could not be stored before the server ended."))


def _no_events() -> None:
    return None


def _as_failed(response: Response, error: AntwortError) -> Response:
    return replace(response, status="failed", error=error_of(error), incomplete_details=None, completed_at=None)


class BatchRecorder:
    """Record a durable run in the run log, so that another process can continue it: every batch is durable before it is
    published, and the last one is committed with the outcome.
    """

    def __init__(self, runs: RunLog, lease: Lease, plan: Plan, records: int = 0) -> None:
        """`records` is the number of records that the log holds."""
        self.lease = lease
        self._runs, self._plan = runs, plan
        self._at = records
        self._queued: list[RunEvent] = []
        self._queued_first = 0
        self._asked = self._written = 0
        self._ending: Ending | None = None
        """How the run ended, once its last batch has come."""
        self._lock = asyncio.Lock()
        self._fault: Exception | None = None
        self._leaving = asyncio.Event()
        self.failure: Exception | None = None
        """An error that nobody expected of the log: nothing more is written, as if another process had the run."""

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:
        """Return when the batch is durable. Batches that come while one is written are written together.

        Raises `Fenced`, for good, when another process has the run, and `HandedOver` when the run is to be left while
        the log cannot be written.
        """
        if self._ending is not None:
            raise Fenced  # nothing comes behind the end
        if not self._queued:
            self._queued_first = first
        self._queued += batch
        self._asked += 1
        number = self._asked
        if isinstance(last := batch[-1], TERMINAL):
            self._ending = ending_of(self._plan, last.response, run)
        async with self._lock:
            if self._written < number:  # else it was written with another one
                record, upto = Record(self._at, self._queued_first, self._queued), self._asked
                self._queued = []
                await self._write(record)
                self._at, self._written = record.at + 1, upto
        return batch

    async def checkpoint(self, run: Run) -> None:
        """Everything is on record already."""

    async def _finish(self, ending: Ending, lease: Lease, record: Record) -> None:
        try:
            await self._runs.finish(lease, ending, record)
        except (ResponseNotFound, IllegalTransition) as error:
            raise Fenced from error

    async def _write(self, record: Record) -> None:
        """Write a record. With the last batch, which is in it if it has come, goes the outcome of the run."""
        ending = self._ending
        write = self._runs.append if ending is None else partial(self._finish, ending)
        pause = 0.0
        while True:
            if self._fault is not None:
                raise self._fault
            try:
                await write(self.lease, record)
                break
            except Unavailable:
                pause = await self._pause(pause)
            except Fenced as error:
                self._fault = error
                raise
            except Exception as error:  # it may have been written: nothing else may take its place
                self._fault, self.failure = Fenced(), error
                raise self._fault from error
            except BaseException:
                self._fault = Fenced()
                raise
        if ending is not None:
            self._fault = Fenced()

    async def _pause(self, last: float) -> float:
        """Wait before the next attempt, and return for how long. Raises `HandedOver` when the run is to be left."""
        if not last:
            _log.warning("the log of the run %s cannot be written; it is tried again", self.lease.run_id)
        pause = min(max(2 * last, FIRST_RETRY_SECONDS), MAX_RETRY_SECONDS)
        try:
            async with asyncio.timeout(pause):
                await self._leaving.wait()
        except TimeoutError:
            return pause
        self._fault = self._fault or HandedOver()
        raise self._fault

    def leave(self) -> None:
        """Do not retry from now on when the log cannot be written."""
        self._leaving.set()

    def lose(self) -> None:
        """Write nothing more: another process has the run."""
        self._fault = self._fault or Fenced()
        self._leaving.set()


def ending_of(plan: Plan, response: Response, run: Run) -> Ending:
    return Ending(
        identity=plan.identity,
        response=response,
        marks=run.marks,
        entries=new_entries(plan, response, run.abandoned),
        approvals=asked_for(plan, response),
    )
