"""What was found out about a backend: the objects that `antwort doctor --json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from antwort.api.wire import Wire

Verdict: TypeAlias = Literal["works", "fails", "unknown"]
EngineName: TypeAlias = Literal["vllm", "llama.cpp", "sglang", "ollama", "litellm", "antwort", "unknown"]
Outcome: TypeAlias = Literal["fine", "broken", "unreachable"]
Value: TypeAlias = str | bool | int

PROBES: Mapping[str, str] = {
    "reachable": "reachable",
    "kind": "API",
    "models": "models",
    "streaming": "streaming",
    "length_limit": "length limit",
    "stream_usage": "usage in streams",
    "tools.auto": "tool calls, auto",
    "tools.required": "tool calls, required",
    "tools.named": "tool calls, named",
    "tools.parallel": "tool calls, parallel",
    "tools.streamed": "tool calls, streamed",
    "json_schema": "JSON schema",
    "reasoning_field": "reasoning field",
    "images": "images",
    "context_length": "context length",
    "token_counts": "token counts",
    "errors": "errors well-formed",
    "first_token": "time to first token",
    "speed": "tokens/s",
}
"""What is examined, in this order, with the titles of the table. `kind` is reported only for backends that speak the
Responses API, or another API than the configured one."""

NOT_ASKED = "not asked, as earlier questions went unanswered"


class Finding(Wire):
    """One line of the table."""

    probe: str
    verdict: Verdict
    seen: str
    remedy: str = ""
    """What antwort does about it, or what to set at the backend."""
    blocks: bool = False
    """Whether antwort cannot work around it, or only once `settings` are in force."""
    settings: Mapping[str, Value] = {}
    """The settings of the backend that follow, by their paths within its entry."""

    @property
    def title(self) -> str:
        return PROBES[self.probe]


def works(probe: str, seen: str, remedy: str = "", settings: Mapping[str, Value] | None = None) -> Finding:
    return Finding(probe=probe, verdict="works", seen=seen, remedy=remedy, settings=settings or {})


def fails(
    probe: str, seen: str, remedy: str, settings: Mapping[str, Value] | None = None, *, blocks: bool = False
) -> Finding:
    return Finding(probe=probe, verdict="fails", seen=seen, remedy=remedy, blocks=blocks, settings=settings or {})


def unknown(probe: str, seen: str, remedy: str = "") -> Finding:
    return Finding(probe=probe, verdict="unknown", seen=seen, remedy=remedy)


class EngineInfo(Wire):
    """The software that serves the models, as far as it can be recognised."""

    name: EngineName = "unknown"
    version: str = ""

    @property
    def title(self) -> str:
        return f"{_TITLES[self.name]} {self.version}".strip()


_TITLES: Mapping[EngineName, str] = {
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "sglang": "SGLang",
    "ollama": "Ollama",
    "litellm": "LiteLLM",
    "antwort": "antwort",
    "unknown": "an engine that is not known",
}


class Examination(Wire):
    """All that was found out about one backend. `url` is the base address that works, without its query."""

    name: str
    url: str
    outcome: Outcome
    engine: EngineInfo = EngineInfo()
    model: str | None = None
    """The model that was asked."""
    models: int = 1
    """How many models the backend has. Its settings hold for all of them."""
    findings: tuple[Finding, ...] = ()
    settings: Mapping[str, Value] = {}
    """What `--write` records, by the paths within the backend's entry."""
    problem: str = ""
    """Why the examination ended early, where the backend is unreachable."""


class Report(Wire):
    """What `--json` prints. Within one `version`, fields are only added."""

    backends: tuple[Examination, ...]
    version: int = 1


def outcome(findings: Iterable[Finding], in_force: Mapping[str, Value]) -> Outcome:
    """Return the outcome, given the settings of the backend that are in force."""
    for finding in findings:
        if finding.blocks and not (finding.settings and finding.settings.items() <= in_force.items()):
            return "broken"
    return "fine"
