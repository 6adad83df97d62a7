"""Parse a backend's list of models, and keep the context lengths of its models."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from antwort.api.responses import Model, Usage
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.caching import Cache
from antwort.errors import BackendError, ContextTooLong
from antwort.providers.answer_parser import DECODE_ERRORS
from antwort.providers.base import ChatRequest
from antwort.providers.errors import MAX_TOKEN_COUNT

MIN_CONTEXT_TOKENS = 256
"""A list or a refusal with a smaller length means something else, such as the room that `max_tokens` leaves."""
LEARNED_TTL_SECONDS = 3600.0
"""How long a length learned from a refusal or an answer holds: backends are reconfigured."""
_MAX_NAME_CHARS = 512
MAX_TRACKED_MODELS = 256
MAX_MODEL_NAME_CHARS = 256
"""Nothing is cached for a longer name."""
_MAX_CREATED = 2**53

K = TypeVar("K", bound=str | tuple[str, str])
V = TypeVar("V")

_log = logging.getLogger("antwort.providers")

# ---- the list ----

_LENGTH_FIELDS = (
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
    "n_ctx",
)
"""The names of the context length in lists of models: first that of vLLM and SGLang, then all others."""


def parse_models(body: bytes) -> list[Model]:
    """Parse `{"data": […]}`, `{"models": […]}` or a bare list, and skip entries without a printable name."""
    try:
        plain = msgspec.json.decode(body)
    except DECODE_ERRORS as exc:
        raise BackendError(_UNREADABLE_LIST) from exc
    if isinstance(plain, dict):
        plain = plain.get("data") if plain.get("data") is not None else plain.get("models") or []
    if not isinstance(plain, list):
        raise BackendError(_UNREADABLE_LIST)
    return [model for entry in plain if (model := _parse_model(entry)) is not None]


_UNREADABLE_LIST = "The backend's list of models cannot be understood."


def _parse_model(entry: Any) -> Model | None:
    fields = entry if isinstance(entry, dict) else {"id": entry}
    name = _printable(fields.get("id")) or _printable(fields.get("name"))
    if not name:
        return None
    created: Any = fields.get("created")
    is_time = isinstance(created, int | float) and not isinstance(created, bool) and 0 <= created < _MAX_CREATED
    length = context_length(fields) or context_length(fields.get("meta"))  # `meta` is llama.cpp's
    return Model(
        id=name,
        created=int(created) if is_time else 0,
        owned_by=_printable(fields.get("owned_by")) or "antwort",
        context_length=UNSET if length is None else length,
    )


def _printable(value: Any) -> str:
    """Return text that is safe in a log line and in a terminal, and an empty string for anything else."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _MAX_NAME_CHARS else ""


def context_length(entry: object) -> int | None:
    """Return the context length in a JSON object, under any of its names."""
    if not isinstance(entry, dict):
        return None
    for name in _LENGTH_FIELDS:
        value = entry.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKEN_COUNT:
            return value
    return None


# ---- endpoints of engines that name context lengths beside the list ----


def context_length_path(models: Sequence[Model]) -> str | None:
    """Return the path at which the engine with this list has more on context lengths; None where none is known.

    Some versions of llama.cpp list the context of all slots together; Ollama lists none, and has those of the models
    that are loaded.
    """
    owners = {model.owned_by for model in models}
    if owners == {"llamacpp"} and len(models) == 1:
        return "/props"
    return "/api/ps" if "library" in owners else None


def with_context_lengths(models: Sequence[Model], body: bytes) -> Sequence[Model]:
    """Return the models with the context lengths in the answer of such an endpoint."""
    try:
        plain = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return models
    if not isinstance(plain, dict):
        return models
    slot_length = context_length(plain.get("default_generation_settings"))
    loaded: dict[str, int] = {}
    entries = plain.get("models")
    for entry in entries if isinstance(entries, list) else []:
        if (length := context_length(entry)) is not None and isinstance(entry.get("name"), str):
            loaded[entry["name"]] = length
    return [
        replace(model, context_length=slot_length or loaded.get(model.id, model.context_length)) for model in models
    ]


# ---- caches by model ----


