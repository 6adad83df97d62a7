"""Runs to measure with: a text that is said in pieces of about 175 bytes of JSON each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antwort.api.events import (
    ContentPartAdded,
    OutputItemAdded,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseInProgress,
    ResponseQueued,
    RunEvent,
)
from antwort.api.items import Message, OutputText
from antwort.api.responses import Response
from antwort.api.wire import replace
from antwort.storage.run_log import ClaimedRun, EventRecord, NewRun, RunEnding, RunLog, WorkerInfo
from storage_cases import ME, STOPPED, asked, ended, message

ME_AND_I = ME
WORKER = WorkerInfo(name="measured")


def new_run(response_id: str) -> NewRun:
    new = asked("Tell me a story.", response_id=response_id, status="queued")
    return NewRun(new=new, events=[ResponseCreated(response=new.response), ResponseQueued(response=new.response)])


def beginning(response: Response) -> list[RunEvent]:
    under_way = replace(response, status="in_progress")
    item = Message(id="msg_1", role="assistant", content=(), status="in_progress")
    return [
        ResponseInProgress(response=under_way),
        OutputItemAdded(output_index=0, item=item),
        ContentPartAdded(item_id="msg_1", output_index=0, content_index=0, part=OutputText(text="")),
    ]


def deltas(count: int) -> list[RunEvent]:
    return [delta(f"so many words {at}") for at in range(count)]


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_" + "1" * 32, output_index=0, content_index=0, delta=text)


class Running:
    """A run that this process holds, and how far its log has come."""

    def __init__(self, log: RunLog, claimed: ClaimedRun) -> None:
        self.log, self.claimed = log, claimed
        self._at, self._next = 1, 2

    async def say(self, events: Sequence[RunEvent]) -> None:
        record = self._record(events)
        await self.log.append(self.claimed.lease, record)

    async def end(self, text: str = "") -> None:
        new = asked("", response_id=self.claimed.response.id, status="queued")
        final = replace(ended(new, message(text)), id=self.claimed.response.id)
        ending = RunEnding(identity=self.claimed.identity, response=final, marks=STOPPED)
        await self.log.finish(self.claimed.lease, ending, self._record([ResponseCompleted(response=final)]))

    def _record(self, events: Sequence[RunEvent]) -> EventRecord:
        record = EventRecord(self._at, self._next, list(events))
        self._at, self._next = record.at + 1, record.next
        return record


async def running(log: RunLog, ids: Sequence[str], *, width: int = 64) -> list[Running]:
    """Runs of these ids, submitted and claimed."""
    await log.join(WORKER)
    for first in range(0, len(ids), width):
        await asyncio.gather(*(log.submit(new_run(each)) for each in ids[first : first + width]))
    found: list[Running] = []
    while len(found) < len(ids):
        found += [Running(log, each) for each in await log.claim(WORKER.name, width)]
    return found
