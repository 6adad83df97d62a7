"""Several backends as one: an inference goes to one that can answer, and to the next one while nothing was said."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
    UnsupportedFeature,
)
from antwort.identity import TENANT
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest, Delta, Finished, TextDelta
from antwort.providers.circuit_breaker import FAILURE_INTERVAL_SECONDS, TRIAL_RETRY_SECONDS
from antwort.providers.errors import CONNECT_TIMEOUT, CONNECTION_CLOSED, AnsweredTimeout, NotReady
from antwort.providers.failover import CONNECT_SECONDS, LEAST_CONNECT_SECONDS
from antwort.providers.fleet import Fleet, Member, Retrying
from antwort.providers.routing import Policy, Route, RouteTo, Rules
from fleet_kit import HEADERS, FakeBackend, Step, Time, asking, batches, fleet_of, member_of, said
from http_kit import until

ANSWER: list[list[Delta]] = [HEADERS, [TextDelta("b")], [Finished("stop")]]
ELSEWHERE = [
    BackendUnavailable("gone"),
    BackendUnavailable("closed", code=CONNECTION_CLOSED),
    NotReady("loading", retry_after=60),
    BackendTimeout("dark", code=CONNECT_TIMEOUT),
    BackendTimeout("slow"),
    BackendError("broken, or the credentials are bad"),
    BackendCut("cut"),
    RateLimited("busy", retry_after=60),
    ModelNotFound("m"),
]


async def failure(fleet: Fleet, model: str = "m") -> AntwortError:
    with pytest.raises(AntwortError) as caught:
        await batches(fleet, model)
    return caught.value


# ---- going on elsewhere ----


@pytest.mark.parametrize("error", ELSEWHERE, ids=str)
@pytest.mark.parametrize("before", [[], [HEADERS]], ids=["before the headers", "after the headers"])
async def test_what_fails_before_its_first_delta_goes_on_elsewhere(
    error: AntwortError, before: list[list[Delta]]
) -> None:
    a, b = FakeBackend("a", [*before, error]), FakeBackend("b")
    assert await batches(fleet_of(a, b)) == ANSWER
    assert (len(a.requests), len(b.requests)) == (1, 1)


async def test_what_is_wrong_with_the_request_is_said_at_once() -> None:
    error = BackendRefused("bad")
    a, b = FakeBackend("a", [error]), FakeBackend("b")
    assert await failure(fleet_of(a, b)) is error
    assert not b.requests


async def test_nothing_goes_elsewhere_after_the_first_delta() -> None:
    cut = BackendCut("cut")
    a, b = FakeBackend("a", [HEADERS, [TextDelta("Hel")], cut]), FakeBackend("b")
    async with aclosing(fleet_of(a, b).infer(asking())) as stream:
        assert [await anext(stream), await anext(stream)] == [HEADERS, [TextDelta("Hel")]]
        with pytest.raises(BackendCut) as caught:
            await anext(stream)
    assert (caught.value, b.requests) == (cut, [])


async def test_that_the_backend_has_answered_is_told_at_once_and_only_once() -> None:
    hold = asyncio.Event()
    a, b = FakeBackend("a", [HEADERS, hold, BackendCut("cut")]), FakeBackend("b")
    async with aclosing(fleet_of(a, b).infer(asking())) as stream:
        assert await anext(stream) == HEADERS
        hold.set()
        assert [batch async for batch in stream] == ANSWER[1:]


async def test_when_all_fail_the_most_telling_error_is_told() -> None:
    busy = RateLimited("busy", retry_after=7)
    backends = [FakeBackend("a", [BackendError("x")]), FakeBackend("b", [busy]), FakeBackend("c", [ModelNotFound("m")])]
    assert await failure(fleet_of(*backends)) is busy


async def test_an_answer_that_is_given_up_is_closed_before_the_next_is_asked() -> None:
    under_way: list[int] = []

    class Nosy(FakeBackend):
        def _be_there(self) -> None:
            under_way.append(a.under_way)

    a = FakeBackend("a", [HEADERS, BackendCut("cut")])
    assert await said(fleet_of(a, Nosy("b"))) == "b"
    assert under_way == [0]


async def test_closing_in_mid_answer_closes_the_backend_s_answer_and_blames_nobody() -> None:
    a = FakeBackend("a", [[TextDelta("Hi")], asyncio.Event()])
    fleet = fleet_of(a)
    async with aclosing(fleet.infer(asking())) as stream:
        assert await anext(stream) == [TextDelta("Hi")]
        assert a.under_way == 1
    assert (a.under_way, fleet.status()[0].state) == (0, "ok")


SCRIPTS: dict[str, list[Step]] = {
    "answers": [HEADERS, [TextDelta("x")], [Finished("stop")]],
    "answers at once": [[TextDelta("x"), Finished("stop")]],
    "is not there": [BackendUnavailable("x")],
    "fails after headers": [HEADERS, BackendError("x")],
    "breaks off": [HEADERS, [TextDelta("x")], BackendCut("x")],
    "refuses": [BackendRefused("x")],
}


@given(st.lists(st.sampled_from(sorted(SCRIPTS)), min_size=1, max_size=5))
async def test_whatever_they_do_the_first_to_say_anything_is_the_last_to_be_asked(moods: list[str]) -> None:
    backends = [FakeBackend(str(at), SCRIPTS[mood]) for at, mood in enumerate(moods)]
    seen: list[list[Delta]] = []
    error: AntwortError | None = None
    try:
        async for batch in fleet_of(*backends).infer(asking()):
            seen.append(batch)  # noqa: PERF401 - what came before an error counts
    except AntwortError as raised:
        error = raised
    ends = [at for at, mood in enumerate(moods) if mood not in ("is not there", "fails after headers")]
    asked = min(ends, default=len(moods) - 1) + 1
    assert [len(backend.requests) for backend in backends] == [1] * asked + [0] * (len(moods) - asked)
    assert sum(backend.under_way for backend in backends) == 0
    assert seen.count(HEADERS) <= 1
    assert HEADERS not in seen[1:]
    assert sum(TextDelta("x") in batch for batch in seen) == (
        moods[asked - 1] in ("answers", "answers at once", "breaks off")
    )
    assert (error is None) == moods[asked - 1].startswith("answers")


# ---- names ----

RENAMED = Rules(
    aliases={"nick": "real"},
    routes=(Route(model="real", to=(RouteTo(backend="a", model="inner"), RouteTo(backend="b"))),),
)


async def test_a_backend_is_asked_for_the_model_by_its_own_name() -> None:
    a, b = FakeBackend("a", [BackendError("x")]), FakeBackend("b")
    assert await said(fleet_of(a, b, rules=RENAMED), "nick") == "b"
    assert [a.requests[0].model, b.requests[0].model] == ["inner", "real"]


async def test_an_error_names_the_model_that_the_client_asked_for() -> None:
    a, b = FakeBackend("a", [ModelNotFound("inner")]), FakeBackend("b", [ModelNotFound("real")])
    error = await failure(fleet_of(a, b, rules=RENAMED), "nick")
    assert error.message == "The model 'nick' does not exist."


@pytest.mark.proves("RULING-4")
async def test_a_model_that_nobody_has_is_not_found_without_asking_for_an_answer() -> None:
    a, b = FakeBackend("a"), FakeBackend("b")
    assert isinstance(await failure(fleet_of(a, b), "other"), ModelNotFound)
    assert not a.requests + b.requests


@pytest.mark.proves("RULING-4")
async def test_the_only_backend_is_asked_for_what_it_does_not_list_and_its_404_is_ours() -> None:
    a = FakeBackend("a", [ModelNotFound("other")])
    assert isinstance(await failure(fleet_of(a), "other"), ModelNotFound)
    assert a.requests[0].model == "other"


async def test_each_backend_is_spoken_to_in_its_own_words() -> None:
    own = Capabilities(max_tokens_field="max_completion_tokens")
    a, b = FakeBackend("a", [BackendError("x")]), FakeBackend("b", capabilities=own)
    async with aclosing(fleet_of(a, b).infer(asking(max_tokens=9))) as stream:
        assert [batch async for batch in stream] == ANSWER
    assert a.requests[0] == asking(max_tokens=9)
    assert b.requests[0] == asking(max_completion_tokens=9)


# ---- who is asked first ----


async def test_one_that_was_lost_is_asked_last_until_it_is_back() -> None:
    a, b, time = FakeBackend("a"), FakeBackend("b"), Time()
    fleet = fleet_of(a, b, time=time)
    a.is_away = True
    assert [await said(fleet) for _ in range(3)] == ["b"] * 3
    assert len(a.requests) == 1
    a.is_away = False
    b.scripts = [[BackendError("x")]]
    assert await said(fleet) == "a"
    assert await said(fleet) == "a"


async def test_by_weight_the_dice_decide() -> None:
    a, b = FakeBackend("a"), FakeBackend("b")
    throws = iter([0.0, 0.6, 0.4, 0.99])
    fleet = fleet_of(a, b, rules=Rules(policy="weighted"), random=lambda: next(throws))
    assert [await said(fleet) for _ in range(4)] == ["a", "b", "a", "b"]


async def test_the_one_that_was_drawn_and_fails_is_followed_by_the_others() -> None:
    a, b = FakeBackend("a"), FakeBackend("b", [BackendError("x")])
    assert await said(fleet_of(a, b, rules=Rules(policy="weighted"), random=lambda: 0.99)) == "a"


# ---- circuit breakers ----


async def interrupted(fleet: Fleet, time: Time, tenant: str = "ada") -> AntwortError:
    """A request of the tenant's that fails, and the health check that is due after it, if one is."""
    TENANT.set(tenant)
    error = await failure(fleet)
    time.pass_by(0)
    await until(lambda: not asyncio.all_tasks() - {asyncio.current_task()})
    return error


