"""A run is on record before anybody learns of it: each batch of a durable one, each turn and the outcome of others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.api.events import (
    Batch,
    CallBegun,
    Mark,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    TurnEnded,
)
from antwort.api.resources import Approval, Conversation
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.engine.loop.fold import Run, fold
from antwort.engine.plan import Plan
from antwort.engine.runs.event_log import EventLog
from antwort.engine.runs.recorders import TURN_RETRIES, BatchRecorder, TurnRecorder, new_row
from antwort.errors import HandedOver, ResponseNotFound, StoreFault
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Entry, PackedLog, Page
from antwort.storage.event_codec import unpack
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import EventRecord, Fenced, Lease, RunEnding, Unavailable
from antwort.testing import answer, call
from engine_kit import ask
from jumping_time import jumping_time
from plan_kit import called, ended, plan_of, ran, result, run_of, said
from run_log_kit import ForwardingLog
from serving import until
from takeover_kit import DEPOT, Depot, Log, Story, check_calls, engine_on, events_of, records_of

LEASE = Lease(run_id="resp_1", fence=1, worker="worker_1")


def mark(name: str) -> CallBegun:
    return CallBegun(call_id=name)


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def ended_as(response: Response) -> ResponseCompleted:
    return ResponseCompleted(response=replace(response, status="completed"))


# ---- durable runs: each batch ----


class Paper(ForwardingLog):
    """Takes what is written, when it is let; `faults` are what is raised first."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__(MemoryStore())
        self.written: list[EventRecord] = []
        self.finished: list[EventRecord] = []
        self.endings: list[RunEnding] = []
        self.faults = [*faults]
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.tries = 0
        self.tried = asyncio.Event()

    async def append(self, lease: Lease, record: EventRecord) -> None:
        await self._put(self.written, record)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        await self._put(self.finished, record)
        self.endings.append(ending)

    async def _put(self, place: list[EventRecord], record: EventRecord) -> None:
        self.tries += 1
        self.tried.set()
        await self.may_write.wait()
        if self.faults:
            raise self.faults.pop(0)
        place.append(record)


async def recorded_on(paper: Paper, records: int = 0, **fields: Any) -> tuple[BatchRecorder, Run]:
    """A recorder behind so many records, and the run that it records."""
    plan = await plan_of(ask(**fields))
    return BatchRecorder(paper, LEASE, plan, records), Run(plan.response)


@jumping_time
async def test_records_go_on_where_the_log_ends_and_marks_have_no_number() -> None:
    paper = Paper()
    recorder, run = await recorded_on(paper, records=2)
    log = EventLog(recorder=recorder, first=2)
    await log.append([delta("a"), TurnEnded(finish="stop")], run)
    await log.append([mark("call_1")], run)
    await log.append([delta("b")], run)
    assert [(record.at, record.first, record.next) for record in paper.written] == [(2, 2, 3), (3, 3, 3), (4, 3, 4)]
    assert log.next == 4


@jumping_time
async def test_what_comes_while_a_record_is_written_goes_into_the_next_one_in_its_order() -> None:
    paper = Paper()
    paper.may_write.clear()
    recorder, run = await recorded_on(paper)
    log = EventLog(recorder=recorder)
    reader = log.read()
    tasks = [asyncio.create_task(log.append([delta(str(n))], run)) for n in range(4)]
    await paper.tried.wait()
    tasks += [asyncio.create_task(log.append([delta(str(n))], run)) for n in range(4, 9)]
    for _ in range(3):
        await asyncio.sleep(0)
    paper.may_write.set()
    await asyncio.gather(*tasks)
    assert [event for record in paper.written for event in record.events] == [delta(str(n)) for n in range(9)]
    assert [record.at for record in paper.written] == [*range(len(paper.written))]
    assert len(paper.written) < 4
    assert [batch.first for batch in await reader.read()] == [*range(9)]


