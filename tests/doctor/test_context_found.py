"""How much fits: said with what follows for the settings, and written where a server would not find out by itself."""

from __future__ import annotations

import json

import pytest

from antwort.config.settings import BackendSettings, CapabilitySettings
from antwort.doctor import questions
from antwort.doctor.findings import Finding
from doctor_kit import by_probe, examined
from replay import LLAMA_CPP, VLLM, Script, answering, kind_of
from replay_backend import Answer, Seen, whole

SILENT: Script = {**VLLM, "GET /v1/models": whole(b'{"data": [{"id": "m", "owned_by": "somebody"}]}')}
"""It lists its model, and tells nothing of it."""
WORDS = "This model's maximum context length is 32768 tokens."
REFUSAL = whole(json.dumps({"error": {"message": WORDS}}).encode(), 400)
FAR_TOO_MUCH = str(questions.TOO_MANY_TOKENS).encode()


async def found(script: Script, *, given: int | None = None, refusal: Answer | None = None) -> Finding:
    """What is found of a backend with `given` as its setting; `refusal` is its answer to far too much."""

    def answer(seen: Seen) -> Answer:
        if refusal is not None and FAR_TOO_MUCH in seen.body:
            return refusal
        return script.get(kind_of(seen), Answer(status=404, headers={}, framing="length"))

    async with answering(answer) as engine:
        capabilities = CapabilitySettings() if given is None else CapabilitySettings(context_length=given)
        settings = BackendSettings(name="b", url=f"{engine.url}/v1", capabilities=capabilities)
        return by_probe(await examined(settings.url, settings=settings))["context_length"]


@pytest.mark.parametrize("script", [VLLM, LLAMA_CPP], ids=["vllm", "llama.cpp"])
async def test_what_a_server_is_told_by_itself_is_not_to_be_set(script: Script) -> None:
    finding = await found(script)
    assert (finding.verdict, finding.settings) == ("works", {})


async def test_what_only_a_refusal_tells_is_to_be_set() -> None:
    finding = await found(SILENT, refusal=REFUSAL)
    assert (finding.verdict, finding.seen) == ("works", "32768 tokens, by an error")
    assert finding.settings == {"capabilities.context_length": 32768}
    assert finding.remedy == "antwort keeps to it from the start once `context_length` is set: --write records it"


async def test_but_not_for_several_models() -> None:
    several = whole(b'{"data": [{"id": "m"}, {"id": "n"}]}')
    finding = await found({**SILENT, "GET /v1/models": several}, refusal=REFUSAL)
    assert (finding.verdict, finding.settings, finding.remedy) == ("works", {}, "")


async def test_less_than_fits_may_be_set() -> None:
    finding = await found(VLLM, given=1000)
    assert (finding.verdict, finding.settings) == ("works", {})


async def test_more_than_fits_is_to_be_corrected() -> None:
    finding = await found(VLLM, given=100_000)
    assert (finding.verdict, finding.seen, finding.blocks) == ("fails", "2048 tokens, by the list of models", False)
    assert finding.settings == {"capabilities.context_length": 2048}
    assert finding.remedy == "100000 are set, which is more: antwort sends what does not fit; --write corrects it"


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (None, "set `context_length` if you know it: antwort then keeps to it"),
        (4096, "antwort goes by the 4096 that are set"),
    ],
)
async def test_where_nobody_says_it_the_setting_is_all_there_is(given: int | None, remedy: str) -> None:
    finding = await found(SILENT, given=given)
    assert (finding.verdict, finding.seen, finding.remedy) == ("unknown", "it does not say", remedy)


TINY: Script = {**VLLM, "GET /v1/models": whole(b'{"data": [{"id": "m", "max_model_len": 16}]}')}


async def test_a_listed_length_that_cannot_be_is_said_to_be_ignored() -> None:
    finding = await found(TINY)
    assert (finding.verdict, finding.settings) == ("unknown", {})
    assert finding.seen == "16 tokens, by the list of models, which cannot be: that is ignored"


async def test_then_a_refusal_is_asked_for() -> None:
    finding = await found(TINY, refusal=REFUSAL)
    assert (finding.verdict, finding.seen) == ("works", "32768 tokens, by an error")
    assert finding.settings == {"capabilities.context_length": 32768}