async def opened(a: FakeBackend, time: Time) -> Fleet:
    """A fleet of one backend that was gone for so long that its circuit breaker has opened."""
    fleet = fleet_of(a, time=time)
    a.is_away = True
    for _ in range(3):
        time.now += FAILURE_INTERVAL_SECONDS
        assert (await failure(fleet)).code == "backend_unavailable"
    a.is_away = False
    assert fleet.status()[0].state == "open"
    return fleet


ANSWERED = [
    BackendError("broken, or the credentials are bad"),
    NotReady("loading", retry_after=60),
    BackendOverloaded("busy"),
    AnsweredTimeout("slow"),
    BackendRefused("bad"),
    ContextTooLong("long"),
    RateLimited("busy", retry_after=60),
    ModelNotFound("m"),
]
INTERRUPTED: list[list[Step]] = [
    [BackendTimeout("slow")],
    [BackendTimeout("dark", code=CONNECT_TIMEOUT)],
    [BackendUnavailable("closed", code=CONNECTION_CLOSED)],
    [HEADERS, BackendCut("cut")],
    [HEADERS, [TextDelta("Hel")], BackendCut("cut")],
]


@pytest.mark.proves("RULING-19")
@pytest.mark.parametrize("error", ANSWERED, ids=repr)
async def test_an_answered_error_never_opens_it(error: AntwortError) -> None:
    a, time = FakeBackend("a", *[[error]] * 99), Time()
    fleet = fleet_of(a, time=time)
    for number in range(99):
        assert await interrupted(fleet, time, str(number)) is error
        time.now += FAILURE_INTERVAL_SECONDS
    assert fleet.status()[0].state == "ok"
    assert await said(fleet) == "a"


