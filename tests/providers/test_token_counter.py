"""Requests are counted at the backend's own tokenizer, which is found once; a failure never costs an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.wire import UNSET
from antwort.net.response import ConnectFailed
from antwort.providers.base import (
    ATTACHMENT_TOKENS,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Provider,
    TokenCounter,
    count_at,
)
from antwort.providers.chat import ChatProvider
from antwort.providers.fleet import Retrying
from antwort.providers.responses import ResponsesProvider
from antwort.providers.token_counter import (
    FAILURE_PAUSE_SECONDS,
    MAX_TEMPLATE_TOKENS,
    SLOW_COUNT_SECONDS,
    UNSUPPORTED_PAUSE_SECONDS,
    BackendTokenCounter,
    CountReply,
    without_attachments,
)
from antwort.providers.tool_emulation.emulation import Constrained
from antwort.testing import ScriptedProvider
from fleet_kit import Time
from jumping_time import jumping_time
from replay import answering
from replay_backend import Answer, Seen, whole

Script: TypeAlias = Mapping[str, tuple[int, Any]]
NOT_FOUND = (404, {"detail": "Not Found"})
VLLM: Script = {"/tokenize": (200, {"count": 41, "max_model_len": 2048, "tokens": [1, 2], "token_strs": None})}
LLAMA_CPP: Script = {
    "/tokenize": (200, {"tokens": []}),
    "/chat/completions/input_tokens": (200, {"input_tokens": 42, "object": "response.input_tokens"}),
}
TOOL = ChatTool(function=ChatToolFunction(name="now"))
ASKED = ChatRequest(model="m", messages=[ChatMessage(role="user", content="Hello")], tools=[TOOL], max_tokens=5)
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


class Engine:
    """Answers by path, and records the requests."""

    def __init__(self, script: Script) -> None:
        self.script = dict(script)
        self.asked: list[tuple[str, Any]] = []
        self.fault: Exception | None = None

    async def __call__(self, path: str, body: bytes, *, is_unversioned: bool = False) -> CountReply:
        assert is_unversioned == (path in ("/tokenize", "/apply-template"))
        question = json.loads(body)
        self.asked.append((path, question))
        if self.fault is not None:
            raise self.fault
        if path == "/tokenize" and "content" in question:
            return CountReply(200, json.dumps({"tokens": question["content"].split()}).encode())
        status, told = self.script.get(path, NOT_FOUND)
        return CountReply(status, json.dumps(told).encode())

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def counter_of(engine: Engine, clock: Callable[[], float] | None = None) -> BackendTokenCounter:
    return BackendTokenCounter(engine, ChatProvider.count_methods, clock=clock or Time())


# ---- the methods ----


async def test_vllm_gets_everything_that_its_template_renders() -> None:
    engine = Engine(VLLM)
    assert await counter_of(engine).count(ASKED) == 41
    assert engine.asked == [
        (
            "/tokenize",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "Hello"}],
                "tools": [{"type": "function", "function": {"name": "now"}}],
                "add_generation_prompt": True,
            },
        )
    ]


async def test_llama_cpp_counts_at_its_own_endpoint() -> None:
    engine = Engine(LLAMA_CPP)
    counter = counter_of(engine)
    assert [await counter.count(ASKED), await counter.count(ASKED)] == [42, 42]
    assert engine.paths == ["/tokenize", *["/chat/completions/input_tokens"] * 2]


async def test_an_older_llama_cpp_renders_the_prompt_and_tokenizes_it() -> None:
    engine = Engine({**LLAMA_CPP, "/chat/completions/input_tokens": NOT_FOUND})
    engine.script["/apply-template"] = (200, {"prompt": "<user> Hello <assistant>"})
    counter = counter_of(engine)
    assert [await counter.count(ASKED), await counter.count(ASKED)] == [3, 3]
    assert engine.paths[-2:] == ["/apply-template", "/tokenize"]
    assert engine.asked[-1][1] == {"content": "<user> Hello <assistant>", "add_special": True, "parse_special": True}


async def test_a_responses_backend_counts_through_the_same_api() -> None:
    engine = Engine({"/responses/input_tokens": (200, {"object": "response.input_tokens", "input_tokens": 43})})
    assert await BackendTokenCounter(engine, ResponsesProvider.count_methods).count(ASKED) == 43
    [(_, question)] = engine.asked
    assert set(question) == {"model", "input", "tools"}


async def test_attachments_are_not_sent_and_count_a_fixed_number_each() -> None:
    engine = Engine(VLLM)
    content = [{"type": "text", "text": "See"}, PICTURE, {"type": "file", "file": {"file_data": "BBBB"}}]
    messages = [ChatMessage(role="user", content=content), ChatMessage(role="user", content=[PICTURE])]
    assert await counter_of(engine).count(ChatRequest(model="m", messages=messages)) == 41 + 3 * ATTACHMENT_TOKENS
    [(_, question)] = engine.asked
    assert [message["content"] for message in question["messages"]] == [[{"type": "text", "text": "See"}], ""]


@given(st.lists(st.lists(st.sampled_from([PICTURE, {"type": "text", "text": "x"}]))))
def test_all_parts_but_text_are_removed(contents: list[list[dict[str, Any]]]) -> None:
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content=content) for content in contents])
    bare, left = without_attachments(request)
    assert left == sum(content.count(PICTURE) for content in contents)
    assert without_attachments(bare) == (bare, 0)
    assert (bare is request) == (left == 0)


# ---- backends without a tokenizer ----


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_backend_without_a_tokenizer_is_asked_again_only_after_a_while(status: int) -> None:
    time = Time()
    engine = Engine(dict.fromkeys(["/tokenize", "/apply-template"], (status, {})))
    counter = counter_of(engine, time)
    assert await counter.count(ASKED) is None
    assert len(engine.asked) == 3
    time.now += UNSUPPORTED_PAUSE_SECONDS - 1
    assert await counter.count(ASKED) is None
    assert len(engine.asked) == 3
    time.now += 1
    engine.script = dict(VLLM)
    assert await counter.count(ASKED) == 41


async def test_a_backend_that_was_gone_is_asked_again() -> None:
    engine = Engine({})
    counter = counter_of(engine)
    assert await counter.count(ASKED) is None
    engine.script = dict(VLLM)
    counter.forget()
    assert await counter.count(ASKED) == 41


async def test_a_page_that_is_no_count_is_no_tokenizer() -> None:
    engine = Engine({"/tokenize": (200, "<html>"), "/apply-template": (200, [])})
    assert await counter_of(engine).count(ASKED) is None


@pytest.mark.parametrize("count", [0, -1, 2**60, "41", None, 4.5])
async def test_an_implausible_count_is_ignored(count: Any) -> None:
    told = {"/tokenize": (200, {"count": count}), "/chat/completions/input_tokens": (200, {"input_tokens": count})}
    assert await counter_of(Engine({**told, "/apply-template": (200, {"prompt": ""})})).count(ASKED) is None


async def test_a_count_beyond_the_size_of_request_and_template_is_ignored() -> None:
    for count, is_one in ((MAX_TEMPLATE_TOKENS, True), (MAX_TEMPLATE_TOKENS + 1000, False), (549_755_813_888, False)):
        engine = Engine({"/tokenize": (200, {"count": count})})
        assert await counter_of(engine).count(ASKED) == (count if is_one else None)


async def test_a_refusal_that_may_be_about_the_request_holds_for_a_while() -> None:
    time = Time()
    engine = Engine({"/tokenize": (422, {"detail": "prompt: field required"})})
    counter = counter_of(engine, time)
    assert await counter.count(ASKED) is None
    assert await counter.count(ASKED) is None
    assert len(engine.asked) == 3
    time.now += UNSUPPORTED_PAUSE_SECONDS
    engine.script = dict(VLLM)
    assert await counter.count(ASKED) == 41


async def test_an_unknown_model_says_nothing_about_the_endpoint() -> None:
    engine = Engine({"/tokenize": (404, {"error": {"message": "The model `x` does not exist.", "param": "model"}})})
    counter = counter_of(engine)
    assert await counter.count(ASKED) is None
    engine.script = dict(VLLM)
    assert await counter.count(ASKED) == 41


# ---- failures ----


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_failure_pauses_counting(status: int) -> None:
    time = Time()
    engine = Engine({"/tokenize": (status, {})})
    counter = counter_of(engine, time)
    assert [await counter.count(ASKED), await counter.count(ASKED)] == [None, None]
    assert len(engine.asked) == 1
    time.now += FAILURE_PAUSE_SECONDS
    engine.script = dict(VLLM)
    assert await counter.count(ASKED) == 41


async def test_an_unreachable_backend_raises_nothing() -> None:
    engine = Engine(VLLM)
    engine.fault = ConnectFailed("no")
    assert await counter_of(engine).count(ASKED) is None


async def test_a_request_that_a_known_tokenizer_refuses_does_not_stop_counting() -> None:
    engine = Engine(VLLM)
    counter = counter_of(engine)
    assert await counter.count(ASKED) == 41
    engine.script["/tokenize"] = (400, {"error": {"message": "roles must alternate"}})
    assert await counter.count(ASKED) is None
    engine.script = dict(VLLM)
    assert await counter.count(ASKED) == 41
    assert len(engine.asked) == 3


async def test_another_engine_at_the_same_address_is_discovered() -> None:
    engine = Engine(VLLM)
    counter = counter_of(engine)
    assert await counter.count(ASKED) == 41
    engine.script = dict(LLAMA_CPP)
    assert [await counter.count(ASKED), await counter.count(ASKED)] == [None, 42]


async def test_the_size_in_a_context_refusal_is_the_count() -> None:
    words = "This model's maximum context length is 9 tokens. However, your prompt contains at least 99 input tokens."
    engine = Engine({"/tokenize": (400, {"error": {"message": words}})})
    assert await counter_of(engine).count(ASKED) == 99


async def test_a_size_that_the_request_itself_contains_is_ignored() -> None:
    words = "This model's maximum context length is 9 tokens. However, your prompt contains at least 99 input tokens."
    engine = Engine({"/tokenize": (400, {"error": {"message": words}})})
    asked = ChatRequest(model="m", messages=[ChatMessage(role="user", content=words)])
    assert await counter_of(engine).count(asked) is None


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 2), (2 * SLOW_COUNT_SECONDS, 1)])
async def test_a_count_cancelled_after_a_long_wait_pauses_counting(seconds: float, asked: int) -> None:
    time, engine = Time(), Engine(VLLM)
    reached, hold = asyncio.Event(), asyncio.Event()

    async def ask(path: str, body: bytes, *, is_unversioned: bool = False) -> CountReply:
        told = await engine(path, body, is_unversioned=is_unversioned)
        reached.set()
        await hold.wait()
        return told

    counter = BackendTokenCounter(ask, ChatProvider.count_methods, clock=time)
    waiting = asyncio.create_task(counter.count(ASKED))
    await reached.wait()
    time.now += seconds
    waiting.cancel()
    await asyncio.wait({waiting})
    hold.set()
    assert waiting.cancelled()
    assert await counter.count(ASKED) == (41 if asked == 2 else None)
    assert len(engine.asked) == asked


# ---- over HTTP ----


@jumping_time
async def test_a_slow_tokenizer_runs_into_the_timeout() -> None:
    async with asyncio.timeout(10), answering(lambda _: Answer(ending="silence")) as backend:
        provider = ChatProvider(f"{backend.url}/v1")
        assert [await provider.count(ASKED), await provider.count(ASKED)] == [None, None]
        assert len(backend.requests) == 1
        await provider.close()


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/v1", "/tokenize"),
        ("", "/tokenize"),
        ("/proxy/gpu/v1/", "/proxy/gpu/tokenize"),
        ("/v1?key=k", "/tokenize?key=k"),
    ],
)
async def test_the_tokenizer_is_beside_the_base_address(base: str, path: str) -> None:
    def answer(seen: Seen) -> Answer:
        return whole(b'{"count": 7}', 200 if seen.path == path else 404)

    async with answering(answer) as backend:
        provider = ChatProvider(f"{backend.url}{base}", api_key="sk-1")
        assert await provider.count(ASKED) == 7
        await provider.close()
    assert backend.requests[0].headers["authorization"] == "Bearer sk-1"


# ---- wrapped providers ----


def retrying(provider: Provider) -> Provider:
    return Retrying(provider)


def natively(provider: Provider) -> Provider:
    return Constrained(provider, "auto")


@pytest.mark.parametrize("wrap", [retrying, natively])
async def test_wrapped_providers_count(wrap: Callable[[Provider], Provider]) -> None:
    inner = ScriptedProvider(counts=lambda _: 12)
    outer = wrap(inner)
    assert isinstance(outer, TokenCounter)
    assert await outer.count(ASKED) == 12
    assert inner.counted == [ASKED]


async def test_emulated_tools_are_counted_as_they_are_sent() -> None:
    inner = ScriptedProvider(counts=lambda _: 12)
    assert await Constrained(inner, "constrained").count(ASKED) == 12
    [counted] = inner.counted
    assert counted.tools is UNSET
    assert "now" in str(counted.messages[0].content)


async def test_a_provider_without_a_count_method_counts_nothing() -> None:
    assert await count_at(_Plain(), ASKED) is None


class _Plain(ScriptedProvider):
    count = None  # type: ignore[assignment]  # a provider that was written before there was such a thing
