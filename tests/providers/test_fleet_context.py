"""How much fits, and how many tokens there are, of several backends as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antwort.api.responses import Model
from antwort.api.wire import UNSET
from antwort.errors import BackendError, BackendUnavailable
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.fleet import Fleet
from antwort.providers.routing import Route, RouteTo, Rules
from fleet_kit import FakeBackend, Time, asking, fleet_of, member_of


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


def test_the_smallest_that_is_known_of_those_that_can_answer_counts() -> None:
    a, b, c = Sized("a", {"m": 8192}), Sized("b", {"m": None}), Sized("c", {"m": 4096})
    assert length_of(fleet_of(a, b, c)) == 4096
    assert length_of(fleet_of(a, b)) == 8192
    assert length_of(fleet_of(b)) is None


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
    assert (length_of(fleet, "fast"), length_of(fleet, "best")) == (512, 512)


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
    await member.look()
    await member.look()
    assert (backend.looks, backend.capabilities("m").context_length) == (3, 4096)
    assert member.status.models == ("m",)


async def test_it_is_asked_again_when_it_comes_back() -> None:
    backend = Teller("a")
    member = member_of(backend, Time(), models=["m"])
    await member.look()
    backend.is_away = True
    await member.look()
    backend.is_away, before = False, backend.looks
    await member.look()
    assert backend.looks - before == 2


async def test_one_that_gives_no_list_is_well_all_the_same() -> None:
    backend = Teller("a")
    backend.list_fails = BackendError("no list")
    member = member_of(backend, Time(), models=["m"])
    await member.look()
    assert (member.status.state, member.status.problem) == ("ok", None)


# ---- counting ----


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
    fleet._members[0].count(BackendUnavailable("gone"))
    assert await fleet.count(asking()) == 9
    assert not a.counted