@pytest.mark.proves("RULING-19")
@pytest.mark.parametrize("script", INTERRUPTED, ids=repr)
async def test_a_timeout_or_a_broken_stream_opens_it_only_when_a_health_check_fails_too(script: list[Step]) -> None:
    a, time = FakeBackend("a", *[script] * 3), Time()
    fleet = fleet_of(a, time=time)
    await interrupted(fleet, time, "ada")
    assert (a.checks, fleet.status()[0].state) == (1, "ok")
    a.check_fails = True
    assert (await interrupted(fleet, time, "bob")).code != "backend_circuit_open"
    assert (a.checks, fleet.status()[0].state) == (2, "open")
    assert (await failure(fleet)).code == "backend_circuit_open"


@pytest.mark.proves("RULING-19")
async def test_however_often_a_tenants_requests_time_out_there_is_one_health_check_in_a_while() -> None:
    a, time = FakeBackend("a", *[[BackendTimeout("slow")]] * 99), Time()
    fleet = fleet_of(a, time=time)
    for _ in range(20):
        await interrupted(fleet, time, "ada")
    assert a.checks == 1
    for tenant in ("bob", "bob", "eve"):
        await interrupted(fleet, time, tenant)
    assert a.checks == 3
    time.now += 10
    await interrupted(fleet, time, "ada")
    assert a.checks == 4


