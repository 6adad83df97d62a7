"""What a run in the foreground has sent is kept for those who come back to it, as long as it is not too much."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import Batch, CallBegun, CallEnded, McpCallInProgress, OutputTextDelta, RunEvent, TurnEnded
from antwort.engine.runs.event_log import NumberedBatch
from antwort.engine.said import Said
from antwort.errors import ServerFault
from antwort.runs.packed import unpack

LONG = 3600.0
MARK = TurnEnded(finish="stop")


def piece(text: str) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta=text)


def pieces(count: int, text: str) -> list[Batch]:
    return [[piece(text)] for _ in range(count)]


def said_of(*batches: Batch, most: int = 2**20, is_over: bool = True) -> Said:
    said = Said(most)
    for batch in batches:
        said.add(batch)
    if is_over:
        said.end()
    return said


async def read(said: Said, after: int = -1) -> list[tuple[int, RunEvent]]:
    """One by one, each with its number."""
    found: list[tuple[int, RunEvent]] = []
    async with aclosing(said.read(after, LONG)) as reading:
        async for batches in reading:
            found += [pair for batch in batches for pair in enumerate(batch.events, batch.first)]
    return found


batches = st.lists(
    st.lists(st.sampled_from([piece("a"), piece("b"), MARK, CallBegun(call_id="c")]), min_size=1, max_size=4)
)


@given(batches)
async def test_it_can_be_read_from_every_number_on(given: list[Batch]) -> None:
    said = said_of(*given)
    visible = [event for batch in given for event in batch if isinstance(event, OutputTextDelta)]
    assert said.sent == len(visible)
    for after in range(-1, len(visible)):
        assert await read(said, after) == [*enumerate(visible)][after + 1 :]


async def test_readers_hear_what_comes_while_they_read_each_at_its_own_pace() -> None:
    said = said_of([piece("a")], is_over=False)
    quick, slow = said.read(-1, LONG), said.read(-1, LONG)
    assert await anext(quick) == [NumberedBatch(0, [piece("a")])]
    waiting = asyncio.ensure_future(anext(quick))
    await asyncio.sleep(0)
    said.add([piece("b")])
    said.add([piece("c"), MARK])
    assert await waiting == [NumberedBatch(1, [piece("b")]), NumberedBatch(2, [piece("c")])]
    said.end()
    assert await anext(quick, None) is None
    assert [batch async for batch in slow] == [
        [NumberedBatch(0, [piece("a")]), NumberedBatch(1, [piece("b")]), NumberedBatch(2, [piece("c")])]
    ]


async def test_one_who_has_nothing_to_read_gets_a_sign_of_life() -> None:
    said = said_of([piece("a")], is_over=False)
    reading = said.read(0, 0.0)
    assert await anext(reading) == [NumberedBatch(1, [])]
    await reading.aclose()


async def test_one_who_comes_late_gets_it_in_pieces() -> None:
    said = said_of(*pieces(1200, "a"))
    async with aclosing(said.read(-1, LONG)) as reading:
        assert [sum(len(batch.events) for batch in batches) async for batches in reading] == [512, 512, 176]


async def test_of_too_much_nothing_is_kept() -> None:
    said = said_of(*pieces(256, "word"), most=256 * 256)
    assert not said.is_whole
    assert said.packed([piece("the end")]) is None
    assert said.sent == 0


async def test_the_length_of_the_texts_counts() -> None:
    assert not said_of(*pieces(256, "x" * 1000), most=2**18).is_whole
    assert said_of(*pieces(256, "x" * 100), most=2**18).is_whole


async def test_those_who_read_when_it_becomes_too_much_read_on() -> None:
    said = said_of([piece("0")], most=0, is_over=False)
    reading = said.read(-1, LONG)
    first = await anext(reading)
    for number in range(1, 1000):
        said.add([piece(str(number))])
    said.end()
    rest = [batch for batches in [first, *[batches async for batches in reading]] for batch in batches]
    assert [(batch.first, batch.events) for batch in rest] == [(number, [piece(str(number))]) for number in range(1000)]


async def test_one_who_is_too_slow_then_is_left_behind() -> None:
    said = said_of([piece("0")], most=0, is_over=False)
    reading = said.read(-1, LONG)
    await anext(reading)
    for number in range(5000):
        said.add([piece(str(number))])
    with pytest.raises(ServerFault):
        await anext(reading)


async def test_what_goes_on_elsewhere_is_read_by_those_who_are_there() -> None:
    said = said_of([piece("a")], is_over=False)
    ahead, behind = said.read(-1, LONG), said.read(-1, LONG)
    await anext(ahead)
    said.add([piece("b")])
    said.let_go()
    assert [batch async for batch in ahead] == [[NumberedBatch(1, [piece("b")])]]
    assert [batch async for batch in behind] == [[NumberedBatch(0, [piece("a")]), NumberedBatch(1, [piece("b")])]]
    said.let_go()
    assert (said.is_whole, said.sent) == (False, 0)


def test_it_is_packed_with_its_end() -> None:
    said = said_of([piece("a")], [piece("b"), MARK], is_over=False)
    packed = said.packed([piece("c")])
    assert packed is not None
    assert unpack(packed[0].data, bytes) == [piece("a"), piece("b"), MARK, piece("c")]


def test_its_records_say_which_calls_have_begun() -> None:
    ended = CallEnded(call_id="call_1", outcome="ran")
    work = McpCallInProgress(item_id="mcp_1", output_index=0)
    said = said_of([work, ended], [piece("a")], is_over=False)
    (record,) = said.records(0, (), ["call_2"])
    assert (record.at, record.first, record.next) == (0, 0, 2)
    assert record.events == [work, ended, piece("a"), CallBegun(call_id="call_2")]
    assert said.ended_calls() == {"call_1"}
