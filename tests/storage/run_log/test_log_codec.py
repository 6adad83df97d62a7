"""Records become bytes and come back as they were; a packed log holds the same events under the same numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import (
    DELTAS,
    TERMINAL,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    Compacted,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseInProgress,
    ResponseQueued,
    RunEvent,
    SummaryTextDelta,
    TurnAbandoned,
    TurnEnded,
)
from antwort.api.items import LogProb
from antwort.api.responses import ConversationRef, Response
from antwort.api.wire import UNSET, encode, replace
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import PackedLog
from antwort.storage.event_codec import (
    compress,
    decode_events,
    decode_identity,
    decompress,
    encode_events,
    encode_identity,
    pack,
    unpack,
)
from antwort.storage.run_log import EventRecord, records_after
from api import samples
from api.samples import EVENTS, LOGPROB
from runs_cases import delta, marked, mixed, new_run, numbered, outcome

MARKS: list[RunEvent] = [
    TurnEnded(finish="stop", estimate=7),
    CallEnded(call_id="call_1", outcome="ran"),
    Compacted(is_missing=True),
    TurnAbandoned(start=1),
    CallBegun(call_id="call_1"),
]
SAMPLES = [*msgspec.json.decode(json.dumps(EVENTS), type=list[RunEvent]), *MARKS]
PIECES = [event for event in SAMPLES if isinstance(event, DELTAS)]
LOGPROBS = msgspec.convert(LOGPROB, LogProb)

pieces = st.builds(
    lambda event, delta, item: replace(event, delta=delta, item_id=item),
    st.sampled_from(PIECES),
    st.text(max_size=5),
    st.sampled_from(["a", "b"]),
)
with_logprobs = st.builds(
    lambda delta, logprobs: OutputTextDelta(
        item_id="a", output_index=0, content_index=0, delta=delta, logprobs=logprobs
    ),
    st.text(max_size=3),
    st.sampled_from([(), (LOGPROBS,), (replace(LOGPROBS, token="c"),)]),
)
runs = st.lists(st.lists(st.one_of(pieces, with_logprobs, st.sampled_from(SAMPLES)), min_size=1, max_size=12))


RESPONSE = msgspec.json.decode(json.dumps(samples.RESPONSE), type=Response)
responses = st.builds(
    lambda kind, changes: kind(response=replace(RESPONSE, **changes)),
    st.sampled_from([ResponseCreated, ResponseQueued, ResponseInProgress, *TERMINAL]),
    st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(["queued", "in_progress", "failed"]),
            "output": st.sampled_from([(), RESPONSE.output, RESPONSE.output[:1]]),
            "usage": st.sampled_from([None, RESPONSE.usage]),
            "conversation": st.sampled_from([UNSET, ConversationRef(id="conv_1")]),
            "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
            "tools": st.sampled_from([(), RESPONSE.tools]),
        },
    ),
)


def unpacked(log: PackedLog) -> list[RunEvent]:
    return [event for piece in log for event in unpack(piece.data, lambda: log[0].data)]


def size_of(log: PackedLog) -> int:
    return sum(len(piece.data) for piece in log)


def text(*deltas: str, part: int = 0) -> list[RunEvent]:
    return [OutputTextDelta(item_id="msg_1", output_index=0, content_index=part, delta=delta) for delta in deltas]


def test_the_samples_hold_every_event_that_a_run_may_say() -> None:
    assert {type(event) for event in SAMPLES} == set(get_args(RunEvent))


@given(runs)
def test_what_is_packed_comes_out_as_it_went_in(batches: list[list[RunEvent]]) -> None:
    assert unpacked(pack(batches)) == [*chain.from_iterable(batches)]


@given(st.lists(st.lists(pieces, min_size=1, max_size=40)))
def test_pieces_of_texts_come_out_one_by_one(batches: list[list[RunEvent]]) -> None:
    assert unpacked(pack(batches)) == [*chain.from_iterable(batches)]


@given(st.lists(st.lists(responses, min_size=1, max_size=4)))
def test_responses_come_out_whole_whatever_changed_in_them(batches: list[list[RunEvent]]) -> None:
    assert unpacked(pack(batches)) == [*chain.from_iterable(batches)]


def test_what_stays_the_same_in_a_response_is_kept_once() -> None:
    long = replace(RESPONSE, instructions="Be brief. " * 1000)
    events: list[RunEvent] = [ResponseCreated(response=long), ResponseInProgress(response=long)]
    events.append(ResponseCompleted(response=replace(long, status="completed")))
    assert size_of(pack([events])) < len(encode(long)) + 1000


def test_the_pieces_of_a_text_stand_together() -> None:
    said = [[piece] for piece in text(*["word "] * 256)]
    assert size_of(pack(said)) < len(encode(text("word " * 256))) + 256 * len("5,") + 100


def test_pieces_of_another_part_or_kind_stand_apart() -> None:
    other = SummaryTextDelta(item_id="msg_1", output_index=0, summary_index=0, delta="b")
    arguments = ArgumentsDelta(item_id="msg_1", output_index=0, delta="c")
    events: Sequence[RunEvent] = [*text("a", "a"), *text("a", part=1), other, other, arguments, *text("a")]
    assert unpacked(pack([events])) == events


@pytest.mark.parametrize("size", [1, 1000, 400_000])
def test_a_long_log_comes_in_pieces_that_can_be_read_each_by_itself(size: int) -> None:
    """No piece is much larger than half a million characters, unless one event is, and none has many events."""
    created, completed = ResponseCreated(response=RESPONSE), ResponseCompleted(response=replace(RESPONSE, model="m"))
    words = [event for place in range(12) for event in text("x" * size, "y", part=place)] + text(*["z"] * 5000)
    events: list[RunEvent] = [created, *words, completed]
    log = pack([events])
    assert len(log) > 1
    assert unpacked(log) == events
    number = 0
    for piece in log:
        found = unpack(piece.data, lambda: log[0].data)
        assert (piece.first, piece.next) == (number, number + len(found))
        assert len(found) <= 2048
        assert len(piece.data) < 2**20
        number = piece.next


def test_an_empty_log_is_one() -> None:
    assert unpacked(pack([])) == []


# ---- records ----

RECORDED = st.sampled_from([delta("a"), delta("b"), *marked(0, 0).events, *new_run("resp_1").events])
LOGS = st.lists(st.lists(RECORDED, min_size=1, max_size=5), max_size=8)


def records(batches: Sequence[Sequence[object]]) -> list[EventRecord]:
    found: list[EventRecord] = []
    for at, batch in enumerate(batches):
        found.append(EventRecord(at, found[-1].next if found else 0, [*batch]))  # type: ignore[list-item]
    return found


@given(batches=LOGS)
def test_events_are_read_as_they_were_written(batches: list[list[object]]) -> None:
    for record in records(batches):
        assert decode_events(encode_events(record.events)) == record.events


@given(batches=LOGS)
def test_a_packed_log_has_the_same_events_with_the_same_numbers(batches: list[list[object]]) -> None:
    log = records(batches)
    pieces = compress(pack(record.events for record in log))
    again = [
        EventRecord(at, each.first, decompress(each.data, lambda: pieces[0].data)) for at, each in enumerate(pieces)
    ]
    assert [each.next for each in again] == [piece.next for piece in pieces]
    assert numbered(again) == numbered(log)
    assert [event for record in again for event in record.events] == [event for each in log for event in each.events]


@pytest.mark.parametrize("log", [b"", b"nothing that was packed"])
def test_a_packed_log_that_is_damaged_is_a_fault_of_the_store(log: bytes) -> None:
    with pytest.raises(StoreFault):
        decompress(log, lambda: log)


@given(batches=LOGS, after=st.integers(-1, 30))
def test_what_is_behind_a_number_is_all_that_comes_after_it(batches: list[list[object]], after: int) -> None:
    log = records(batches)
    found = records_after(log, after)
    assert numbered(found) == [each for each in numbered(log) if each[0] > after]
    assert found == log or after >= 0


def test_a_run_ends_with_its_terminal_event() -> None:
    response = outcome(new_run("resp_1").new.response)
    assert EventRecord(3, 7, [delta("a"), ResponseCompleted(response=response)]).is_last
    assert not mixed(1, 2).is_last


def test_an_identity_travels_whole() -> None:
    identity = Identity("acme", "ann", models=("small", "big-*"), key="laptop")
    assert decode_identity(encode_identity(identity)) == identity
