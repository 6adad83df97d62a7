"""Decide which backends serve a model, and in which order they are asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import Wire
from antwort.providers.failover import Attempt
from antwort.providers.member import Member

Policy: TypeAlias = Literal["failover", "weighted"]
T = TypeVar("T")


class RouteTo(Wire):
    """A backend of a route."""

    backend: str
    model: str | None = None
    """The name of the model there; None: the name in the request."""
    weight: int | None = None
    """None: the backend's own."""


class Route(Wire):
    """The backends of a model. A name that ends in `*` matches every model that begins with the rest."""

    model: str
    to: tuple[RouteTo, ...]
    policy: Policy | None = None


class Rules(Wire):
    """The operator's routing settings."""

    routes: tuple[Route, ...] = ()
    aliases: Mapping[str, str] = {}
    policy: Policy = "failover"


class Group(msgspec.Struct, frozen=True):
    """All backends that serve a model, the preferred one first."""

    candidates: list[Attempt]
    policy: Policy = "failover"
    is_guess: bool = False
    """Whether no backend lists the model, and these are the ones that may still have it."""


class Router:
    """Find the backends of a model: by exact route, alias, route with `*`, prefix, or their lists of models.

    Raises `ValueError` for a route that leads to none of the members.
    """

    def __init__(self, rules: Rules, members: Sequence[Member]) -> None:
        self._members = members
        self._by_name = {member.name: member for member in members}
        self._policy = rules.policy
        self._aliases = rules.aliases
        self._exact = {route.model: route for route in rules.routes if not route.model.endswith("*")}
        wide = [(route.model[:-1], route) for route in rules.routes if route.model.endswith("*")]
        self._wide = sorted(wide, key=lambda each: len(each[0]), reverse=True)
        for route in rules.routes:
            unknown = [to.backend for to in route.to if to.backend not in self._by_name]
            if unknown:
                raise ValueError(f"the route of {route.model!r} leads to {unknown[0]!r}, which is no backend")
            if not route.to:
                raise ValueError(f"the route of {route.model!r} leads nowhere")

    def find(self, model: str) -> Group | None:
        """Return the backends that serve `model`; None: there are none."""
        name = self._resolve(model)
        route = self._exact.get(name) or next((to for start, to in self._wide if name.startswith(start)), None)
        if route is not None:
            return self._by_route(route, name)
        if candidates := self._by_prefix(name) or self._by_list(name):
            return Group(candidates, self._policy)
        candidates = self._by_guess(name)
        return Group(candidates, self._policy, is_guess=True) if candidates else None

    def names(self) -> list[str]:
        """Return the names of models that the rules add to those of the backends."""
        return [*self._exact, *(alias for alias in self._aliases if alias not in self._exact)]

    def _resolve(self, model: str) -> str:
        """Follow aliases to the last name. An exact route ends the search, and so does a cycle."""
        seen = {model}
        while model not in self._exact and (behind := self._aliases.get(model)) is not None and behind not in seen:
            seen.add(behind)
            model = behind
        return model

    def _by_route(self, route: Route, name: str) -> Group:
        candidates: list[Attempt] = []
        for to in route.to:
            member = self._by_name[to.backend]
            candidates.append(Attempt(member, name if to.model is None else to.model, to.weight or member.weight))
        return Group(candidates, route.policy or self._policy)

    def _by_prefix(self, name: str) -> list[Attempt]:
        """Return the backends with the longest matching prefix: those that list the model, or else all of them."""
        fitting = [
            each for each in self._members if each.prefix and name.startswith(each.prefix) and name != each.prefix
        ]
        longest = max((len(each.prefix) for each in fitting), default=0)
        model, named = name[longest:], [each for each in fitting if len(each.prefix) == longest]
        return _attempts(model, [each for each in named if each.lists(model)] or named)

    def _by_list(self, name: str) -> list[Attempt]:
        """Return the backends that list the model. One with a prefix serves only names that begin with it."""
        return _attempts(name, [each for each in self._members if not each.prefix and each.lists(name)])

    def _by_guess(self, name: str) -> list[Attempt]:
        """Return the only backend, or else those that have not listed their models; never one with a prefix."""
        is_only = len(self._members) == 1
        return _attempts(
            name, [each for each in self._members if not each.prefix and (is_only or each.model_names is None)]
        )


def _attempts(model: str, members: Sequence[Member]) -> list[Attempt]:
    return [Attempt(member, model, member.weight) for member in members]


def arrange(
    candidates: Sequence[T],
    policy: Policy,
    *,
    weight: Callable[[T], int],
    rank: Callable[[T], int],
    draw: Callable[[], float],
) -> list[T]:
    """Return the candidates in the order in which they are asked: by rank, lowest first. With the policy `weighted`,
    one of the lowest rank is drawn to be the first. `draw` returns a number in [0, 1).
    """
    order = sorted(candidates, key=rank)
    if policy == "weighted" and len(order) > 1:
        lowest = rank(order[0])
        first = _draw([each for each in order if rank(each) == lowest], weight, draw())
        order.remove(first)
        order.insert(0, first)
    return order


def _draw(candidates: Sequence[T], weight: Callable[[T], int], chance: float) -> T:
    mark = chance * sum(map(weight, candidates))
    for each in candidates:
        mark -= weight(each)
        if mark < 0:
            return each
    return candidates[-1]