async def test_there_is_one_health_check_at_a_time_and_it_decides_for_all() -> None:
    a, time = FakeBackend("a", *[[BackendTimeout("slow")]] * 5), Time()
    a.check_fails = True
    fleet = Fleet([member_of(a, time, models=["m", "n"])], clock=time, later=time.later)
    for at, model in enumerate("mmnnm"):
        TENANT.set(str(at))
        await failure(fleet, model)
    time.pass_by(0)
    await until(lambda: fleet.status()[0].state == "open")
    assert a.checks == 1
    assert [(await failure(fleet, model)).code for model in "mn"] == ["backend_circuit_open"] * 2


async def test_an_answer_to_anybody_while_the_health_check_is_under_way_keeps_it_closed() -> None:
    a, time = FakeBackend("a", [BackendTimeout("slow")]), Time()
    a.check_fails = True
    fleet = fleet_of(a, time=time)
    await failure(fleet)
    assert await said(fleet) == "a"
    time.pass_by(0)
    await until(lambda: a.checks == 1)
    assert fleet.status()[0].state == "unreachable"
    assert await said(fleet) == "a"


async def test_a_health_check_that_fails_as_nobody_expected_opens_nothing() -> None:
    class Odd(FakeBackend):
        async def check(self) -> None:
            self.checks += 1
            raise RuntimeError("odd")

    a, time = Odd("a", [BackendTimeout("slow")]), Time()
    fleet = fleet_of(a, time=time)
    await interrupted(fleet, time)
    assert (a.checks, time.pauses) == (1, [])
    assert await said(fleet) == "a"


@pytest.mark.proves("RULING-19")
async def test_clients_that_leave_blame_nobody_however_long_they_have_waited() -> None:
    a, time = FakeBackend("a", *[[asyncio.Event()]] * 9), Time()
    a.check_fails = True
    fleet = fleet_of(a, time=time)
    for _ in range(9):
        asked = asyncio.create_task(said(fleet))
        await until(lambda: a.under_way == 1)
        time.pass_by(3600)
        asked.cancel()
        await asyncio.wait({asked})
    assert (fleet.status()[0].state, a.checks) == ("unknown", 0)
    assert await said(fleet) == "a"


async def test_an_open_one_is_a_503_at_once_that_says_when_to_come_again() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = await opened(a, time)
    time.now += 4
    error = await failure(fleet)
    assert (error.status, error.code, error.retry_after) == (503, "backend_circuit_open", 6)
    assert len(a.requests) == 3


@pytest.mark.proves("RULING-19")
async def test_it_is_open_for_one_model_alone() -> None:
    a, time = FakeBackend("a", models=["m", "n"]), Time()
    fleet = await opened(a, time)
    a.is_away = True
    assert (await failure(fleet, "m")).code == "backend_circuit_open"
    assert (await failure(fleet, "n")).code == "backend_unavailable"
    a.is_away = False
    assert await said(fleet, "n") == "a"
    assert await said(fleet, "m") == "a"


async def test_an_answer_between_connection_failures_starts_the_count_anew() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = fleet_of(a, time=time)
    for _ in range(9):
        for a.is_away in (True, True):
            time.now += FAILURE_INTERVAL_SECONDS
            await failure(fleet)
        a.is_away = False
        assert await said(fleet) == "a"


