"""The events of a run: their numbers, the bounds of the buffer, and what each reader gets when."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import (
    ArgumentsDone,
    Batch,
    CallBegun,
    CallEnded,
    ContentPartDone,
    McpCallCompleted,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseFailed,
    StreamEvent,
    TurnEnded,
)
from antwort.api.items import FunctionCallOutput, OutputText
from antwort.api.payload import CUT_FROM, PIECE
from antwort.api.responses import Response
from antwort.engine.loop.fold import Run
from antwort.engine.runs.event_log import (
    EVENT_OVERHEAD_BYTES,
    MAX_LAG_BATCHES,
    MAX_READ_EVENTS,
    EventLog,
    LogReader,
    NumberedBatch,
    Recorder,
    observe_streams,
)
from antwort.errors import ServerFault, StoreFault
from antwort.testing import ScriptedProvider, answer, call
from engine_kit import WEATHER, ask, engine_of, stream, weather_tool
from plan_kit import STEADY, said

ENDED = TurnEnded(finish="stop")
RAN = CallEnded(call_id="call_1", outcome="ran")
RESPONSE = Response(id="resp_1", created_at=0, status="completed", model="m")
LAST = ResponseCompleted(response=RESPONSE)
EVERYTHING = 2**40
"""Bytes: more than any of these tests publishes."""


def delta(text: str = "x") -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def added() -> OutputItemAdded:
    return OutputItemAdded(output_index=0, item=said("Hi"))


def texts(batches: list[NumberedBatch]) -> list[str]:
    return [event.delta for batch in batches for event in batch.events if isinstance(event, OutputTextDelta)]


def sent(batches: list[NumberedBatch]) -> list[tuple[int, list[StreamEvent]]]:
    return [(batch.first, batch.events) for batch in batches]


def numbered(batches: list[NumberedBatch]) -> list[tuple[int, StreamEvent]]:
    return [(batch.first + at, event) for batch in batches for at, event in enumerate(batch.events)]


async def rest(reader: LogReader) -> list[tuple[int, StreamEvent]]:
    """All events to the end of the log."""
    found: list[tuple[int, StreamEvent]] = []
    while batches := await reader.read():
        found += numbered(batches)
    return found


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def waiting(log: EventLog, reader: LogReader) -> asyncio.Task[list[NumberedBatch]]:
    """A read that waits."""
    task = asyncio.create_task(reader.read())
    await settle()
    assert log.is_awaited
    assert reader.waiter is not None
    return task


# ---- numbers ----


@pytest.mark.proves("CP-028", "RULING-13")
async def test_numbers_start_at_0_and_go_up_by_one_from_batch_to_batch() -> None:
    log = EventLog()
    reader = log.read()
    log.publish([added(), delta("a")])
    log.publish([delta("b")])
    log.publish([delta("c"), delta("d")])
    assert [(batch.first, len(batch.events)) for batch in await reader.read()] == [(0, 2), (2, 1), (3, 2)]
    assert log.next == 5


async def test_a_run_that_is_continued_gets_the_numbers_behind_those_of_the_process_before() -> None:
    log = EventLog(first=7)
    reader = log.read()
    log.publish([delta("a"), delta("b")])
    assert sent(await reader.read()) == [(7, [delta("a"), delta("b")])]
    assert log.next == 9


@pytest.mark.proves("CP-028", "FR-025")
async def test_marks_are_not_sent_and_take_no_number() -> None:
    log = EventLog()
    reader = log.read()
    log.publish([added(), RAN, delta("a"), ENDED])
    log.publish([CallBegun(call_id="call_1")])
    log.publish([delta("b")])
    log.publish([delta("c"), RAN, LAST])
    assert sent(await reader.read()) == [(0, [added(), delta("a")]), (2, [delta("b")]), (3, [delta("c"), LAST])]
    assert log.next == 5


_batches = st.lists(st.lists(st.sampled_from([delta(), RAN, ENDED]), min_size=1, max_size=4), max_size=8)


@STEADY
@given(_batches, st.sets(st.integers(0, 8)), st.integers(-1, 20), st.sampled_from([0, 2000, EVERYTHING]))
@pytest.mark.proves("CP-028")
def test_whatever_is_published_and_whenever_it_is_read_no_number_is_left_out(
    batches: list[Batch], reads: set[int], after: int, replay_bytes: int
) -> None:
    async def all_read() -> list[tuple[int, StreamEvent]]:
        log = EventLog(replay_bytes=replay_bytes, buffer_events=1)
        reader, found = log.read(after), list[tuple[int, StreamEvent]]()
        other = log.read()
        for at, batch in enumerate(batches):
            # A batch that holds marks ends with one.
            log.publish(sorted(batch, key=lambda event: isinstance(event, TurnEnded | CallEnded)))
            if at in reads and log.next > after + 1 and log.next > len(found) + after + 1:
                found += numbered(await reader.read())
        log.end()
        assert [number for number, _ in await rest(other)] == [*range(log.next)]
        return found + await rest(reader)

    events = [event for batch in batches for event in batch if isinstance(event, OutputTextDelta)]
    assert asyncio.run(all_read()) == [*enumerate(events)][after + 1 :]


# ---- reading ----


async def test_a_reader_gets_all_that_is_there_at_once_and_each_batch_once() -> None:
    log = EventLog()
    reader = log.read()
    log.publish([delta("a")])
    log.publish([delta("b")])
    assert len(await reader.read()) == 2
    log.publish([delta("c")])
    assert sent(await reader.read()) == [(2, [delta("c")])]


async def test_readers_go_at_their_own_pace_and_each_gets_everything() -> None:
    log = EventLog()
    fast, slow = log.read(), log.read()
    seen: list[str] = []
    for text in "abcd":
        log.publish([delta(text)])
        seen += texts(await fast.read())
    assert seen == texts(await slow.read()) == [*"abcd"]


async def test_a_waiting_reader_is_woken_by_the_next_batch() -> None:
    log = EventLog()
    reading = await waiting(log, log.read())
    log.publish([delta("a")])
    assert sent(await reading) == [(0, [delta("a")])]
    assert not log.is_awaited


async def test_a_waiting_reader_gets_nothing_of_marks() -> None:
    log = EventLog()
    reading = await waiting(log, log.read())
    log.publish([ENDED])
    await settle()
    assert not reading.done()
    log.end()
    assert await reading == []


async def test_batches_that_come_before_the_reader_wakes_are_read_together() -> None:
    log = EventLog()
    reading = await waiting(log, log.read())
    log.publish([delta("a")])
    log.publish([delta("b")])
    assert len(await reading) == 2


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    log = EventLog()
    reader = log.read()
    reading = await waiting(log, reader)
    reading.cancel()
    await settle()
    assert not log.is_awaited
    log.publish([delta("a")])
    assert sent(await reader.read()) == [(0, [delta("a")])]


async def test_one_read_returns_a_bounded_number_of_events() -> None:
    log = EventLog()
    reader, sizes = log.read(), list[int]()
    for _ in range(3 * MAX_READ_EVENTS):
        log.publish([delta()])
    log.end()
    while batches := await reader.read():
        sizes.append(sum(len(batch.events) for batch in batches))
    assert sizes == [MAX_READ_EVENTS] * 3


async def test_one_read_returns_a_bounded_amount_of_text() -> None:
    log = EventLog()
    reader = log.read()
    for _ in range(4):
        log.publish([delta("x" * (PIECE // 2))])
    log.end()
    assert [len(await reader.read()) for _ in range(3)] == [2, 2, 0]


async def test_large_batches_are_flagged_to_be_written_in_slices() -> None:
    log = EventLog()
    reader = log.read()
    log.publish([delta("x" * CUT_FROM)])
    log.publish([delta("x" * CUT_FROM), delta("x")])
    assert [batch.size > CUT_FROM for batch in await reader.read()] == [False, True]


async def test_a_reader_that_is_closed_reads_nothing_more() -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    busy, idle = log.read(), log.read()
    log.publish([delta("a")])
    idle.close()
    assert await idle.read() == []
    await busy.read()
    reading = await waiting(log, busy)
    busy.close()
    assert await reading == []
    assert log.readers == 0


# ---- the end ----


async def test_after_the_end_what_is_there_is_read_and_then_nothing() -> None:
    log = EventLog()
    reader = log.read()
    log.publish([delta("a")])
    log.end()
    assert sent(await reader.read()) == [(0, [delta("a")])]
    assert await reader.read() == []
    assert await reader.read() == []
    assert log.readers == 0


async def test_the_end_wakes_a_waiting_reader() -> None:
    log = EventLog()
    reading = await waiting(log, log.read())
    log.end()
    assert await reading == []


async def test_the_last_batch_and_the_end_at_once_are_both_seen() -> None:
    log = EventLog()
    reader = log.read()
    reading = await waiting(log, reader)
    log.publish([LAST])
    log.end()
    assert sent(await reading) == [(0, [LAST])]
    assert await reader.read() == []


async def test_a_log_that_has_ended_is_read_again_from_any_number() -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    for text in "abcd":
        log.publish([delta(text), ENDED])
    log.end()
    for after in range(-1, 5):
        assert [event for _, event in await rest(log.read(after))] == [*map(delta, "abcd")][after + 1 :]
    assert log.readers == 0


# ---- readers that come later ----


@pytest.mark.parametrize("after", range(-1, 9))
async def test_a_late_reader_begins_behind_any_number_and_reads_on(after: int) -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    first = log.read()
    for batch in ("ab", "c", "", "def"):
        log.publish([*map(delta, batch), ENDED])
    await first.read()
    assert log.can_replay(after)
    late = log.read(after)
    log.publish([delta("g"), delta("h")])
    log.end()
    assert await rest(late) == [*enumerate(map(delta, "abcdefgh"))][after + 1 :]
    assert texts(await first.read()) == ["g", "h"]


async def test_without_a_bound_for_replays_only_what_readers_have_not_read_is_kept() -> None:
    log = EventLog()
    fast, slow = log.read(), log.read()
    for text in "abc":
        log.publish([delta(text)])
    await fast.read()
    assert (log.is_whole, log.batches()) == (False, None)
    assert [log.can_replay(after) for after in (-1, 1, 2)] == [False, False, True]
    late = log.read(2)
    log.publish([delta("d")])
    assert texts(await slow.read()) == [*"abcd"]
    assert texts(await fast.read()) == texts(await late.read()) == ["d"]


@pytest.mark.proves("CP-028")
@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_reader_that_begins_behind_a_large_batch_gets_what_comes_after_it(has_ended: bool) -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    log.publish([delta("x" * 600_000)])
    late = log.read(0)
    log.publish([delta("y")])
    if has_ended:
        log.end()
    async with asyncio.timeout(5):
        assert texts(await late.read()) == ["y"]


async def test_readers_of_a_log_that_has_ended_hold_nothing_when_they_are_dropped() -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    log.publish([delta("a")])
    log.end()
    assert texts(await log.read().read()) == ["a"]
    log.read()
    assert log.readers == 0


async def test_without_readers_nothing_is_kept_but_the_numbers() -> None:
    log = EventLog()
    log.publish([delta("a"), delta("b")])
    assert (log.next, log.can_replay(-1), log.can_replay(1)) == (2, False, True)
    late = log.read(1)
    log.publish([delta("c")])
    assert sent(await late.read()) == [(2, [delta("c")])]


# ---- how much is kept for replays ----


async def test_beyond_the_bound_for_replays_nothing_can_be_read_from_the_beginning() -> None:
    log = EventLog(replay_bytes=10 * EVENT_OVERHEAD_BYTES)
    reader = log.read()
    for _ in range(9):
        log.publish([delta("x")])
    assert (log.is_whole, len(log.batches() or ())) == (True, 9)
    await reader.read()
    log.publish([delta("x" * EVENT_OVERHEAD_BYTES)])
    assert (log.is_whole, log.batches(), log.can_replay(-1)) == (False, None, False)
    log.publish([delta("y")])
    assert [batch.first for batch in await reader.read()] == [9, 10]
    assert log.buffered_bytes == 0


async def test_a_log_that_continues_another_is_never_whole() -> None:
    log = EventLog(replay_bytes=EVERYTHING, first=1)
    log.publish([delta("a")])
    assert (log.is_whole, log.can_replay(-1), log.can_replay(1)) == (False, False, True)


async def test_a_reader_that_is_not_far_behind_misses_nothing_when_the_bound_is_passed() -> None:
    log = EventLog(replay_bytes=100 * EVENT_OVERHEAD_BYTES)
    early, late = log.read(), log.read(after=30)
    for number in range(200):
        log.publish([delta(str(number))])
    log.end()
    assert not log.is_whole
    assert [number for number, _ in await rest(early)] == [*range(200)]
    assert [number for number, _ in await rest(late)] == [*range(31, 200)]


async def test_a_reader_that_is_far_behind_when_the_bound_is_passed_loses_its_place() -> None:
    log = EventLog(replay_bytes=(MAX_LAG_BATCHES + 1) * (EVENT_OVERHEAD_BYTES + 1))
    lagging, current = log.read(), log.read()
    for _ in range(MAX_LAG_BATCHES + 1):
        log.publish([delta()])
    while len(await current.read()) == MAX_READ_EVENTS:
        pass
    was_whole = log.is_whole
    log.publish([delta("late")])
    assert (was_whole, log.is_whole) == (True, False)
    with pytest.raises(ServerFault, match="too far behind"):
        await lagging.read()
    assert texts(await current.read()) == ["late"]
    assert log.readers == 1


async def test_a_reader_may_be_only_so_far_behind_where_nothing_is_kept_for_replays() -> None:
    log = EventLog()
    lagging = log.read()
    for _ in range(MAX_LAG_BATCHES + 1):
        log.publish([delta()])
    with pytest.raises(ServerFault, match="too far behind"):
        await lagging.read()
    assert log.readers == 0


# ---- back-pressure ----


async def test_it_is_full_at_its_bound_and_takes_what_comes_all_the_same() -> None:
    log, states = EventLog(buffer_events=3), list[bool]()
    reader = log.read(holds_back=True)
    for text in ("a", "b", "the end"):
        log.publish([delta(text), delta()])
        states.append(log.is_full)
    assert states == [False, True, True]
    assert [batch.first for batch in await reader.read()] == [0, 2, 4]
    assert not log.is_full


async def test_only_the_reader_that_holds_back_fills_it() -> None:
    log = EventLog(buffer_events=1, replay_bytes=EVERYTHING)
    log.read()
    log.publish([delta("a")])
    was_full = [log.is_full]
    reader = log.read(holds_back=True)
    was_full.append(log.is_full)  # it has not read what was there before
    log.publish([delta("b")])
    was_full.append(log.is_full)
    await reader.read()
    assert [*was_full, log.is_full] == [False, True, True, False]


async def test_marks_do_not_fill_it() -> None:
    log = EventLog(buffer_events=1)
    log.read(holds_back=True)
    log.publish([ENDED])
    assert not log.is_full


async def test_who_waits_for_room_goes_on_when_all_that_is_left_to_read_are_marks() -> None:
    """Here the model says nothing in its second turn."""
    story = ScriptedProvider(answer(call("weather", city="Rome")), answer())
    async with engine_of(story, weather_tool(), buffer_events=1) as engine:
        async with asyncio.timeout(5):
            outcome = await stream(engine, ask(tools=[WEATHER]))
    assert outcome.response.status == "completed"


async def test_where_there_is_room_nobody_waits() -> None:
    log = EventLog(buffer_events=1)
    log.read(holds_back=True)
    await asyncio.wait_for(log.wait_for_room(), 1)


async def test_who_waits_for_room_goes_on_when_it_is_read() -> None:
    log = EventLog(buffer_events=1)
    reader = log.read(holds_back=True)
    log.publish([delta("a")])
    writer = asyncio.create_task(log.wait_for_room())
    await settle()
    assert not writer.done()
    await reader.read()
    await asyncio.wait_for(writer, 1)


async def test_who_waits_for_room_waits_on_when_it_was_filled_meanwhile() -> None:
    log = EventLog(buffer_events=1)
    reader = log.read(holds_back=True)
    log.publish([delta("a")])
    writer = asyncio.create_task(log.wait_for_room())
    await settle()
    await reader.read()
    log.publish([delta("b")])  # before the writer woke
    await settle()
    assert not writer.done()
    await reader.read()
    await asyncio.wait_for(writer, 1)


async def test_who_waits_for_room_goes_on_when_the_reader_has_left() -> None:
    log = EventLog(buffer_events=1)
    reader = log.read(holds_back=True)
    log.publish([delta("a")])
    writer = asyncio.create_task(log.wait_for_room())
    await settle()
    reader.close()
    await asyncio.wait_for(writer, 1)
    log.publish([delta("b"), delta("c")])
    assert (log.is_full, log.next) == (False, 3)


async def test_a_reader_that_reads_in_parts_makes_room_with_each() -> None:
    log = EventLog(buffer_events=MAX_READ_EVENTS)
    reader = log.read(holds_back=True)
    for _ in range(2 * MAX_READ_EVENTS):
        log.publish([delta(), ENDED])
    await reader.read()
    await reader.read()
    assert not log.is_full


@pytest.mark.parametrize(
    "events",
    [
        [delta("x" * 50), delta("x" * 50)],
        [OutputItemDone(output_index=0, item=said("x" * 100))],
        [OutputItemDone(output_index=0, item=FunctionCallOutput(id="fco_1", call_id="call_1", output="x" * 100))],
        [OutputTextDone(item_id="msg_1", output_index=0, content_index=0, text="x" * 100)],
        [ArgumentsDone(item_id="fc_1", output_index=0, name="f", arguments="x" * 100)],
        [ContentPartDone(item_id="msg_1", output_index=0, content_index=0, part=OutputText(text="x" * 100))],
    ],
    ids=["deltas", "message", "result", "text", "arguments", "part"],
)
async def test_it_is_full_of_much_text_as_of_many_events(events: list[StreamEvent]) -> None:
    log = EventLog(buffer_events=1000, buffer_bytes=100)
    reader = log.read(holds_back=True)
    log.publish([delta("x" * 1000)])  # the batch that is read next does not count
    was_full = [log.is_full]
    log.publish([*events])
    was_full.append(log.is_full)
    await reader.read()
    assert [*was_full, log.is_full] == [False, True, False]


@pytest.mark.proves("CP-028", "MISTAKE-13")
async def test_a_slow_reader_holds_the_writer_back_and_gets_everything_in_order() -> None:
    log, most = EventLog(buffer_events=5), 0
    reader = log.read(holds_back=True)

    async def write() -> None:
        nonlocal most
        for number in range(100):
            if log.is_full:
                await log.wait_for_room()
            log.publish([delta(str(number)), McpCallCompleted(item_id="mcp_1", output_index=1), RAN])
            most = max(most, log.next - len(got))
        log.end()

    got = list[tuple[int, StreamEvent]]()
    writer = asyncio.create_task(write())
    while batches := await reader.read():
        got += numbered(batches)
        await settle()
    await writer
    assert [number for number, _ in got] == list(range(200))
    assert [event.delta for _, event in got if isinstance(event, OutputTextDelta)] == [str(i) for i in range(100)]
    assert most <= 6


# ---- keep-alives ----


@pytest.mark.proves("RULING-10")
async def test_a_tick_is_for_readers_that_wait_and_takes_no_number() -> None:
    log = EventLog()
    reader, other = log.read(), log.read()
    log.publish([delta("a")])
    await reader.read()
    reading = await waiting(log, reader)
    log.tick()
    assert sent(await reading) == [(1, [])]
    log.publish([delta("b")])
    assert sent(await reader.read()) == [(1, [delta("b")])]
    assert texts(await other.read()) == ["a", "b"]


async def test_there_is_no_tick_for_a_reader_that_does_not_wait() -> None:
    log = EventLog()
    reader = log.read()
    log.tick()
    log.end()
    assert await reader.read() == []


async def test_there_is_no_tick_beside_a_batch_and_no_second_one() -> None:
    log = EventLog()
    reader = log.read()
    reading = await waiting(log, reader)
    log.publish([delta("a")])
    log.tick()
    assert sent(await reading) == [(0, [delta("a")])]
    reading = await waiting(log, reader)
    log.tick()
    log.tick()
    assert sent(await reading) == [(1, [])]
    await waiting(log, reader)
    log.end()


async def test_there_is_no_tick_after_the_end() -> None:
    log = EventLog()
    reading = await waiting(log, log.read())
    log.end()
    log.tick()
    assert await reading == []


# ---- recording ----


class Paper(Recorder):
    """Records when it may."""

    records_each_batch = True

    def __init__(self) -> None:
        self.recorded: list[tuple[int, Batch]] = []
        self.may_record = asyncio.Event()
        self.fault: Exception | None = None

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:
        await self.may_record.wait()
        if self.fault is not None:
            raise self.fault
        self.recorded.append((first, batch))
        if batch[-1] is LAST:
            return [*batch[:-1], ResponseFailed(response=run.response)]
        return batch


async def test_a_batch_is_published_when_it_is_recorded_and_as_the_record_says() -> None:
    paper, run = Paper(), Run(RESPONSE)
    log = EventLog(recorder=paper)
    reading = await waiting(log, log.read())
    appending = asyncio.create_task(log.append([delta("a"), ENDED], run))
    await settle()
    assert not reading.done()
    paper.may_record.set()
    assert await appending == [delta("a"), ENDED]
    assert sent(await reading) == [(0, [delta("a")])]
    assert await log.append([delta("b"), LAST], run) == [delta("b"), ResponseFailed(response=RESPONSE)]
    assert paper.recorded == [(0, [delta("a"), ENDED]), (1, [delta("b"), LAST])]


async def test_a_batch_that_cannot_be_recorded_is_not_published() -> None:
    paper, log = Paper(), EventLog(replay_bytes=EVERYTHING)
    log.recorder, paper.fault = paper, StoreFault("The disk is full.")
    paper.may_record.set()
    with pytest.raises(StoreFault):
        await log.append([delta("a")], Run(RESPONSE))
    assert log.batches() == []


async def test_the_numbers_are_those_of_the_order_in_which_batches_came() -> None:
    paper, run = Paper(), Run(RESPONSE)
    log = EventLog(recorder=paper)
    reader = log.read()
    appending = [asyncio.create_task(log.append([delta(text)], run)) for text in "abc"]
    await settle()
    paper.may_record.set()
    await asyncio.gather(*appending)
    assert [(batch.first, *texts([batch])) for batch in await reader.read()] == [(0, "a"), (1, "b"), (2, "c")]


async def test_all_batches_with_their_marks_are_there_for_the_record() -> None:
    log = EventLog(replay_bytes=EVERYTHING)
    log.publish([delta("a"), ENDED])
    log.publish([RAN])
    assert log.batches() == [[delta("a"), ENDED], [RAN]]


class Witness:
    def __init__(self) -> None:
        self.seen: list[tuple[int, Batch]] = []
        self.ends = 0

    def on_batch(self, first: int, batch: Batch) -> None:
        self.seen.append((first, batch))

    def on_end(self) -> None:
        self.ends += 1


async def test_an_observer_sees_every_batch_whether_anybody_reads_or_not() -> None:
    witness = Witness()
    log = EventLog(observer=witness)
    log.publish([delta("a"), ENDED])
    log.publish([delta("b")])
    log.end()
    assert (witness.seen, witness.ends) == ([(0, [delta("a"), ENDED]), (1, [delta("b")])], 0)


async def test_an_observer_is_told_of_the_end_of_a_run_once() -> None:
    witness = Witness()
    with observe_streams(lambda _settings, _is_takeover: witness):
        async with engine_of(ScriptedProvider(answer())) as engine:
            await engine.create(ask())
    assert witness.ends == 1
    assert isinstance(witness.seen[-1][1][-1], ResponseCompleted)
