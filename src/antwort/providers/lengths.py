"""How much fits into the contexts of a backend's models: what was set, what it lists, what its refusals tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antwort.api.responses import Model, Usage
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.errors import ContextTooLong
from antwort.providers.base import ChatRequest
from antwort.providers.listing import context_length
from antwort.providers.reading import UNREADABLE

LASTS = 3600.0
"""Seconds for which a refusal is believed: backends are set up anew."""
LEAST = 256
"""Tokens; a list or a refusal that tells of fewer is about something else, such as what `max_tokens` leaves."""
_MOST = 256
"""Models of which refusals, or answers, are remembered."""

_log = logging.getLogger("antwort.providers")


class Lengths:
    """`given`: the operator's word, which goes before all others."""

    def __init__(self, given: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._given, self._clock = given, clock
        self._listed: dict[str, int] = {}
        self._sole: int | None = None
        self.told: dict[str, tuple[int, float]] = {}
        """By refusals, and until when it is believed. As long as there is any, `of` may say something else each time;
        without, only when there is another list.
        """
        self._answered: dict[str, tuple[int, float]] = {}
        self._odd: set[tuple[str, int]] = set()

    def of(self, model: str) -> int | None:
        """How many tokens a request and its answer may have together; None: nobody knows."""
        if self._given is not None:
            return self._given
        told = self._lasting(self.told, model) if self.told else None
        return told or self._by_list(model)

    def take(self, models: Sequence[Model]) -> list[Model]:
        """The backend lists these. Returns them as they are known now. What was told of a model stands as long as it is
        listed: Ollama tells it only of those that are loaded.
        """
        told = [(model.id, self._believed(model)) for model in models]
        known = ((name, self._listed.get(name) if size is UNSET else size) for name, size in told)
        listed = {name: size for name, size in known if size is not None}
        if listed != self._listed:
            self.forget()
        self._listed = listed
        self._sole = next(iter(self._listed.values())) if len(models) == 1 and self._listed else None
        return [replace(model, context_length=_or_unset(self.of(model.id))) for model in models]

    def learn(self, request: ChatRequest, refusal: ContextTooLong) -> None:
        """What is listed is believed, unless the request would have fitted by that and the refusal is firm. What the
        model has answered already fits, whatever a refusal says.
        """
        limit, listed = refusal.limit, self._by_list(request.model)
        if limit is None or limit < max(LEAST, self._lasting(self._answered, request.model) or 0):
            return
        is_explained = refusal.asked is None or refusal.asked + _wanted(request) > (listed or 0)
        if listed is not None and (is_explained or not refusal.is_firm):
            return
        self._remember(self.told, request.model, limit)

    def answered(self, model: str, usage: Usage | None) -> None:
        """The model has read and written so much: it fits, so that a refusal that says otherwise is forgotten."""
        tokens = 0 if usage is None else usage.input_tokens + usage.output_tokens
        if tokens < LEAST or tokens < (self._lasting(self._answered, model) or 0):
            return
        self._remember(self._answered, model, tokens)
        if (self._lasting(self.told, model) or tokens) < tokens:
            del self.told[model]

    def forget(self) -> None:
        """The backend was set up anew, or gone: what comes back may be another one. Its list stands until the next."""
        self.told.clear()
        self._answered.clear()

    def _believed(self, model: Model) -> int | UnsetType:
        size = model.context_length
        if size is UNSET or size >= LEAST:
            return size
        if (model.id, size) not in self._odd and len(self._odd) < _MOST:
            self._odd.add((model.id, size))
            _log.warning(
                "a backend lists a context of %d tokens for %s, which cannot be: it is ignored", size, model.id
            )
        return UNSET

    def _remember(self, table: dict[str, tuple[int, float]], model: str, tokens: int) -> None:
        table.pop(model, None)
        if len(table) >= _MOST:
            table.pop(next(iter(table)))
        table[model] = tokens, self._clock() + LASTS

    def _lasting(self, table: dict[str, tuple[int, float]], model: str) -> int | None:
        if (known := table.get(model)) is None:
            return None
        tokens, until = known
        return tokens if self._clock() < until else None

    def _by_list(self, model: str) -> int | None:
        """A backend with a single model takes it by any name, mostly; Ollama's may leave out their tag."""
        return self._listed.get(model) or self._listed.get(f"{model}:latest") or self._sole


def _wanted(request: ChatRequest) -> int:
    """Tokens that are kept for the answer."""
    limits = (request.max_tokens, request.max_completion_tokens)
    return max((limit for limit in limits if limit is not UNSET), default=0)


def _or_unset(length: int | None) -> int | UnsetType:
    return UNSET if length is None else length


# ---- what engines tell beside the list ----


def told_beside(models: Sequence[Model]) -> str | None:
    """Where the engine with this list tells more of its contexts; None where it does not, or that is not known.

    llama.cpp lists the context of all its slots together in some versions; Ollama lists none, and tells that of the
    models that are loaded.
    """
    owners = {model.owned_by for model in models}
    if owners == {"llamacpp"} and len(models) == 1:
        return "/props"
    return "/api/ps" if "library" in owners else None


def corrected(models: Sequence[Model], body: bytes) -> Sequence[Model]:
    """The list, with what was told beside it."""
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE:
        return models
    if not isinstance(told, dict):
        return models
    each = context_length(told.get("default_generation_settings"))
    loaded = _loaded(told.get("models"))
    return [replace(model, context_length=each or loaded.get(model.id, model.context_length)) for model in models]


def _loaded(told: Any) -> dict[str, int]:
    entries = [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []
    lengths = ((entry.get("name"), context_length(entry)) for entry in entries)
    return {name: length for name, length in lengths if isinstance(name, str) and length is not None}
