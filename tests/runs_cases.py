"""Small runs to keep in a log, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from antwort import Identity, Response
from antwort.api.events import (
    UNSENT,
    CallBegun,
    CallEnded,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseQueued,
    RunEvent,
    TurnEnded,
)
from antwort.api.responses import ConversationRef
from antwort.api.wire import replace
from antwort.storage.run_log import ClaimedRun, EventRecord, Lease, NewRun, RunEnding, RunLog, WorkerInfo
from storage_cases import ME, STOPPED, asked, message

ONE = WorkerInfo("worker_1", "http://10.0.0.1:9000")
TWO = WorkerInfo("worker_2", "http://10.0.0.2:9000")


def new_run(response_id: str | None = None, *, identity: Identity = ME, conversation: str | None = None) -> NewRun:
    """A run that waits. Its log begins with two events, 0 and 1."""
    new = asked("hello", identity=identity, response_id=response_id, status="queued")
    response = replace(new.response, background=True)
    if conversation is not None:
        response = replace(response, conversation=ConversationRef(id=conversation))
    new = msgspec.structs.replace(new, response=response)
    return NewRun(new=new, events=[ResponseCreated(response=response), ResponseQueued(response=response)])


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def said(at: int, first: int, *texts: str) -> EventRecord:
    return EventRecord(at, first, [delta(text) for text in texts])


def marked(at: int, first: int) -> EventRecord:
    """The run's own marks alone: nothing that is sent."""
    return EventRecord(at, first, [CallBegun(call_id="call_1"), CallEnded(call_id="call_1", outcome="ran")])


def mixed(at: int, first: int) -> EventRecord:
    """An event, a mark, an event, a mark."""
    ended = TurnEnded(finish="stop")
    return EventRecord(at, first, [delta("a"), CallBegun(call_id="call_2"), delta("b"), ended])


def outcome(response: Response, text: str = "hello") -> Response:
    return replace(response, status="completed", completed_at=1_700_000_005, output=(message(text, "msg_1"),))


async def finish(log: RunLog, claimed: ClaimedRun, at: int, first: int, text: str = "hello") -> Response:
    """End the run with a record at that place; its response as it ended."""
    ending, record = to_end(claimed, at, first, text)
    await log.finish(claimed.lease, ending, record)
    return ending.response


def to_end(claimed: ClaimedRun, at: int, first: int, text: str = "hello") -> tuple[RunEnding, EventRecord]:
    response = outcome(claimed.response, text)
    record = EventRecord(at, first, [ResponseCompleted(response=response)])
    return RunEnding(identity=claimed.identity, response=response, marks=STOPPED), record


async def claim_one(log: RunLog, worker: WorkerInfo = ONE) -> ClaimedRun:
    (claimed,) = await log.claim(worker.name, 1)
    return claimed


async def begun(log: RunLog, run: NewRun | None = None, worker: WorkerInfo = ONE) -> ClaimedRun:
    """A run that this worker makes."""
    await log.submit(run or new_run())
    return await claim_one(log, worker)


async def told(log: RunLog, count: int = 5) -> ClaimedRun:
    """A run that has said so much, and has ended: records of one and two events, with marks between."""
    claimed = await begun(log)
    first = 2
    for at in range(1, count + 1):
        record = (said(at, first, "a"), said(at, first, "b", "c"), marked(at, first), mixed(at, first))[at % 4]
        await log.append(claimed.lease, record)
        first = record.next
    await finish(log, claimed, count + 1, first)
    return claimed


async def everything(log: RunLog, response_id: str, after: int = -1, *, identity: Identity = ME) -> list[EventRecord]:
    """What there is, without waiting."""
    async with aclosing(log.read(identity, response_id, after)) as reading:
        return [record async for records in reading for record in records]


async def has_log(log: RunLog, identity: Identity, response_id: str) -> bool:
    outline = await log.outline(identity, response_id)
    return outline is not None and outline.has_log


def numbered(records: Sequence[EventRecord]) -> list[tuple[int, RunEvent]]:
    """The events that are sent, each with its number."""
    found: list[tuple[int, RunEvent]] = []
    for record in records:
        sent = [event for event in record.events if not isinstance(event, UNSENT)]
        assert record.next == record.first + len(sent)
        found += enumerate(sent, record.first)
    return found


def ids(claimed: Sequence[ClaimedRun]) -> list[str]:
    return [each.lease.run_id for each in claimed]


def stale(lease: Lease) -> Lease:
    """One of an earlier holder."""
    return msgspec.structs.replace(lease, fence=lease.fence - 1)
