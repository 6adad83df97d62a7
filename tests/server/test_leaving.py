"""Clients that leave: the run ends, and nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.api.responses import Model
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import ChatRequest, Delta
from antwort.server.http import Transport
from antwort.server.protocol import READ_AHEAD_LIMIT, HttpProtocol
from antwort.server.respond import DisconnectWatch
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, check_frames, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until, until_quiet


@asynccontextmanager
async def nothing_left_behind(provider: ScriptedProvider, server: Serving) -> AsyncIterator[None]:
    """Within a second, all that the body started has ended: backend, run, connection and tasks."""
    before = asyncio.all_tasks()
    yield
    async with asyncio.timeout(1.0):
        await until(lambda: not provider.under_way)
        await until(lambda: not server.engine.live)
        await until(lambda: not server.server.server_state.connections)
        await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.proves("TR-021", "MISTAKE-17")
@pytest.mark.parametrize("says_something", [True, False], ids=["in mid-text", "before the first delta"])
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_leaves_stops_the_backend_and_leaves_nothing_behind(
    body: dict[str, object], says_something: bool
) -> None:
    provider = ScriptedProvider(answer(say("Hello") if says_something else [], asyncio.Event()))
    engine = Engine(provider, store=MemoryStore())
    async with serving(engine) as server, nothing_left_behind(provider, server), connected(server.port) as wire:
        wire.send("POST", RESPONSES, body)
        await until(lambda: provider.under_way == 1)
        if body is STREAMED:
            await wire.head()
            await wire.chunk()
        wire.vanish()


class NoHeaders(ScriptedProvider):
    """Its backend never answers, not even with headers."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        self.under_way += 1
        try:
            await asyncio.Event().wait()
            yield []
        finally:
            self.under_way -= 1


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_leaves_while_the_answer_is_held_back_is_noticed_at_once(body: dict[str, object]) -> None:
    provider = NoHeaders()
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(hold_back=60))
    async with serving(engine) as server, nothing_left_behind(provider, server), connected(server.port) as wire:
        wire.send("POST", RESPONSES, body)
        await until(lambda: provider.under_way == 1)
        wire.vanish()


