"""How much fits, and how many tokens there are, of several backends as one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.responses import Model
from antwort.api.wire import UNSET
from antwort.errors import AntwortError, BackendError, BackendUnavailable, ContextTooLong, RateLimited
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest, Finished, TextDelta
from antwort.providers.fleet import Fleet
from antwort.providers.routing import Route, RouteTo, Rules
from fleet_kit import HEADERS, FakeBackend, Time, asking, fleet_of, member_of
from jumping_time import jumping_time


class Sized(FakeBackend):
    """A backend that knows how long the contexts of its models are, and counts."""

    def __init__(self, name: str, lengths: Mapping[str, int | None], count: int | None = None) -> None:
        super().__init__(name, models=list(lengths))
        self._lengths, self._count = lengths, count
        self.counted: list[ChatRequest] = []

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(context_length=self._lengths.get(model))

    async def count(self, request: ChatRequest) -> int | None:
        self.counted.append(request)
        return self._count


def length_of(fleet: Fleet, model: str = "m") -> int | None:
    return fleet.capabilities(model).context_length


async def listed(fleet: Fleet) -> dict[str, Any]:
    return {model.id: model.context_length for model in await fleet.models()}


# ---- how much fits ----


def test_the_largest_that_is_known_of_those_that_can_answer_counts() -> None:
    a, b, c = Sized("a", {"m": 8192}), Sized("b", {"m": None}), Sized("c", {"m": 4096})
    assert length_of(fleet_of(c, b, a)) == 8192
    assert length_of(fleet_of(b, c)) == 4096
    assert length_of(fleet_of(b)) is None


def test_where_one_is_not_known_more_may_fit() -> None:
    a, b, c = Sized("a", {"m": 8192}), Sized("b", {"m": None}), Sized("c", {"m": 4096})
    fleets = [fleet_of(a, c), fleet_of(a, b), fleet_of(b, c), fleet_of(a), fleet_of(b)]
    assert [fleet.capabilities("m").more_may_fit for fleet in fleets] == [False, True, True, False, False]


def test_one_that_cannot_answer_for_the_model_does_not_count() -> None:
    fleet = fleet_of(Sized("a", {"m": 8192}), Sized("b", {"n": 512, "m2": 512}))
    assert length_of(fleet) == 8192
    assert length_of(fleet, "nobody's") is None


def test_names_that_are_added_have_the_context_of_what_is_behind_them() -> None:
    rules = Rules(
        aliases={"fast": "n"},
        routes=(Route(model="best", to=(RouteTo(backend="a", model="m"), RouteTo(backend="b", model="n"))),),
    )
    fleet = fleet_of(Sized("a", {"m": 8192}), Sized("b", {"n": 512}), rules=rules)
    assert (length_of(fleet, "fast"), length_of(fleet, "best")) == (512, 8192)


def test_an_alias_of_the_only_backend_is_looked_behind_too() -> None:
    fleet = fleet_of(Sized("a", {"m": 8192, "n": 512}), rules=Rules(aliases={"fast": "n"}))
    assert length_of(fleet, "fast") == 512


async def test_the_list_of_models_tells_how_much_fits_also_by_other_names() -> None:
    rules = Rules(aliases={"fast": "n"})
    fleet = fleet_of(Sized("a", {"m": 8192, "x": None}), Sized("b", {"n": 512}), rules=rules)
    assert await listed(fleet) == {"m": 8192, "x": UNSET, "n": 512, "fast": 512}


async def test_a_prefix_is_no_part_of_the_name_that_a_backend_knows() -> None:
    time = Time()
    fleet = Fleet([member_of(Sized("a", {"m": 8192}), time, prefix="gpu/")], clock=time, later=time.later)
    assert await listed(fleet) == {"gpu/m": 8192}
    await fleet.close()


class Teller(FakeBackend):
    """Knows the contexts of its models only once it was asked for its list."""

    length: int | None = None

    async def models(self) -> Sequence[Model]:
        told = await super().models()
        self.length = 4096
        return told

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(context_length=self.length)


async def test_a_backend_whose_models_are_set_is_asked_for_its_list_once_for_their_contexts() -> None:
    backend = Teller("a")
    member = member_of(backend, Time(), models=["m"])
    await member.refresh()
    await member.refresh()
    assert (backend.looks, backend.capabilities("m").context_length) == (3, 4096)
    assert member.status.models == ("m",)


async def test_it_is_asked_again_when_it_comes_back() -> None:
    backend = Teller("a")
    member = member_of(backend, Time(), models=["m"])
    await member.refresh()
    backend.is_away = True
    await member.refresh()
    backend.is_away, before = False, backend.looks
    await member.refresh()
    assert backend.looks - before == 2


async def test_one_that_gives_no_list_is_well_all_the_same() -> None:
    backend = Teller("a")
    backend.list_fails = BackendError("no list")
    member = member_of(backend, Time(), models=["m"])
    await member.refresh()
    assert (member.status.state, member.status.problem) == ("ok", None)


# ---- what is too long for one of them ----

LONG = ChatRequest(model="m", messages=[ChatMessage(role="user", content="x" * 16_001)])
"""More than a thousand tokens for certain."""


def too_long(limit: int | None = None) -> ContextTooLong:
    return ContextTooLong("too long", limit=limit)


async def answer(fleet: Fleet, request: ChatRequest = LONG) -> str:
    batches = [batch async for batch in fleet.infer(request)]
    return "".join(delta.text for batch in batches for delta in batch if isinstance(delta, TextDelta))


async def refusal(fleet: Fleet) -> AntwortError:
    with pytest.raises(AntwortError) as caught:
        await answer(fleet)
    return caught.value


@pytest.mark.parametrize("length", [100_000, None], ids=["larger", "unknown"])
async def test_what_is_too_long_for_one_goes_on_at_one_that_may_take_it(length: int | None) -> None:
    a, b, c = Sized("a", {"m": 2000}), Sized("b", {"m": 1500}), Sized("c", {"m": length})
    a.scripts = [[too_long(2000)]]
    assert await answer(fleet_of(a, b, c)) == "c"
    assert not b.requests


async def test_where_a_refusal_does_not_say_how_much_fits_what_is_known_of_the_backend_counts() -> None:
    a, b, c = Sized("a", {"m": 2000}), Sized("b", {"m": 2000}), Sized("c", {"m": 2001})
    a.scripts = [[too_long()]]
    assert await answer(fleet_of(a, b, c)) == "c"
    assert not b.requests


async def test_where_nothing_is_known_each_is_asked_once() -> None:
    a, b = FakeBackend("a", [too_long()]), FakeBackend("b", [too_long(512)])
    error = await refusal(fleet_of(a, b))
    assert isinstance(error, ContextTooLong)
    assert error.limit == 512
    assert (len(a.requests), len(b.requests)) == (1, 1)


async def test_one_that_is_certainly_too_small_is_passed_over() -> None:
    a, b = Sized("a", {"m": 1000}), Sized("b", {"m": 8192})
    fleet = fleet_of(a, b)
    assert await answer(fleet) == "b"
    assert not a.requests
    assert await answer(fleet, asking()) == "a"


@pytest.mark.parametrize(("texts", "answers"), [(["x" * 20_000, ""], "b"), (["x", ""], "a")])
async def test_texts_in_parts_of_a_message_count(texts: list[str], answers: str) -> None:
    parts = [{"type": "text", "text": text} for text in texts] + [{"type": "image_url", "text": None}]
    a, b = Sized("a", {"m": 1000}), Sized("b", {"m": 8192})
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content=parts)])
    assert await answer(fleet_of(a, b), request) == answers


async def test_also_while_the_larger_one_is_busy() -> None:
    time = Time()
    a, b = Sized("a", {"m": 1000}), Sized("b", {"m": 8192})
    hold = asyncio.Event()
    b.scripts = [[HEADERS, hold, [TextDelta("first")], [Finished("stop")]]]
    members = [member_of(a, time, models=["m"]), member_of(b, time, models=["m"], most=1)]
    fleet = Fleet(members, clock=time, later=time.later)
    async with aclosing(fleet.infer(LONG)) as first:
        assert await anext(first) == HEADERS
        second = asyncio.create_task(answer(fleet))
        await asyncio.sleep(0)
        assert await answer(fleet, asking()) == "a"
        hold.set()
        assert [batch async for batch in first] == [[TextDelta("first")], [Finished("stop")]]
    assert await second == "b"
    assert len(a.requests) == 1


async def test_when_only_small_ones_are_left_they_say_how_much_fits() -> None:
    a, b, c = Sized("a", {"m": 8192}), Sized("b", {"m": 500}), Sized("c", {"m": 1000})
    a.is_away = True
    b.scripts, c.scripts = [[too_long()]], [[too_long()]]
    error = await refusal(fleet_of(a, b, c))
    assert isinstance(error, ContextTooLong)
    assert error.limit == 1000


async def test_that_it_was_too_long_is_no_failure_of_the_backend_s(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    a, b = FakeBackend("a", *[[too_long()]] * 9), FakeBackend("b")
    fleet = fleet_of(a, b)
    assert [await answer(fleet) for _ in range(9)] == ["b"] * 9
    assert [status.state for status in fleet.status()] == ["ok", "ok"]
    assert not caplog.messages


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_neither_is_what_one_breaks_at_that_is_too_long_for_another(names: str) -> None:
    backends = {"a": FakeBackend("a", *[[BackendError("500")]] * 9), "b": FakeBackend("b", *[[too_long(512)]] * 9)}
    fleet = fleet_of(*(backends[name] for name in names))
    for _ in range(9):
        assert isinstance(await refusal(fleet), ContextTooLong)
    assert [len(backend.requests) for backend in backends.values()] == [9, 9]


@pytest.mark.parametrize("length", [100_000, None], ids=["larger", "unknown"])
async def test_one_that_takes_more_and_is_busy_for_a_moment_is_worth_waiting_for(length: int | None) -> None:
    a, b = Sized("a", {"m": length}), Sized("b", {"m": 2000})
    a.scripts, b.scripts = [[RateLimited("busy", retry_after=2)]], [[too_long(2000)]]
    error = await refusal(fleet_of(a, b))
    assert isinstance(error, RateLimited)
    assert error.retry_after == 2


@pytest.mark.parametrize(
    ("length", "busy"),
    [
        (1500, RateLimited("busy", retry_after=2)),
        (100_000, RateLimited("busy", retry_after=3600)),
        (100_000, BackendUnavailable("gone")),
    ],
    ids=["smaller", "for long", "gone"],
)
async def test_one_that_is_not_larger_or_not_back_soon_is_not(length: int, busy: AntwortError) -> None:
    a, b = Sized("a", {"m": length}), Sized("b", {"m": 2000})
    a.scripts, b.scripts = [[busy]], [[too_long(2000)]]
    assert isinstance(await refusal(fleet_of(a, b)), ContextTooLong)


# ---- counting ----


class Hung(Sized):
    """Its tokenizer never answers."""

    async def count(self, request: ChatRequest) -> int | None:
        await super().count(request)
        await asyncio.Event().wait()
        return 0


@jumping_time
async def test_all_tokenizers_that_are_asked_have_one_budget_of_time() -> None:
    hung = [Hung(name, {"m": 1}) for name in "abcdefgh"]
    async with asyncio.timeout(2.1):
        assert await fleet_of(*hung).count(asking()) is None
    assert hung[0].counted
    assert not hung[-1].counted


@jumping_time
async def test_one_that_does_not_answer_leaves_time_to_the_next() -> None:
    async with asyncio.timeout(10):
        assert await fleet_of(Hung("a", {"m": 1}), Sized("b", {"m": 1}, 7)).count(asking()) == 7


async def test_the_first_that_can_answer_and_count_does() -> None:
    a, b, c = Sized("a", {"m": 1}), Sized("b", {"m": 1}, 7), Sized("c", {"m": 1}, 9)
    assert await fleet_of(a, b, c).count(asking()) == 7
    assert [len(each.counted) for each in (a, b, c)] == [1, 1, 0]


async def test_a_request_is_counted_by_the_name_that_the_backend_knows() -> None:
    backend = Sized("a", {"n": 1}, 7)
    assert await fleet_of(backend, Sized("b", {"o": 1}), rules=Rules(aliases={"fast": "n"})).count(asking("fast")) == 7
    assert [request.model for request in backend.counted] == ["n"]


async def test_where_nobody_can_count_nobody_does() -> None:
    assert await fleet_of(FakeBackend("a"), Sized("b", {"m": 1})).count(asking()) is None
    assert await fleet_of(Sized("a", {"m": 1}, 7), Sized("b", {"n": 1}, 9)).count(asking("other")) is None


async def test_one_that_is_lost_is_not_asked() -> None:
    a, b = Sized("a", {"m": 1}, 7), Sized("b", {"m": 1}, 9)
    fleet = fleet_of(a, b)
    fleet._members[0].record_failure(BackendUnavailable("gone"), "m", None)
    assert await fleet.count(asking()) == 9
    assert not a.counted
