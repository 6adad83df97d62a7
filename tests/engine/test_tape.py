"""What a run has sent, read by many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    OutputTextDelta,
    StreamEvent,
    SummaryTextDelta,
)
from antwort.api.items import LogProb, OutputText
from antwort.engine.runs.event_log import NumberedBatch
from antwort.engine.tape import AT_ONCE, LOOSE, Tape, TapeReader, put_together
from antwort.testing import Answer, ScriptedProvider, answer, call, refuse, say, think
from antwort.testing.grammar import check_stream
from engine_kit import CLOCK, WEATHER, ask, engine_of, stream


def text(delta: str, *, item: str = "msg_1", part: int = 0) -> OutputTextDelta:
    return OutputTextDelta(item_id=item, output_index=0, content_index=part, delta=delta)


def arguments(delta: str, item: str) -> ArgumentsDelta:
    return ArgumentsDelta(item_id=item, output_index=0, delta=delta)


def part_added(index: int) -> ContentPartAdded:
    return ContentPartAdded(item_id="msg_1", output_index=0, content_index=index, part=OutputText(text=""))


# ---- putting together ----


def test_the_pieces_of_a_text_become_one() -> None:
    assert put_together([text("a"), text("b"), text("c")]) == [text("abc")]


def test_logprobs_are_put_together_as_well() -> None:
    first, second = (LogProb(token=token, logprob=-1.0) for token in "ab")
    one = OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="a", logprobs=(first,))
    two = OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="b", logprobs=(second,))
    [both] = put_together([one, two])
    assert isinstance(both, OutputTextDelta)
    assert (both.delta, both.logprobs) == ("ab", (first, second))


def test_what_stands_between_the_pieces_of_a_text_keeps_its_place() -> None:
    events: list[StreamEvent] = [text("a"), part_added(1), text("b", part=1), text("c", part=1)]
    assert put_together(events) == [text("a"), part_added(1), text("bc", part=1)]


def test_parts_are_kept_apart() -> None:
    def summary(delta: str, index: int) -> SummaryTextDelta:
        return SummaryTextDelta(item_id="rs_1", output_index=0, summary_index=index, delta=delta)

    assert put_together([summary("a", 0), summary("b", 1)]) == [summary("a", 0), summary("b", 1)]


def test_texts_that_come_by_turns_are_put_together_each() -> None:
    """So many calls at once do not keep their pieces."""
    events = [arguments(str(number), item) for number in range(100) for item in ("fc_1", "fc_2")]
    done = ArgumentsDone(item_id="fc_1", output_index=0, name="f", arguments="")
    whole = "".join(map(str, range(100)))
    assert put_together([*events, done]) == [arguments(whole, "fc_1"), arguments(whole, "fc_2"), done]


words = st.text(st.sampled_from("ab \n"), min_size=1, max_size=12)
spoken = st.one_of(
    st.builds(say, words),
    st.builds(think, words),
    st.builds(refuse, words),
    st.builds(lambda: call("weather", city="Paris")),
    st.builds(lambda: call("clock")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(spoken, min_size=1, max_size=5), st.lists(st.integers(0, 60), max_size=4))
async def test_any_stream_stays_grammatical_however_it_is_put_together(parts: list[Answer], cuts: list[int]) -> None:
    sent = await stream(engine_of(ScriptedProvider(answer(*parts))), ask(tools=[WEATHER, CLOCK]))
    pieces: list[StreamEvent] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(sent.events)], strict=True):
        pieces += put_together(sent.events[start:end])
    assert check_stream(enumerate(pieces)) == sent.response
    assert len(pieces) <= len(sent.events)


# ---- reading ----


async def read_all(reader: TapeReader) -> list[StreamEvent]:
    """To the end; the numbers are checked on the way."""
    events: list[StreamEvent] = []
    while batches := await reader.read():
        for batch in batches:
            assert batch.first == len(events)
            events += batch.events
    return events


async def test_every_reader_gets_everything_from_the_first_event_on() -> None:
    tape = Tape()
    early = tape.reader()
    tape.add([text("a")])
    assert await early.read() == [NumberedBatch(0, [text("a")])]
    late = tape.reader()
    tape.add([text("b")])
    tape.end()
    assert await read_all(late) == [text("a"), text("b")]
    assert await early.read() == [NumberedBatch(1, [text("b")])]
    assert await early.read() == []
    assert await read_all(tape.reader()) == [text("a"), text("b")]


async def test_a_reader_who_waits_is_woken_by_what_comes() -> None:
    tape = Tape()
    readers = [asyncio.create_task(read_all(tape.reader())) for _ in range(3)]
    await asyncio.sleep(0)
    tape.add([text("a")])
    await asyncio.sleep(0)
    tape.add([text("b")])
    tape.end()
    assert await asyncio.gather(*readers) == [[text("a"), text("b")]] * 3


async def test_a_sign_of_life_is_for_those_who_wait() -> None:
    tape = Tape()
    waiting, busy = tape.reader(), tape.reader()
    tape.add([text("a")])
    await waiting.read()
    read = asyncio.create_task(waiting.read())
    await asyncio.sleep(0)
    tape.tick()
    assert await read == [NumberedBatch(1, [])]
    assert await busy.read() == [NumberedBatch(0, [text("a")])]
    tape.end()
    assert await waiting.read() == []
    assert await busy.read() == []


async def test_one_who_is_far_behind_gets_it_in_parts() -> None:
    reader = Tape([text("a")] * AT_ONCE + [text("b")], is_ended=True).reader()
    assert [await reader.read() for _ in range(3)] == [
        [NumberedBatch(0, [text("a")] * AT_ONCE)],
        [NumberedBatch(AT_ONCE, [text("b")])],
        [],
    ]


async def test_what_is_kept_stays_within_bounds_and_no_reader_loses_anything() -> None:
    """A hundred thousand pieces, with readers that stand still at different places."""
    tape, still = Tape(), []
    for number in range(100_000):
        tape.add([text(str(number % 10))])
        if number in (10, 5_000, 50_000):
            reader = tape.reader()
            still.append((reader, said((await reader.read())[0].events)))
    assert len(tape) < 3 * LOOSE
    tape.end()
    whole = "0123456789" * 10_000
    for reader, before in still:
        assert before + said(await collect(reader)) == whole
    assert said(await read_all(tape.reader())) == whole


async def collect(reader: TapeReader) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while batches := await reader.read():
        events += [event for batch in batches for event in batch.events]
    return events


def said(events: Sequence[StreamEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, OutputTextDelta))


@settings(max_examples=80, deadline=None)
@given(st.data())
async def test_whoever_reads_when_gets_the_same_text(data: st.DataObject) -> None:
    tape = Tape(merge_after=4)
    readers: list[tuple[TapeReader, list[StreamEvent]]] = []
    for step in range(data.draw(st.integers(1, 40), label="steps")):
        match data.draw(st.sampled_from(["add", "add", "join", "read"])):
            case "add":
                tape.add([text(chr(97 + step % 26), item=data.draw(st.sampled_from(["m", "n"])))])
            case "join":
                readers.append((tape.reader(), []))
            case "read" if readers:
                reader, got = data.draw(st.sampled_from(readers))
                if reader.at < len(tape):
                    got += [event for batch in await reader.read() for event in batch.events]
    tape.end()
    for reader, got in readers:
        got += await collect(reader)
    texts = [{item: said([e for e in got if e.item_id == item]) for item in "mn"} for _, got in readers]  # type: ignore[union-attr]  # only deltas here
    assert all(each == texts[0] for each in texts)


async def test_nobody_is_kept_who_does_not_wait_any_more() -> None:
    tape = Tape()
    gone, there = tape.reader(), tape.reader()
    tape.forget(gone)
    assert tape._readers == {there}
    tape.end()
    assert await tape.reader().read() == []
    assert tape._readers == set()
