"""Lists of models come again and again, and a backend that was lost is found without a client paying for it."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest

from antwort.errors import AntwortError, BackendError, BackendTimeout, BackendUnavailable, ModelNotFound, NotFound
from antwort.providers.base import Finished, TextDelta
from antwort.providers.circuit_breaker import FAILURE_INTERVAL_SECONDS
from antwort.providers.fleet import REFRESH_INTERVAL_SECONDS, BackendStatus, Fleet, Member, Retrying
from antwort.providers.health import FIRST_CHECK_DELAY_SECONDS, call_later
from fleet_kit import FakeBackend, Time, asking, batches, fleet_of, member_of, said
from http_kit import until
from jumping_time import jumping_time


def asked_fleet(*backends: FakeBackend, time: Time) -> Fleet:
    """A fleet that asks its backends for their models."""
    members = [member_of(backend, time) for backend in backends]
    return Fleet(members, clock=time, later=time.later, refresh=60, health=10)


def status(fleet: Fleet, at: int = 0) -> tuple[str, tuple[str, ...] | None]:
    stands = fleet.status()[at]
    return stands.state, stands.models


async def looked_again(backend: FakeBackend, before: int, time: Time) -> None:
    """Somebody has looked, and set a timer for the next time."""
    await until(lambda: backend.looks > before and bool(time.pauses))


async def at_rest() -> None:
    """Nobody is being looked at."""
    await until(lambda: not asyncio.all_tasks() - {asyncio.current_task()})


# ---- lists ----


async def test_opening_waits_for_nobody_and_asks_everybody() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b", models=["x", "x"]), Time()
    a.gate = asyncio.Event()
    fleet = asked_fleet(a, b, time=time)
    await fleet.open()
    assert [status(fleet, at) for at in (0, 1)] == [("unknown", None)] * 2
    await until(lambda: status(fleet, 1) == ("ok", ("x",)))
    assert status(fleet) == ("unknown", None)
    a.gate.set()
    await until(lambda: status(fleet) == ("ok", ("m",)))
    await fleet.close()


async def test_lists_are_fetched_again_and_a_new_model_is_found() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = asked_fleet(a, b, time=time)
    await fleet.open()
    await at_rest()
    for new in ("x", "y"):
        b.listed = [new]
        time.pass_by(60)
        await at_rest()
        assert status(fleet, 1) == ("ok", (new,))
        assert await said(fleet, new) == "b"
    await fleet.close()


async def test_a_failed_fetch_keeps_the_last_list() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = asked_fleet(a, time=time)
    await fleet.open()
    await at_rest()
    assert status(fleet) == ("ok", ("m",))
    a.is_away = True
    time.pass_by(60)
    await at_rest()
    assert fleet.status() == [
        BackendStatus(name="a", kind="chat", state="unreachable", models=("m",), problem="a cannot be reached.")
    ]
    await fleet.close()


@pytest.mark.parametrize("fault", [NotFound("no such path"), BackendTimeout("slow"), BackendError("nonsense")])
async def test_a_backend_that_gives_no_list_is_there_all_the_same(fault: AntwortError) -> None:
    a, time = FakeBackend("a"), Time()
    a.list_fails = fault
    fleet = asked_fleet(a, time=time)
    await fleet.open()
    await until(lambda: status(fleet)[0] == "ok")
    assert (fleet.status()[0].problem, fleet.status()[0].models) == (fault.message, None)
    with pytest.raises(type(fault)):
        await fleet.models()
    await fleet.close()


async def test_a_model_that_is_not_known_is_looked_for_at_once_but_not_all_the_time() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = asked_fleet(a, b, time=time)
    await fleet.open()
    await at_rest()
    time.now += REFRESH_INTERVAL_SECONDS
    b.listed = ["new"]
    assert await said(fleet, "new") == "b"
    looks = a.looks
    for _ in range(5):
        with pytest.raises(ModelNotFound):
            await batches(fleet, "never")
    assert a.looks == looks
    await fleet.close()


async def test_a_request_that_comes_before_the_lists_waits_for_them() -> None:
    a, b, time = FakeBackend("a", models=["other"]), FakeBackend("b"), Time()
    b.gate = asyncio.Event()
    fleet = asked_fleet(a, b, time=time)
    await fleet.open()
    asked = asyncio.create_task(said(fleet))
    await until(lambda: b.looks == 1)
    b.gate.set()
    assert await asked == "b"
    assert not a.requests
    await fleet.close()


@jumping_time
async def test_a_list_that_does_not_come_is_not_waited_for_long() -> None:
    a, b, time = FakeBackend("a", models=["other"]), FakeBackend("b"), Time()
    b.gate = asyncio.Event()
    fleet = asked_fleet(a, b, time=time)
    async with asyncio.timeout(1.1):
        assert await said(fleet) == "b"  # the last resort: nobody knows what it has
    await fleet.close()


async def test_models_are_asked_for_even_when_nobody_opened_the_fleet() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = asked_fleet(a, time=time)
    assert [model.id for model in await fleet.models()] == ["m"]
    assert [model.id for model in await fleet.models()] == ["m"]
    assert (a.looks, time.pauses) == (1, [])
    await fleet.close()


async def test_when_no_list_is_known_the_reason_is_told() -> None:
    a, time = FakeBackend("a"), Time()
    a.is_away = True
    fleet = asked_fleet(a, time=time)
    with pytest.raises(BackendUnavailable, match="a cannot be reached"):
        await fleet.models()
    await fleet.close()


# ---- health ----


async def test_a_lost_backend_is_looked_for_in_growing_pauses_until_it_is_back() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = fleet_of(a, b, time=time)
    a.is_away = True
    assert await said(fleet) == "b"
    for pause in (FIRST_CHECK_DELAY_SECONDS, 2, 4, 8, 10, 10):
        assert time.pauses == [pause]
        looks = a.looks
        time.pass_by(pause)
        await looked_again(a, looks, time)
    a.is_away = False
    time.pass_by(10)
    await until(lambda: status(fleet)[0] == "ok")
    assert time.pauses == []
    assert await said(fleet) == "a"
    assert len(a.requests) == 2
    await fleet.close()


async def test_one_that_is_back_need_not_wait_until_its_circuit_breaker_is_half_open() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = fleet_of(a, time=time)
    a.is_away = True
    for _ in range(3):
        time.now += FAILURE_INTERVAL_SECONDS
        with pytest.raises(BackendUnavailable):
            await batches(fleet)
    stands = fleet.status()[0]
    assert (stands.state, stands.problem) == ("open", "a cannot be reached.")
    a.is_away = False
    time.pass_by(FIRST_CHECK_DELAY_SECONDS)
    await at_rest()
    stands = fleet.status()[0]
    assert (stands.state, stands.problem) == ("ok", None)
    await fleet.close()


async def test_one_that_is_back_takes_all_that_come_and_not_one_on_trial() -> None:
    a, time, hold = FakeBackend("a"), Time(), asyncio.Event()
    fleet = fleet_of(a, time=time)
    a.is_away = True
    for _ in range(3):
        time.now += FAILURE_INTERVAL_SECONDS
        with pytest.raises(BackendUnavailable):
            await batches(fleet)
    a.is_away = False
    time.pass_by(FIRST_CHECK_DELAY_SECONDS)
    await at_rest()
    a.scripts = [[hold, [TextDelta("a")], [Finished("stop")]] for _ in range(5)]
    answers = [asyncio.create_task(said(fleet)) for _ in range(5)]
    await until(lambda: a.under_way == 5)
    hold.set()
    assert await asyncio.gather(*answers) == ["a"] * 5
    await fleet.close()


async def test_two_requests_to_a_backend_that_is_gone_are_two_failures_however_often_they_are_tried() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = fleet_of(a, time=time)

    async def sleep(seconds: float) -> None:
        time.now += seconds

    a.is_away = True
    for _ in range(2):
        time.now += 5
        with pytest.raises(BackendUnavailable):
            _ = [batch async for batch in Retrying(fleet, sleep=sleep, clock=time).infer(asking())]
    assert (len(a.requests), status(fleet)[0]) == (6, "unreachable")
    await fleet.close()


async def test_a_model_that_is_gone_from_where_it_was_listed_is_found_where_it_went() -> None:
    a, b, time = FakeBackend("a", models=["m", "k"]), FakeBackend("b", models=["x"]), Time()
    fleet = asked_fleet(a, b, time=time)
    await fleet.open()
    await at_rest()
    a.scripts = [[ModelNotFound("m")] for _ in range(3)]
    a.listed, b.listed = ["k"], ["x", "m"]
    looks = a.looks
    with pytest.raises(ModelNotFound):
        await said(fleet)
    await at_rest()
    assert a.looks == looks  # the last look was a moment ago
    time.now += REFRESH_INTERVAL_SECONDS
    with pytest.raises(ModelNotFound):
        await said(fleet)
    await at_rest()
    assert await said(fleet) == "b"
    await fleet.close()


async def test_a_model_that_nobody_listed_starts_no_look_by_its_404() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = asked_fleet(a, time=time)
    await fleet.open()
    await at_rest()
    time.now += REFRESH_INTERVAL_SECONDS
    a.scripts = [[ModelNotFound("made-up")]]
    with pytest.raises(ModelNotFound):
        await said(fleet, "made-up")
    await at_rest()
    assert a.looks == 1
    await fleet.close()


async def test_opening_twice_looks_no_more_often() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = asked_fleet(a, time=time)
    for _ in range(2):
        await fleet.open()
        await at_rest()
    assert time.pauses == [60]
    await fleet.close()


async def test_nobody_waits_for_a_backend_that_is_known_to_be_lost() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b", models=["x"]), Time()
    fleet = asked_fleet(a, b, time=time)
    a.is_away = True
    assert [model.id for model in await fleet.models()] == ["x"]
    a.gate = asyncio.Event()
    time.now += REFRESH_INTERVAL_SECONDS
    looks = a.looks
    assert [model.id for model in await fleet.models()] == ["x"]
    assert a.looks == looks
    await fleet.close()


async def test_losing_and_finding_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.providers")
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = fleet_of(a, b, time=time)
    a.is_away = True
    for _ in range(3):
        await fleet.check()
        await said(fleet)
    a.is_away = False
    time.pass_by(FIRST_CHECK_DELAY_SECONDS)
    await until(lambda: status(fleet)[0] == "ok")
    assert [record.getMessage() for record in caplog.records] == [
        "the backend a is out of reach: a cannot be reached.",
        "the backend a is back",
    ]
    await fleet.close()


REQUEST: ContextVar[str] = ContextVar("request", default="nobody's")


class Listening(FakeBackend):
    """Remembers on whose behalf it was looked at."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.heard: list[str] = []

    async def check(self) -> None:
        self.heard.append(REQUEST.get())
        await super().check()