@jumping_time
async def test_nothing_is_published_before_it_is_durable() -> None:
    paper = Paper()
    paper.may_write.clear()
    recorder, run = await recorded_on(paper)
    log = EventLog(recorder=recorder)
    reading = asyncio.create_task(log.read().read())
    appending = asyncio.create_task(log.append([delta("a")], run))
    await paper.tried.wait()
    await asyncio.sleep(1)
    assert not reading.done()
    paper.may_write.set()
    await appending
    assert (await reading)[0].events == [delta("a")]


@jumping_time
async def test_a_log_that_is_away_gets_the_same_record_again() -> None:
    paper = Paper(Unavailable(), Unavailable(), Unavailable())
    recorder, run = await recorded_on(paper)
    await recorder.record(0, [mark("call_0")], run)
    await recorder.record(0, [mark("call_1")], run)
    assert paper.written == [EventRecord(0, 0, [mark("call_0")]), EventRecord(1, 0, [mark("call_1")])]
    assert paper.tries == 5


@jumping_time
async def test_who_has_lost_the_run_writes_nothing_more() -> None:
    paper = Paper(Fenced())
    recorder, run = await recorded_on(paper)
    for _ in range(3):
        with pytest.raises(Fenced):
            await recorder.record(0, [mark("call_0")], run)
    assert (paper.tries, paper.written, recorder.failure) == (1, [], None)


@jumping_time
async def test_no_batch_that_waits_behind_a_failed_write_counts_as_recorded() -> None:
    paper = Paper(Fenced())
    paper.may_write.clear()
    recorder, run = await recorded_on(paper)
    tasks = [asyncio.create_task(recorder.record(0, [mark(f"call_{n}")], run)) for n in range(4)]
    await paper.tried.wait()
    paper.may_write.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Fenced] * 4
    assert paper.written == []


@jumping_time
async def test_who_is_told_that_another_process_has_the_run_does_not_ask_the_log() -> None:
    paper = Paper()
    recorder, run = await recorded_on(paper)
    recorder.leave(is_lost=True)
    with pytest.raises(Fenced):
        await recorder.record(0, [mark("call_0")], run)
    assert not paper.tries


@jumping_time
async def test_an_error_that_nobody_expected_is_kept_and_nothing_takes_the_place_of_what_may_be_written() -> None:
    paper = Paper(ZeroDivisionError())
    recorder, run = await recorded_on(paper)
    for _ in range(2):
        with pytest.raises(Fenced):
            await recorder.record(0, [mark("call_0")], run)
    assert isinstance(recorder.failure, ZeroDivisionError)
    assert paper.tries == 1


@jumping_time
async def test_a_write_that_is_broken_off_is_the_last_one() -> None:
    paper = Paper()
    paper.may_write.clear()
    recorder, run = await recorded_on(paper)
    writing = asyncio.create_task(recorder.record(0, [mark("call_0")], run))
    await paper.tried.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    paper.may_write.set()
    with pytest.raises(Fenced):
        await recorder.record(0, [mark("call_1")], run)
    assert paper.written == []


@jumping_time
async def test_a_run_that_is_to_be_left_does_not_wait_for_a_log_that_is_away() -> None:
    paper = Paper(*[Unavailable() for _ in range(100)])
    recorder, run = await recorded_on(paper)
    recorder.leave()
    with pytest.raises(HandedOver):
        await recorder.record(0, [mark("call_0")], run)
    assert paper.tries == 1


@jumping_time
async def test_a_run_that_is_to_be_left_is_recorded_where_that_is_possible() -> None:
    paper = Paper()
    recorder, run = await recorded_on(paper)
    recorder.leave()
    await recorder.record(0, [mark("call_0")], run)
    assert paper.written == [EventRecord(0, 0, [mark("call_0")])]


@pytest.mark.parametrize(("is_lost", "fault"), [(False, HandedOver), (True, Fenced)])
@jumping_time
async def test_one_that_waits_for_a_log_that_is_away_can_be_told_to_stop(is_lost: bool, fault: type[Exception]) -> None:
    paper = Paper(Unavailable())
    recorder, run = await recorded_on(paper)
    waiting = asyncio.create_task(recorder.record(0, [mark("call_0")], run))
    await paper.tried.wait()
    recorder.leave(is_lost=is_lost)
    with pytest.raises(fault):
        await waiting


