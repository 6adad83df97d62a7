"""Decide which backends serve a model, in which order they are asked, and in which form each gets a request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import UNSET, UnsetType, Wire, replace
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest

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


# ---- what several backends take together, and a request adapted to one of them ----


def accepts(request: ChatRequest, capabilities: Capabilities) -> bool:
    """Whether a backend with these capabilities can read every part of the request."""
    if capabilities.vision and capabilities.files:
        return True
    refused = _FILES if capabilities.vision else _PICTURES if capabilities.files else _FILES | _PICTURES
    parts = (message.content for message in request.messages if isinstance(message.content, list))
    return not any(part.get("type") in refused for content in parts for part in content)


def is_too_long(request: ChatRequest, capabilities: Capabilities) -> bool:
    """Whether the request has certainly more tokens than the context."""
    length = capabilities.context_length
    return length is not None and sum(map(_characters, request.messages)) > length * _MOST_CHARACTERS_PER_TOKEN


def _characters(message: ChatMessage) -> int:
    content = message.content
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text") or "") for part in content or ()) if isinstance(content, list) else 0


_MOST_CHARACTERS_PER_TOKEN = 16
"""On the average of a text; no tokenizer comes near it."""
_PICTURES = frozenset({"image_url", "video_url"})
_FILES = frozenset({"file"})


def widest(several: Sequence[Capabilities]) -> Capabilities:
    """Return what at least one of them takes, so that a request written for it loses nothing on its way to any.

    Grammars are the other way round: only the form that all of them follow is used.
    """
    first = several[0]
    if all(each == first for each in several):
        return first
    lengths = [each.context_length for each in several if each.context_length]
    return Capabilities(
        vision=any(each.vision for each in several),
        files=any(each.files for each in several),
        reasoning_field=next((each.reasoning_field for each in several if each.reasoning_field), None),
        developer_role=any(each.developer_role for each in several),
        allowed_tools=any(each.allowed_tools for each in several),
        stream_usage=any(each.stream_usage for each in several),
        max_tokens_field=first.max_tokens_field,
        prompt_cache_key=any(each.prompt_cache_key for each in several),
        verbosity=any(each.verbosity for each in several),
        folds=any(each.folds for each in several),
        grammar=first.grammar if all(each.grammar == first.grammar for each in several) else "described",
        context_length=max(lengths, default=None),
        more_may_fit=0 < len(lengths) < len(several) or any(each.more_may_fit for each in several),
    )


def adapt(request: ChatRequest, capabilities: Capabilities) -> ChatRequest:
    """Return the request with the field names of a backend with these capabilities, less what it does not take."""
    limit = request.max_tokens if request.max_tokens is not UNSET else request.max_completion_tokens
    is_whole = capabilities.max_tokens_field == "max_completion_tokens"
    return replace(
        request,
        messages=[_message(message, capabilities) for message in request.messages],
        max_tokens=UNSET if is_whole else limit,
        max_completion_tokens=limit if is_whole else UNSET,
        tool_choice=request.tool_choice if capabilities.allowed_tools else _plain_choice(request.tool_choice),
        prompt_cache_key=request.prompt_cache_key if capabilities.prompt_cache_key else UNSET,
        verbosity=request.verbosity if capabilities.verbosity else UNSET,
    )


def _message(message: ChatMessage, capabilities: Capabilities) -> ChatMessage:
    reasoning = message.reasoning_content if message.reasoning_content is not UNSET else message.reasoning
    field = capabilities.reasoning_field
    is_developer = message.role == "developer" and not capabilities.developer_role
    if reasoning is UNSET and not is_developer:
        return message
    return replace(
        message,
        role="system" if is_developer else message.role,
        reasoning_content=reasoning if field == "reasoning_content" else UNSET,
        reasoning=reasoning if field == "reasoning" else UNSET,
    )


def _plain_choice(choice: str | dict[str, object] | UnsetType) -> str | dict[str, object] | UnsetType:
    """Leave out the list of allowed tools. The loop enforces it on the calls in any case."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        return "required" if mode == "required" else UNSET
    return choice
