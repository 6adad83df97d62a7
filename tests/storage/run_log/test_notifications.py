"""What wakes readers and workers: within a process, and between processes that share a PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from antwort.storage.database import Cursor, Dialect, Values
from antwort.storage.notifications import Notifications, Wakeup

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
        with here.follow(run_id) as followed, here.follow("resp_other") as other:
            for payload in channel.payloads:
                here.receive(payload)
            assert (await is_set(followed), await is_set(other)) == (True, False)


async def test_a_process_ignores_what_it_has_sent_itself() -> None:
    here, channel = Notifications(), Channel()
    with here.follow("resp_1") as followed:
        here.send_work(channel)
        here.send_cancels(channel)
        here.send_events(channel, ["resp_1"])
        for payload in channel.payloads:
            here.receive(payload)
        assert len(channel.payloads) == 3
        assert not await is_set(followed)
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


@pytest.mark.parametrize("payload", ["", "w", "me x", "me e", "a b c d"])
async def test_what_no_process_of_ours_has_sent_is_ignored(payload: str) -> None:
    here = Notifications()
    here.receive(payload)
    assert not await is_set(here.work)
    assert not await is_set(here.cancels)


# ---- within a process ----


async def test_only_those_who_follow_a_run_are_woken_when_it_has_new_events() -> None:
    here = Notifications()
    with here.follow("resp_1") as one, here.follow("resp_1") as another, here.follow("resp_2") as other:
        here.publish("resp_1")
        here.publish("resp_3")
        assert [await is_set(each) for each in (one, another, other)] == [True, True, False]


async def test_a_wakeup_stays_set_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not await wakeup.wait(0.001)
    wakeup.set()
    assert await wakeup.wait(3600)
    assert await wakeup.wait(3600)
    wakeup.clear()
    wakeup.set_later(0.001)
    assert await wakeup.wait(3600)
