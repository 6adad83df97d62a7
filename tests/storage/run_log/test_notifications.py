"""What wakes readers and workers: within a process, and between processes that share a PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from antwort.storage.database import Cursor, Dialect, Values
from antwort.storage.notifications import Notifications, TailBuffer, Wakeup
from runs_cases import said

# ---- between processes ----


class Channel:
    """What goes from process to process, in place of a connection to PostgreSQL."""

    dialect: Dialect = "postgresql"
    newest_key = 0

    def __init__(self) -> None:
        self.payloads: list[str] = []

    def execute(self, statement: str, values: Values = (), /) -> Cursor:
        assert statement == "SELECT pg_notify(:channel, :payload)"
        assert isinstance(values, Mapping)
        self.payloads.append(str(values["payload"]))
        return cast("Cursor", None)

    def executemany(self, statement: str, values: Sequence[Values], /) -> object:
        raise AssertionError


async def is_set(wakeup: Wakeup) -> bool:
    return await wakeup.wait(0.001)


async def test_payloads_wake_those_that_they_are_for() -> None:
    here, there, channel = Notifications(), Notifications(), Channel()
    there.send_work(channel)
    here.receive(channel.payloads[0])
    assert (await is_set(here.work), await is_set(here.cancels)) == (True, False)
    here.work.clear()
    there.send_cancels(channel)
    here.receive(channel.payloads[1])
    assert (await is_set(here.work), await is_set(here.cancels)) == (False, True)


async def test_those_who_follow_a_run_are_woken_by_its_id_however_many_are_in_a_payload() -> None:
    here, there, channel = Notifications(), Notifications(), Channel()
    ids = [f"resp_{number:032}" for number in range(1000)]
    there.send_events(channel, ids)
    assert all(len(payload) < 8000 for payload in channel.payloads)
    for run_id in (ids[0], ids[500], ids[999]):
        with here.follow(run_id, key=1) as followed, here.follow("resp_other", key=2) as other:
            for payload in channel.payloads:
                here.receive(payload)
            assert (await is_set(followed.wakeup), await is_set(other.wakeup)) == (True, False)


async def test_a_process_ignores_what_it_has_sent_itself() -> None:
    here, channel = Notifications(), Channel()
    with here.follow("resp_1", key=1) as followed:
        here.send_work(channel)
        here.send_cancels(channel)
        here.send_events(channel, ["resp_1"])
        for payload in channel.payloads:
            here.receive(payload)
        assert len(channel.payloads) == 3
        assert not await is_set(followed.wakeup)
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


@pytest.mark.parametrize("payload", ["", "w", "me x", "me e", "a b c d"])
async def test_what_no_process_of_ours_has_sent_is_ignored(payload: str) -> None:
    here = Notifications()
    here.receive(payload)
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


# ---- within a process ----


def test_a_reader_takes_what_it_heard_without_gaps_and_only_of_its_own_run() -> None:
    tails = Notifications()
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
