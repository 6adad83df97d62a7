"""Which engine a backend is, and what it says about itself without being asked to infer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from antwort.doctor.answers import Answer, quoted
from antwort.doctor.findings import Engine, EngineName
from antwort.errors import AntwortError
from antwort.providers.models import context_length, parse_models

OWN_ENDPOINTS = ("/props", "/version", "/api/version", "/api/ps", "/openapi.json")
"""Of llama.cpp, vLLM, Ollama (two) and antwort, beside the versioned ones."""

LIST = "the list of models"
_OWNERS: Mapping[str, EngineName] = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang", "library": "ollama"}
_NO_CHAT = ("embed", "rerank", "whisper", "tts", "bge-")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a backend before it has inferred anything; None: it does not say."""

    engine: Engine = Engine()
    models: tuple[str, ...] = ()
    context: int | None = None
    context_origin: str = ""
    """Where that is told."""
    offers_tools: bool | None = None
    """Whether its chat template tells a model of tools."""
    sees: bool | None = None
    """Whether it takes images."""

    @property
    def tells_context(self) -> bool:
        """Whether a server that uses it is told of the context as well, without setting it."""
        own = {"llama.cpp": "/props", "ollama": "/api/ps"}.get(self.engine.name)
        return self.context is not None and self.context_origin in (LIST, own)


def names_in(listing: Answer) -> tuple[str, ...]:
    try:
        return tuple(model.id for model in parse_models(listing.body)) if listing.is_good else ()
    except AntwortError:
        return ()


def chat_models(models: tuple[str, ...]) -> tuple[str, ...]:
    """Those whose names do not speak of another trade; all, where all do."""
    fit = tuple(name for name in models if not any(word in name.lower() for word in _NO_CHAT))
    return fit or models


def likely_chat(models: tuple[str, ...]) -> str | None:
    """The model to ask where nobody says which."""
    return next(iter(chat_models(models)), None)


def facts_of(listing: Answer, own: Mapping[str, Answer], model: str | None) -> Facts:
    """`own`: what came from `OWN_ENDPOINTS`."""
    props = _table(own.get("/props"))
    context, origin = _context(listing, own, model)
    caps, modalities = props.get("chat_template_caps"), props.get("modalities")
    return Facts(
        engine=_engine(listing, own, model),
        models=names_in(listing),
        context=context,
        context_origin=origin,
        offers_tools=_flag(caps, "supports_tools"),
        sees=_flag(modalities, "vision"),
    )


def _table(answer: Answer | None) -> dict[str, Any]:
    told = answer.plain() if answer is not None and answer.is_good else None
    return told if isinstance(told, dict) else {}


def _flag(table: object, name: str) -> bool | None:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, bool) else None


# ---- which engine ----


def _engine(listing: Answer, own: Mapping[str, Answer], model: str | None) -> Engine:
    name = _name(listing, own, model)
    return Engine(name=name, version=_version(name, listing, own))


def _name(listing: Answer, own: Mapping[str, Answer], model: str | None) -> EngineName:
    """A proxy names itself in its headers, an engine as the owner of its models."""
    if any(header.startswith("x-litellm") for header in listing.headers):
        return "litellm"
    for entry in _entries(listing, model):
        if name := _OWNERS.get(str(entry.get("owned_by"))):
            return name
    if listing.headers.get("server", "").lower() == "llama.cpp" or "build_info" in _table(own.get("/props")):
        return "llama.cpp"
    if _table(own.get("/api/version")).get("version"):
        return "ollama"
    return "antwort" if _own_document(own).get("title") == "antwort" else "unknown"


def _own_document(own: Mapping[str, Answer]) -> dict[str, Any]:
    """What antwort says of itself in its OpenAPI document."""
    info = _table(own.get("/openapi.json")).get("info")
    return info if isinstance(info, dict) else {}


def _version(name: EngineName, listing: Answer, own: Mapping[str, Answer]) -> str:
    match name:
        case "llama.cpp":
            told = _table(own.get("/props")).get("build_info")
        case "vllm":
            told = _table(own.get("/version")).get("version")
        case "ollama":
            told = _table(own.get("/api/version")).get("version")
        case "antwort":
            told = _own_document(own).get("version")
        case "litellm":
            told = listing.headers.get("x-litellm-version")
        case _:
            told = None
    return quoted(told) if isinstance(told, str) else ""


# ---- how much fits ----


def _context(listing: Answer, own: Mapping[str, Answer], model: str | None) -> tuple[int | None, str]:
    """llama.cpp's list tells the context of all slots together in some versions; its /props that of one."""
    settings = _table(own.get("/props")).get("default_generation_settings")
    if (size := context_length(settings)) is not None:
        return size, "/props"
    for entry in _entries(listing, model):
        for table in (entry, entry.get("meta")):
            if (size := context_length(table)) is not None:
                return size, LIST
    for entry in _tables(_table(own.get("/api/ps")).get("models")):
        if entry.get("name") == model and (size := context_length(entry)) is not None:
            return size, "/api/ps"
    return None, ""


def _entries(listing: Answer, model: str | None) -> Iterator[dict[str, Any]]:
    """What the list says of the model, or of all where none is named."""
    for entry in _tables(_table(listing).get("data")):
        if model is None or entry.get("id") == model:
            yield entry


def _tables(told: object) -> list[dict[str, Any]]:
    return [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []
