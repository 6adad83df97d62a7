"""Streamed answers, as the bytes that arrive."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendCut, BackendRefused, BackendUnavailable, RateLimited
from antwort.providers.base import ChatRequest, Delta, TextDelta
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, call, check_frames, say, think
from raw_http import Wire, connected
from serving import HELLO, RESPONSES, STREAMED, serving, until, until_quiet


def scripted(*answers: Answer, **settings: Any) -> Engine:
    return Engine(ScriptedProvider(*answers), store=MemoryStore(), settings=EngineSettings(**settings))


async def read_on(wire: Wire, chunks: list[bytes], mark: bytes) -> None:
    """Read chunks until one holds the mark."""
    while mark not in (chunk := await wire.chunk()):
        assert chunk, f"the body ended without {mark!r}"
        chunks.append(chunk)
    chunks.append(chunk)


# ---- the frames ----


@pytest.mark.proves("TR-009", "TR-010")
async def test_a_stream_is_frames_the_done_mark_and_the_end_of_the_body() -> None:
    async with serving(scripted(answer(think("Hm so"), say("Hello out there")))) as server:
        reply = await server.ask("POST", RESPONSES, STREAMED)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["transfer-encoding"] == "chunked"
    assert check_frames(reply.body).status == "completed"
    assert reply.body.endswith(b"}\n\ndata: [DONE]\n\n")
    for frame in reply.body.decode().split("\n\n")[:-2]:
        event, data = frame.split("\n")
        assert event == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert b"\nid:" not in reply.body


@pytest.mark.proves("TR-010")
async def test_the_last_frames_the_done_mark_and_the_end_leave_in_one_write() -> None:
    async with serving(scripted(answer(say("Hello")))) as server:
        reply = await server.ask("POST", RESPONSES, STREAMED)
    assert b"event: response.completed\n" in reply.chunks[-1]
    assert reply.chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_all_frames_of_a_batch_leave_in_one_write() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    many: list[Delta] = [TextDelta(text) for text in "abcdefgh"]
    async with serving(scripted(answer(first, [many], second, say("end")))) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks: list[bytes] = []
        await read_on(wire, chunks, b"response.in_progress")
        first.set()
        assert (await wire.chunk()).count(b"event: response.output_text.delta\n") == 8
        second.set()
        await read_on(wire, chunks, b"[DONE]")


async def test_a_connection_carries_one_stream_after_another() -> None:
    async with serving(scripted(answer(say("one")), answer(say("two")))) as server, connected(server.port) as wire:
        for _ in range(2):
            wire.send("POST", RESPONSES, STREAMED)
            assert check_frames((await wire.reply()).body).status == "completed"


async def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    script = answer(say("Well"), call("weather", city="Paris"))
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    async with serving(scripted(script, script)) as server:
        streamed = json.loads(
            (await server.ask("POST", RESPONSES, {**STREAMED, "tools": tools})).chunks[-1].split(b"data: ")[-2]
        )["response"]
        whole = (await server.ask("POST", RESPONSES, {**HELLO, "tools": tools})).json()
    for response in (streamed, whole):
        del response["id"], response["created_at"], response["completed_at"]
        for item in response["output"]:
            del item["id"]
            item.pop("call_id", None)
    assert streamed == whole


# ---- failures ----


@pytest.mark.proves("TR-015", "RULING-8", "TR-013")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("error", "status", "wait"),
    [
        (BackendUnavailable("The backend cannot be reached."), 503, "1"),
        (BackendRefused("The prompt is too long."), 400, None),
        (RateLimited("Slow down.", retry_after=1.5), 429, "2"),
    ],
    ids=["unavailable", "refused", "limited"],
)
async def test_a_failure_before_the_backend_answers_is_an_http_error_in_both_modes(
    body: dict[str, Any], error: Exception, status: int, wait: str | None
) -> None:
    async with serving(scripted([error])) as server:
        reply = await server.ask("POST", RESPONSES, body)
        assert server.engine.live == 0
    assert reply.status == status
    assert reply.error["message"] == str(error)
    assert reply.headers.get("retry-after") == wait


@pytest.mark.proves("TR-015")
async def test_a_wrong_request_for_a_stream_is_a_json_error() -> None:
    async with serving(scripted()) as server:
        reply = await server.ask("POST", RESPONSES, {**STREAMED, "previous_response_id": "resp_unknown"})
    assert (reply.status, reply.error["code"]) == (404, "previous_response_not_found")


@pytest.mark.proves("TR-016")
async def test_a_failure_in_mid_stream_is_a_failed_response_and_a_proper_end() -> None:
    async with serving(scripted(answer(say("Hello out"), BackendCut("The answer broke off.")))) as server:
        reply = await server.ask("POST", RESPONSES, STREAMED)
    assert reply.status == 200
    response = check_frames(reply.body)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "backend_stream_cut"


@pytest.mark.proves("TR-025")
async def test_an_unexpected_exception_in_mid_stream_ends_the_body_and_the_run_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), go, say("\ud800"), asyncio.Event()))  # which is no UTF-8
    async with serving(Engine(provider)) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        await wire.head()
        chunks = [await wire.chunk()]
        go.set()
        while chunk := await wire.chunk():
            chunks.append(chunk)
        await until(lambda: server.engine.live == 0)
    assert b"response.created" in chunks[0]
    assert b"[DONE]" not in b"".join(chunks)
    assert provider.under_way == 0
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[0] is UnicodeEncodeError


class Silent(ScriptedProvider):
    """Its backend answers with nothing, not even headers, until it is let go; then it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        await self.go.wait()
        no_batches: list[list[Delta]] = []
        for batch in no_batches:
            yield batch
        raise BackendUnavailable("The backend cannot be reached.")


