"""A backend's list of models: what can be read of it is, whatever else is in it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.responses import Model
from antwort.api.wire import UNSET
from antwort.errors import BackendError
from antwort.providers.reading import UNREADABLE

_LONGEST_NAME = 512
_LATEST = 2**53
_LONGEST_CONTEXT = 2**40
_LENGTHS = (
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
    "n_ctx",
)
"""How lists call the length of the context: vLLM and SGLang, and then all others."""


def listed_models(body: bytes) -> list[Model]:
    """`{"data": […]}`, `{"models": […]}` or the bare list. An entry without a name that can be shown is passed over."""
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE as exc:
        raise _not_understood() from exc
    if isinstance(told, dict):
        told = told.get("data") if told.get("data") is not None else told.get("models") or []
    if not isinstance(told, list):
        raise _not_understood()
    return [model for each in told if (model := _model(each)) is not None]


def _model(told: Any) -> Model | None:
    fields = told if isinstance(told, dict) else {"id": told}
    name = _shown(fields.get("id")) or _shown(fields.get("name"))
    if not name:
        return None
    length = context_length(fields) or context_length(fields.get("meta"))  # the latter is llama.cpp's
    return Model(
        id=name,
        created=_time(fields.get("created")),
        owned_by=_shown(fields.get("owned_by")) or "antwort",
        context_length=UNSET if length is None else length,
    )


def context_length(told: object) -> int | None:
    """The length of the context that a table tells of, under whichever name."""
    if not isinstance(told, dict):
        return None
    lengths = (told.get(name) for name in _LENGTHS)
    return next((length for length in lengths if _is_length(length)), None)


def _is_length(told: Any) -> bool:
    return isinstance(told, int) and not isinstance(told, bool) and 0 < told <= _LONGEST_CONTEXT


def _shown(told: Any) -> str:
    """Text that may stand in a line of a log or of a terminal; anything else is none."""
    return told if isinstance(told, str) and told.isprintable() and len(told) <= _LONGEST_NAME else ""


def _time(told: Any) -> int:
    is_time = isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < _LATEST
    return int(told) if is_time else 0


def _not_understood() -> BackendError:
    return BackendError("The backend's list of models cannot be understood.")
