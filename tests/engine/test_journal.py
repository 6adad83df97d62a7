"""One place writes the log of a run: in order, each record once, and nothing after another has the run."""

from __future__ import annotations

import asyncio

import pytest
from antwort.engine.journal import Journal

from antwort.api.events import CallBegun, ResponseInProgress, ResponseQueued, RunEvent, TurnEnded
from antwort.errors import HandedOver
from antwort.identity import ANONYMOUS
from antwort.runs.base import Ending, Fenced, Lease, Record, RunLog, Unavailable
from antwort.runs.memory import MemoryRunLog
from antwort.storage.memory import MemoryStore
from engine_kit import ask
from jumping_time import jumping_time
from plan_kit import plan_of

LEASE = Lease(run_id="resp_1", fence=1, worker="worker_1")


class Paper(MemoryRunLog):
    """Takes what is written, when it is let; `faults` are what is raised first."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__(MemoryStore())
        self.written: list[Record] = []
        self.finished: list[Record] = []
        self.faults = [*faults]
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.tries = 0
        self.tried = asyncio.Event()

    async def append(self, lease: Lease, record: Record) -> None:
        await self._put(self.written, record)

    async def finish(self, lease: Lease, ending: Ending, record: Record) -> None:
        await self._put(self.finished, record)

    async def _put(self, place: list[Record], record: Record) -> None:
        self.tries += 1
        self.tried.set()
        await self.may_write.wait()
        if self.faults:
            raise self.faults.pop(0)
        place.append(record)


async def said(text: str) -> RunEvent:
    plan = await plan_of(ask(text))
    return ResponseInProgress(response=plan.response)


def mark(name: str) -> RunEvent:
    return CallBegun(call_id=name)


def journal_on(runs: RunLog, *before: Record) -> Journal:
    return Journal(runs, LEASE, before)


@jumping_time
async def test_events_are_numbered_on_where_the_log_ends_and_marks_have_no_number() -> None:
    paper, one = Paper(), await said("one")
    journal = journal_on(paper, Record(0, 0, [one, one]), Record(1, 2, [mark("call_0")]))
    await journal.append([one, TurnEnded(finish="stop")])
    await journal.append([mark("call_1")])
    await journal.append([one])
    assert [(record.at, record.first, record.next) for record in paper.written] == [(2, 2, 3), (3, 3, 3), (4, 3, 4)]
    assert journal.sent == 4


@jumping_time
async def test_what_comes_while_a_record_is_written_goes_into_the_next_one_in_its_order() -> None:
    paper = Paper()
    paper.may_write.clear()
    journal = journal_on(paper)
    tasks = [asyncio.create_task(journal.begin(f"call_{n}")) for n in range(4)]
    await paper.tried.wait()
    late = [asyncio.create_task(journal.begin(f"call_{n}")) for n in range(4, 9)]
    for _ in range(3):
        await asyncio.sleep(0)
    paper.may_write.set()
    await asyncio.gather(*tasks, *late)
    events = [event for record in paper.written for event in record.events]
    assert events == [mark(f"call_{n}") for n in range(9)]
    assert [record.at for record in paper.written] == [*range(len(paper.written))]
    assert len(paper.written) < 4


@jumping_time
async def test_a_log_that_is_away_gets_the_same_record_again() -> None:
    paper = Paper(Unavailable(), Unavailable(), Unavailable())
    journal = journal_on(paper)
    await journal.append([mark("call_0")])
    await journal.append([mark("call_1")])
    assert paper.written == [Record(0, 0, [mark("call_0")]), Record(1, 0, [mark("call_1")])]
    assert paper.tries == 5


@jumping_time
async def test_who_has_lost_the_run_writes_nothing_more() -> None:
    paper = Paper(Fenced())
    journal = journal_on(paper)
    for _ in range(2):
        with pytest.raises(Fenced):
            await journal.append([mark("call_0")])
    with pytest.raises(Fenced):
        await journal.begin("call_1")
    assert paper.tries == 1
    assert not paper.written


@jumping_time
async def test_who_is_told_that_another_has_the_run_does_not_ask_the_log() -> None:
    paper = Paper()
    journal = journal_on(paper)
    journal.lose()
    with pytest.raises(Fenced):
        await journal.append([mark("call_0")])
    assert not paper.tries


@jumping_time
async def test_a_run_that_is_to_be_left_does_not_wait_for_a_log_that_is_away() -> None:
    paper = Paper(*[Unavailable() for _ in range(100)])
    journal = journal_on(paper)
    journal.leave()
    with pytest.raises(HandedOver):
        await journal.append([mark("call_0")])
    assert paper.tries == 1


@jumping_time
async def test_one_that_waits_for_a_log_that_is_away_can_be_told_to_leave() -> None:
    paper = Paper(Unavailable())
    journal = journal_on(paper)
    waiting = asyncio.create_task(journal.append([mark("call_0")]))
    await paper.tried.wait()
    journal.leave()
    with pytest.raises(HandedOver):
        await waiting


@jumping_time
async def test_a_tool_that_is_stopped_before_it_begins_leaves_a_whole_record() -> None:
    paper = Paper()
    paper.may_write.clear()
    journal = journal_on(paper)
    waiting = asyncio.create_task(journal.begin("call_0"))
    await paper.tried.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    paper.may_write.set()
    await journal.append([mark("call_1")])
    assert [record.events for record in paper.written] == [[mark("call_0")], [mark("call_1")]]


@jumping_time
async def test_nothing_stands_behind_the_end() -> None:
    paper, one = Paper(), await said("one")
    paper.may_write.clear()
    journal = journal_on(paper)
    before = journal.note([mark("call_0")])
    plan = await plan_of(ask())
    ending = Ending(identity=ANONYMOUS, response=plan.response, marks=())
    finishing = asyncio.create_task(journal.finish(ending, [one]))
    await paper.tried.wait()
    behind = journal.note([ResponseQueued(response=plan.response)])
    paper.may_write.set()
    await asyncio.gather(before, finishing)
    with pytest.raises(Fenced):
        await behind
    assert paper.written == [Record(0, 0, [mark("call_0")])]
    assert paper.finished == [Record(1, 0, [one])]
