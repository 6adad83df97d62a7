"""Engines that answer as they were recorded: the right verdict on every line."""

from __future__ import annotations

import pytest

from antwort.config.settings import BackendSettings, CapabilitySettings
from antwort.doctor.examiner import OutOfReach
from antwort.doctor.findings import PROBES
from doctor_kit import by_probe, examined, verdicts
from replay import (
    LLAMA_CPP,
    LLAMA_CPP_LOADING,
    LLAMA_CPP_THINKING,
    LLAMA_CPP_WITHOUT_TOOLS,
    NOT_THERE,
    VLLM,
    Script,
    answering,
    kind_of,
    playing,
    refusing_tools,
)
from replay_backend import Answer, Seen, whole

NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


async def test_llama_cpp_with_tools_does_all_but_follow_a_named_choice() -> None:
    async with playing(LLAMA_CPP) as engine:
        found = await examined(engine.url)
    assert list(verdicts(found)) == [probe for probe in PROBES if probe != "kind"]
    assert verdicts(found) == {
        "reachable": "works",
        "models": "works",
        "streaming": "works",
        "length_limit": "works",
        "stream_usage": "works",
        "tools.auto": "unknown",  # the recorded call was cut off
        "tools.required": "works",
        "tools.named": "fails",
        "tools.parallel": "unknown",
        "tools.streamed": "works",
        "json_schema": "works",
        "reasoning_field": "unknown",
        "images": "fails",
        "context_length": "works",
        "token_counts": "unknown",
        "errors": "works",
        "first_token": "works",
        "speed": "unknown",
    }
    assert found.engine.title == "llama.cpp b0-unknown"
    assert (found.model, found.outcome) == ("smollm2-135m", "fine")
    assert found.settings == {"capabilities.vision": False}


async def test_an_ignored_choice_is_told_with_what_antwort_does_about_it() -> None:
    async with playing(LLAMA_CPP) as engine:
        named = by_probe(await examined(engine.url))["tools.named"]
    assert named.seen == "the choice is ignored: \"I'm glad you're happy with the\""
    assert named.remedy == "antwort asks again with constrained decoding (tool_calling: auto)"
    assert not named.blocks


async def test_llama_cpp_says_of_itself_how_much_fits_and_that_it_sees_nothing() -> None:
    async with playing(LLAMA_CPP) as engine:
        found = by_probe(await examined(engine.url))
        assert "text" not in engine.kinds[engine.kinds.index("image") :]  # nobody has to provoke an error for it
    assert found["context_length"].seen == "4096 tokens, by /props"
    assert "-c N" in found["context_length"].remedy
    assert "image input is not supported" in found["images"].seen
    assert "--mmproj FILE" in found["images"].remedy


async def test_llama_cpp_whose_template_drops_tools_is_fit_once_calls_are_constrained() -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert {told[f"tools.{choice}"].verdict for choice in ("auto", "required", "named", "parallel")} == {"fails"}
    assert told["tools.streamed"].verdict == "unknown"
    assert told["tools.auto"].settings == {"tool_calling": "constrained"}
    assert "--chat-template-file FILE" in told["tools.auto"].remedy
    assert "--chat-template-file" not in told["tools.required"].remedy  # once is enough
    assert found.outcome == "broken"
    assert found.settings == {"tool_calling": "constrained", "capabilities.vision": False}


@pytest.mark.parametrize(
    ("script", "path", "told"),
    [
        (VLLM, "/tokenize", b'{"count": 37, "max_model_len": 2048, "tokens": []}'),
        (LLAMA_CPP, "/v1/chat/completions/input_tokens", b'{"input_tokens": 37}'),
    ],
    ids=["vllm", "llama.cpp"],
)
async def test_an_engine_that_counts_tokens_is_found_to(script: Script, path: str, told: bytes) -> None:
    def answer(request: Seen) -> Answer:
        return whole(told) if request.path == path else script.get(kind_of(request), NOT_THERE)

    async with answering(answer) as engine:
        counts = by_probe(await examined(engine.url))["token_counts"]
    assert (counts.verdict, counts.seen) == ("works", "37 tokens, by its own tokenizer")


