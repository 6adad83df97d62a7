"""Recognise the engine of a backend, and read what it reports about itself without an inference. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antwort.doctor.answers import BackendAnswer, quote
from antwort.doctor.findings import EngineInfo, EngineName
from antwort.errors import AntwortError
from antwort.providers.models import context_length, parse_models

OWN_ENDPOINTS = ("/props", "/version", "/api/version", "/api/ps", "/openapi.json")
"""Of llama.cpp, vLLM, Ollama (two) and antwort, beside the versioned ones."""
MODEL_LIST = "the list of models"
_OWNERS: Mapping[str, EngineName] = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang", "library": "ollama"}
_OTHER_MODELS = ("embed", "rerank", "whisper", "tts", "bge-")
"""Parts of the names of models that do not chat."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend reports about itself. None: it does not say."""

    engine: EngineInfo = EngineInfo()
    models: tuple[str, ...] = ()
    context: int | None = None
    context_origin: str = ""
    """Where the context length is reported."""
    offers_tools: bool | None = None
    """Whether the chat template describes tools to the model."""
    sees: bool | None = None
    """Whether it takes images."""

    @property
    def tells_context(self) -> bool:
        """Whether a server also finds the context length by itself, without a setting."""
        own = {"llama.cpp": "/props", "ollama": "/api/ps"}.get(self.engine.name)
        return self.context is not None and self.context_origin in (MODEL_LIST, own)


def names_in(listing: BackendAnswer) -> tuple[str, ...]:
    try:
        return tuple(model.id for model in parse_models(listing.body)) if listing.is_good else ()
    except AntwortError:
        return ()


def chat_models(models: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models whose names do not speak of another purpose; all, where all do."""
    return tuple(name for name in models if not any(part in name.lower() for part in _OTHER_MODELS)) or models


def likely_chat(models: tuple[str, ...]) -> str | None:
    """Return the model to ask by default."""
    return next(iter(chat_models(models)), None)


def facts_of(listing: BackendAnswer, own: Mapping[str, BackendAnswer], model: str | None) -> Facts:
    """Return the facts about `model`, from the list of models and the answers of `OWN_ENDPOINTS`."""
    tables = {path: _table(own.get(path)) for path in OWN_ENDPOINTS}
    entries = [entry for entry in _tables(_table(listing).get("data")) if model is None or entry.get("id") == model]
    context, origin = _context(tables, entries, model)
    props = tables["/props"]
    return Facts(
        engine=_engine(listing, tables, entries),
        models=names_in(listing),
        context=context,
        context_origin=origin,
        offers_tools=_flag(props.get("chat_template_caps"), "supports_tools"),
        sees=_flag(props.get("modalities"), "vision"),
    )


def _engine(listing: BackendAnswer, tables: Mapping[str, dict[str, Any]], entries: list[dict[str, Any]]) -> EngineInfo:
    """Recognise a proxy by its headers, and an engine by the owner of its models or by its own endpoints."""
    info = tables["/openapi.json"].get("info")
    document = info if isinstance(info, dict) else {}
    owners = (_OWNERS.get(str(entry.get("owned_by"))) for entry in entries)
    name: EngineName
    if any(header.startswith("x-litellm") for header in listing.headers):
        name = "litellm"
    elif owner := next((owner for owner in owners if owner), None):
        name = owner
    elif listing.headers.get("server", "").lower() == "llama.cpp" or "build_info" in tables["/props"]:
        name = "llama.cpp"
    elif tables["/api/version"].get("version"):
        name = "ollama"
    else:
        name = "antwort" if document.get("title") == "antwort" else "unknown"
    versions = {
        "llama.cpp": tables["/props"].get("build_info"),
        "vllm": tables["/version"].get("version"),
        "ollama": tables["/api/version"].get("version"),
        "antwort": document.get("version"),
        "litellm": listing.headers.get("x-litellm-version"),
    }
    version = versions.get(name)
    return EngineInfo(name=name, version=quote(version) if isinstance(version, str) else "")


def _context(
    tables: Mapping[str, dict[str, Any]], entries: list[dict[str, Any]], model: str | None
) -> tuple[int | None, str]:
    """Return the context length and where it is reported. In some versions of llama.cpp, the list of models reports
    that of all slots together, /props that of one.
    """
    if (size := context_length(tables["/props"].get("default_generation_settings"))) is not None:
        return size, "/props"
    for entry in entries:
        for table in (entry, entry.get("meta")):
            if (size := context_length(table)) is not None:
                return size, MODEL_LIST
    for entry in _tables(tables["/api/ps"].get("models")):
        if entry.get("name") == model and (size := context_length(entry)) is not None:
            return size, "/api/ps"
    return None, ""


def _table(answer: BackendAnswer | None) -> dict[str, Any]:
    decoded = answer.decoded() if answer is not None and answer.is_good else None
    return decoded if isinstance(decoded, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _flag(table: object, name: str) -> bool | None:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, bool) else None
