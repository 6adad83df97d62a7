"""Idempotency keys with the official SDK, and across the end of a server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from antwort.testing import check_frames
from chat_backend import ChatBackend, Refuses, Says
from live_server import launched
from raw_http import ask, connected

MODEL = "test-model"
RESPONSES = "/v1/responses"
BODY: dict[str, Any] = {"model": MODEL, "input": "Hello", "stream": True}
KEY = {"Idempotency-Key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="none", timeout=30) as connected:
        yield connected


@pytest.mark.proves("MISTAKE-30")
async def test_a_retry_gets_the_same_response(client: AsyncOpenAI, backend: ChatBackend) -> None:
    first, second = [
        await client.responses.with_raw_response.create(model=MODEL, input="Hello", extra_headers=KEY) for _ in range(2)
    ]
    assert first.parse() == second.parse()
    assert second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert len(backend.requests) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_a_retried_stream_is_the_same_stream(client: AsyncOpenAI, backend: ChatBackend) -> None:
    streams = []
    for _ in range(2):
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True, extra_headers=KEY)
        streams.append([event async for event in stream])
    assert streams[0] == streams[1]
    assert len(backend.requests) == 1


async def test_the_helper_that_keeps_the_whole_takes_a_replay(client: AsyncOpenAI, backend: ChatBackend) -> None:
    texts = []
    for _ in range(2):
        async with client.responses.stream(model=MODEL, input="Hello", extra_headers=KEY) as stream:
            texts.append((await stream.get_final_response()).output_text)
    assert texts == ["Hello there", "Hello there"]
    assert len(backend.requests) == 1


async def test_another_body_is_a_conflict_that_the_client_does_not_try_again(
    client: AsyncOpenAI, backend: ChatBackend
) -> None:
    await client.responses.create(model=MODEL, input="Hello", extra_headers=KEY)
    with pytest.raises(openai.ConflictError) as caught:
        await client.responses.create(model=MODEL, input="Other", extra_headers=KEY)
    assert caught.value.code == "idempotency_key_reused"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.request.headers["x-stainless-retry-count"] == "0"
    assert len(backend.requests) == 1


async def test_the_clients_own_retries_are_real_ones_after_an_error(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Refuses(429, headers={"retry-after-ms": "1"}), Says()]
    response = await client.responses.create(model=MODEL, input="Hello", extra_headers=KEY)
    assert response.output_text == "Hello there"
    assert len(backend.requests) == 2


# ---- across the end of a server ----


async def test_a_stored_response_is_replayed_after_a_restart(tmp_path: Path) -> None:
    async with ChatBackend() as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path))
        async with launched(*flags) as server:
            first = await ask(server.port, "POST", RESPONSES, BODY, KEY)
            whole = await ask(
                server.port, "POST", RESPONSES, {"model": MODEL, "input": "Hello"}, {"idempotency-key": "b"}
            )
            await server.stop()
        async with launched(*flags) as server:
            second = await ask(server.port, "POST", RESPONSES, BODY, KEY)
            again = await ask(
                server.port, "POST", RESPONSES, {"model": MODEL, "input": "Hello"}, {"idempotency-key": "b"}
            )
            other = await ask(server.port, "POST", RESPONSES, {**BODY, "input": "Other"}, KEY)
        assert len(backend.requests) == 2
    assert check_frames(second.body) == check_frames(first.body)
    assert whole.body == again.body
    assert (second.headers["idempotent-replayed"], again.headers["idempotent-replayed"]) == ("true", "true")
    assert other.error["code"] == "idempotency_key_reused"


@pytest.mark.proves("MISTAKE-30", "RULING-15")
async def test_the_key_of_a_run_that_was_killed_stands_for_the_response_that_failed(tmp_path: Path) -> None:
    async with ChatBackend(Says(hold=asyncio.Event())) as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path))
        async with launched(*flags) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, BODY, KEY)
            await wire.head()
            first = await wire.chunk()
            await server.stop(signal.SIGKILL)
        async with launched(*flags) as server:
            reply = await ask(server.port, "POST", RESPONSES, BODY, KEY)
            response = check_frames(reply.body)
            stored = (await ask(server.port, "GET", f"{RESPONSES}/{response.id}")).json()
        assert len(backend.requests) == 1
    assert response.id.encode() in first
    assert (response.status, stored["status"]) == ("failed", "failed")
    assert reply.headers["idempotent-replayed"] == "true"


@pytest.mark.proves("MISTAKE-30")
async def test_the_key_of_a_run_that_a_stop_of_the_server_ended_is_free_again(tmp_path: Path) -> None:
    async with ChatBackend(Says(hold=asyncio.Event()), Says()) as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path), "--drain", "0")
        async with launched(*flags) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, BODY, KEY)
            await wire.head()
            frames = [await wire.chunk()]
            stopping = asyncio.create_task(server.stop())
            while frames[-1]:
                frames.append(await wire.chunk())
            await stopping
        async with launched(*flags) as server:
            reply = await ask(server.port, "POST", RESPONSES, BODY, KEY)
        assert len(backend.requests) == 2
    failed = check_frames(b"".join(frames))
    assert failed.error is not None
    assert failed.error.code == "server_shutting_down"
    assert check_frames(reply.body).status == "completed"
    assert "idempotent-replayed" not in reply.headers
