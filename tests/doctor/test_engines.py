"""Which engine it is, by what it says about itself."""

from __future__ import annotations

import json

import pytest

from antwort.doctor.answers import BackendAnswer, Chunk, quote
from antwort.doctor.checks import check_context, check_reasoning
from antwort.doctor.engines import Facts, facts_of, likely_chat
from antwort.doctor.findings import EngineInfo, EngineName
from antwort.doctor.tool_checks import flag_for_tools
from replay_backend import CASES


def _json(told: object, **headers: str) -> BackendAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return BackendAnswer(status=200, headers=named, chunks=(Chunk(0.0, json.dumps(told).encode()),))


def _listing(owner: str, **fields: object) -> BackendAnswer:
    return _json({"data": [{"id": "m", "owned_by": owner, **fields}]})


@pytest.mark.parametrize(
    ("listing", "own", "title"),
    [
        (_listing("vllm"), {"/version": _json({"version": "0.11.2"})}, "vLLM 0.11.2"),
        (_listing("sglang"), {}, "SGLang"),
        (_listing("llamacpp"), {"/props": _json({"build_info": "b6900-abc"})}, "llama.cpp b6900-abc"),
        (_json({"data": []}, server="llama.cpp"), {}, "llama.cpp"),
        (_listing("library"), {"/api/version": _json({"version": "0.13.3"})}, "Ollama 0.13.3"),
        (_listing("somebody"), {"/api/version": _json({"version": "0.13.3"})}, "Ollama 0.13.3"),
        (_json({"data": []}, x_litellm_version="1.80.0"), {}, "LiteLLM 1.80.0"),
        (_listing("openai"), {"/version": _json({"version": "9"})}, "an engine that is not known"),
        (
            _json("nonsense"),
            {"/props": _json([1]), "/version": BackendAnswer(fault="slow")},
            "an engine that is not known",
        ),
    ],
)
def test_an_engine_is_known_by_its_own_words(listing: BackendAnswer, own: dict[str, BackendAnswer], title: str) -> None:
    assert facts_of(listing, own, "m").engine.title == title


@pytest.mark.parametrize(
    ("listing", "own", "size"),
    [
        (_listing("vllm", max_model_len=32768), {}, 32768),
        (_listing("llamacpp", meta={"n_ctx": 8192, "n_ctx_train": 131072}), {}, 8192),
        (_listing("x", context_length=1000), {"/props": _json({"default_generation_settings": {"n_ctx": 500}})}, 500),
        (_listing("library"), {"/api/ps": _json({"models": [{"name": "m", "context_length": 4096}]})}, 4096),
        (_listing("library"), {"/api/ps": _json({"models": [{"name": "other", "context_length": 4096}]})}, None),
        (_listing("x", max_model_len="many", context_window=True, n_ctx=-1), {}, None),
    ],
)
def test_the_context_is_read_where_engines_tell_it(
    listing: BackendAnswer, own: dict[str, BackendAnswer], size: int | None
) -> None:
    assert facts_of(listing, own, "m").context == size


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (json.loads(CASES["vllm/err_context_stream"].body)["error"]["message"], 2048),
        (json.loads(CASES["llama.cpp/err_context_stream"].body)["error"]["message"], 4096),
        ("Requested token count exceeds the model's maximum context length of 16384 tokens.", 16384),
        ("max_tokens is too large", None),
    ],
)
def test_an_error_tells_the_context_too(words: str, size: int | None) -> None:
    refusal = BackendAnswer(status=400, chunks=(Chunk(0.0, json.dumps({"error": {"message": words}}).encode()),))
    seen = "it does not say" if size is None else f"{size} tokens, by an error"
    assert check_context(Facts(), refusal).seen == seen


def test_a_model_for_something_else_is_not_the_one_to_ask() -> None:
    assert likely_chat(("nomic-embed-text", "bge-reranker", "qwen3")) == "qwen3"
    assert likely_chat(("nomic-embed-text",)) == "nomic-embed-text"
    assert likely_chat(()) is None


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--enable-auto-tool-choice --tool-call-parser"),
        ("sglang", "--tool-call-parser"),
        ("llama.cpp", "--chat-template-file"),
        ("ollama", "ollama show"),
    ],
)
def test_each_engine_has_its_own_way_to_tools(engine: EngineName, flag: str) -> None:
    assert flag in flag_for_tools(engine, "m")
    assert flag_for_tools("unknown", "m", "tools param requires --jinja flag") == "start llama.cpp with --jinja"
    assert flag_for_tools("litellm", "m") == ""


@pytest.mark.parametrize(
    ("engine", "reasoning", "context"),
    [
        ("vllm", "--reasoning-parser", "--max-model-len"),
        ("llama.cpp", "--reasoning-format deepseek", "-c N"),
        ("sglang", "--reasoning-parser", "--context-length"),
        ("ollama", "", "OLLAMA_CONTEXT_LENGTH"),
    ],
)
def test_flags_for_reasoning_and_context_are_those_of_the_engine(
    engine: EngineName, reasoning: str, context: str
) -> None:
    facts = Facts(engine=EngineInfo(name=engine), context=2048, context_origin="/props")
    thinking = _json({"choices": [{"message": {"content": "<think>Hm</think> Yes"}, "finish_reason": "stop"}]})
    assert reasoning in check_reasoning((thinking,), facts, None).remedy
    assert context in check_context(facts, None).remedy


def test_what_a_model_says_cannot_command_a_terminal() -> None:
    assert quote("\x1b[31mred\x07 \u202e" + "x" * 100) == "\\x1b[31mred\\x07 \\u202e" + "x" * 25 + "…"
