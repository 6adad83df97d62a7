"""A backend takes so many inferences at once: the next one goes where there is room, or waits its turn."""

from __future__ import annotations

import asyncio

from antwort.errors import BackendError, BackendUnavailable
from antwort.providers.base import Finished, TextDelta
from antwort.providers.fleet import Fleet
from antwort.providers.member import wait_for_slot
from antwort.providers.routing import Route, RouteTo, Rules
from fleet_kit import HEADERS, FakeBackend, Step, Time, member_of, open_circuit, said
from http_kit import until


def holding(hold: asyncio.Event, name: str) -> list[Step]:
    return [hold, [TextDelta(name)], [Finished("stop")]]


def fleet_with(most: int, *backends: FakeBackend) -> Fleet:
    time = Time()
    members = [member_of(each, time, models=each.listed, most=most) for each in backends]
    return Fleet(members, clock=time, later=time.later)


async def test_there_are_so_many_places_and_no_more_and_one_goes_to_whoever_has_waited_longest() -> None:
    holds = [asyncio.Event() for _ in range(5)]
    a = FakeBackend("a", *(holding(hold, str(number)) for number, hold in enumerate(holds)))
    fleet = fleet_with(2, a)
    asking = [asyncio.create_task(said(fleet)) for _ in range(5)]
    await until(lambda: a.under_way == 2)
    for number in (1, 0, 2, 4, 3):
        assert a.under_way <= 2
        holds[number].set()
        assert await asking[number] == str(number)
    assert a.under_way == 0


async def test_one_who_stops_waiting_takes_no_place_along() -> None:
    a, b = (member_of(FakeBackend(name), Time(), most=1) for name in "ab")
    assert a.slots is not None
    assert b.slots is not None
    assert a.slots.take()
    assert b.slots.take()
    early, late = (asyncio.create_task(wait_for_slot([a, b])) for _ in range(2))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.wait({early})
    b.slots.give_back()
    late.cancel()  # in the moment in which it is given one
    await asyncio.wait({late})
    assert (late.cancelled(), a.slots.take(), b.slots.take()) == (True, False, True)


async def test_one_that_is_full_is_passed_over_for_one_that_has_room() -> None:
    hold = asyncio.Event()
    a, b = FakeBackend("a", holding(hold, "a")), FakeBackend("b", holding(hold, "b"))
    fleet = fleet_with(1, a, b)
    first, second = asyncio.create_task(said(fleet)), asyncio.create_task(said(fleet))
    await until(lambda: a.under_way + b.under_way == 2)
    third = asyncio.create_task(said(fleet))
    await asyncio.sleep(0)
    assert (len(a.requests), len(b.requests)) == (1, 1)
    hold.set()
    assert list(await asyncio.gather(first, second, third)) == ["a", "b", "a"]


async def test_when_all_are_full_the_first_place_that_is_free_is_taken() -> None:
    for_ever, hold = asyncio.Event(), asyncio.Event()
    a, b = FakeBackend("a", holding(for_ever, "a")), FakeBackend("b", holding(hold, "b"))
    fleet = fleet_with(1, a, b)
    hung, second = asyncio.create_task(said(fleet)), asyncio.create_task(said(fleet))
    await until(lambda: a.under_way + b.under_way == 2)
    third = asyncio.create_task(said(fleet))
    hold.set()
    assert list(await asyncio.gather(second, third)) == ["b", "b"]
    hung.cancel()
    await asyncio.wait({hung})
    assert await said(fleet) == "a"


async def test_a_full_one_that_is_well_is_waited_for_rather_than_asking_one_that_is_lost() -> None:
    hold = asyncio.Event()
    a, b = FakeBackend("a", holding(hold, "a"), holding(hold, "a")), FakeBackend("b")
    fleet = fleet_with(1, b, a)
    b.is_away = True
    first = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    second = asyncio.create_task(said(fleet))
    await asyncio.sleep(0)
    hold.set()
    assert list(await asyncio.gather(first, second)) == ["a", "a"]
    assert len(b.requests) == 1


async def test_who_waits_for_a_place_takes_one_at_a_backend_that_is_back() -> None:
    hold = asyncio.Event()
    a, b = FakeBackend("a", holding(hold, "a")), FakeBackend("b")
    fleet = fleet_with(1, b, a)
    b.is_away = True
    first = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    waiting = [asyncio.create_task(said(fleet)) for _ in range(3)]
    await asyncio.sleep(0)
    b.is_away = False
    await fleet.check()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == ["b"] * 3  # one after the other: it has one place
    hold.set()
    assert await first == "a"
    await fleet.close()


async def test_one_who_hoped_and_left_takes_no_place_along() -> None:
    hold = asyncio.Event()
    a, b = FakeBackend("a", holding(hold, "a")), FakeBackend("b")
    fleet = fleet_with(1, b, a)
    b.is_away = True
    first = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    left, hoping = (asyncio.create_task(said(fleet)) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    b.is_away = False
    await fleet.check()
    assert await hoping == "b"
    assert await said(fleet) == "b"
    hold.set()
    assert await first == "a"
    await fleet.close()


async def test_a_failed_inference_gives_its_place_back() -> None:
    a, b = FakeBackend("a", [BackendError("x")]), FakeBackend("b")
    fleet = fleet_with(1, a, b)
    assert await said(fleet) == "b"
    b.scripts = [[BackendError("x")]] * 2
    assert [await said(fleet) for _ in range(2)] == ["a", "a"]
    assert await said(fleet) == "a"


async def test_nobody_waits_for_a_place_at_one_whose_circuit_breaker_opens() -> None:
    hold, time = asyncio.Event(), Time()
    a = FakeBackend("a", [HEADERS, *holding(hold, "a")])
    member = member_of(a, time, models=["m"], most=1)
    fleet = Fleet([member], clock=time, later=time.later)
    first = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    waiting = asyncio.create_task(said(fleet))
    await asyncio.sleep(0)
    open_circuit(member, time)
    hold.set()
    assert await first == "a"
    await asyncio.wait({waiting})
    error = waiting.exception()
    assert isinstance(error, BackendError)
    assert error.code == "backend_circuit_open"
    assert len(a.requests) == 1


async def test_a_route_that_names_a_backend_twice_gives_a_place_back_once() -> None:
    hold, time = asyncio.Event(), Time()
    a = FakeBackend("a", [hold, BackendUnavailable("gone")])
    member = member_of(a, time, models=["big", "small"], most=1)
    route = Route(model="m", to=(RouteTo(backend="a", model="big"), RouteTo(backend="a", model="small")))
    fleet = Fleet([member], Rules(routes=(route,)), clock=time, later=time.later)
    first = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    waiting = asyncio.create_task(said(fleet))
    await asyncio.sleep(0)
    open_circuit(member, time, "big")
    hold.set()
    assert {await first, await waiting} == {"a"}
    time.now += 60
    assert await said(fleet) == "a"
    held = asyncio.Event()
    a.scripts = [holding(held, "a") for _ in range(3)]
    asking = [asyncio.create_task(said(fleet)) for _ in range(3)]
    await until(lambda: a.under_way == 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert a.under_way == 1
    held.set()
    assert await asyncio.gather(*asking) == ["a"] * 3


async def test_looking_after_a_backend_takes_no_place() -> None:
    hold = asyncio.Event()
    a, time = FakeBackend("a", holding(hold, "a")), Time()
    fleet = Fleet([member_of(a, time, most=1)], clock=time, later=time.later)
    under_way = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    assert [model.id for model in await fleet.models()] == ["m"]
    await fleet.check()
    hold.set()
    assert await under_way == "a"
    await fleet.close()
