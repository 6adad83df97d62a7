"""Signals, crashes and restarts of `antwort serve` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antwort.testing import check_frames
from chat_backend import ChatBackend, Says
from live_server import PATIENCE, LiveServer, launched
from raw_http import Reply, Wire, ask, connected

BODY = {"model": "test-model", "input": "Hello", "stream": True}
RESPONSES = "/v1/responses"


async def begin(wire: Wire) -> list[bytes]:
    """The first part of a stream, up to its first words."""
    wire.send("POST", RESPONSES, BODY)
    assert (await wire.head()).status == 200
    chunks = [await wire.chunk()]
    while b"output_text.delta" not in chunks[-1]:
        chunks.append(await wire.chunk())
    return chunks


async def finish(wire: Wire, chunks: list[bytes]) -> bytes:
    while chunk := await wire.chunk():
        chunks.append(chunk)
    return b"".join(chunks)


@pytest.mark.proves("TR-022")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_stream_under_way_with_a_terminal_event_and_the_process_with_success(
    how: signal.Signals, tmp_path: Path
) -> None:
    async with ChatBackend(Says(hold=asyncio.Event())) as backend:
        flags = ("--backend", backend.url, "--data", str(tmp_path), "--drain", "0.2")
        async with launched(*flags) as server, connected(server.port) as wire:
            chunks = await begin(wire)
            stopping = asyncio.create_task(server.stop(how))
            response = check_frames(await finish(wire, chunks))
            assert response.status == "failed"
            status, log = await stopping
        assert status == 0
        assert "Traceback" not in log
        async with launched("--backend", backend.url, "--data", str(tmp_path)) as server:
            stored = (await ask(server.port, "GET", f"{RESPONSES}/{response.id}")).json()
    assert stored["status"] == "failed"


@pytest.mark.proves("TR-022")
async def test_a_stream_that_ends_while_the_server_drains_is_completed() -> None:
    go = asyncio.Event()
    async with under_way(Says(hold=go), "--drain", "60") as (server, wire, chunks):
        stopping = asyncio.create_task(server.stop())
        await no_longer_accepts(server.port)
        go.set()
        assert check_frames(await finish(wire, chunks)).status == "completed"
        assert (await stopping)[0] == 0


@pytest.mark.proves("TR-022", "TR-JSON")
async def test_a_request_that_is_not_all_there_is_a_503_at_once() -> None:
    async with launched("--scripted", "--memory", "--drain", "60") as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"{", {"content-length": "100", "expect": "100-continue"})
        assert (await wire.head()).status == 100  # so that it has the head
        stopping = asyncio.create_task(server.stop())
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (503, "server_shutting_down")
        status, log = await stopping
    assert status == 0
    assert "Traceback" not in log


@pytest.mark.proves("TR-022")
async def test_a_client_that_never_reads_does_not_spoil_the_end() -> None:
    async with (
        ChatBackend(Says(["x" * 10_000] * 2000)) as backend,
        launched("--backend", backend.url, "--memory", "--drain", "0.2") as server,
        connected(server.port, buffer=65536) as wire,
    ):
        wire.send("POST", RESPONSES, BODY)
        assert (await wire.head()).status == 200
        status, log = await server.stop()
    assert status == 0
    assert "Traceback" not in log


async def test_a_second_signal_does_not_wait_for_anything() -> None:
    async with under_way(Says(hold=asyncio.Event()), "--drain", "600") as (server, _, _):
        server.process.send_signal(signal.SIGTERM)
        await no_longer_accepts(server.port)
        status, log = await server.stop()
    assert status == 1
    assert "Traceback" not in log


@pytest.mark.proves("TR-022")
async def test_a_server_that_gives_notice_is_not_ready_at_once_and_answers_whoever_comes_all_the_same() -> None:
    async with launched("--scripted", "--memory", "--set", "server.notice=600") as server:
        async with connected(server.port) as early:
            early.send("GET", "/readyz")
            ready = await early.reply()
            assert (ready.status, "connection" in ready.headers) == (200, False)
            server.process.send_signal(signal.SIGTERM)
            verdict = await no_longer_ready(server.port)
            assert verdict.json() == {"status": "unavailable", "server": "It is stopping."}
            assert verdict.headers["connection"] == "close"
            early.send("POST", RESPONSES, {"model": "scripted", "input": "Hello"})
            reply = await early.reply()
            assert (reply.status, reply.json()["status"]) == (200, "completed")
            assert reply.headers["connection"] == "close"
            assert await early.reader.read() == b""
        status, _ = await server.stop()  # a second signal does not wait for the end of the notice
    assert status == 1


@pytest.mark.proves("TR-022")
async def test_a_notice_ends_and_the_server_with_it() -> None:
    async with launched("--scripted", "--memory", "--set", "server.notice=0.3") as server:
        assert (await server.stop())[0] == 0


async def no_longer_ready(port: int) -> Reply:
    async with asyncio.timeout(PATIENCE):
        while (reply := await ask(port, "GET", "/readyz")).status == 200:
            continue
    return reply


@asynccontextmanager
async def under_way(answer: Says, *flags: str) -> AsyncIterator[tuple[LiveServer, Wire, list[bytes]]]:
    """A server with a stream that has begun."""
    async with (
        ChatBackend(answer) as backend,
        launched("--backend", backend.url, "--memory", *flags) as server,
        connected(server.port) as wire,
    ):
        yield server, wire, await begin(wire)


async def no_longer_accepts(port: int) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            async with connected(port):
                pass


@pytest.mark.proves("RULING-15")
async def test_a_response_that_a_killed_server_left_is_failed_after_the_next_start(tmp_path: Path) -> None:
    async with ChatBackend(Says(hold=asyncio.Event())) as backend:
        async with launched("--backend", backend.url, "--data", str(tmp_path)) as server:
            async with connected(server.port) as wire:
                first = b"".join(await begin(wire))
            response_id = first.partition(b'"id":"')[2].partition(b'"')[0].decode()
            await server.stop(signal.SIGKILL)
        async with launched("--backend", backend.url, "--data", str(tmp_path)) as server:
            stored = (await ask(server.port, "GET", f"{RESPONSES}/{response_id}")).json()
    assert stored["status"] == "failed"
    assert stored["error"]["message"]
