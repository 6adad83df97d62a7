"""A fleet is ready as long as one of its backends would take an inference; all who ask share the answer."""

from __future__ import annotations

import asyncio

import pytest

from antwort.errors import BackendError, BackendUnavailable
from antwort.providers.fleet import Fleet
from antwort.providers.health import READINESS_TTL_SECONDS
from fleet_kit import FakeBackend, Time, fleet_of, open_circuit, said


class Slow(FakeBackend):
    """Waits with its answer until it may give it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may_answer = asyncio.Event()

    async def check(self) -> None:
        self.looks += 1
        await self.may_answer.wait()


async def is_ready(fleet: Fleet, time: Time) -> bool:
    time.now += READINESS_TTL_SECONDS
    try:
        await fleet.check()
    except BackendUnavailable:
        return False
    return True


async def test_a_check_fails_only_when_nobody_can_be_reached() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = fleet_of(a, b, time=time)
    a.is_away = True
    assert await is_ready(fleet, time)
    b.is_away = True
    assert not await is_ready(fleet, time)
    assert [each.state for each in fleet.status()] == ["unreachable"] * 2
    a.is_away = False
    assert await is_ready(fleet, time)
    assert [each.state for each in fleet.status()] == ["ok", "unreachable"]
    await fleet.close()


async def test_it_is_not_ready_while_the_circuit_breaker_of_the_only_backend_is_open_and_closes_it_when_it_is() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = fleet_of(a, time=time)
    a.is_away = True
    open_circuit(fleet._members[0], time)
    assert not await is_ready(fleet, time)
    assert fleet.status()[0].state == "open"
    a.is_away = False
    assert await is_ready(fleet, time)
    assert await said(fleet) == "a"
    await fleet.close()


async def test_it_is_ready_while_the_only_backend_answers_with_errors() -> None:
    a, time = FakeBackend("a", *[[BackendError("x")]] * 9), Time()
    fleet = fleet_of(a, time=time)
    for _ in range(9):
        with pytest.raises(BackendError):
            await said(fleet)
    assert await is_ready(fleet, time)
    await fleet.close()


async def test_the_backends_are_asked_side_by_side_and_nobody_waits_for_the_slow_ones() -> None:
    slow, fast = Slow("slow"), FakeBackend("fast")
    fleet = fleet_of(slow, fast)
    await fleet.check()
    assert (slow.looks, fast.looks) == (1, 1)
    await fleet.close()


async def test_all_who_ask_at_once_and_soon_after_share_one_look() -> None:
    slow, time = Slow("a"), Time()
    fleet = fleet_of(slow, time=time)
    asked = [asyncio.create_task(fleet.check()) for _ in range(5)]
    while not slow.looks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    asked.pop().cancel()
    slow.may_answer.set()
    await asyncio.gather(*asked)
    await fleet.check()
    assert slow.looks == 1
    time.now += READINESS_TTL_SECONDS
    await fleet.check()
    assert slow.looks == 2
    await fleet.close()


async def test_a_fleet_that_is_closed_meanwhile_is_not_ready() -> None:
    slow = Slow("a")
    fleet = fleet_of(slow)
    asked = asyncio.create_task(fleet.check())
    while not slow.looks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await fleet.close()
    with pytest.raises(BackendUnavailable):
        await asked
