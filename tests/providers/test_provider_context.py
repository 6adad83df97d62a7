"""What a backend over HTTP tells of its context: in its list, beside it, and when it refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from antwort.api.wire import replace
from antwort.errors import BackendRefused, ContextTooLong
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.chat import ChatProvider
from chat_kit import STREAMED, failure, said
from replay import LLAMA_CPP, NOT_THERE, VLLM, ReplayedEngine, Script, answering, playing
from replay_backend import CASES, Answer, Seen, recorded, sse, whole


@asynccontextmanager
async def provided(
    script: Script, capabilities: Capabilities | None = None
) -> AsyncGenerator[tuple[ChatProvider, ReplayedEngine], None]:
    async with playing(script) as engine:
        provider = ChatProvider(f"{engine.url}/v1", capabilities=capabilities)
        try:
            yield provider, engine
        finally:
            await provider.close()


def models(*entries: dict[str, object]) -> Answer:
    return whole(json.dumps({"data": entries}).encode())


async def lengths(provider: ChatProvider) -> Sequence[object]:
    listed = [model.context_length for model in await provider.models()]
    assert listed == [provider.capabilities(model.id).context_length for model in await provider.models()]
    return listed


async def test_vllm_lists_it() -> None:
    async with provided(VLLM) as (provider, engine):
        assert provider.capabilities("m").context_length is None
        assert await lengths(provider) == [2048]
        assert set(engine.kinds) == {"GET /v1/models"}


async def test_llama_cpp_tells_that_of_one_slot_beside_its_list() -> None:
    script = {**LLAMA_CPP, "GET /v1/models": models({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 16384}})}
    async with provided(script) as (provider, _):
        assert await lengths(provider) == [4096]


@pytest.mark.parametrize("props", [NOT_THERE, whole(b"<html>"), Answer(ending="cut")])
async def test_where_it_does_not_the_list_stands(props: Answer) -> None:
    listed = models({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 16384}})
    async with provided({"GET /v1/models": listed, "GET /props": props}) as (provider, _):
        assert [model.context_length for model in await provider.models()] == [16384]


async def test_ollama_tells_that_of_the_models_it_has_loaded() -> None:
    listed = models({"id": "a", "owned_by": "library"}, {"id": "b", "owned_by": "library"})
    loaded = whole(json.dumps({"models": [{"name": "b", "context_length": 4096}]}).encode())
    async with provided({"GET /v1/models": listed, "GET /api/ps": loaded}) as (provider, _):
        await provider.models()
        assert provider.capabilities("a").context_length is None
        assert provider.capabilities("b").context_length == 4096


async def test_what_the_operator_sets_goes_before_what_is_listed() -> None:
    async with provided(VLLM, Capabilities(context_length=1000, vision=False)) as (provider, _):
        assert await lengths(provider) == [1000]
        assert provider.capabilities("m").vision is False


@pytest.mark.parametrize("request_", [STREAMED, replace(STREAMED, stream=False)], ids=["streamed", "whole"])
async def test_a_refusal_is_remembered_where_nothing_is_listed(request_: ChatRequest) -> None:
    refusal = recorded(CASES["llama.cpp/err_context_stream"])
    async with provided({"text": refusal, "text whole": refusal}) as (provider, _):
        error = await failure(provider, request_)
        assert isinstance(error, ContextTooLong)
        assert (error.limit, error.asked) == (4096, 9029)
        assert provider.capabilities("m").context_length == 4096
        assert provider.capabilities("other").context_length is None


async def test_no_refusal_is_remembered_of_a_name_that_is_as_long_as_a_body() -> None:
    model = "m" * 100_000
    async with provided({"text": recorded(CASES["llama.cpp/err_context_stream"])}) as (provider, _):
        assert isinstance(await failure(provider, replace(STREAMED, model=model)), ContextTooLong)
        assert provider.capabilities(model).context_length is None


async def test_so_is_one_that_comes_in_a_stream() -> None:
    told = {"error": {"code": "context_length_exceeded", "message": "maximum context length is 4096 tokens"}}
    async with provided({"text": sse(b"data: " + json.dumps(told).encode() + b"\n\n")}) as (provider, _):
        assert isinstance(await failure(provider), ContextTooLong)
        assert provider.capabilities("m").context_length == 4096


USED = {"prompt_tokens": 290, "completion_tokens": 10, "total_tokens": 300}
SAID = [
    {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USED},
]
STREAM = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in SAID)
WHOLE = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USED}


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (STREAMED, sse(STREAM + b"data: [DONE]\n\n")),
        (STREAMED, sse(STREAM)),
        (replace(STREAMED, stream=False), whole(json.dumps(WHOLE).encode())),
    ],
    ids=["streamed", "without its last word", "whole"],
)
@pytest.mark.parametrize(("limit", "length"), [(299, None), (301, 301)])
async def test_what_a_model_has_answered_fits_whatever_a_refusal_says(
    request_: ChatRequest, answer: Answer, limit: int, length: int | None
) -> None:
    words = f"This model's maximum context length is {limit} tokens."
    refusal = whole(json.dumps({"error": {"message": words}}).encode(), 400)
    answers = [refusal, answer]
    async with answering(lambda _: answers.pop()) as engine:
        provider = ChatProvider(f"{engine.url}/v1")
        await said(provider, request_)
        assert isinstance(await failure(provider, request_), ContextTooLong)
        assert provider.capabilities("m").context_length == length
        await provider.close()


@pytest.mark.parametrize("form", ["Unrecognized schema: {}", "{}"], ids=["within", "alone"])
async def test_nobody_tells_the_length_by_what_he_sends(form: str) -> None:
    words = "This model's maximum context length is 256 tokens. However, you requested 300 tokens"
    refusal = whole(json.dumps({"error": {"message": form.format(words)}}).encode(), 400)
    asked = replace(STREAMED, response_format={"type": "json_schema", "json_schema": {"schema": {"type": words}}})
    async with answering(lambda _: refusal) as engine:
        provider = ChatProvider(f"{engine.url}/v1")
        error = await failure(provider, asked)
        assert isinstance(error, BackendRefused if form != "{}" else ContextTooLong)
        assert provider.capabilities("m").context_length is None
        await failure(provider)
        assert provider.capabilities("m").context_length == (256 if form == "{}" else None)
        await provider.close()


async def test_another_list_may_be_another_engine_that_counts() -> None:
    script = {"GET /v1/models": models({"id": "m"})}

    def answer(seen: Seen) -> Answer:
        return script.get(f"{seen.method} {seen.path}", NOT_THERE)

    async with answering(answer) as engine:
        provider = ChatProvider(f"{engine.url}/v1")
        await provider.models()
        assert await provider.count(STREAMED) is None
        script["POST /tokenize"] = whole(b'{"count": 7}')
        await provider.models()
        assert await provider.count(STREAMED) is None
        script["GET /v1/models"] = models({"id": "m"}, {"id": "n"})
        await provider.models()
        assert await provider.count(STREAMED) == 7
        await provider.close()


# ---- what is kept of a name ----


async def test_what_is_known_of_a_name_goes_with_the_next_list() -> None:
    entries: list[dict[str, object]] = [{"id": "m", "max_model_len": 2048}, {"id": "n"}]
    async with answering(lambda _: models(*entries)) as engine:
        provider = ChatProvider(f"{engine.url}/v1")
        for length in (2048, 4096, 2048):
            entries[0]["max_model_len"] = length
            await provider.models()
            assert [provider.capabilities("m").context_length for _ in range(2)] == [length, length]
        assert provider.capabilities("n").context_length is None
        entries.pop()
        await provider.models()
        assert provider.capabilities("n").context_length == 2048  # whoever has one model only takes it by any name
        await provider.close()


async def test_a_refusal_goes_before_what_was_known_and_passes_with_the_backend() -> None:
    told = {"error": {"code": "context_length_exceeded", "message": "maximum context length is 4096 tokens"}}
    async with provided({"text": whole(json.dumps(told).encode(), 400)}) as (provider, _):
        before = provider.capabilities("m")
        assert isinstance(await failure(provider), ContextTooLong)
        assert [provider.capabilities("m").context_length for _ in range(2)] == [4096, 4096]
        assert provider.capabilities("other") is before
        provider._forget()
        assert provider.capabilities("m") is before


def test_only_so_many_names_are_kept() -> None:
    provider = ChatProvider("http://127.0.0.1:1/v1")
    known = {id(provider.capabilities(f"m{number}")) for number in range(1000)}
    assert len(known) == 1
    assert len(provider._by_name) <= 256


def test_a_name_as_long_as_a_body_is_not_kept() -> None:
    provider = ChatProvider("http://127.0.0.1:1/v1")
    assert provider.capabilities("m" * 257) is provider.capabilities("m" * 256)
    assert list(provider._by_name) == ["m" * 256]
