"""Clients that leave: the run ends, and nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import ChatRequest, Delta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.transport.server import Connection
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until


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
            [response_id] = server.engine._live
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


@pytest.mark.proves("MISTAKE-17")
async def test_a_client_that_leaves_with_a_second_request_already_sent_is_noticed_too() -> None:
    """uvicorn tells only the newest of pipelined requests."""
    provider = ScriptedProvider(answer(say("Hello"), asyncio.Event()))
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(keepalive_interval=0.01))
    async with serving(engine) as server, nothing_left_behind(provider, server), connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        await wire.head()
        await wire.chunk()
        wire.send("GET", "/healthz")
        # What waits is not read on, so that only writing to it shows that the client is gone.
        await until(lambda: any(connection.pipeline for connection in open_connections(server)))
        wire.vanish()


def open_connections(server: Serving) -> list[Connection]:
    connections = server.server.server_state.connections
    return [connection for connection in connections if isinstance(connection, Connection)]


async def test_pipelined_requests_are_answered_in_order() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    async with serving(Engine(provider, store=MemoryStore())) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED)
        wire.send("GET", "/healthz")
        assert b"[DONE]" in (await wire.reply()).body
        assert (await wire.reply()).json() == {"status": "ok"}


async def test_a_client_that_takes_its_answer_and_goes_is_no_client_that_left() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        async with nothing_left_behind(provider, server), connected(server.port) as wire:
            wire.send("POST", RESPONSES, HELLO)
            response = (await wire.reply()).json()
        assert (await server.ask("GET", f"{RESPONSES}/{response['id']}")).json()["status"] == "completed"
