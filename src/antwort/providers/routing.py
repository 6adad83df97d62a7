"""Decide which backends serve a model, and in which order they are asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import Wire

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


class RoutableBackend(Wire):
    """What routing knows of a backend. `models` is None until the backend has listed them."""

    name: str
    models: frozenset[str] | None = None
    prefix: str = ""
    weight: int = 1


class Target(msgspec.Struct, frozen=True):
    """A backend that serves a model, and the name of the model there."""

    backend: str
    model: str
    weight: int = 1


class Group(msgspec.Struct, frozen=True):
    """All backends that serve a model, the preferred one first."""

    targets: tuple[Target, ...]
    policy: Policy = "failover"
    is_guess: bool = False
    """Whether no backend lists the model, and these are the ones that may still have it."""


class Router:
    """Find the backends of a model: by exact route, alias, route with `*`, prefix, or their lists of models."""

    def __init__(self, rules: Rules) -> None:
        self._policy = rules.policy
        self._aliases = rules.aliases
        self._exact = {route.model: route for route in rules.routes if not route.model.endswith("*")}
        wide = [(route.model[:-1], route) for route in rules.routes if route.model.endswith("*")]
        self._wide = sorted(wide, key=lambda each: len(each[0]), reverse=True)

    def find(self, model: str, backends: Sequence[RoutableBackend]) -> Group | None:
        """Return the backends that serve `model`; None: there are none."""
        name = self._resolve(model)
        if (route := self._route(name)) is not None:
            return self._by_route(route, name, backends)
        if targets := _by_prefix(name, backends) or _by_list(name, backends):
            return Group(targets, self._policy)
        targets = _by_guess(name, backends)
        return Group(targets, self._policy, is_guess=True) if targets else None

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

    def _route(self, name: str) -> Route | None:
        if (exact := self._exact.get(name)) is not None:
            return exact
        return next((route for start, route in self._wide if name.startswith(start)), None)

    def _by_route(self, route: Route, name: str, backends: Sequence[RoutableBackend]) -> Group:
        weights = {backend.name: backend.weight for backend in backends}
        targets = (
            Target(to.backend, name if to.model is None else to.model, to.weight or weights[to.backend])
            for to in route.to
        )
        return Group(tuple(targets), route.policy or self._policy)


def _by_prefix(name: str, backends: Sequence[RoutableBackend]) -> tuple[Target, ...]:
    """Return the backends with the longest matching prefix: those that list the model, or else all of them."""
    fitting = [each for each in backends if each.prefix and name.startswith(each.prefix) and name != each.prefix]
    longest = max((len(each.prefix) for each in fitting), default=0)
    named = [each for each in fitting if len(each.prefix) == longest]
    having = [each for each in named if lists(each, name[longest:])]
    return tuple(Target(each.name, name[longest:], each.weight) for each in having or named)


def _by_list(name: str, backends: Sequence[RoutableBackend]) -> tuple[Target, ...]:
    """Return the backends that list the model. One with a prefix serves only names that begin with it."""
    return _targets(name, [each for each in backends if not each.prefix and lists(each, name)])


def _by_guess(name: str, backends: Sequence[RoutableBackend]) -> tuple[Target, ...]:
    """Return the only backend, or else those that have not listed their models; never one with a prefix."""
    is_only = len(backends) == 1
    return _targets(name, [each for each in backends if not each.prefix and (is_only or each.models is None)])


def _targets(name: str, backends: Sequence[RoutableBackend]) -> tuple[Target, ...]:
    return tuple(Target(each.name, name, each.weight) for each in backends)


def lists(backend: RoutableBackend, model: str) -> bool:
    """Return whether the backend lists the model under this name."""
    return backend.models is not None and model in backend.models


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
