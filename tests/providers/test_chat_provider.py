"""The Chat Completions provider against a server on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest

from antwort.api.responses import Model
from antwort.errors import (
    AntwortError,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    NotFound,
)
from antwort.providers.base import (
    Capabilities,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Provider,
    TextDelta,
)
from antwort.providers.chat import ChatProvider, Pool, Timeouts
from chat_kit import (
    ANSWER,
    DONE,
    HI,
    KEY,
    MESSAGES,
    PATIENCE,
    SAID,
    STOP,
    STREAM,
    STREAMED,
    WHOLE,
    failure,
    gone,
    provider_of,
    said,
)
from jumping_time import jumping_time
from replay_backend import Answer, serve, sse, whole

# ---- what is sent ----


@pytest.mark.proves("EN-001", "EN-024", "EN-026")
async def test_only_what_is_set_is_sent() -> None:
    async with serve(ANSWER) as backend, provider_of(backend) as provider:
        assert await said(provider, ChatRequest(model="m", messages=MESSAGES, temperature=0.0)) == SAID
    [seen] = backend.requests
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert json.loads(seen.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0.0,
    }
    assert "authorization" not in seen.headers
    assert seen.headers["accept-encoding"] == "identity"


@pytest.mark.proves("EN-023")
async def test_tools_go_out_in_the_backend_s_own_shape() -> None:
    tool = ChatTool(function=ChatToolFunction(name="f", parameters={"type": "object"}))
    choice = {"type": "function", "function": {"name": "f"}}
    async with serve(ANSWER) as backend, provider_of(backend) as provider:
        await said(provider, ChatRequest(model="m", messages=[], tools=[tool], tool_choice=choice))
    assert json.loads(backend.requests[0].body) == {
        "model": "m",
        "messages": [],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": choice,
    }


@pytest.mark.parametrize(
    ("request_", "stream_usage", "expected"),
    [
        (STREAMED, True, {"include_usage": True}),
        (STREAMED, False, None),
        (WHOLE, True, None),
        (ChatRequest(model="m", messages=[], stream=False, stream_options={"x": 1}), True, None),
        (
            ChatRequest(model="m", messages=[], stream=True, stream_options={"x": 1}),
            True,
            {"x": 1, "include_usage": True},
        ),
    ],
)
async def test_usage_is_asked_for_where_it_is_streamed_and_can_be(
    request_: ChatRequest, stream_usage: bool, expected: dict[str, object] | None
) -> None:
    async with (
        serve(STREAM) as backend,
        provider_of(backend, capabilities=Capabilities(stream_usage=stream_usage)) as provider,
    ):
        await said(provider, request_)
    body = json.loads(backend.requests[0].body)
    assert body.get("stream_options") == expected
    assert body["stream"] is request_.stream


async def test_the_key_and_further_headers_are_sent() -> None:
    async with serve(STREAM) as backend, provider_of(backend, api_key=KEY, headers={"X-Team": "blue"}) as provider:
        await said(provider)
    headers = backend.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-team"] == "blue"


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/v1/models"),
        ("/", "/v1/models"),
        ("//", "/v1/models"),
        ("/a b?v=1", "/v1/a%20b/models?v=1"),
        ("?a=b c&d=ü%2F/", "/v1/models?a=b%20c&d=%C3%BC%2F/"),
    ],
)
async def test_a_base_address_is_taken_in_any_spelling(suffix: str, path: str) -> None:
    async with serve(whole(b'{"data": []}')) as backend:
        provider = ChatProvider(backend.url + suffix)
        assert await provider.models() == []
        await provider.close()
    assert backend.requests[0].path == path


def test_credentials_in_the_address_are_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        ChatProvider("http://user:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


# ---- what comes back ----


@pytest.mark.proves("RULING-8")
async def test_the_first_batch_comes_with_the_headers_and_is_empty() -> None:
    async with (
        serve(Answer(ending="hold")) as backend,
        provider_of(backend) as provider,
        aclosing(provider.infer(STREAMED)) as batches,
    ):
        assert await anext(batches) == []


async def test_each_read_is_a_batch() -> None:
    gate = asyncio.Event()
    async with (
        serve(Answer((HI, HI), gate=gate)) as backend,
        provider_of(backend) as provider,
        aclosing(provider.infer(STREAMED)) as batches,
    ):
        assert await anext(batches) == []
        first = await anext(batches)
        assert first == [TextDelta("Hi")] * len(first)
        gate.set()


@pytest.mark.parametrize("request_", [STREAMED, WHOLE])
@pytest.mark.parametrize("answer", [STREAM, ANSWER])
async def test_an_answer_in_the_other_form_than_asked_for_is_read_all_the_same(
    request_: ChatRequest, answer: Answer
) -> None:
    async with serve(answer) as backend, provider_of(backend) as provider:
        assert await said(provider, request_) == SAID


@pytest.mark.parametrize(("request_", "answer"), [(STREAMED, STREAM), (WHOLE, ANSWER)])
async def test_an_answer_that_does_not_say_its_form_has_the_one_asked_for(
    request_: ChatRequest, answer: Answer
) -> None:
    unnamed = Answer(answer.pieces, headers={}, framing=answer.framing)
    async with serve(unnamed) as backend, provider_of(backend) as provider:
        assert await said(provider, request_) == SAID


async def test_connections_are_used_again_from_answer_to_answer() -> None:
    error = whole(b'{"error": {"message": "no"}}', 400)
    async with (
        serve(STREAM, ANSWER, error, whole(b'{"data": []}'), STREAM) as backend,
        provider_of(backend) as provider,
    ):
        await said(provider)
        await said(provider, WHOLE)
        await failure(provider)
        await provider.models()
        await said(provider)
        assert provider.open_connections == 1
    assert backend.connections == 1


async def test_an_answer_ends_at_done_though_the_connection_stays_open() -> None:
    async with serve(sse(HI, STOP, DONE, ending="hold")) as backend, provider_of(backend) as provider:
        async with asyncio.timeout(PATIENCE):
            assert await said(provider) == SAID


async def test_interim_answers_are_skipped() -> None:
    async with serve(Answer(STREAM.pieces, early_hints=True)) as backend, provider_of(backend) as provider:
        assert await said(provider) == SAID


# ---- stopping ----


@pytest.mark.proves("TR-021", "MISTAKE-17")
@pytest.mark.parametrize("batches_read", [1, 2])
async def test_closing_the_answer_stops_the_backend(batches_read: int) -> None:
    async with serve(sse(HI, ending="hold")) as backend, provider_of(backend) as provider:
        async with aclosing(provider.infer(STREAMED)) as batches:
            for _ in range(batches_read):
                await anext(batches)
        assert provider.open_connections == 0
        await gone(backend)


async def test_cancelling_the_reader_stops_the_backend() -> None:
    async with serve(Answer(ending="silence")) as backend, provider_of(backend) as provider:
        task = asyncio.create_task(said(provider))
        await backend.asked.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert provider.open_connections == 0
        await gone(backend)


# ---- models, check, capabilities ----


@pytest.mark.proves("EN-001")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {
                "object": "list",
                "data": [{"id": "a", "object": "model", "created": 7, "owned_by": "vllm", "root": "/x"}],
            },
            [Model(id="a", created=7, owned_by="vllm")],
        ),
        ({"models": [{"name": "a", "model": "a"}], "data": [{"id": "a", "meta": {}}]}, [Model(id="a")]),
        ({"models": [{"name": "a", "size": ""}]}, [Model(id="a")]),
        ({"data": [{"id": "a", "created": 7.5}, {"id": None}]}, [Model(id="a", created=7)]),
        ({"object": "list", "data": None}, []),
    ],
)
async def test_models_are_listed_from_any_backend(body: object, expected: list[Model]) -> None:
    async with serve(whole(json.dumps(body).encode())) as backend, provider_of(backend) as provider:
        assert await provider.models() == expected
    assert (backend.requests[0].method, backend.requests[0].path) == ("GET", "/v1/models")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (whole(b"{}", 404), NotFound),
        (whole(b"<html>", 200), BackendError),
        (whole(b'{"data": 7}'), BackendError),
        (Answer(framing="raw", ending="cut"), BackendUnavailable),
    ],
)
async def test_a_list_of_models_that_cannot_be_had_is_an_error(answer: Answer, expected: type[AntwortError]) -> None:
    async with serve(answer) as backend, provider_of(backend) as provider:
        with pytest.raises(expected):
            await provider.models()


@pytest.mark.parametrize("status", [200, 404, 405, 429])
async def test_a_backend_that_answers_is_up(status: int) -> None:
    async with serve(whole(b"{}", status)) as backend, provider_of(backend) as provider:
        await provider.check()


@pytest.mark.parametrize(
    "answer", [whole(b"{}", 503), whole(b"", 500), Answer(framing="raw", ending="cut"), Answer(ending="silence")]
)
async def test_a_backend_that_does_not_answer_is_down(answer: Answer) -> None:
    async with serve(answer) as backend, provider_of(backend, timeouts=Timeouts(first_byte=0.05)) as provider:
        with pytest.raises(BackendUnavailable):
            await provider.check()


@pytest.mark.parametrize(
    ("status", "problem"), [(401, "credentials"), (403, "credentials"), (302, "redirection"), (307, "redirection")]
)
async def test_a_backend_that_refuses_every_request_is_not_ready_and_says_why(status: int, problem: str) -> None:
    answer = whole(b'{"error": "its own words"}', status, {"location": "http://elsewhere/"})
    async with serve(answer) as backend, provider_of(backend) as provider:
        with pytest.raises(BackendUnavailable, match=problem) as caught:
            await provider.check()
        assert "its own words" not in caught.value.message


@asynccontextmanager
async def dripping() -> AsyncGenerator[str, None]:
    """The address of a backend whose list of models comes byte by byte, never late, and never ends."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
        while not (reader.at_eof() or writer.is_closing()):
            writer.write(b" ")
            await asyncio.sleep(1)
        writer.transport.abort()
        left.set()

    left = asyncio.Event()
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await left.wait()


@jumping_time
async def test_a_list_of_models_that_comes_byte_by_byte_is_given_up_in_time() -> None:
    async with asyncio.timeout(11), dripping() as address:
        provider = ChatProvider(address)
        with pytest.raises(BackendTimeout):
            await provider.models()
        assert provider.open_connections == 0


@jumping_time
async def test_a_check_takes_no_longer_than_it_may() -> None:
    half = Answer((b"HTTP/1.1 200 OK\r\n",), framing="raw", ending="hold")
    async with asyncio.timeout(PATIENCE), serve(half) as backend, provider_of(backend) as provider:
        with pytest.raises(BackendUnavailable):
            await provider.check()


@pytest.mark.proves("EN-001")
async def test_the_provider_keeps_the_contract() -> None:
    told = Capabilities(vision=False)
    provider: Provider = ChatProvider("http://host/v1", capabilities=told, pool=Pool(max_idle=1))
    assert provider.capabilities("any") is told
    await provider.close()