@jumping_time
async def test_the_last_batch_is_committed_with_the_outcome_and_nothing_stands_behind_it() -> None:
    paper = Paper()
    paper.may_write.clear()
    recorder, run = await recorded_on(paper)
    last = ended_as(run.response)
    before = asyncio.create_task(recorder.record(0, [mark("call_0")], run))
    await paper.tried.wait()
    finishing = asyncio.create_task(recorder.record(0, [last], run_of(recorder._plan, said("Hi"), ended("stop"))))
    paper.may_write.set()
    await asyncio.gather(before, finishing)
    with pytest.raises(Fenced):
        await recorder.record(1, [ResponseInProgress(response=run.response)], run)
    assert paper.written == [EventRecord(0, 0, [mark("call_0")])]
    assert paper.finished == [EventRecord(1, 0, [last])]
    (ending,) = paper.endings
    assert (ending.response, [type(each) for _, each in ending.marks]) == (last.response, [TurnEnded])


@pytest.mark.parametrize("fault", [ResponseNotFound("resp_1"), IllegalTransition("completed", "completed")])
@jumping_time
async def test_a_response_that_is_gone_or_has_ended_is_another_process_s(fault: Exception) -> None:
    paper = Paper(fault)
    recorder, run = await recorded_on(paper)
    with pytest.raises(Fenced):
        await recorder.record(0, [ended_as(run.response)], run)
    assert recorder.failure is None


@jumping_time
async def test_before_an_inference_nothing_is_left_to_be_recorded() -> None:
    paper = Paper()
    recorder, run = await recorded_on(paper)
    await recorder.checkpoint(run)
    assert not paper.tries


class SlowToBegin(Log):
    """Writes that a call begins when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_write = asyncio.Event(), asyncio.Event()

    async def append(self, lease: Lease, record: EventRecord) -> None:
        if any(isinstance(event, CallBegun) for event in record.events):
            self.asked.set()
            await self.may_write.wait()
        await super().append(lease, record)


@jumping_time
async def test_a_tool_that_is_stopped_before_it_begins_leaves_a_whole_record() -> None:
    log, depot = SlowToBegin(), Depot()
    async with engine_on(log, Story(answer(call("sell", n=1))), depot, at_once=0) as engine:
        run = await engine.start(ask(tools=[DEPOT], stream=True), on_disconnect="continue")
        await log.asked.wait()
        cancelling = asyncio.create_task(engine.cancel(ANONYMOUS, run.response_id))
        await until(lambda: engine.live_runs[run.response_id].signal.reason is not None)
        for _ in range(20):
            await asyncio.sleep(0)
        log.may_write.set()
        assert (await cancelling).status == "cancelled"
        seen = [event async for _, event in run.events()]
        assert isinstance(seen[-1], ResponseIncomplete)
        assert (await engine.ended(run.response_id)).status == "cancelled"
        events = events_of(await records_of(log, run.response_id, follow=False))
    assert sum(isinstance(event, CallBegun) for event in events) == 1
    check_calls(events, depot)
    assert not depot.ran
    assert len(engine.told) == 1


class SlowToKeepAlive(Log):
    """Writes an event that says again that the response is in progress when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_write = asyncio.Event(), asyncio.Event()

    async def append(self, lease: Lease, record: EventRecord) -> None:
        if record.at and all(isinstance(event, ResponseInProgress) for event in record.events):
            self.asked.set()
            await self.may_write.wait()
        await super().append(lease, record)


@jumping_time
async def test_a_run_that_ends_while_a_keep_alive_of_it_is_recorded_ends_here() -> None:
    log = SlowToKeepAlive()
    async with engine_on(log, Story(answer(asyncio.Event())), at_once=0, longest_silence=30.0) as engine:
        run = await engine.start(ask(stream=True), on_disconnect="continue")
        await log.asked.wait()
        cancelling = asyncio.create_task(engine.cancel(ANONYMOUS, run.response_id))
        await until(lambda: engine.live_runs[run.response_id].signal.reason is not None)
        for _ in range(20):
            await asyncio.sleep(0)
        log.may_write.set()
        seen = [event async for _, event in run.events()]
        assert isinstance(seen[-1], ResponseIncomplete)
        assert (await cancelling).status == "cancelled"
    assert len(engine.told) == 1