async def test_what_is_set_already_makes_it_fit() -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", tool_calling="constrained")
        found = await examined(settings.url, settings=settings)
    assert found.outcome == "fine"
    assert by_probe(found)["tools.auto"].remedy == (
        "antwort asks with constrained decoding (tool_calling: constrained)"
    )


async def test_native_calls_that_never_come_block_until_they_are_constrained() -> None:
    async with playing(LLAMA_CPP) as engine:
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", tool_calling="native")
        found = await examined(settings.url, settings=settings)
    assert found.outcome == "broken"
    assert by_probe(found)["tools.named"].settings == {"tool_calling": "constrained"}


async def test_a_model_that_thinks_shows_the_field_that_it_thinks_in() -> None:
    async with playing(LLAMA_CPP_THINKING) as engine:
        found = by_probe(await examined(engine.url))["reasoning_field"]
    assert (found.verdict, found.seen, found.remedy) == ("works", "reasoning_content", "")


async def test_reasoning_that_is_sent_back_in_another_field_is_to_be_set() -> None:
    async with playing(LLAMA_CPP_THINKING) as engine:
        capabilities = CapabilitySettings(reasoning_field="reasoning")
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", capabilities=capabilities)
        found = by_probe(await examined(settings.url, settings=settings))["reasoning_field"]
    assert found.settings == {"capabilities.reasoning_field": "reasoning_content"}


async def test_a_model_that_is_loading_is_not_examined() -> None:
    async with playing(LLAMA_CPP_LOADING) as engine:
        with pytest.raises(OutOfReach, match="is not ready: Loading model"):
            await examined(engine.url)


async def test_vllm_with_hermes_leaves_the_model_its_right_to_words() -> None:
    async with playing(VLLM) as engine:
        found = await examined(engine.url)
    assert verdicts(found) == {
        "reachable": "works",
        "models": "works",
        "streaming": "works",
        "length_limit": "works",
        "stream_usage": "works",
        "tools.auto": "unknown",
        "tools.required": "works",
        "tools.named": "works",
        "tools.parallel": "unknown",
        "tools.streamed": "works",
        "json_schema": "works",
        "reasoning_field": "unknown",
        "images": "fails",
        "context_length": "works",
        "token_counts": "unknown",
        "errors": "works",
        "first_token": "works",
        "speed": "unknown",
    }
    assert found.engine.title == "vLLM 0.32.0"
    assert found.outcome == "fine"
    assert "which is its right" in by_probe(found)["tools.auto"].seen
    assert by_probe(found)["context_length"].seen == "2048 tokens, by the list of models"


@pytest.mark.parametrize(
    ("model", "parser"),
    [("Qwen/Qwen2.5-7B-Instruct", "hermes"), ("meta-llama/Llama-3.1-8B-Instruct", "llama3_json"), ("other", "PARSER")],
)
async def test_vllm_without_a_parser_is_told_which_flags_bring_one(model: str, parser: str) -> None:
    async with playing(refusing_tools(VLLM, NO_PARSER, ["auto"])) as engine:
        found = await examined(engine.url, model=model)
    told = by_probe(found)
    auto = told["tools.auto"]
    assert (told["tools.required"].verdict, told["tools.named"].verdict) == ("works", "works")  # they need no parser
    assert (auto.verdict, auto.blocks) == ("fails", False)  # antwort asks again by itself
    assert auto.remedy == (
        "antwort asks again with constrained decoding (tool_calling: auto); "
        f"or start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    )
    assert "tool_calling" not in found.settings
    assert found.outcome == "fine"


async def test_an_engine_that_refuses_all_tools_is_to_be_asked_constrained() -> None:
    async with playing(refusing_tools(VLLM, "registry/llava does not support tools")) as engine:
        found = await examined(engine.url)
    assert found.settings["tool_calling"] == "constrained"
    assert found.outcome == "fine"