@pytest.mark.proves("RULING-8", "TR-016")
async def test_a_failure_after_the_hold_back_is_a_200_with_a_failed_response() -> None:
    provider = Silent()
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(hold_back=0.01))
    async with serving(engine) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        reply = await wire.head()  # it comes although the backend has said nothing
        chunks: list[bytes] = []
        await read_on(wire, chunks, b"response.created")
        provider.go.set()
        await read_on(wire, chunks, b"[DONE]")
        assert reply.status == 200
        assert check_frames(b"".join(chunks)).status == "failed"
        provider.go.clear()
        asking = asyncio.create_task(server.ask("POST", RESPONSES, HELLO))
        asyncio.get_running_loop().call_later(0.05, provider.go.set)
        whole = await asking
    assert (whole.status, whole.json()["status"]) == (200, "failed")


# ---- keep-alives and slow readers ----


@pytest.mark.proves("RULING-10")
async def test_a_stream_with_nothing_to_say_is_kept_alive_with_comments() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(say("Hello"), hold, say("there")), keepalive_interval=0.01)
    async with serving(engine) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks: list[bytes] = []
        await read_on(wire, chunks, b"delta")
        assert await wire.chunk() == b": keep-alive\n\n"
        assert await wire.chunk() == b": keep-alive\n\n"
        hold.set()
        await read_on(wire, chunks, b"[DONE]")
    assert check_frames(b"".join(chunks)).status == "completed"


@pytest.mark.proves("RULING-10")
async def test_the_setting_keeps_a_stream_alive_with_numbered_events() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(say("Hello"), hold, say("there")), keepalive="in_progress", keepalive_interval=0.01)
    async with serving(engine) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks: list[bytes] = []
        await read_on(wire, chunks, b"delta")
        await read_on(wire, chunks, b"event: response.in_progress")
        await read_on(wire, chunks, b"event: response.in_progress")
        hold.set()
        await read_on(wire, chunks, b"[DONE]")
    assert check_frames(b"".join(chunks), keepalive=True).status == "completed"


class Counting(ScriptedProvider):
    """Says a lot, and counts how much of it was taken."""

    taken = 0

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        stream = super().infer(request)
        async for batch in stream:
            self.taken += 1
            yield batch


@pytest.mark.proves("MISTAKE-18")
async def test_a_slow_reader_holds_the_backend_back_and_still_gets_everything() -> None:
    pieces = 200
    provider = Counting(answer([TextDelta("x" * 10_000)] * pieces))
    settings = EngineSettings(buffer_events=16, keepalive_interval=0.01)
    async with serving(Engine(provider, store=MemoryStore(), settings=settings)) as server:
        server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # what it accepts has it too
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
        wire = Wire(reader, writer)
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        stalled_at = await until_quiet(lambda: provider.taken)
        assert 16 <= stalled_at < pieces
        reply = await wire.reply()
        writer.transport.abort()
    response = check_frames(reply.body)
    assert response.status == "completed"
    assert provider.taken > pieces
