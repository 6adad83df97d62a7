"""What to do about a finding: what antwort does by itself, and what to set at the backend. Pure.

Only flags that the engines document are named.
"""

from __future__ import annotations

from collections.abc import Mapping

from antwort.config.settings import ToolCalling
from antwort.doctor.findings import EngineName, Verdict

CONSTRAINED = "antwort asks again with constrained decoding (tool_calling: auto)"
FOR_WRITE = "--write records it"

_PARSERS = (
    ("qwen3-coder", "qwen3_coder"),
    ("qwen", "hermes"),
    ("hermes", "hermes"),
    ("llama-3", "llama3_json"),
    ("mistral", "mistral"),
)
"""vLLM's tool parsers by what models are called; the first that fits."""
_TOOLS: Mapping[EngineName, str] = {
    "sglang": "start SGLang with --tool-call-parser",
    "llama.cpp": "give llama.cpp a template that offers tools: --chat-template-file FILE",
    "ollama": "take a model for which `ollama show` lists tools",
}
_REASONING: Mapping[EngineName, str] = {
    "vllm": "start vLLM with --reasoning-parser",
    "sglang": "start SGLang with --reasoning-parser",
    "llama.cpp": "start llama.cpp with --reasoning-format deepseek",
}
_CONTEXT: Mapping[EngineName, str] = {
    "vllm": "vLLM takes --max-model-len N",
    "sglang": "SGLang takes --context-length N",
    "llama.cpp": "llama.cpp takes -c N",
    "ollama": "Ollama takes OLLAMA_CONTEXT_LENGTH=N",
}
_IMAGES: Mapping[EngineName, str] = {
    "llama.cpp": "with a model that sees, start llama.cpp with --mmproj FILE",
}


def joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def for_tools(engine: EngineName, model: str, refusal: str = "") -> str:
    """What makes the backend call tools by itself; empty where that is not known."""
    if "--jinja" in refusal:
        return "start llama.cpp with --jinja"
    if engine == "vllm" or "--enable-auto-tool-choice" in refusal:
        parser = next((parser for word, parser in _PARSERS if word in model.lower()), "PARSER")
        return f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    return _TOOLS.get(engine, "")


def about_tools(schema: Verdict, mode: ToolCalling, flag: str, *, is_noticed: bool) -> str:
    """`schema`: whether answers can be held to a JSON schema, which is what antwort makes up for tools with.
    `is_noticed`: whether `auto` sees by itself that it has to.
    """
    other = f"or {flag}" if flag else ""
    if schema == "fails":
        return joined("antwort cannot make up for it without JSON schemas", flag)
    if mode == "constrained":
        return "antwort asks with constrained decoding (tool_calling: constrained)"
    if mode == "native" or not is_noticed:
        proof = f": {FOR_WRITE}" if schema == "works" else ", if JSON schemas work there"
        return joined(f"antwort makes up for it once `tool_calling` is constrained{proof}", other)
    return joined(CONSTRAINED if schema == "works" else f"{CONSTRAINED}, if JSON schemas work there", other)


def about_reasoning(engine: EngineName) -> str:
    return joined("antwort passes the thoughts on as text", _REASONING.get(engine, ""))


def about_images(engine: EngineName, *, is_off: bool, models: int) -> str:
    if is_off:
        return "antwort refuses images for it, as `vision` is off"
    if models > 1:
        return f"set `vision` off if none of its {models} models takes images: it holds for all of them"
    return joined(f"antwort refuses images for it once `vision` is off: {FOR_WRITE}", _IMAGES.get(engine, ""))


def about_context(engine: EngineName, *, is_ours: bool = False) -> str:
    more = "`local.context` gives it more" if is_ours else _CONTEXT.get(engine, "")
    return joined("that is little for tools and long talks", more)


WRITE_CONTEXT = f"antwort keeps to it from the start once `context_length` is set: {FOR_WRITE}"


def about_unknown_context(given: int | None) -> str:
    if given is not None:
        return f"antwort goes by the {given} that are set"
    return "set `context_length` if you know it: antwort then keeps to it"


def about_wrong_context(given: int, models: int) -> str:
    more = f"{given} are set, which is more: antwort sends what does not fit"
    return joined(more, "--write corrects it" if models == 1 else "")
