"""The contract of a run log: runs that wait or are made, by whom, and all that they have said so far.

A run goes by the id of its response. Whoever makes it holds a lease with a fence, a number that grows with every
claim: what an earlier holder still writes is refused. Wake-ups are hints, numbers are truth.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

import msgspec

from antwort.api.approvals import Approval
from antwort.api.events import UNSENT, Mark, RunEvent
from antwort.api.responses import Response
from antwort.errors import HandedOver, StoreUnavailable
from antwort.identity import Identity
from antwort.storage.base import Entry, NewResponse


class Fenced(Exception):
    """Another has claimed the run, or it has ended: nothing more of this holder is written. It is final."""


DETACHED = (HandedOver, Fenced)
"""Why a run stops in this process without an end: another process continues it, or did already."""


class Unavailable(StoreUnavailable):
    """It is not known whether it was written. The same may be written again, under the same numbers."""

    def __init__(self, reason: str = "") -> None:
        """The `reason` is not for clients."""
        super().__init__("The record of the run cannot be read or written now.")
        self.reason = reason


class Gone(Exception):
    """What was to be read is not kept any more."""


class Record(msgspec.Struct, frozen=True, array_like=True, weakref=True):
    """A piece of the log: what was written at once."""

    at: int
    """Its place in the log, from 0 on, without gaps."""
    first: int
    """The number of its first event that is sent; the run's own marks have none."""
    events: list[RunEvent]

    @property
    def next(self) -> int:
        """The number of the event behind it."""
        return self.first + sum(not isinstance(event, UNSENT) for event in self.events)


class Worker(msgspec.Struct, frozen=True):
    """A process that makes runs."""

    name: str
    """Never given twice."""
    address: str | None = None
    """Where the others reach it, such as `http://10.0.0.7:9000`; None: nowhere."""


class Lease(msgspec.Struct, frozen=True):
    run_id: str
    fence: int
    worker: str
    key: int = 0
    """Where the log keeps the run. It means nothing to others."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be made by whoever claims it."""

    new: NewResponse
    """The row of its response, `queued`."""
    events: list[RunEvent]
    """What its log begins with."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and all that it takes to go on with it but its log."""

    lease: Lease
    identity: Identity
    request: bytes
    """As it is kept (`NewResponse.request`)."""
    response: Response
    """As it was submitted."""
    attempt: int
    """1 for the first holder. It grows when a holder was lost, and not when one has released it."""
    is_cancelled: bool
    begun_at: float
    """When it was claimed for the first time, in seconds since 1970."""
    waited: float | None = None
    """Seconds that it has waited for that, if this is the first time."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    lost: frozenset[Lease] = frozenset()
    """Another has them, or they have ended."""
    cancelled: frozenset[str] = frozenset()
    """Ids of responses that this worker makes, under a lease or in the foreground, and that are to be stopped."""
    strays: frozenset[Lease] = frozenset()
    """What this worker holds besides, and has not named: it was just claimed, or the answer to a claim was lost. Nobody
    else will take it: who does not know it releases it."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: what the store is told of it (`ResponseStore.finish`), in the same commit."""

    identity: Identity
    response: Response
    marks: Sequence[tuple[int, Mark]]
    entries: Sequence[Entry] = ()
    approvals: Sequence[Approval] = ()


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    durability: Literal["process", "system", "disk"]
    """What a write that was acknowledged survives: nothing, the end of the process, the end of the machine."""
    many: bool
    """Whether several processes may share it."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of a response without reading what it said."""

    response: Response
    """Without its output."""
    has_log: bool


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """For those who watch."""

    queued: int
    running: int
    oldest: float = 0.0
    """Seconds that the one that has waited for longest has waited."""


