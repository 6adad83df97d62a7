"""Which backends can answer for a model, and in which order they are asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import Wire

Policy: TypeAlias = Literal["failover", "weighted"]
T = TypeVar("T")


class RouteTo(Wire):
    """One of those that can answer for a route."""

    backend: str
    model: str | None = None
    """What the model is called there; None: as the request calls it."""
    weight: int | None = None
    """None: the backend's own."""


class Route(Wire):
    """A model by an explicit way; a name that ends in `*` stands for all that begin so."""

    model: str
    to: tuple[RouteTo, ...]
    policy: Policy | None = None


class Rules(Wire):
    """What an operator has said about the way of models."""

    routes: tuple[Route, ...] = ()
    aliases: Mapping[str, str] = {}
    policy: Policy = "failover"


class Known(Wire):
    """What is known of a backend. `models` is None as long as nobody knows them."""

    name: str
    models: frozenset[str] | None = None
    prefix: str = ""
    weight: int = 1


class Target(msgspec.Struct, frozen=True):
    """A backend that can answer, and what it calls the model."""

    backend: str
    model: str
    weight: int = 1


class Group(msgspec.Struct, frozen=True):
    """All that can answer for a model, the preferred one first."""

    targets: tuple[Target, ...]
    policy: Policy = "failover"
    is_guess: bool = False
    """Whether nobody is known to have the model, and these may have it all the same."""


class Router:
    """The rules, arranged for looking things up: an exact route, an alias, a route with `*`, a prefix, the lists."""

    def __init__(self, rules: Rules) -> None:
        self._policy = rules.policy
        self._aliases = rules.aliases
        self._exact = {route.model: route for route in rules.routes if not route.model.endswith("*")}
        wide = [(route.model[:-1], route) for route in rules.routes if route.model.endswith("*")]
        self._wide = sorted(wide, key=lambda each: len(each[0]), reverse=True)

    def find(self, model: str, backends: Sequence[Known]) -> Group | None:
        """Who can answer for `model`; None when nobody can."""
        name = self._resolved(model)
        if (route := self._route(name)) is not None:
            return self._by_route(route, name, backends)
        if targets := _by_prefix(name, backends) or _by_list(name, backends):
            return Group(targets, self._policy)
        targets = _by_guess(name, backends)
        return Group(targets, self._policy, is_guess=True) if targets else None

    def names(self) -> list[str]:
        """The names that the rules add to those of the backends."""
        return [*self._exact, *(alias for alias in self._aliases if alias not in self._exact)]

    def _resolved(self, model: str) -> str:
        """The name behind all aliases. An explicit route ends the way, and so does a circle."""
        seen = {model}
        while model not in self._exact and (behind := self._aliases.get(model)) is not None and behind not in seen:
            seen.add(behind)
            model = behind
        return model

    def _route(self, name: str) -> Route | None:
        if (exact := self._exact.get(name)) is not None:
            return exact
        return next((route for start, route in self._wide if name.startswith(start)), None)

    def _by_route(self, route: Route, name: str, backends: Sequence[Known]) -> Group:
        weights = {backend.name: backend.weight for backend in backends}
        targets = (
            Target(to.backend, name if to.model is None else to.model, to.weight or weights[to.backend])
            for to in route.to
        )
        return Group(tuple(targets), route.policy or self._policy)


def _by_prefix(name: str, backends: Sequence[Known]) -> tuple[Target, ...]:
    """Those with the longest prefix that fits: among them those that list the model, or else all."""
    fitting = [each for each in backends if each.prefix and name.startswith(each.prefix) and name != each.prefix]
    longest = max((len(each.prefix) for each in fitting), default=0)
    named = [each for each in fitting if len(each.prefix) == longest]
    having = [each for each in named if lists(each, name[longest:])]
    return tuple(Target(each.name, name[longest:], each.weight) for each in having or named)


def _by_list(name: str, backends: Sequence[Known]) -> tuple[Target, ...]:
    """A backend with a prefix is asked only by its prefix: what an operator keeps apart is not mixed in by a name."""
    return _as_they_are(name, [each for each in backends if not each.prefix and lists(each, name)])


def _by_guess(name: str, backends: Sequence[Known]) -> tuple[Target, ...]:
    """The only backend there is, or else those of which nobody knows the list; one with a prefix is never guessed."""
    is_only = len(backends) == 1
    return _as_they_are(name, [each for each in backends if not each.prefix and (is_only or each.models is None)])


def _as_they_are(name: str, backends: Sequence[Known]) -> tuple[Target, ...]:
    return tuple(Target(each.name, name, each.weight) for each in backends)


def lists(backend: Known, model: str) -> bool:
    """Whether it is known to have the model, by the name that it has there."""
    return backend.models is not None and model in backend.models


def arranged(
    candidates: Sequence[T],
    policy: Policy,
    *,
    weight: Callable[[T], int],
    rank: Callable[[T], int],
    draw: Callable[[], float],
) -> list[T]:
    """The order in which they are asked: by their rank, the lowest first; by weight, one of the lowest is drawn first.

    `draw` gives a number from 0 up to, but not, 1.
    """
    order = sorted(candidates, key=rank)
    if policy == "weighted" and len(order) > 1:
        lowest = rank(order[0])
        first = _drawn([each for each in order if rank(each) == lowest], weight, draw())
        order.remove(first)
        order.insert(0, first)
    return order


def _drawn(candidates: Sequence[T], weight: Callable[[T], int], chance: float) -> T:
    mark = chance * sum(map(weight, candidates))
    for each in candidates:
        mark -= weight(each)
        if mark < 0:
            return each
    return candidates[-1]
