"""What wakes readers and workers: within a process, and between processes that share a PostgreSQL."""

from __future__ import annotations

import pytest

from antwort.storage.notifications import (
    Notifications,
    TailBuffer,
    TailBuffers,
    Wakeup,
    cancels_payload,
    events_payloads,
    work_payload,
)
from runs_cases import said

# ---- between processes ----


async def is_set(wakeup: Wakeup) -> bool:
    return await wakeup.wait(0.001)


async def test_payloads_wake_those_that_they_are_for() -> None:
    here = Notifications("here", None, None)
    here.receive([work_payload("there")])
    assert (await is_set(here.work), await is_set(here.cancels)) == (True, False)
    here.work.clear()
    here.receive([cancels_payload("there")])
    assert (await is_set(here.work), await is_set(here.cancels)) == (False, True)


async def test_those_who_follow_a_run_are_woken_by_its_id_however_many_are_in_a_payload() -> None:
    here = Notifications("here", None, None)
    ids = [f"resp_{number:032}" for number in range(1000)]
    payloads = events_payloads("sender_" + "f" * 32, ids)
    assert all(len(payload) < 8000 for payload in payloads)
    for run_id in (ids[0], ids[500], ids[999]):
        with here.tails.follow(run_id, key=1) as followed, here.tails.follow("resp_other", key=2) as other:
            here.receive(payloads)
            assert (await is_set(followed.wakeup), await is_set(other.wakeup)) == (True, False)


async def test_a_process_ignores_what_it_has_sent_itself() -> None:
    here = Notifications("here", None, None)
    with here.tails.follow("resp_1", key=1) as followed:
        here.receive([work_payload("here"), cancels_payload("here"), *events_payloads("here", ["resp_1"])])
        assert not await is_set(followed.wakeup)
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


@pytest.mark.parametrize("payload", ["", "w", "me x", "me e", "a b c d"])
async def test_what_no_process_of_ours_has_sent_is_ignored(payload: str) -> None:
    here = Notifications("here", None, None)
    here.receive([payload])
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


# ---- within a process ----


def test_a_reader_takes_what_it_heard_without_gaps_and_only_of_its_own_run() -> None:
    tails = TailBuffers()
    with tails.follow("resp_1", key=7) as tail:
        for at in (1, 2, 4):
            tails.publish("resp_1", 7, said(at, at, "x"))
        tails.publish("resp_1", 8, said(3, 3, "of another run under this id"))
        tails.publish("resp_2", 7, said(3, 3, "of another run under this key"))
        assert tail.take(2) == [said(2, 2, "x")]
        assert tail.take(3) == []
        assert tail.take(4) == [said(4, 4, "x")]


def test_of_what_a_slow_reader_heard_the_oldest_goes() -> None:
    tail = TailBuffer(7)
    for at in range(1000):
        tail.add(7, said(at, at, "x"))
    assert tail.take(0) == []
    assert [record.at for record in tail.take(990)] == [*range(990, 1000)]


async def test_a_wakeup_stays_set_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not await wakeup.wait(0.001)
    wakeup.set()
    assert await wakeup.wait(3600)
    assert await wakeup.wait(3600)
    wakeup.clear()
    wakeup.set_later(0.001)
    assert await wakeup.wait(3600)
