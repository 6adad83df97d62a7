"""The end of the server: no new work, and every stream under way gets its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.api.responses import Model
from antwort.engine.engine import Engine
from antwort.errors import StoreFault
from antwort.providers.base import TextDelta
from antwort.server.http import Transport
from antwort.server.protocol import HttpProtocol
from antwort.server.server import Server, listen
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, check_frames, say
from jumping_time import jumping_time
from raw_http import Reply, Wire, ask, connected
from serving import HELLO, RESPONSES, STREAMED, serving, until


@asynccontextmanager
async def served(
    provider: ScriptedProvider, drain: float, *, is_led: bool = False
) -> AsyncIterator[tuple[Server, int, asyncio.Task[None]]]:
    """A whole server, from its start to its end, with the signals it would get."""
    heard = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    engine = Engine(provider, store=MemoryStore())
    sock = listen("127.0.0.1", 0)
    server = Server(Transport(engine), drain=engine.drain, drain_seconds=drain, is_led=is_led)
    serving = asyncio.create_task(server.serve([sock]))
    await until(lambda: server.started)
    try:
        yield server, sock.getsockname()[1], serving
    finally:
        server.handle_exit(signal.SIGTERM, None)
        server.force_exit = True
        await serving
        for each, by in heard.items():
            signal.signal(each, by)
        await engine.close()


async def rest(wire: Wire, chunks: list[bytes]) -> bytes:
    while chunk := await wire.chunk():
        chunks.append(chunk)
    return b"".join(chunks)


@pytest.mark.proves("TR-022")
async def test_a_stream_that_ends_within_the_drain_time_is_completed() -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), go, say("there")))
    async with served(provider, drain=30) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks = [await wire.chunk()]
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: server.config.timeout_graceful_shutdown == 46 and not server.servers[0].is_serving())
        go.set()
        assert check_frames(await rest(wire, chunks)).status == "completed"
        await serving


@pytest.mark.proves("TR-022")
async def test_a_stream_that_does_not_end_in_time_is_ended_with_a_terminal_event() -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=0.05) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks = [await wire.chunk()]
        server.handle_exit(signal.SIGTERM, None)
        response = check_frames(await rest(wire, chunks))
        assert response.status == "failed"
        assert response.error is not None
        assert response.error.code == "server_shutting_down"
        await serving
        assert provider.under_way == 0


@pytest.mark.proves("TR-022")
async def test_a_whole_answer_that_does_not_end_in_time_is_a_failed_response() -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=0.05) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, HELLO)
        await until(lambda: provider.under_way == 1)
        server.handle_exit(signal.SIGTERM, None)
        reply = await wire.reply()
        assert (reply.status, reply.json()["status"]) == (200, "failed")
        await serving


@pytest.mark.proves("TR-022")
async def test_a_server_that_drains_takes_no_new_work() -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), go))
    async with served(provider, drain=30) as (server, port, serving):
        async with connected(port) as busy, connected(port) as idle:
            idle.send("GET", "/healthz")
            await idle.reply()
            busy.send("POST", RESPONSES, STREAMED)
            await busy.head()
            server.handle_exit(signal.SIGTERM, None)
            assert await idle.reader.read() == b""  # an idle connection is closed
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            go.set()
            await rest(busy, [])
        await serving


@pytest.mark.proves("TR-022", "TR-013")
async def test_a_request_that_comes_in_while_the_engine_drains_is_a_503_to_be_repeated() -> None:
    provider = ScriptedProvider()
    async with served(provider, drain=30) as (server, port, _), connected(port) as wire:
        await server._drain(0)
        wire.send("POST", RESPONSES, HELLO)
        reply = await wire.reply()
    assert (reply.status, reply.error["code"]) == (503, "server_shutting_down")
    assert reply.headers["retry-after"] == "5"


class SlowToList(ScriptedProvider):
    """Takes its time to say which models there are, which a request that names none waits for."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.asked, self.listed = asyncio.Event(), asyncio.Event()

    async def models(self) -> Sequence[Model]:
        self.asked.set()
        await self.listed.wait()
        return await super().models()


@pytest.mark.proves("TR-022")
async def test_a_request_that_was_being_planned_when_the_signal_came_gets_its_end_too() -> None:
    provider = SlowToList(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=0.2) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, {"input": "Hello", "stream": True})
        await provider.asked.wait()
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: not server.servers[0].is_serving())
        provider.listed.set()
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (503, "server_shutting_down")
        await serving