async def test_half_open_one_request_at_a_time_is_a_trial_and_its_headers_close_it() -> None:
    a, time, hold = FakeBackend("a"), Time(), asyncio.Event()
    fleet = await opened(a, time)
    time.now += 10
    a.scripts = [[hold, HEADERS, asyncio.Event()]]
    async with aclosing(fleet.infer(asking())) as stream:
        trial = asyncio.create_task(anext(stream))
        await until(lambda: a.under_way == 1)
        assert (await failure(fleet)).retry_after == TRIAL_RETRY_SECONDS
        hold.set()
        assert await trial == HEADERS
        assert fleet.status()[0].state == "ok"
        assert await said(fleet) == "a"


async def test_a_trial_whose_client_leaves_makes_room_for_the_next() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = await opened(a, time)
    time.now += 10
    a.scripts = [[asyncio.Event()]]
    trial = asyncio.create_task(said(fleet))
    await until(lambda: a.under_way == 1)
    trial.cancel()
    await asyncio.wait({trial})
    assert await said(fleet) == "a"


@pytest.mark.parametrize("error", ANSWERED, ids=repr)
async def test_a_trial_that_is_answered_by_an_error_closes_it(error: AntwortError) -> None:
    a, time = FakeBackend("a"), Time()
    fleet = await opened(a, time)
    time.now += 10
    a.scripts = [[error]]
    assert await failure(fleet) is error
    assert fleet.status()[0].state == "ok"


async def test_a_trial_that_fails_to_connect_opens_it_again() -> None:
    a, time = FakeBackend("a"), Time()
    fleet = await opened(a, time)
    time.now += 10
    a.is_away = True
    assert (await failure(fleet)).code == "backend_unavailable"
    error = await failure(fleet)
    assert (error.code, error.retry_after) == ("backend_circuit_open", 10)


# ---- those that answer with errors are tried last ----


@pytest.mark.parametrize("policy", ["failover", "weighted"])
async def test_one_that_answers_with_an_error_is_tried_last_for_a_while(policy: Policy) -> None:
    a, b, time = FakeBackend("a", [BackendError("x")]), FakeBackend("b"), Time()
    fleet = fleet_of(a, b, time=time, rules=Rules(policy=policy), random=lambda: 0.0)
    assert [await said(fleet) for _ in range(3)] == ["b"] * 3
    assert len(a.requests) == 1
    b.scripts = [[BackendError("x")]]
    assert await said(fleet) == "a"  # it is tried, and is well again
    assert await said(fleet) == "a"
    a.scripts = [[BackendError("x")]]
    time.now += 10
    assert [await said(fleet) for _ in range(3)] == ["b"] * 3
    time.now += 10
    assert await said(fleet) == "a"


async def test_one_that_answers_with_an_error_is_tried_last_for_that_model_alone() -> None:
    a, b = FakeBackend("a", [BackendError("x")], models=["m", "n"]), FakeBackend("b", models=["m", "n"])
    fleet = fleet_of(a, b)
    assert [await said(fleet, model) for model in "mmn"] == ["b", "b", "a"]


async def test_one_that_answers_with_an_error_is_tried_before_one_that_is_lost() -> None:
    a, b = FakeBackend("a"), FakeBackend("b", *[[BackendError("x")]] * 2)
    fleet = fleet_of(a, b)
    a.is_away = True
    for _ in range(2):
        assert (await failure(fleet)).code == "backend_unavailable"
    assert await said(fleet) == "b"
    assert len(a.requests) == 2


async def test_a_request_that_all_answer_with_errors_changes_nothing_for_others() -> None:
    a, b = (FakeBackend(name, *[[BackendError("x")]] * 9) for name in "ab")
    fleet = fleet_of(a, b)
    for _ in range(9):
        assert isinstance(await failure(fleet), BackendError)
    assert await said(fleet) == "a"


# ---- sharing the time for connecting ----