class ModelCache(Cache[K, V]):
    """A cache whose keys are models, or begin with one. Names are bounded in length, too: a client chooses them."""

    __slots__ = ()

    def __init__(self, max_entries: int = MAX_TRACKED_MODELS) -> None:
        super().__init__(max_entries)

    def put(self, key: K, value: V, size: int = 0) -> None:
        if len(key if isinstance(key, str) else key[0]) <= MAX_MODEL_NAME_CHARS:
            super().put(key, value, size)


# ---- context lengths ----


class ContextLengths:
    """The context lengths of a backend's models: configured, learned from refusals, or listed, in this order."""

    def __init__(self, configured: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._configured, self._clock = configured, clock
        self._listed: dict[str, int] = {}
        self._sole_length: int | None = None
        """The length of the only model in the list: such a backend mostly takes its model by any name."""
        self.refused = ModelCache[str, tuple[int, float]]()
        """Limits from refusals, with their expiry. While there are any, `of` may change from call to call; otherwise
        only with the next list.
        """
        self._answered = ModelCache[str, tuple[int, float]]()
        """The largest requests that were answered, with their expiry."""
        self._warned: set[tuple[str, int]] = set()

    def of(self, model: str) -> int | None:
        """Return how many tokens a request and its answer may have together; None where that is not known."""
        if self._configured is not None:
            return self._configured
        limit = self._unexpired(self.refused, model) if self.refused else None
        return limit or self._listed_length(model)

    def update(self, models: Sequence[Model]) -> list[Model]:
        """Replace the list of models, and return it with the lengths that are known now.

        A model that is listed without a length keeps its last one: Ollama names only those of loaded models.
        """
        listed: dict[str, int] = {}
        for model in models:
            length = model.context_length
            if length is not UNSET and length < MIN_CONTEXT_TOKENS:
                self._warn(model.id, length)
                length = UNSET
            known = self._listed.get(model.id) if length is UNSET else length
            if known is not None:
                listed[model.id] = known
        if listed != self._listed:
            self.forget()
        self._listed = listed
        self._sole_length = next(iter(listed.values())) if len(models) == 1 and listed else None
        return [replace(model, context_length=_or_unset(self.of(model.id))) for model in models]

    def learn(self, request: ChatRequest, refusal: ContextTooLong) -> None:
        """Remember the limit in a refusal, unless something better contradicts it.

        A listed length stands, unless the request would have fitted into it and the refusal is firm. A request that was
        answered before fits, whatever a refusal says.
        """
        limit, listed = refusal.limit, self._listed_length(request.model)
        if limit is None or limit < max(MIN_CONTEXT_TOKENS, self._unexpired(self._answered, request.model) or 0):
            return
        if listed is not None:
            output_limits = (request.max_tokens, request.max_completion_tokens)
            output = max((tokens for tokens in output_limits if tokens is not UNSET), default=0)
            is_explained = refusal.asked is None or refusal.asked + output > listed
            if is_explained or not refusal.is_firm:
                return
        self.refused.put(request.model, (limit, self._clock() + LEARNED_TTL_SECONDS))

    def record_answer(self, model: str, usage: Usage | None) -> None:
        """Remember the size of a request that was answered, and forget a refusal with a smaller limit."""
        tokens = 0 if usage is None else usage.input_tokens + usage.output_tokens
        if tokens < MIN_CONTEXT_TOKENS or tokens < (self._unexpired(self._answered, model) or 0):
            return
        self._answered.put(model, (tokens, self._clock() + LEARNED_TTL_SECONDS))
        if (self._unexpired(self.refused, model) or tokens) < tokens:
            self.refused.discard(model)

    def forget(self) -> None:
        """Forget what was learned: the backend was reconfigured, or gone. Its list stands until the next one."""
        self.refused.clear()
        self._answered.clear()

    def _listed_length(self, model: str) -> int | None:
        return (
            self._listed.get(model) or self._listed.get(f"{model}:latest") or self._sole_length
        )  # the tag is Ollama's

    def _warn(self, model: str, length: int) -> None:
        if (model, length) not in self._warned and len(self._warned) < MAX_TRACKED_MODELS:
            self._warned.add((model, length))
            _log.warning("a backend lists a context of %d tokens for %s, which cannot be: it is ignored", length, model)

    def _unexpired(self, table: ModelCache[str, tuple[int, float]], model: str) -> int | None:
        if (known := table.get(model)) is None:
            return None
        tokens, until = known
        return tokens if self._clock() < until else None


def _or_unset(length: int | None) -> int | UnsetType:
    return UNSET if length is None else length
