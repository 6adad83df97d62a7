"""The way out: numbers, the bound, and who is woken when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from antwort.engine.pipe import Numbered, Outlet
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import (
    ArgumentsDone,
    Batch,
    CallEnded,
    ContentPartDone,
    McpCallCompleted,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    StreamEvent,
    TurnEnded,
)
from antwort.api.items import FunctionCallOutput, OutputText
from antwort.api.responses import Response
from plan_kit import STEADY, said

ENDED = TurnEnded(finish="stop")
RAN = CallEnded(call_id="call_1", outcome="ran")


def delta(text: str = "x") -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def added() -> OutputItemAdded:
    return OutputItemAdded(output_index=0, item=said("Hi"))


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def reading(outlet: Outlet) -> asyncio.Task[list[Numbered]]:
    """A reader that waits."""
    task = asyncio.create_task(outlet.read())
    await settle()
    assert outlet.is_read
    return task


# ---- numbers ----


@pytest.mark.proves("CP-028", "RULING-13")
async def test_numbers_start_at_0_and_go_up_by_one_from_batch_to_batch() -> None:
    outlet = Outlet(8)
    outlet.publish([added(), delta("a")])
    outlet.publish([delta("b")])
    outlet.publish([delta("c"), delta("d")])
    assert [(numbered.first, len(numbered.events)) for numbered in await outlet.read()] == [(0, 2), (2, 1), (3, 2)]


@pytest.mark.proves("CP-028", "FR-025")
async def test_marks_are_not_sent_and_take_no_number() -> None:
    outlet = Outlet(8)
    outlet.publish([added(), RAN, delta("a"), ENDED])
    outlet.publish([ENDED])
    outlet.publish([delta("b")])
    assert await outlet.read() == [Numbered(0, [added(), delta("a")]), Numbered(2, [delta("b")])]


_batches = st.lists(st.lists(st.sampled_from([delta(), RAN, ENDED]), min_size=1, max_size=4), max_size=8)


@STEADY
@given(_batches, st.sets(st.integers(0, 8)))
@pytest.mark.proves("CP-028")
def test_whatever_is_published_and_whenever_it_is_read_no_number_is_left_out(
    batches: list[Batch], reads: set[int]
) -> None:
    async def all_sent() -> list[Numbered]:
        outlet, sent = Outlet(1), list[Numbered]()
        for i, batch in enumerate(batches):
            # A batch that holds marks ends with one.
            outlet.publish(sorted(batch, key=lambda event: isinstance(event, TurnEnded | CallEnded)))
            if i in reads and outlet.is_full:
                sent += await outlet.read()
        outlet.end()
        while batch_of := await outlet.read():
            sent += batch_of
        return sent

    sent = asyncio.run(all_sent())
    numbers = [numbered.first + i for numbered in sent for i in range(len(numbered.events))]
    events = [event for batch in batches for event in batch if isinstance(event, OutputTextDelta)]
    assert numbers == list(range(len(events)))
    assert [event for numbered in sent for event in numbered.events] == events


# ---- reading ----


async def test_a_reader_gets_all_that_waits_at_once_and_each_batch_once() -> None:
    outlet = Outlet(8)
    outlet.publish([delta("a")])
    outlet.publish([delta("b")])
    assert len(await outlet.read()) == 2
    outlet.publish([delta("c")])
    assert await outlet.read() == [Numbered(2, [delta("c")])]


async def test_a_waiting_reader_is_woken_by_the_next_batch() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.publish([delta("a")])
    assert await reader == [Numbered(0, [delta("a")])]
    assert not outlet.is_read


async def test_a_waiting_reader_is_not_woken_by_marks() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.publish([ENDED])
    await settle()
    assert outlet.is_read
    outlet.end()
    assert await reader == []


async def test_batches_that_come_before_the_reader_wakes_are_read_together() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.publish([delta("a")])
    outlet.publish([delta("b")])
    assert len(await reader) == 2


async def test_a_reader_that_is_cancelled_leaves_the_outlet_as_it_was() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    reader.cancel()
    await settle()
    assert not outlet.is_read
    outlet.publish([delta("a")])
    assert await outlet.read() == [Numbered(0, [delta("a")])]


# ---- the end ----


async def test_after_the_end_what_waits_is_read_and_then_nothing() -> None:
    outlet = Outlet(8)
    outlet.publish([delta("a")])
    outlet.end()
    assert await outlet.read() == [Numbered(0, [delta("a")])]
    assert await outlet.read() == []
    assert await outlet.read() == []


async def test_the_end_wakes_a_waiting_reader() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.end()
    assert await reader == []


async def test_the_last_batch_and_the_end_at_once_are_both_seen() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.publish([ResponseCompleted(response=Response(id="r", created_at=0, status="completed", model="m"))])
    outlet.end()
    assert len(await reader) == 1
    assert await outlet.read() == []


# ---- the bound ----


async def test_it_is_full_at_its_bound_and_takes_what_comes_all_the_same() -> None:
    outlet, states = Outlet(3), list[bool]()
    for text in ("a", "b", "the end"):
        outlet.publish([delta(text), delta()])
        states.append(outlet.is_full)
    assert states == [False, True, True]
    assert [numbered.first for numbered in await outlet.read()] == [0, 2, 4]
    assert not outlet.is_full


async def test_marks_do_not_fill_it() -> None:
    outlet = Outlet(1)
    outlet.publish([ENDED])
    assert not outlet.is_full


async def test_where_there_is_room_nobody_waits() -> None:
    await asyncio.wait_for(Outlet(1).wait_for_room(), 1)


async def test_who_waits_for_room_goes_on_when_it_is_read() -> None:
    outlet = Outlet(1)
    outlet.publish([delta("a")])
    writer = asyncio.create_task(outlet.wait_for_room())
    await settle()
    assert not writer.done()
    await outlet.read()
    await asyncio.wait_for(writer, 1)


async def test_who_waits_for_room_looks_again_when_it_was_filled_meanwhile() -> None:
    outlet = Outlet(1)
    outlet.publish([delta("a")])
    writer = asyncio.create_task(outlet.wait_for_room())
    await settle()
    await outlet.read()
    outlet.publish([delta("b")])  # before the writer woke
    await settle()
    assert not writer.done()
    await outlet.read()
    await asyncio.wait_for(writer, 1)


# ---- nobody reads ----


async def test_an_abandoned_outlet_numbers_and_drops_and_is_never_full() -> None:
    outlet = Outlet(1)
    outlet.publish([delta("a")])
    outlet.abandon()
    assert not outlet.is_full
    outlet.publish([delta("b"), delta("c")])
    outlet.end()
    assert await outlet.read() == []
    assert outlet._next == 3


async def test_who_waits_for_room_goes_on_when_the_reader_has_gone() -> None:
    outlet = Outlet(1)
    outlet.publish([delta("a")])
    writer = asyncio.create_task(outlet.wait_for_room())
    await settle()
    outlet.abandon()
    await asyncio.wait_for(writer, 1)


# ---- signs of life ----


@pytest.mark.proves("RULING-10")
async def test_a_tick_is_for_a_reader_who_waits_and_takes_no_number() -> None:
    outlet = Outlet(8)
    outlet.publish([delta("a")])
    await outlet.read()
    reader = await reading(outlet)
    outlet.tick()
    assert await reader == [Numbered(1, [])]
    outlet.publish([delta("b")])
    assert await outlet.read() == [Numbered(1, [delta("b")])]


async def test_no_tick_without_a_reader() -> None:
    outlet = Outlet(8)
    outlet.tick()
    outlet.end()
    assert await outlet.read() == []


async def test_no_tick_beside_a_batch_and_no_second_one() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.publish([delta("a")])
    outlet.tick()
    assert await reader == [Numbered(0, [delta("a")])]
    reader = await reading(outlet)
    outlet.tick()
    outlet.tick()
    assert await reader == [Numbered(1, [])]


async def test_no_tick_after_the_end() -> None:
    outlet = Outlet(8)
    reader = await reading(outlet)
    outlet.end()
    outlet.tick()
    assert await reader == []


# ---- all of it together ----


@pytest.mark.proves("CP-028", "MISTAKE-13")
async def test_a_slow_reader_holds_the_writer_back_and_gets_everything_in_order() -> None:
    outlet, most = Outlet(5), 0

    async def write() -> None:
        nonlocal most
        for i in range(100):
            if outlet.is_full:
                await outlet.wait_for_room()
            outlet.publish([delta(str(i)), McpCallCompleted(item_id="mcp_1", output_index=1), RAN])
            most = max(most, len(outlet._waiting))
        outlet.end()

    async def read() -> AsyncGenerator[tuple[int, StreamEvent], None]:
        while batches := await outlet.read():
            for batch in batches:
                for i, event in enumerate(batch.events):
                    yield batch.first + i, event
            await settle()

    writer = asyncio.create_task(write())
    got = [pair async for pair in read()]
    await writer
    assert [number for number, _ in got] == list(range(200))
    assert [event.delta for _, event in got if isinstance(event, OutputTextDelta)] == [str(i) for i in range(100)]
    assert most == 3


# ---- the bound of text ----


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
    outlet = Outlet(1000, text_bound=100)
    outlet.publish([delta("x")])
    was_full = [outlet.is_full]
    outlet.publish([*events])
    was_full.append(outlet.is_full)
    await outlet.read()
    assert [*was_full, outlet.is_full] == [False, True, False]
