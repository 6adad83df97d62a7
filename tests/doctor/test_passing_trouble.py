"""What a backend cannot do just now says nothing about what it can do, and is never recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from antwort.doctor.examiner import OutOfReach
from doctor_kit import by_probe, examined
from replay import LLAMA_CPP, NOT_THERE, VLLM, answering, kind_of, playing
from replay_backend import Answer, Seen, whole

CHOICES = ("auto", "required", "named", "parallel")
RECORDED = "tool_calling", "capabilities.vision"


def _busy(status: int, headers: Mapping[str, str] | None = None) -> Answer:
    return whole(json.dumps({"error": {"message": "not now"}}).encode(), status, headers)


CUT = Answer(framing="raw")
"""The connection is closed without a word."""


@pytest.mark.parametrize("answer", [_busy(429), _busy(500), _busy(503), _busy(504), CUT])
async def test_an_image_that_was_not_looked_at_is_no_image_refused(answer: Answer) -> None:
    async with playing(VLLM, image=answer) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["images"].verdict == "unknown"
    assert not found.settings.keys() & set(RECORDED)


async def test_llama_cpp_refuses_images_with_a_500_that_says_so() -> None:
    async with playing(LLAMA_CPP) as engine:
        found = await examined(engine.url)
    assert (by_probe(found)["images"].verdict, found.settings["capabilities.vision"]) == ("fails", False)


@pytest.mark.parametrize("answer", [_busy(429), _busy(500), _busy(503), CUT])
async def test_calls_that_a_busy_backend_did_not_make_are_not_missing(answer: Answer) -> None:
    async with playing({**VLLM, **dict.fromkeys(CHOICES, answer)}) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert {told[f"tools.{choice}"].verdict for choice in CHOICES} == {"unknown"}
    assert "tool_calling" not in found.settings
    assert found.outcome == "fine"


async def test_a_schema_that_was_not_tried_is_not_missing() -> None:
    async with playing(VLLM, schema=_busy(503)) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["json_schema"].verdict == "unknown"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_backend_has_not_shown_its_errors(status: int) -> None:
    async with playing(VLLM, malformed=_busy(status)) as engine:
        errors = by_probe(await examined(engine.url))["errors"]
    assert (errors.verdict, errors.seen) == ("unknown", f"it answers with status {status}: not now")


async def test_a_body_that_is_no_json_taken_shows_no_error() -> None:
    async with playing(VLLM, malformed=VLLM["text"]) as engine:
        errors = by_probe(await examined(engine.url))["errors"]
    assert (errors.verdict, errors.seen, errors.remedy) == ("unknown", "status 200 for a body that is no JSON", "")


async def test_a_backend_that_says_when_to_come_back_is_asked_once_more() -> None:
    asked: list[str] = []

    def answer(request: Seen) -> Answer:
        asked.append(kind_of(request))
        is_early = asked.count("required") == 1 and asked[-1] == "required"
        return _busy(429, {"retry-after": "0"}) if is_early else VLLM.get(asked[-1], NOT_THERE)

    async with answering(answer) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["tools.required"].verdict == "works"
    assert asked.count("required") == 2


async def test_one_that_wants_to_be_left_alone_for_long_is_not_waited_for() -> None:
    async with playing(VLLM, auto=_busy(429, {"retry-after": "3600"})) as engine:
        async with asyncio.timeout(20):
            found = await examined(engine.url)
        assert engine.kinds.count("auto") == 1
    assert by_probe(found)["tools.auto"].verdict == "unknown"


async def test_two_answers_of_a_busy_backend_are_enough() -> None:
    async with playing({**VLLM, **dict.fromkeys(CHOICES, _busy(429))}) as engine:
        found = await examined(engine.url)
        assert engine.kinds.count("named") == 0
    assert by_probe(found)["tools.named"].seen == "not asked, as earlier questions went unanswered"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "asks for a key: say --backend-key-file"),
        (403, "asks for a key"),
        (429, "is asked too often: not now"),
        (503, "is not ready: not now"),
    ],
)
async def test_a_backend_that_lists_its_models_to_all_and_answers_none_is_out_of_reach(status: int, words: str) -> None:
    async with playing(VLLM, text=_busy(status)) as engine:
        with pytest.raises(OutOfReach, match=words):
            await examined(engine.url)


# ---- answers that say nothing ----

SAY_NOTHING = {
    "html": Answer((b"<html>login</html>",), headers={"content-type": "text/html"}),
    "empty": whole(b""),
    "stream as text": Answer((b"data: {}\n\n",), headers={"content-type": "text/plain"}),
}


@pytest.mark.parametrize("answer", SAY_NOTHING.values(), ids=SAY_NOTHING)
async def test_of_a_backend_of_which_nothing_works_nothing_is_recorded(answer: Answer) -> None:
    script = {**VLLM, **dict.fromkeys(("text", "schema", *CHOICES, "required whole", "image"), answer)}
    async with playing(script) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert (told["streaming"].verdict, found.outcome) == ("fails", "broken")
    assert told["length_limit"].verdict == told["stream_usage"].verdict == "unknown"
    assert found.settings == {}


async def test_an_endless_stream_is_no_proof_of_a_length_limit() -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"one, "}}]}\n\n'
    async with playing(VLLM, text=Answer((piece,), ending="hold")) as engine:
        told = by_probe(await examined(engine.url, patience=0.3))
    assert told["length_limit"].verdict == "unknown"


@pytest.mark.parametrize("schema", ["unknown", "fails"])
async def test_calls_are_only_constrained_where_schemas_were_seen_to_work(schema: str) -> None:
    calls = b'data: {"choices":[{"index":0,"delta":{"content":"<tool_call>{}"},"finish_reason":"stop"}]}\n\n'
    script = {**VLLM, **dict.fromkeys(CHOICES, Answer((calls + b"data: [DONE]\n\n",)))}
    async with playing(script, schema=_busy(500) if schema == "unknown" else VLLM["text"]) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert told["json_schema"].verdict == schema
    assert told["tools.auto"].settings == {}
    assert "--write" not in told["tools.auto"].remedy
    assert "tool_calling" not in found.settings


# ---- lists and addresses ----


def _models(*names: str) -> Answer:
    return whole(json.dumps({"data": [{"id": name, "owned_by": "library"} for name in names]}).encode())


async def test_what_may_differ_between_models_is_not_recorded_for_all_of_them() -> None:
    answers = dict.fromkeys(("auto", "required", "named"), VLLM["named"])
    async with playing({**VLLM, **answers, "GET /v1/models": _models("qwen3:8b", "llava:7b")}) as engine:
        found = await examined(engine.url)
    told = by_probe(found)
    assert {told[f"tools.{choice}"].verdict for choice in ("auto", "required", "named")} == {"works"}
    assert told["images"].verdict == "fails"
    assert "none of its 2 models takes images" in told["images"].remedy
    assert (found.models, found.settings) == (2, {})


async def test_a_model_of_another_trade_beside_it_changes_nothing() -> None:
    listed = _models("text-embedding-3", "m")
    answers = dict.fromkeys(("auto", "required", "named"), VLLM["named"])
    async with playing({**VLLM, **answers, "GET /v1/models": listed}) as engine:
        found = await examined(engine.url)
    assert (found.models, found.settings["tool_calling"]) == (1, "native")


async def test_a_long_name_of_a_model_is_no_key() -> None:
    name = "DeepSeek-R1-Distill-Qwen-32B-AWQ"
    async with playing({**VLLM, "GET /v1/models": _models(name)}) as engine:
        found = await examined(engine.url)
    assert by_probe(found)["models"].seen == f"1: {name}"


async def test_a_backend_that_redirects_is_told_with_where_it_leads() -> None:
    away = Answer(status=302, headers={"location": "https://elsewhere.example/v1/models?key=secret"}, framing="length")
    async with answering(lambda _: away) as engine:
        with pytest.raises(OutOfReach) as caught:
            await examined(engine.url)
    assert str(caught.value).startswith("redirects to https://elsewhere.example/v1/models: ")


async def test_a_list_that_is_compressed_unasked_is_told_as_such() -> None:
    packed = whole(b"\x1f\x8b\x08", headers={"content-encoding": "gzip"})
    async with playing({**VLLM, "GET /v1/models": packed}) as engine:
        models = by_probe(await examined(engine.url))["models"]
    assert models.seen == "its answer is compressed (gzip), unasked"


async def test_a_long_list_of_models_is_read() -> None:
    names = [f"model-{number}-{'x' * 200}" for number in range(8000)]
    async with playing({**VLLM, "GET /v1/models": _models(*names)}) as engine:
        models = by_probe(await examined(engine.url))["models"]
    assert models.seen.startswith("8000: model-0-")


async def test_answers_that_drip_are_not_taken_for_a_missing_endpoint() -> None:
    async with answering(lambda _: Answer((b'{"da',), ending="hold")) as engine:
        with pytest.raises(OutOfReach, match="its answers do not come to an end"):
            await examined(engine.url, patience=0.3)