async def test_looks_that_a_request_started_are_on_nobody_s_behalf() -> None:
    a, b = Listening("a"), FakeBackend("b")
    fleet = Fleet([Member(each.name, each, models=["m"]) for each in (a, b)], health=0.001)
    REQUEST.set("a stranger's")
    a.is_away = True
    assert await said(fleet) == "b"  # sets a timer for the first look
    await until(lambda: len(a.heard) >= 2)
    await fleet.check()
    await fleet.models()
    assert set(a.heard) == {"nobody's"}
    await fleet.close()


async def test_a_timer_keeps_no_request_alive() -> None:
    REQUEST.set("a stranger's")
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call_later(0, lambda: told.set_result(REQUEST.get()))
    assert await told == "nobody's"


async def test_closing_ends_looks_under_way_and_timers() -> None:
    a, time = FakeBackend("a"), Time()
    a.gate = asyncio.Event()
    fleet = asked_fleet(a, time=time)
    await fleet.open()
    await until(lambda: a.looks == 1)
    await fleet.close()
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    assert time.pauses == []
    await fleet.open()
    assert time.pauses == []
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_look_that_fails_as_nobody_expected_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(FakeBackend):
        async def check(self) -> None:
            raise RuntimeError("odd")

    time = Time()
    fleet = fleet_of(Odd("a"), time=time)
    await fleet.open()
    await until(lambda: bool(caplog.records))
    assert "looking after the backend a failed" in caplog.text
    assert await said(fleet) == "a"
    await fleet.close()