class Far(FakeBackend):
    """Takes as long to connect to as it may, and then is not there."""

    def __init__(self, name: str, time: Time, shares: list[float | None]) -> None:
        super().__init__(name)
        self.time, self.shares = time, shares

    def _be_there(self) -> None:
        self.shares.append(share := CONNECT_LIMIT_SECONDS.get())
        self.time.now += share or 0
        raise BackendTimeout("dark", code=CONNECT_TIMEOUT)


@pytest.mark.parametrize(("several", "expected"), [(1, [None]), (2, [0.9, 0.9]), (3, [0.6, 0.6, 0.6]), (9, [0.4] * 9)])
async def test_all_who_can_answer_are_connected_to_while_the_client_can_be_told_by_the_status(
    several: int, expected: list[float | None]
) -> None:
    time, shares = Time(), list[float | None]()
    fleet = fleet_of(*(Far(str(at), time, shares) for at in range(several)), time=time)
    await failure(fleet)
    assert shares == [pytest.approx(each) for each in expected]
    await failure(fleet)  # those that are known to be lost get less
    assert shares[several:] == ([None] if several == 1 else [LEAST_CONNECT_SECONDS] * several)
    assert CONNECT_LIMIT_SECONDS.get() is None


async def test_one_that_fails_at_once_leaves_its_time_to_the_next() -> None:
    time, shares = Time(), list[float | None]()
    await failure(fleet_of(FakeBackend("a", [BackendError("x")]), Far("b", time, shares), time=time))
    assert shares == [pytest.approx(CONNECT_SECONDS)]


class Slow(FakeBackend):
    """Is there, and fails three seconds later."""

    def __init__(self, name: str, time: Time, error: AntwortError) -> None:
        super().__init__(name)
        self.time, self.error = time, error

    def _be_there(self) -> None:
        self.time.now += 3
        raise self.error


@pytest.mark.parametrize(
    "error",
    [BackendError("x"), NotReady("x"), BackendTimeout("x"), BackendUnavailable("x", code=CONNECTION_CLOSED)],
    ids=repr,
)
async def test_one_that_is_there_and_fails_late_leaves_the_time_for_connecting_to_the_next(error: AntwortError) -> None:
    time, shares = Time(), list[float | None]()
    await failure(fleet_of(Slow("a", time, error), Far("b", time, shares), time=time))
    assert shares == [pytest.approx(CONNECT_SECONDS)]


async def test_waiting_for_a_place_uses_no_time_for_connecting() -> None:
    time, shares, hold = Time(), list[float | None](), asyncio.Event()
    a, b = FakeBackend("a", [hold], [BackendError("x")]), Far("b", time, shares)
    members = [member_of(each, time, models=["m"], most=1) for each in (a, b)]
    fleet = Fleet(members, clock=time, later=time.later)
    assert members[1].slots is not None
    assert members[1].slots.take()
    first = asyncio.create_task(said(fleet))
    await asyncio.sleep(0)
    second = asyncio.create_task(failure(fleet))
    await asyncio.sleep(0)
    time.now += 3
    members[1].slots.give_back()
    hold.set()
    await asyncio.gather(first, second)
    assert shares == [pytest.approx(CONNECT_SECONDS / 2)]


# ---- with retries around it ----


async def test_retries_begin_only_when_all_have_been_tried_and_end_with_the_first_delta() -> None:
    time = Time()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    gone = BackendUnavailable("gone")
    a, b = FakeBackend("a", [HEADERS, gone]), FakeBackend("b", [gone])
    retrying = Retrying(fleet_of(a, b, time=time), sleep=sleep, clock=time, random=lambda: 1.0)
    seen = [batch async for batch in retrying.infer(asking())]
    assert seen == [HEADERS, [TextDelta("a")], [Finished("stop")]]
    assert (len(a.requests), len(b.requests), waits) == (2, 1, [0.2])


# ---- what there is ----


