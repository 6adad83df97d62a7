"""The contract of a run log: the runs that can outlive a process, who runs them, and their events.

A run is identified by the id of its response. Its worker holds a lease with a fence, a number that grows with
every claim: a write under an older fence is rejected. Wake-ups are hints; the stored numbers are the truth.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

import msgspec

from antwort.api.events import TERMINAL, UNSENT, Mark, RunEvent
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.errors import Damaged, HandedOver, StoreFault, StoreUnavailable
from antwort.identity import Identity
from antwort.storage.base import Entry, NewResponse, ResponseStore
from antwort.storage.database import Durability


class Fenced(Exception):
    """Another worker has claimed the run, or it has ended: this holder can write nothing more. It is final."""


DETACHED = (HandedOver, Fenced)
"""Why a run stops in this process without an end: another process continues it, or did already."""


class Unavailable(StoreUnavailable):
    """It is not known whether the write happened. It may be repeated with the same record number."""

    def __init__(self, reason: str = "") -> None:
        """The `reason` is not shown to clients."""
        super().__init__("The record of the run cannot be read or written now.")
        self.reason = reason

    @classmethod
    def because_of(cls, fault: StoreFault) -> StoreFault:
        """Return the fault as one after which the caller may try again, unless that is of no use."""
        if isinstance(fault, Damaged):
            return fault
        unavailable = cls(f"{fault.message} ({fault.why})" if fault.why else fault.message)
        unavailable.__cause__ = fault
        return unavailable


class Gone(Exception):
    """The log to be read is not stored any more."""


class EventRecord(msgspec.Struct, frozen=True, array_like=True, weakref=True):
    """A part of the log that was written at once."""

    at: int
    """Its index in the log, from 0 on, without gaps."""
    first: int
    """The number of its first event that is sent. Marks of the run itself have no number."""
    events: list[RunEvent]

    @property
    def next(self) -> int:
        """The number of the first event after it."""
        return self.first + sum(not isinstance(event, UNSENT) for event in self.events)

    @property
    def is_last(self) -> bool:
        """Whether the run ends with it."""
        return any(isinstance(event, TERMINAL) for event in self.events)


def records_after(records: Iterable[EventRecord], number: int) -> list[EventRecord]:
    """Return the part of the records after the event with that number. Marks count as part of the event before them."""
    found: list[EventRecord] = []
    for record in records:
        if record.first > number:
            found.append(record)
        elif record.next > number + 1:
            found.append(_cut(record, number))
    return found


def _cut(record: EventRecord, number: int) -> EventRecord:
    seen = record.first
    for place, event in enumerate(record.events):
        if not isinstance(event, UNSENT):
            seen += 1
        if seen == number + 1:
            return EventRecord(record.at, seen, record.events[place + 1 :])
    raise AssertionError("the record ends before that event")


class WorkerInfo(msgspec.Struct, frozen=True):
    """A process that runs runs."""

    name: str
    """Unique for all time."""
    address: str | None = None
    """Where other processes reach it, such as `http://10.0.0.7:9000`; None if they cannot."""


class Lease(msgspec.Struct, frozen=True):
    """The right of a worker to write the log of a run, until the next claim."""

    run_id: str
    fence: int
    worker: str
    key: int = 0
    """The key of the run inside the log. Callers do not use it."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be queued."""

    new: NewResponse
    """The row of its response, `queued`."""
    events: list[RunEvent]
    """The first events of its log."""


class ClaimedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed run: with its log, all that is needed to continue it."""

    lease: Lease
    identity: Identity
    request: bytes
    """As it is stored (`NewResponse.request`)."""
    response: Response
    """As it was submitted."""
    attempt: int
    """1 for the first holder. It grows when a holder was lost, not when one has released the run."""
    is_cancelled: bool
    begun_at: float
    """When it was first claimed, in seconds since 1970."""
    waited: float | None = None
    """Seconds from submission to the first claim, if this is the first claim."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker's leases."""

    lost: frozenset[Lease] = frozenset()
    """Other workers hold these runs, or they have ended."""
    cancelled: frozenset[str] = frozenset()
    """Ids of responses to stop that this worker runs, under a lease or in the foreground."""
    strays: frozenset[Lease] = frozenset()
    """Leases that this worker holds and has not named: just claimed, or the answer to the claim was lost. No other
    worker can claim these runs, so a worker that does not know them must release them."""


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: the arguments of `ResponseStore.finish`, which happens in the same commit."""

    identity: Identity
    response: Response
    marks: Sequence[tuple[int, Mark]]
    entries: Sequence[Entry] = ()
    approvals: Sequence[Approval] = ()


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What an implementation guarantees."""

    durability: Durability
    """What an acknowledged write survives."""
    many: bool
    """Whether several processes may share the log."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A stored response without its output."""

    response: Response
    has_log: bool


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs are queued and running, for metrics."""

    queued: int
    running: int
    oldest: float = 0.0
    """Seconds that the oldest queued run has waited."""


class RunLog(Protocol):
    """Methods raise `Unavailable` when the log cannot be read or written, and may be called again then. `Fenced` is
    final, and so is `Damaged`, where something is read. Every method is idempotent: what is stored already is not
    written twice.
    """

    @property
    def traits(self) -> Traits: ...

    # ---- workers ----

    async def join(self, worker: WorkerInfo) -> None:
        """Register the worker as alive for the duration of a lease; each `renew` extends it."""
        ...

    async def leave(self, worker: str) -> None:
        """Unregister the worker, which has released its leases. Its foreground responses have failed."""
        ...

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        """Extend the worker's life and return the state of all its leases. After an error nothing is known: the leases
        may be held or lost. A worker that was considered dead is alive again.
        """
        ...

    async def owner(self, identity: Identity, response_id: str) -> WorkerInfo | None:
        """Return the living worker that runs this response, under a lease or in the foreground."""
        ...

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        """Commit the row, its input, its claim and its decisions (as `ResponseStore.begin` does, raising what that
        raises), the queue entry and the first record: all or nothing. A second call with the same id does nothing.
        Raises `QueueFull`.
        """
        ...

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        """Turn a foreground response of this worker into a run that other processes can continue. Its log is empty. It
        does not count against any limit. Raises `Fenced` when the row is gone or has ended, or another worker has it.
        """
        ...

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        """Claim up to `count` runs that are queued or whose holder is dead. The owner with the fewest running runs is
        first, then the oldest run; a run of a conversation waits for those before it. Read the log of a claimed run
        only after the claim.
        """
        ...

    async def take(self, worker: str, identity: Identity, response_id: str) -> ClaimedRun | None:
        """Claim this one run, whatever it waits for: to end one that was cancelled before any worker had a free slot.
        Returns None when it has ended or a living worker holds it.
        """
        ...

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        """Return whether the conversation has a run that has not ended, queued or running."""
        ...

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        """Return the whole log with its marks, to continue the run. Raises `Fenced` and `Damaged`."""
        ...

    async def append(self, lease: Lease, record: EventRecord) -> None:
        """Write a record, and return when it is as durable as `traits` say. One at a time for each run."""
        ...

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        """Commit the last record and the outcome of the response together, and remove the run from the queue."""
        ...

    async def give_up(self, lease: Lease, ending: RunEnding) -> None:
        """Finish a run whose log cannot be read or continued: its log is deleted."""
        ...

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        """Give the run back, so that it can be claimed at once. With `is_lost`, it could not be continued here and the
        attempt counts.
        """
        ...

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        """Set a flag that asks the holder to stop, and wake it. A queued run is claimed as cancelled. Return whether
        there was a run to cancel.
        """
        ...

    # ---- reading ----

    def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[EventRecord], None]:
        """Yield the durable records after the event with the number `after`, in order and without gaps, with their
        marks. It ends after the terminal event or, without `follow`, at the end of what is stored. A list holds about
        half a million characters, unless a single event is larger. With `follow`, an empty list is a keep-alive.

        Raises `Damaged`, and `Gone` for a log that is not stored: `outline` tells.
        """
        ...

    async def sent(self, identity: Identity, response_id: str) -> int:
        """Return how many numbered events the log holds."""
        ...

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        """Return a stored response without its output; None when there is none."""
        ...

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        """Wait until there may be a run to claim, at most so long."""
        ...

    async def wait_for_cancels(self, seconds: float) -> None:
        """Wait until `renew` may return a cancelled run, at most so long."""
        ...

    async def load(self) -> Load: ...

    async def sweep(self) -> int:
        """Do the housekeeping: fail the foreground responses of dead workers, pack the logs of ended runs, and delete
        old logs. Return how many responses failed.
        """
        ...

    async def close(self) -> None: ...


# ---- which run log goes with a store ----


class RunLogLimits(Protocol):
    """The settings of a run log: a part of `BackgroundSettings`."""

    @property
    def lease(self) -> float: ...

    @property
    def queue(self) -> int: ...

    @property
    def per_owner(self) -> int | None: ...

    @property
    def keep_log(self) -> float: ...


def run_log_for(store: ResponseStore, limits: RunLogLimits) -> RunLog | None:
    """Return a run log over the records of the store; None for a store that is not one of ours."""
    from antwort.storage.sql_store import SqlStore

    if not isinstance(store, SqlStore):
        return None
    from antwort.storage.sql_run_log import SqlRunLog

    queue, per_owner, keep_log = limits.queue, limits.per_owner, limits.keep_log
    return SqlRunLog(store.database, lease=limits.lease, queue=queue, per_owner=per_owner, keep_log=keep_log)