def faults(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.proves("TR-022", "TR-JSON")
async def test_a_request_that_is_not_all_there_when_the_signal_comes_is_a_503(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(ScriptedProvider(), drain=30) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, b"{", {"content-length": "100", "x-request-id": "r1"})
        await until(lambda: bool(server.server_state.tasks))
        server.handle_exit(signal.SIGTERM, None)
        reply = await wire.reply()
        assert (reply.status, reply.error["code"]) == (503, "server_shutting_down")
        assert (reply.headers["x-request-id"], reply.headers["connection"]) == ("r1", "close")
        assert await wire.reader.read() == b""
        await serving
    assert not faults(caplog)


@jumping_time
async def test_a_client_that_never_reads_does_not_hold_up_the_end_and_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = ScriptedProvider(answer([TextDelta("x" * 10_000)] * 2000))
    async with served(provider, drain=0.05) as (server, port, serving), connected(port, buffer=65536) as wire:
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        await until(
            lambda: any(isinstance(one, HttpProtocol) and one.is_behind for one in server.server_state.connections)
        )
        server.handle_exit(signal.SIGTERM, None)
        async with asyncio.timeout(6):
            await serving
        assert not server.server_state.tasks
    assert not faults(caplog)


async def test_an_answer_that_is_broken_off_hangs_up_and_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=30) as (server, port, _), connected(port) as wire:
        wire.send("POST", RESPONSES, HELLO)
        await until(lambda: provider.under_way == 1)
        for task in server.server_state.tasks:
            task.cancel()
        with contextlib.suppress(ConnectionResetError):
            assert await wire.reader.read() == b""
        await until(lambda: not provider.under_way)
    assert not faults(caplog)


async def test_a_second_signal_ends_the_server_at_once() -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=600) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        server.handle_exit(signal.SIGINT, None)
        await until(lambda: not server.servers[0].is_serving())
        server.handle_exit(signal.SIGINT, None)
        async with asyncio.timeout(5):
            await serving


async def test_a_server_that_is_led_hurries_only_when_it_is_told_so() -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    async with served(provider, drain=600, is_led=True) as (server, port, serving), connected(port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        for _ in range(3):
            server.handle_exit(signal.SIGTERM, None)
        await until(lambda: not server.servers[0].is_serving())
        server.handle_exit(signal.SIGTERM, None)
        assert not server.force_exit
        server.hurry()
        async with asyncio.timeout(5):
            await serving


def test_the_server_leaves_sighup_to_whoever_runs_it() -> None:
    server, heard = Server(Transport(Engine(ScriptedProvider())), drain=lambda _: asyncio.sleep(0), drain_seconds=0), []
    before = signal.signal(signal.SIGHUP, lambda *_: heard.append("hangup"))
    try:
        with server.capture_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (heard, server.should_exit) == (["hangup"], False)


# ---- under another server ----


async def lifespan(transport: Transport) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []
    told = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> MutableMapping[str, Any]:
        return {"type": next(told)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await transport({"type": "lifespan"}, receive, send)
    return sent


async def test_any_server_that_knows_lifespans_can_host_it() -> None:
    provider = ScriptedProvider()
    sent = await lifespan(Transport(Engine(provider, store=MemoryStore())))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert provider.is_closed


async def test_a_start_that_fails_is_told_in_a_sentence() -> None:
    class Broken(MemoryStore):
        async def fail_running(self, message: str) -> int:
            raise StoreFault("The store cannot be read.")

    sent = await lifespan(Transport(Engine(ScriptedProvider(), store=Broken())))
    assert sent == [{"type": "lifespan.startup.failed", "message": "The store cannot be read."}]


async def test_other_protocols_are_refused() -> None:
    async def never() -> MutableMapping[str, Any]:
        raise AssertionError

    async def silent(_: MutableMapping[str, Any]) -> None:
        raise AssertionError

    with pytest.raises(NotImplementedError, match="telepathy"):
        await Transport(Engine(ScriptedProvider(), store=MemoryStore()))({"type": "telepathy"}, never, silent)


async def test_other_processes_can_read_what_is_made_here_until_the_drain_is_over() -> None:
    hold, side = asyncio.Event(), listen("127.0.0.1", 0)
    port: int = side.getsockname()[1]
    engine = Engine(ScriptedProvider(answer(say("Hello"), hold, say(" there"))))
    async with serving(engine, drain=5.0, peers=side) as server:
        made = asyncio.ensure_future(server.ask("POST", RESPONSES, STREAMED))
        await until(lambda: engine.live == 1)
        (response_id,) = engine.live_runs
        stopping = asyncio.create_task(server.server.shutdown([server.listening]))
        await until(lambda: engine.is_draining)
        with pytest.raises(ConnectionError):
            await server.ask("GET", "/healthz")
        async with connected(port) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true")
            await wire.head()
            hold.set()
            seen = (await wire.rest(Reply(200, {"transfer-encoding": "chunked"}, []))).body
        assert seen == (await made).body
        await stopping
        with pytest.raises(ConnectionError):
            await ask(port, "GET", "/healthz")
