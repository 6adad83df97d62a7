"""The pure parts of a run log: records as bytes, what is behind a number, who comes next, what processes tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import ResponseCompleted
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.runs import notices
from antwort.runs.choosing import Whose, choose
from antwort.runs.codec import behind, from_events, from_identity, is_last, to_events, to_identity
from antwort.runs.hints import Hint, Tail, Tails
from antwort.runs.notices import Notice
from antwort.runs.packing import packed, unpacked
from antwort.storage.run_log import Record
from runs_cases import delta, marked, mixed, new_run, numbered, outcome, said

EVENTS = st.sampled_from([delta("a"), delta("b"), *marked(0, 0).events, *new_run("resp_1").events])
LOGS = st.lists(st.lists(EVENTS, min_size=1, max_size=5), max_size=8)


def records(batches: Sequence[Sequence[object]]) -> list[Record]:
    found: list[Record] = []
    for at, batch in enumerate(batches):
        found.append(Record(at, found[-1].next if found else 0, [*batch]))  # type: ignore[list-item]
    return found


@given(batches=LOGS)
def test_events_are_read_as_they_were_written(batches: list[list[object]]) -> None:
    for record in records(batches):
        assert to_events(from_events(record.events)) == record.events


@given(batches=LOGS)
def test_a_packed_log_has_the_same_events_with_the_same_numbers(batches: list[list[object]]) -> None:
    log = records(batches)
    pieces = packed(log)
    again = [Record(at, each.first, unpacked(each.data, lambda: pieces[0].data)) for at, each in enumerate(pieces)]
    assert [each.next for each in again] == [piece.next for piece in pieces]
    assert numbered(again) == numbered(log)
    assert [event for record in again for event in record.events] == [event for each in log for event in each.events]


@pytest.mark.parametrize("log", [b"", b"nothing that was packed"])
def test_a_packed_log_that_is_damaged_is_a_fault_of_the_store(log: bytes) -> None:
    with pytest.raises(StoreFault):
        unpacked(log, lambda: log)


@given(batches=LOGS, after=st.integers(-1, 30))
def test_what_is_behind_a_number_is_all_that_comes_after_it(batches: list[list[object]], after: int) -> None:
    log = records(batches)
    found = behind(log, after)
    assert numbered(found) == [each for each in numbered(log) if each[0] > after]
    assert found == log or after >= 0


def test_a_run_ends_with_its_terminal_event() -> None:
    response = outcome(new_run("resp_1").new.response)
    assert is_last(Record(3, 7, [delta("a"), ResponseCompleted(response=response)]))
    assert not is_last(mixed(1, 2))


def test_an_identity_travels_whole() -> None:
    identity = Identity("acme", "ann", models=("small", "big-*"), key="laptop")
    assert to_identity(from_identity(identity)) == identity


# ---- who comes next ----


@dataclass(frozen=True)
class Waiting:
    owner: str
    queued_at: float
    conversation_id: str | None = None
    is_cancelled: bool = False

    @property
    def whose(self) -> Whose:
        return "acme", self.owner

    @property
    def place(self) -> tuple[float, int]:
        return self.queued_at, 0


ANN, BOB = Waiting("ann", 0.0), Waiting("bob", 0.0)


@pytest.mark.parametrize(
    ("free", "held", "count", "per_owner", "chosen"),
    [
        ([], [], 5, None, []),
        ([Waiting("ann", 2), Waiting("ann", 1)], [], 5, None, [1, 0]),
        ([Waiting("ann", 1), Waiting("ann", 2), Waiting("bob", 3)], [], 2, None, [0, 2]),
        ([Waiting("ann", 1), Waiting("bob", 3)], [ANN], 1, None, [1]),
        ([Waiting("ann", 1), Waiting("bob", 3)], [ANN], 5, 1, [1]),
        ([Waiting("ann", 1), Waiting("ann", 2, is_cancelled=True)], [ANN], 5, 1, [1]),
        ([Waiting("ann", 1, "c"), Waiting("ann", 2, "c"), Waiting("bob", 3, "c")], [], 5, None, [0, 2]),
        ([Waiting("ann", 1, "c")], [Waiting("ann", 9, "c")], 5, None, []),
        ([Waiting("ann", 1, "c", is_cancelled=True)], [Waiting("ann", 9, "c")], 5, None, [0]),
    ],
)
def test_who_comes_next(
    free: list[Waiting], held: list[Waiting], count: int, per_owner: int | None, chosen: list[int]
) -> None:
    assert choose(free, held, count, per_owner) == chosen


# ---- what processes tell ----


def test_notices_are_read_as_they_were_written() -> None:
    assert notices.read(notices.work("me")) == Notice("me", "w")
    assert notices.read(notices.cancels("me")) == Notice("me", "c")
    ids = [f"resp_{number:032}" for number in range(1000)]
    told = [notices.read(payload) for payload in notices.events("me", ids)]
    assert [run_id for notice in told if notice is not None for run_id in notice.ids] == ids
    assert all(len(payload) < 8000 for payload in notices.events("sender_" + "f" * 32, ids))


@pytest.mark.parametrize("payload", ["", "w", "me x", "me e", "a b c d"])
def test_what_nobody_here_has_written_is_no_notice(payload: str) -> None:
    assert notices.read(payload) is None


# ---- within a process ----


def test_a_reader_takes_what_it_heard_without_gaps_and_only_of_its_own_run() -> None:
    tails = Tails()
    with tails.follow("resp_1", key=7) as tail:
        for at in (1, 2, 4):
            tails.tell("resp_1", 7, said(at, at, "x"))
        tails.tell("resp_1", 8, said(3, 3, "of another run under this id"))
        tails.tell("resp_2", 7, said(3, 3, "of another run under this key"))
        assert tail.take(2) == [said(2, 2, "x")]
        assert tail.take(3) == []
        assert tail.take(4) == [said(4, 4, "x")]


def test_of_what_a_slow_reader_heard_the_oldest_goes() -> None:
    tail = Tail(7)
    for at in range(1000):
        tail.hear(7, said(at, at, "x"))
    assert tail.take(0) == []
    assert [record.at for record in tail.take(990)] == [*range(990, 1000)]


async def test_a_hint_stays_until_somebody_goes_to_look() -> None:
    hint = Hint()
    assert not await hint.wait(0.001)
    hint.set()
    assert await hint.wait(3600)
    assert await hint.wait(3600)
    hint.clear()
    hint.set_in(0.001)
    assert await hint.wait(3600)