async def test_the_models_are_all_that_clients_may_ask_for_each_once() -> None:
    a, b = FakeBackend("a", models=["m", "n"]), FakeBackend("b", models=["m", "x"])
    time, rules = Time(), Rules(aliases={"nick": "m"}, routes=(Route(model="any*", to=(RouteTo(backend="a"),)),))
    fleet = Fleet([Member("a", a), Member("b", b, prefix="b/")], rules, clock=time, later=time.later)
    assert [model.id for model in await fleet.models()] == ["m", "n", "b/m", "b/x", "nick"]
    assert [model.owned_by for model in await fleet.models()] == ["a", "a", "b", "b", "antwort"]
    await fleet.close()


BLIND = Capabilities(vision=False)
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


def seeing(model: str = "m") -> ChatRequest:
    return ChatRequest(model=model, messages=[ChatMessage(role="user", content=PICTURE)])


@pytest.mark.proves("EN-012")
def test_capabilities_are_those_that_one_who_can_answer_has() -> None:
    blind = FakeBackend("blind", models=["m", "both"], capabilities=BLIND)
    fleet = fleet_of(FakeBackend("seeing", models=["n", "both"]), blind)
    assert fleet.capabilities("n").vision
    assert not fleet.capabilities("m").vision
    assert fleet.capabilities("both").vision
    assert fleet.capabilities("unknown").vision


@pytest.mark.parametrize("policy", ["failover", "weighted"])
async def test_a_request_goes_only_to_those_that_take_what_it_carries(policy: Policy) -> None:
    a, b = FakeBackend("a", capabilities=BLIND), FakeBackend("b")
    fleet = fleet_of(a, b, rules=Rules(policy=policy), random=lambda: 0.0)
    for _ in range(3):
        assert [TextDelta("b")] in [batch async for batch in fleet.infer(seeing())]
    assert not a.requests
    assert await said(fleet) == "a"


async def test_a_request_that_was_planned_before_its_backend_was_known_is_refused_when_that_cannot_take_it() -> None:
    a, b = FakeBackend("a", models=["n"]), FakeBackend("b", models=["m"], capabilities=BLIND)
    with pytest.raises(UnsupportedFeature) as caught:
        _ = [batch async for batch in fleet_of(a, b).infer(seeing())]
    assert (caught.value.status, b.requests) == (400, [])


async def test_a_request_is_written_in_the_words_of_its_backend_whoever_was_known_when_it_was_planned() -> None:
    own = Capabilities(max_tokens_field="max_completion_tokens")
    a, b, time = FakeBackend("a", models=["n"]), FakeBackend("b", models=["m"], capabilities=own), Time()
    fleet = Fleet([member_of(a, time), member_of(b, time)], clock=time, later=time.later)
    assert fleet.capabilities("m").max_tokens_field == "max_tokens"  # nobody is known to have it
    _ = [batch async for batch in fleet.infer(asking(max_tokens=9))]
    assert b.requests == [asking(max_completion_tokens=9)]
    await fleet.close()


def test_what_backends_list_is_known_by_all_its_names() -> None:
    a, b = FakeBackend("a"), FakeBackend("b")
    fleet = Fleet([Member("a", a, models=["m"]), Member("b", b, models=["x"], prefix="b/")])
    assert [fleet.lists(name) for name in ("m", "x", "b/x", "b/m", "other", "")] == [True] * 3 + [False] * 3


async def test_closing_closes_every_backend() -> None:
    a, b = FakeBackend("a"), FakeBackend("b")
    await fleet_of(a, b).close()
    assert (a.is_closed, b.is_closed) == (True, True)


@pytest.mark.parametrize(
    ("names", "rules", "problem"),
    [
        ([], Rules(), "at least one"),
        (["a", "a"], Rules(), "same name"),
        (["a"], Rules(routes=(Route(model="m", to=(RouteTo(backend="b"),)),)), "'b', which is no backend"),
        (["a"], Rules(routes=(Route(model="m", to=()),)), "leads nowhere"),
    ],
)
def test_a_fleet_that_cannot_work_is_refused(names: list[str], rules: Rules, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Fleet([Member(name, FakeBackend(name)) for name in names], rules)