# ---- stored runs in the foreground: each turn, and the outcome ----


class Rows(MemoryStore):
    """Keeps what it is told, when it is let; `faults` are what is raised first."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = [*faults]
        self.turns: list[tuple[int, int, int]] = []
        """How many items and marks there were, and from which item on they were new."""
        self.outcomes: list[tuple[Response, PackedLog | None]] = []
        self.may_write, self.tried = asyncio.Event(), asyncio.Event()
        self.may_write.set()
        self.tries = 0

    async def _go_wrong(self) -> None:
        self.tries += 1
        self.tried.set()
        await self.may_write.wait()
        if self.faults:
            raise self.faults.pop(0)

    async def record_turn(
        self, identity: Identity, response: Response, marks: Sequence[tuple[int, Mark]], items_from: int = 0
    ) -> None:
        await self._go_wrong()
        self.turns.append((len(response.output), len(marks), items_from))
        await super().record_turn(identity, response, marks, items_from)

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        await self._go_wrong()
        self.outcomes.append((response, log))
        await super().finish(identity, response, marks, entries, approvals, log)


async def recorder_of(
    rows: Rows, batches: Sequence[Batch] | None = (), **fields: Any
) -> tuple[TurnRecorder, Plan, Run]:
    """A recorder of a run that has begun, and said so much."""
    plan = await plan_of(ask(**fields), store=rows)
    if plan.request.is_stored:
        await rows.begin(new_row(plan))
    return TurnRecorder(rows, plan, lambda: batches), plan, Run(plan.response, is_announced=True)


@jumping_time
async def test_only_turns_that_are_not_on_record_are_recorded() -> None:
    rows = Rows()
    recorder, plan, run = await recorder_of(rows)
    await recorder.checkpoint(run)
    first = run_of(plan, called(1), ended(), result(1), ran(1))
    for _ in range(2):
        await recorder.checkpoint(first)
    await recorder.checkpoint(
        run_of(plan, called(1), ended(), result(1), ran(1), called(2), ended(), result(2), ran(2))
    )
    assert rows.turns == [(2, 2, 0), (4, 4, 2)]


@jumping_time
async def test_what_is_said_within_a_turn_is_published_as_it_is() -> None:
    rows = Rows()
    recorder, _, run = await recorder_of(rows)
    batch: Batch = [delta("a"), ended()]
    assert await EventLog(recorder=recorder).append(batch, run) is batch
    assert not rows.tries


@pytest.mark.parametrize("faults", range(TURN_RETRIES + 1))
@jumping_time
async def test_a_turn_that_cannot_be_recorded_is_tried_again(faults: int) -> None:
    rows = Rows(*[StoreFault("The disk is full.")] * faults)
    recorder, plan, _ = await recorder_of(rows)
    await recorder.checkpoint(run_of(plan, said("Hi"), ended("stop")))
    assert (rows.tries, len(rows.turns)) == (faults + 1, 1)


@jumping_time
async def test_the_model_is_not_asked_when_a_turn_cannot_be_recorded_for_some_seconds() -> None:
    rows = Rows(*[StoreFault("The disk is full.")] * (TURN_RETRIES + 1))
    recorder, plan, _ = await recorder_of(rows)
    run = run_of(plan, said("Hi"), ended("stop"))
    with pytest.raises(StoreFault, match="The disk is full"):
        await recorder.checkpoint(run)
    await recorder.checkpoint(run)
    assert rows.turns == [(1, 1, 0)]


@pytest.mark.parametrize("how", ["deleted", "ended"])
@jumping_time
async def test_the_model_is_not_asked_when_the_response_is_gone_or_was_ended_by_another_process(how: str) -> None:
    rows = Rows()
    recorder, plan, _ = await recorder_of(rows)
    if how == "deleted":
        await rows.delete(ANONYMOUS, plan.response.id)
    else:
        await rows.fail_running("It was stopped.")
    with pytest.raises(StoreFault, match="ended by another process"):
        await recorder.checkpoint(run_of(plan, said("Hi"), ended("stop")))


@jumping_time
async def test_the_outcome_is_committed_before_the_terminal_event_is_published() -> None:
    rows = Rows()
    rows.may_write.clear()
    recorder, plan, run = await recorder_of(rows)
    batch: Batch = [ended_as(plan.response)]
    recording = asyncio.create_task(recorder.record(0, batch, fold(run, batch)))
    await rows.tried.wait()
    await asyncio.sleep(60)
    assert not recording.done()
    rows.may_write.set()
    assert await recording is batch
    assert [response.status for response, _ in rows.outcomes] == ["completed"]
    assert recorder.failure is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
@jumping_time
async def test_all_events_of_a_stream_are_recorded_with_its_outcome_where_they_are_there(
    *, stream: bool, is_whole: bool
) -> None:
    rows = Rows()
    plan = await plan_of(ask())
    before: list[Batch] = [[ResponseCreated(response=plan.response)], [delta("a"), delta("b"), ended("stop")]]
    recorder, plan, run = await recorder_of(rows, before if is_whole else None, stream=stream)
    last = ended_as(plan.response)
    await recorder.record(3, [last], run)
    ((_, log),) = rows.outcomes
    assert (log is not None) == (stream and is_whole)
    if log is not None:
        events = [event for piece in log for event in unpack(piece.data, lambda: log[0].data)]
        assert [type(event) for event in events] == [type(event) for event in [*before[0], *before[1], last]]
        assert events[1:3] == [delta("a"), delta("b")]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (StoreFault("The disk is full."), "The disk is full."),
        (IllegalTransition("failed", "completed"), "could not be stored"),
        (ZeroDivisionError(), "could not be stored"),
    ],
)
@jumping_time
async def test_an_outcome_that_cannot_be_committed_is_published_as_a_failure(fault: Exception, message: str) -> None:
    rows = Rows(fault)
    recorder, plan, run = await recorder_of(rows, [[delta("a")]], stream=True)
    *before, last = await recorder.record(1, [delta("b"), ended_as(plan.response)], run)
    assert before == [delta("b")]
    assert isinstance(last, ResponseFailed)
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert message in last.response.error.message
    assert isinstance(recorder.failure, StoreFault)


@jumping_time
async def test_a_commit_that_takes_too_long_is_given_up_when_the_process_ends() -> None:
    rows = Rows()
    rows.may_write.clear()
    recorder, plan, run = await recorder_of(rows)
    recording = asyncio.create_task(recorder.record(0, [ended_as(plan.response)], run))
    await rows.tried.wait()
    recorder.leave()
    (last,) = await recording
    assert isinstance(last, ResponseFailed)
    assert recorder.failure is not None
    assert rows.outcomes == []


@pytest.mark.parametrize("has_conversation", [True, False])
@jumping_time
async def test_of_a_response_that_is_not_stored_only_what_it_adds_to_its_conversation_is_recorded(
    *, has_conversation: bool
) -> None:
    rows = Rows()
    fields: dict[str, Any] = {"store": False}
    if has_conversation:
        conversation = Conversation(id="conv_1", created_at=0)
        await rows.begin_conversation(ANONYMOUS, conversation, ())
        fields["conversation"] = conversation.id
    recorder, plan, _ = await recorder_of(rows, **fields)
    run = run_of(plan, said("Hi"), ended("stop"))
    await recorder.checkpoint(run)
    batch: Batch = [ended_as(run.response)]
    assert await recorder.record(0, batch, fold(run, batch)) is batch
    assert (rows.turns, rows.outcomes) == ([], [])
    if has_conversation:
        page = await rows.conversation_items(ANONYMOUS, fields["conversation"], Page())
        assert page is not None
        assert len(page.items) == 2
