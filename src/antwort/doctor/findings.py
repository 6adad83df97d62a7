"""What was found out about a backend. These are the objects that `antwort doctor --json` prints."""

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
"""What is examined, in this order, and what each is called in the table. `kind` is told only of backends that speak
Responses, or another API than the configured one."""


UNASKED = "not asked, as earlier questions went unanswered"


class Finding(Wire):
    """One line of the table."""

    probe: str
    verdict: Verdict
    seen: str
    remedy: str = ""
    """What antwort does about it, or what to set at the backend."""
    blocks: bool = False
    """Whether antwort cannot make up for it: where `settings` are named, as long as these are not in force."""
    settings: Mapping[str, Value] = {}
    """What follows for the backend's settings, by their paths within it."""

    @property
    def title(self) -> str:
        return PROBES[self.probe]


class Engine(Wire):
    """What serves the models, as far as it gave itself away."""

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
    engine: Engine = Engine()
    model: str | None = None
    """The model that was asked."""
    models: int = 1
    """How many the backend has; its settings hold for all of them."""
    findings: tuple[Finding, ...] = ()
    settings: Mapping[str, Value] = {}
    """What `--write` records, by the paths within the backend's entry."""
    problem: str = ""
    """Why nothing more was asked, where it is out of reach."""


class Report(Wire):
    """What `--json` prints. Fields are added, and none is changed, as long as `version` is the same."""

    backends: tuple[Examination, ...]
    version: int = 1


def outcome(findings: Iterable[Finding], in_force: Mapping[str, Value]) -> Outcome:
    """`in_force` are the settings of the backend that are set as these findings want them."""
    for finding in findings:
        is_made_up_for = bool(finding.settings) and finding.settings.items() <= in_force.items()
        if finding.blocks and not is_made_up_for:
            return "broken"
    return "fine"
