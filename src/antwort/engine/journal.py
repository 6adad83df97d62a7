"""The log of a run that others may go on with: what it says is on record before it goes on, and before it is seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from antwort.api.events import TERMINAL, Batch, CallBegun, RunEvent
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.engine.approvals import asked_for
from antwort.engine.control import Control
from antwort.engine.draft import Run
from antwort.engine.plan import Plan
from antwort.engine.rows import new_entries
from antwort.errors import HandedOver, ResponseNotFound
from antwort.runs.base import Ending, Fenced, Lease, Record, RunLog, Unavailable

_log = logging.getLogger("antwort.engine")

_SOON, _LATER = 0.05, 2.0
"""Seconds until the log is tried again, at first and in the end."""


class Journal:
    """Writes on where the records end, one at a time: the one place that numbers what a run under a lease says."""

    def __init__(self, runs: RunLog, lease: Lease, records: Sequence[Record] = ()) -> None:
        self.lease = lease
        self._runs = runs
        self._at = records[-1].at + 1 if records else 0
        self._next = records[-1].next if records else 0
        self._waiting: list[RunEvent] = []
        self._asked = self._written = 0
        self._is_over = False
        self._one = asyncio.Lock()
        self._fault: Exception | None = None
        self.failure: Exception | None = None
        """What nobody expected of the log: nothing more is written, as if another had the run."""
        self._leaving = asyncio.Event()
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def sent(self) -> int:
        """How many events there were so far that are sent."""
        return self._next

    async def append(self, events: Sequence[RunEvent]) -> None:
        """Returns when it is durable. What others append meanwhile goes with it, or behind it, in their order.

        Raises `Fenced`, for good, when another has the run; and `HandedOver` when it is to be left while the log cannot
        be written.
        """
        await self._until_written(self._add(events))

    async def begin(self, call_id: str) -> None:
        """A tool is about to be asked. Whoever stops waiting leaves no half of a record behind."""
        await asyncio.shield(self.note([CallBegun(call_id=call_id)]))

    def note(self, events: Sequence[RunEvent]) -> asyncio.Task[None]:
        """Append it, whether anybody waits for that or not. It stands behind all that was appended by now."""
        task = asyncio.create_task(self._until_written(self._add(events)))
        self._notes.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._notes.discard(task)
        if not task.cancelled():
            task.exception()  # it is told to the one who waits, if there still is one

    async def finish(self, ending: Ending, events: Sequence[RunEvent]) -> None:
        """The last record, and the response as it ended, in one commit. Raises as `append` does; a response that is
        gone, or that was ended otherwise, is no longer ours.
        """
        self._is_over = True
        async with self._one:
            await self._put(partial(self._finished, ending), [*self._taken(), *events])
            self._fault = Fenced()  # nothing comes behind it

    def leave(self) -> None:
        """From now on, a log that cannot be written is not tried again."""
        self._leaving.set()

    def lose(self) -> None:
        """Another has the run: nothing more is written."""
        self._fault = self._fault or Fenced()
        self._leaving.set()

    # ---- one record ----

    def _add(self, events: Sequence[RunEvent]) -> int:
        if not self._is_over:  # behind the end comes nothing
            self._waiting += events
        self._asked += 1
        return self._asked

    async def _until_written(self, number: int) -> None:
        async with self._one:
            if self._written < number:  # else another has written it along
                taken, upto = self._taken(), self._asked
                await self._put(self._runs.append, taken)
                self._written = upto

    async def _finished(self, ending: Ending, lease: Lease, record: Record) -> None:
        try:
            await self._runs.finish(lease, ending, record)
        except (ResponseNotFound, IllegalTransition) as error:
            raise Fenced from error

    def _taken(self) -> list[RunEvent]:
        events, self._waiting = self._waiting, []
        return events

    async def _put(self, write: Callable[[Lease, Record], Awaitable[None]], events: list[RunEvent]) -> None:
        record = Record(self._at, self._next, events)
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
            except Exception as error:  # nobody knows whether it is there: nothing else may stand in its place
                self._fault, self.failure = Fenced(), error
                raise self._fault from error
            except BaseException:
                self._fault = Fenced()
                raise
        self._at, self._next = record.at + 1, record.next

    async def _pause(self, last: float) -> float:
        """How long it was waited for. Raises `HandedOver` when the run is to be left."""
        if not last:
            _log.warning("the log of the run %s cannot be written; it is tried again", self.lease.run_id)
        pause = min(max(2 * last, _SOON), _LATER)
        try:
            async with asyncio.timeout(pause):
                await self._leaving.wait()
        except TimeoutError:
            return pause
        self._fault = self._fault or HandedOver()
        raise self._fault


class Held(msgspec.Struct, frozen=True):
    """What it takes to go on with a run under a lease."""

    control: Control
    """The run as it stands."""
    journal: Journal
    before: float = 0.0
    """Seconds since it was claimed for the first time."""


class Beside:
    """What is said beside a run under a lease: signs of life, and how far tools say they are. It is recorded with what
    the run itself says, as it is numbered with it. Nobody knows who reads that.
    """

    is_read = True

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def sent(self) -> int:
        return self._journal.sent

    def publish(self, batch: Batch) -> None:
        self._journal.note(batch)

    def tick(self) -> None:
        """Those who read the log have signs of life of their own."""


async def record_batch(batch: Batch, journal: Journal, plan: Plan, control: Control) -> Batch:
    """Return the batch once it is durable; a terminal event with the outcome of the run, in one commit."""
    if isinstance(last := batch[-1], TERMINAL):
        await journal.finish(ending_of(plan, last.response, control.run), batch)
    else:
        await journal.append(batch)
    return batch


def ending_of(plan: Plan, response: Response, run: Run) -> Ending:
    return Ending(
        identity=plan.identity,
        response=response,
        marks=run.marks,
        entries=new_entries(plan, response, run.abandoned),
        approvals=asked_for(plan, response),
    )