@pytest.mark.proves("TR-021")
async def test_the_record_of_a_response_whose_client_left_is_not_completed() -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    store = MemoryStore()
    async with serving(Engine(provider, store=store)) as server:
        async with nothing_left_behind(provider, server), connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await until(lambda: server.engine.live == 1)
            [response_id] = server.engine.live_runs
            await wire.head()
            wire.vanish()
        stored = (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
    assert stored["status"] in ("cancelled", "incomplete")


class Slow:
    """A tool that takes for ever, and notes that it was stopped."""

    kind = ToolKind.LOCAL

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name == "slow"

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        raise AssertionError("it waits for ever")


@pytest.mark.proves("TR-021")
async def test_a_client_that_leaves_stops_a_running_tool() -> None:
    provider, tool = ScriptedProvider(answer(call("slow"))), Slow()
    body = {**STREAMED, "tools": [{"type": "function", "name": "slow", "parameters": {"type": "object"}}]}
    async with serving(Engine(provider, store=MemoryStore(), executors=[tool])) as server:
        async with nothing_left_behind(provider, server), connected(server.port) as wire:
            wire.send("POST", RESPONSES, body)
            await tool.running.wait()
            wire.vanish()
        assert tool.stopped.is_set()


class NeverLists(ScriptedProvider):
    """Never says which models there are, which a request that names none waits for."""

    async def models(self) -> Sequence[Model]:
        self.under_way += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.under_way -= 1
        raise AssertionError("it waits for ever")


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_while_its_request_is_planned_is_noticed(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    provider = NeverLists()
    engine = Engine(provider, store=MemoryStore())
    async with serving(engine) as server, nothing_left_behind(provider, server), connected(server.port) as wire:
        wire.send("POST", RESPONSES, {"input": "Hello", "stream": stream})
        await until(lambda: provider.under_way == 1)
        wire.vanish()
    assert any(" 499 " in record.getMessage() for record in caplog.records)


class SlowToBegin(MemoryStore):
    """Takes its time to begin a row."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def begin(self, new: NewResponse) -> None:
        self.asked.set()
        await self.go.wait()
        await super().begin(new)


@pytest.mark.proves("TR-021")
async def test_a_client_that_leaves_while_its_row_is_begun_leaves_a_row_that_is_ended() -> None:
    provider, store = ScriptedProvider(answer(say("Hello"), asyncio.Event())), SlowToBegin()
    async with serving(Engine(provider, store=store)) as server:
        async with nothing_left_behind(provider, server), connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await store.asked.wait()
            wire.vanish()
            await until(lambda: not server.server.server_state.connections)
            await until_quiet(lambda: len(asyncio.all_tasks()), turns=50)  # who watches has noticed
            store.go.set()
        assert await store.fail_running("left running") == 0


# ---- requests sent ahead of their turn ----


@pytest.mark.proves("TR-021", "MISTAKE-17")
@pytest.mark.parametrize("politely", [True, False], ids=["FIN", "RST"])
@pytest.mark.parametrize("at_once", [True, False], ids=["with the first", "later"])
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_leaves_with_a_second_request_already_sent_is_noticed_too(
    body: dict[str, object], at_once: bool, politely: bool
) -> None:
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    engine = Engine(provider, store=MemoryStore())
    async with serving(engine) as server, nothing_left_behind(provider, server), connected(server.port) as wire:
        wire.send("POST", RESPONSES, body)
        if at_once:
            wire.send("POST", RESPONSES, {**HELLO, "input": "x" * 100_000})
        await until(lambda: provider.under_way == 1)
        if not at_once:
            wire.send("GET", "/healthz")
            await until(lambda: any(connection.read_ahead for connection in open_connections(server)))
        if politely:
            await wire.close()
        else:
            wire.vanish()


def open_connections(server: Serving) -> list[HttpProtocol]:
    connections = server.server.server_state.connections
    return [connection for connection in connections if isinstance(connection, HttpProtocol)]


@pytest.mark.parametrize("at_once", [True, False], ids=["with the first", "later"])
async def test_pipelined_requests_are_answered_in_order(at_once: bool) -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), go), answer(say("Again")))
    async with serving(Engine(provider, store=MemoryStore())) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        if not at_once:
            await until(lambda: provider.under_way == 1)
        wire.send("GET", "/healthz")
        wire.send("POST", RESPONSES, HELLO)
        wire.send("GET", "/readyz")
        await until(lambda: provider.under_way == 1)
        go.set()
        assert b"[DONE]" in (await wire.reply()).body
        assert (await wire.reply()).json() == {"status": "ok"}
        assert (await wire.reply()).json()["status"] == "completed"
        assert (await wire.reply()).json()["store"] == "ok"


async def test_a_client_that_sends_too_much_ahead_gets_the_first_answer_and_is_hung_up_on() -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), go))
    async with serving(Engine(provider, store=MemoryStore())) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        chunks = [await wire.chunk()]
        wire.send("POST", RESPONSES, b" " * 2 * READ_AHEAD_LIMIT)
        await until(lambda: any(connection.is_closed_for_reading for connection in open_connections(server)))
        assert not any(connection.read_ahead for connection in open_connections(server))
        go.set()
        while chunk := await wire.chunk():
            chunks.append(chunk)
        assert check_frames(b"".join(chunks)).status == "completed"
        assert await wire.reader.read() == b""


async def test_bytes_that_are_not_http_after_a_request_do_not_spoil_its_answer() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    async with serving(Engine(provider, store=MemoryStore())) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, HELLO)
        wire.writer.write(b"this is not http\r\n\r\n")
        assert (await wire.reply()).json()["status"] == "completed"
        assert await wire.reader.read() == b""


async def test_a_client_that_takes_its_answer_and_goes_is_no_client_that_left() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        async with nothing_left_behind(provider, server), connected(server.port) as wire:
            wire.send("POST", RESPONSES, HELLO)
            response = (await wire.reply()).json()
        assert (await server.ask("GET", f"{RESPONSES}/{response['id']}")).json()["status"] == "completed"


def watches() -> set[int]:
    """Those that there are, by where they lie: others' may be left from before."""
    return {id(each) for each in gc.get_objects() if type(each) is DisconnectWatch}


async def test_what_was_answered_is_gone_at_once_and_not_left_to_the_collector() -> None:
    go = asyncio.Event()
    engine = Engine(ScriptedProvider(answer(say("Hello"), go)), store=MemoryStore())
    async with serving(engine) as server, connected(server.port) as wire:
        gc.collect()
        gc.freeze()  # what was there before is not looked through again and again
        gc.disable()
        before = watches()
        try:
            wire.send("POST", RESPONSES, HELLO)
            await until(lambda: engine.live == 1)
            assert len(watches() - before) == 1
            go.set()
            assert (await wire.reply()).status == 200
            await until(lambda: not watches() - before)
        finally:
            gc.unfreeze()
            gc.enable()


class Hesitant(Transport):
    """Takes a request up when it may, though all of it has come."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await receive()
        self.asked.set()
        await self.go.wait()

        async def received() -> Any:
            return body

        await super().__call__(scope, received, send)


async def test_a_client_that_had_left_before_it_was_watched_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    provider = ScriptedProvider(answer(say("Hello")))
    app = Hesitant(engine := Engine(provider, store=MemoryStore()))
    async with serving(engine, app) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, HELLO)
        await app.asked.wait()
        wire.vanish()
        await until(lambda: not server.server.server_state.connections)
        app.go.set()
        await until(lambda: any(" 499 " in record.getMessage() for record in caplog.records))
    assert provider.requests == []