class RunLog(Protocol):
    """Methods raise `Unavailable` when the log cannot be read or written, and may be called again then. `Fenced` is
    final, and so is `Damaged`, where something is read. Each may be repeated: what is there already is not written
    twice.
    """

    @property
    def traits(self) -> Traits: ...

    # ---- workers ----

    async def join(self, worker: Worker) -> None:
        """The worker lives from now on, for the time of a lease, and longer with each `renew`."""
        ...

    async def leave(self, worker: str) -> None:
        """It has released what it held. What it still makes in the foreground has failed."""
        ...

    async def renew(self, worker: Worker, leases: Sequence[Lease]) -> Renewed:
        """One call for all. An error means that nothing is known: the leases may be held or lost. A worker that was
        taken for dead lives again."""
        ...

    async def owner(self, identity: Identity, response_id: str) -> Worker | None:
        """The living worker that makes this response, under a lease or in the foreground; None when none does."""
        ...

    # ---- runs ----

    async def submit(self, run: NewRun) -> None:
        """Commit the row, its input, its claim and its decisions (as `ResponseStore.begin` does, and raising what that
        raises), the place in the queue and the first record: all or nothing. Once more with the same id, nothing
        happens. Raises `QueueFull` when as many wait as may.
        """
        ...

    async def adopt(
        self,
        worker: str,
        identity: Identity,
        response_id: str,
        records: Sequence[Record],
        *,
        has_room: bool | None = None,
    ) -> Lease:
        """Make a durable run of a response that this worker makes in the foreground, with all that it has said so far.
        Raises `Fenced` when the row is gone or has ended, or another has it.

        `has_room`: whether the worker has a place for it; None: it needs none, as it is not held for long. Where there
        is none, or its owner has as many under way as may be, it waits like any other: that raises `HandedOver`; and
        `QueueFull`, with nothing written, when as many wait as may. What has a lease by then keeps it.
        """
        ...

    async def claim(self, worker: str, count: int) -> Sequence[Claimed]:
        """Take up to `count` runs that nobody holds: those that wait, and those whose holder is dead. Whoever has the
        fewest runs under way comes first, then who has waited longest; a run of a conversation waits for those before
        it. The log of a claimed run is read after its fence is taken.
        """
        ...

    async def take(self, worker: str, identity: Identity, response_id: str) -> Claimed | None:
        """As `claim`, this one run, whatever it waits for: to end one that was cancelled before anybody had a place for
        it. None when it has ended, or a living worker holds it.
        """
        ...

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        """Whether there are runs of this conversation that have not ended, made or waiting."""
        ...

    async def records(self, lease: Lease) -> Sequence[Record]:
        """The whole log, marks included, for the one who goes on with it. Raises `Fenced` and `Damaged`."""
        ...

    async def append(self, lease: Lease, record: Record) -> None:
        """Returns when it is durable, as far as `traits` say. One at a time for each run."""
        ...

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        """The last record, and what the store is told, in one commit; the run leaves the queue."""
        ...

    async def give_up(self, lease: Lease, ending: Ending) -> None:
        """As `finish`, for a run whose log cannot be read or written on: of what it has said, nothing is kept."""
        ...

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        """Hand it over: the next one may claim it at once. Where it could not be gone on with it `is_lost`, and the
        attempt counts.
        """
        ...

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        """Ask whoever makes the response to stop: the flag stays, and a wake-up goes out. One that nobody holds is
        claimed as cancelled. Whether there was anything to stop.
        """
        ...

    # ---- reading ----

    def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """What the log holds of events with numbers greater than `after`, gap-free and in order, marks included; only
        what is durable. It ends behind the terminal event, or, without `follow`, at what there is. A list holds about
        half a million characters at most, unless one event is larger. An empty list comes while there is nothing, as a
        sign of life. Raises `Gone` for a log that is not kept: ask for it only where
        `has_log` says so; and `Damaged`.
        """
        ...

    async def has_log(self, identity: Identity, response_id: str) -> bool: ...

    async def sent(self, identity: Identity, response_id: str) -> int:
        """How many events with numbers its log holds so far."""
        ...

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        """How a stored response stands; None: there is none."""
        ...

    # ---- hints ----

    async def wait_for_work(self, seconds: float) -> None:
        """Until there may be something to claim, at most so long."""
        ...

    async def wait_for_cancels(self, seconds: float) -> None:
        """Until `renew` may have a cancel to tell of, at most so long."""
        ...

    async def load(self) -> Load: ...

    async def sweep(self) -> int:
        """Housekeeping, now and then: responses that a dead worker made in the foreground are `failed`, logs of runs
        that have ended are packed, and those that are older than they are kept go. How many responses failed.
        """
        ...

    async def close(self) -> None: ...
