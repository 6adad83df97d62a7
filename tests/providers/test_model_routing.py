"""Which backends answer for a model, and in which order: tables, and what holds for any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.providers.fleet import Member
from antwort.providers.routing import Policy, Route, Router, RouteTo, Rules, arrange
from fleet_kit import FakeBackend


def member(name: str, models: Collection[str] | None = None, prefix: str = "", weight: int = 1) -> Member:
    return Member(name, FakeBackend(name), models=None if models is None else [*models], prefix=prefix, weight=weight)


A = member("a", ["qwen3", "shared"])
B = member("b", ["llama", "shared"], weight=3)
CLOUD = member("cloud", ["gpt", "shared"], prefix="cloud/")
CLOUD_EU = member("eu", ["gpt-eu"], prefix="cloud/eu/")
DARK = member("dark")
ALL = (A, B, CLOUD, CLOUD_EU)

RULES = Rules(
    routes=(
        Route(model="best", to=(RouteTo(backend="cloud", model="gpt"), RouteTo(backend="a", model="qwen3"))),
        Route(model="gpt-*", to=(RouteTo(backend="a", model="qwen3"),)),
        Route(model="gpt-4*", to=(RouteTo(backend="b"),), policy="weighted"),
        Route(model="gpt-4o", to=(RouteTo(backend="cloud", weight=7),)),
        Route(model="shadowed", to=(RouteTo(backend="a"),)),
    ),
    aliases={
        "small": "qwen3",
        "smaller": "small",
        "top": "best",
        "far": "cloud/gpt",
        "gpt-old": "llama",
        "shadowed": "llama",
        "round": "around",
        "around": "round",
        "nowhere": "missing",
    },
)


def found(model: str, rules: Rules = RULES, backends: Sequence[Member] = ALL) -> list[tuple[str, str, int]] | None:
    group = Router(rules, backends).find(model)
    return None if group is None else [(each.member.name, each.model, each.weight) for each in group.candidates]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("qwen3", [("a", "qwen3", 1)]),
        ("shared", [("a", "shared", 1), ("b", "shared", 3)]),
        ("cloud/gpt", [("cloud", "gpt", 1)]),
        ("cloud/unlisted", [("cloud", "unlisted", 1)]),
        ("cloud/eu/gpt-eu", [("eu", "gpt-eu", 1)]),
        ("gpt", None),  # a backend with a prefix is asked by its prefix only
        ("cloud/", None),
        ("best", [("cloud", "gpt", 1), ("a", "qwen3", 1)]),
        ("gpt-3", [("a", "qwen3", 1)]),
        ("gpt-4.1", [("b", "gpt-4.1", 3)]),
        ("gpt-4o", [("cloud", "gpt-4o", 7)]),
        ("small", [("a", "qwen3", 1)]),
        ("smaller", [("a", "qwen3", 1)]),
        ("top", [("cloud", "gpt", 1), ("a", "qwen3", 1)]),
        ("far", [("cloud", "gpt", 1)]),
        ("gpt-old", [("b", "llama", 3)]),  # an alias is a name of its own, a `*` only the rest
        ("shadowed", [("a", "shadowed", 1)]),
        ("round", None),
        ("nowhere", None),
        ("missing", None),
        ("", None),
    ],
)
def test_a_model_finds_its_way(model: str, expected: list[tuple[str, str, int]] | None) -> None:
    assert found(model) == expected


def test_several_backends_of_one_prefix_are_a_group_of_those_that_list_the_model() -> None:
    one = member("one", ["x"], prefix="gpu/")
    two = member("two", ["x", "y"], prefix="gpu/")
    assert found("gpu/x", Rules(), (one, two)) == [("one", "x", 1), ("two", "x", 1)]
    assert found("gpu/y", Rules(), (one, two)) == [("two", "y", 1)]
    assert found("gpu/z", Rules(), (one, two)) == [("one", "z", 1), ("two", "z", 1)]


@pytest.mark.proves("RULING-4")
@pytest.mark.parametrize("only", [A, DARK])
def test_a_model_that_nobody_lists_goes_to_the_only_backend(only: Member) -> None:
    group = Router(Rules(), (only,)).find("missing")
    assert group is not None
    assert group.is_guess
    assert found("missing", Rules(), (only,)) == [(only.name, "missing", 1)]


def test_the_only_backend_is_not_asked_for_a_bare_name_where_it_has_a_prefix() -> None:
    assert found("missing", Rules(), (CLOUD,)) is None
    assert found("cloud/missing", Rules(), (CLOUD,)) is not None


@pytest.mark.proves("RULING-4")
def test_with_several_backends_it_goes_to_those_whose_list_nobody_knows() -> None:
    several = (A, DARK, member("hidden", prefix="hidden/"))
    group = Router(Rules(), several).find("missing")
    assert group is not None
    assert group.is_guess
    assert found("missing", Rules(), several) == [("dark", "missing", 1)]
    assert found("qwen3", Rules(), (DARK, A)) == [("a", "qwen3", 1)]


@pytest.mark.parametrize(("model", "policy"), [("gpt-4.1", "weighted"), ("gpt-3", "failover"), ("shared", "failover")])
def test_a_route_may_have_a_policy_of_its_own(model: str, policy: Policy) -> None:
    group = Router(RULES, ALL).find(model)
    assert group is not None
    assert group.policy == policy


def test_the_names_that_rules_add_are_those_a_client_can_spell_out() -> None:
    assert Router(RULES, ALL).names() == [
        *("best", "gpt-4o", "shadowed"),
        *("small", "smaller", "top", "far", "gpt-old", "round", "around", "nowhere"),
    ]


NAMES = st.sampled_from(["a", "b", "c", "p/a", "p/b", "q", ""])


@settings(deadline=None)
@given(
    model=NAMES,
    aliases=st.dictionaries(NAMES, NAMES),
    lists=st.lists(st.tuples(st.sampled_from(["", "p/", "q"]), st.none() | st.frozensets(NAMES)), min_size=1),
    routes=st.lists(st.tuples(st.sampled_from(["a", "b*", "*", "p/*"]), st.integers(0, 5)), max_size=3),
)
def test_whatever_the_rules_the_way_ends_at_backends_that_are_there(
    model: str,
    aliases: dict[str, str],
    lists: list[tuple[str, frozenset[str] | None]],
    routes: list[tuple[str, int]],
) -> None:
    backends = [member(str(at), models, prefix) for at, (prefix, models) in enumerate(lists)]
    made = tuple(Route(model=name, to=(RouteTo(backend=str(at % len(backends))),)) for name, at in routes)
    rules = Rules(routes=made, aliases=aliases)
    way = found(model, rules, backends)
    assert way == found(model, rules, backends)
    if way is not None:
        assert way
        assert {name for name, _, _ in way} <= {backend.name for backend in backends}
    elif len(backends) == 1:
        assert backends[0].prefix, "the only backend is always asked, unless it has a prefix"


# ---- the order of asking ----


def order(weights: Sequence[int], ranks: Sequence[int], policy: Policy = "weighted", chance: float = 0.0) -> list[int]:
    return arrange(range(len(weights)), policy, weight=weights.__getitem__, rank=ranks.__getitem__, draw=lambda: chance)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([0, 0, 0], [0, 1, 2]), ([2, 0, 0], [1, 2, 0]), ([2, 1, 0], [2, 1, 0]), ([2, 2, 2], [0, 1, 2])],
)
def test_failover_asks_in_order_and_those_of_the_lowest_rank_first(ranks: list[int], expected: list[int]) -> None:
    assert order([1, 9, 1], ranks, "failover") == expected


@pytest.mark.parametrize(
    ("chance", "expected"), [(0.0, [0, 1, 2]), (0.19, [0, 1, 2]), (0.2, [1, 0, 2]), (0.6, [2, 0, 1]), (0.99, [2, 0, 1])]
)
def test_by_weight_one_is_drawn_and_the_others_follow_in_turn(chance: float, expected: list[int]) -> None:
    assert order([1, 2, 2], [0] * 3, chance=chance) == expected


def test_one_of_a_higher_rank_is_not_drawn() -> None:
    firsts = Counter(order([5, 1, 1], [1, 0, 0], chance=n / 100)[0] for n in range(100))
    assert firsts == {1: 50, 2: 50}
    assert order([5, 1, 1], [1, 0, 0], chance=0.9) == [2, 1, 0]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1), st.floats(0, 1, exclude_max=True))
def test_everybody_is_asked_once_by_their_rank(each: list[tuple[int, int]], chance: float) -> None:
    ranks = [rank for _, rank in each]
    for policy in ("failover", "weighted"):
        asked = order([weight for weight, _ in each], ranks, policy, chance)
        assert sorted(asked) == list(range(len(each)))
        assert [ranks[at] for at in asked] == sorted(ranks)
