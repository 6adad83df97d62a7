"""A backend's list of models: what can be read of it is, whatever else is in it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.responses import Model
from antwort.errors import BackendError
from antwort.providers.reading import UNREADABLE

_LONGEST_NAME = 512
_LATEST = 2**53


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
    return Model(id=name, created=_time(fields.get("created")), owned_by=_shown(fields.get("owned_by")) or "antwort")


def _shown(told: Any) -> str:
    """Text that may stand in a line of a log or of a terminal; anything else is none."""
    return told if isinstance(told, str) and told.isprintable() and len(told) <= _LONGEST_NAME else ""


def _time(told: Any) -> int:
    is_time = isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < _LATEST
    return int(told) if is_time else 0


def _not_understood() -> BackendError:
    return BackendError("The backend's list of models cannot be understood.")
