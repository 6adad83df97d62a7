"""Fifty requests on one conversation at once, over HTTP and WebSockets: streamed and whole, kept and not, with and
without tools that the server runs. No item is lost, doubled or out of order, and each turn has heard all before it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import socket_kit
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import CallDelta, ChatRequest, Delta, Finished, TextDelta
from antwort.storage.base import ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, StreamChecker
from antwort.testing.frames import read_frames
from antwort.tools.base import ToolExecutor
from conversation_kit import begun, said
from engine_kit import SERVER, WEATHER, sent, weather_tool
from plan_kit import depot
from raw_http import Reply, connected
from serving import RESPONSES, Serving, serving, until

CROWD = 50


class Echo(ScriptedProvider):
    """Calls a tool where there is one, and then says which questions and answers it has heard."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        messages = sent(request)["messages"]
        tools = sent(request).get("tools", ())
        await asyncio.sleep(0)
        if tools and messages[-1]["role"] != "tool":
            name = tools[0]["function"]["name"]
            yield [CallDelta(index=0, name=name, arguments='{"city": "Rome"}')]
            yield [Finished("tool_calls")]
            return
        heard = [message["content"] for message in messages if message["role"] == "user"]
        answers = [message for message in messages if message["role"] == "assistant" and message.get("content")]
        yield [TextDelta(f"{heard[-1]} ")]
        yield [TextDelta(f"after {len(heard) - 1} with {len(answers)} answers"), Finished("stop")]


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResponseStore:
    return MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")


def engine_on(store: ResponseStore) -> Engine:
    executors: list[ToolExecutor] = [depot(), weather_tool()]
    return Engine(Echo(), store=store, executors=executors, settings=EngineSettings())


def body_of(number: int, conversation: str) -> dict[str, Any]:
    """The number-th of many requests that differ in all that should not matter."""
    return {
        "model": "scripted",
        "input": f"q{number}",
        "conversation": conversation if number % 2 else {"id": conversation},
        "stream": number % 3 == 0,
        "store": number % 5 != 0,
        "tools": [[], [SERVER], [], [WEATHER]][number % 4],
    }


def response_in(reply: Reply, body: dict[str, Any]) -> Any:
    """The response as it ended, out of either form of answer."""
    assert reply.status == 200, reply.body
    if not body["stream"]:
        return reply.json()
    checker = StreamChecker()
    for number, event in read_frames(reply.body):
        checker.feed(number, event)
    return to_plain(checker.finish())


async def turn(server: Serving, number: int, conversation: str) -> tuple[str, Any]:
    body = body_of(number, conversation)
    if number % 6 == 1:
        del body["stream"]
        async with socket_kit.connected(server.port) as socket:
            return body["input"], to_plain(await socket.ask(**body))
    headers = {"idempotency-key": f"key-{number}"} if number % 7 == 0 else {}
    return body["input"], response_in(await server.ask("POST", RESPONSES, body, headers), body)


async def test_no_item_is_lost_or_doubled_or_out_of_order(store: ResponseStore) -> None:
    engine = engine_on(store)
    async with serving(engine) as server:
        conversation = await begun(engine)
        turns = dict(await asyncio.gather(*(turn(server, number, conversation) for number in range(CROWD))))
        items = [to_plain(item) for item in await said(store, conversation)]
        assert len(engine.conversation_locks) == 0
    assert all(response["status"] == "completed" for response in turns.values())
    assert all(response["conversation"] == {"id": conversation} for response in turns.values())
    asked = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
    assert sorted(asked) == sorted(turns)
    at, has_listing = 0, False
    for place, question in enumerate(asked):
        output = turns[question]["output"]
        if output[0]["type"] == "mcp_list_tools":  # the same list of tools is added to a conversation once
            output, has_listing = output[has_listing:], True
        assert items[at]["content"][0]["text"] == question
        assert items[at + 1 : at + 1 + len(output)] == output, "directly behind its input"
        assert output[-1]["content"][0]["text"] == f"{question} after {place} with {place} answers"
        at += 1 + len(output)
    assert at == len(items)
    assert len({item["id"] for item in items}) == len(items)


async def test_clients_that_vanish_from_the_queue_or_in_the_middle_of_their_turn_leave_nothing(
    store: ResponseStore,
) -> None:
    engine = engine_on(store)
    async with serving(engine) as server:
        conversation = await begun(engine)

        async def vanish(number: int) -> None:
            if number % 6 == 2:
                body = body_of(number, conversation)
                del body["stream"]
                async with socket_kit.connected(server.port) as socket:
                    await socket.create(**body)
                    socket.wire.transport.abort()
                return
            async with connected(server.port) as wire:
                wire.send("POST", RESPONSES, body_of(number, conversation))
                for _ in range(number % 11):
                    await asyncio.sleep(0)
                wire.vanish()

        staying = [number for number in range(CROWD) if number % 2]
        leaving = asyncio.gather(*(vanish(number) for number in range(CROWD) if not number % 2))
        turns = dict(await asyncio.gather(*(turn(server, number, conversation) for number in staying)))
        await leaving
        await until(lambda: engine.live == 0 and len(engine.conversation_locks) == 0)
        items = [to_plain(item) for item in await said(store, conversation)]
    assert all(response["status"] == "completed" for response in turns.values())
    asked = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
    assert len(asked) == len({*asked})
    assert {*turns} <= {*asked}
    answers = [item["content"][0]["text"] for item in items if item.get("role") == "assistant"]
    assert answers == [f"{question} after {place} with {place} answers" for place, question in enumerate(asked)]


async def test_a_client_is_told_when_its_turn_does_not_come(store: ResponseStore) -> None:
    go = asyncio.Event()

    class Slow(Echo):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            await go.wait()
            async for deltas in super().infer(request):
                yield deltas

    engine = Engine(Slow(), store=store, settings=EngineSettings(conversation_wait=0))
    async with serving(engine) as server:
        conversation = await begun(engine)
        first = asyncio.create_task(server.ask("POST", RESPONSES, {**body_of(1, conversation), "tools": []}))
        await until(lambda: engine.live == 1)
        locked = await server.ask("POST", RESPONSES, body_of(2, conversation))
        go.set()
        assert (await first).status == 200
    assert (locked.status, locked.error["code"], locked.error["param"]) == (409, "conversation_locked", "conversation")
    assert locked.headers["retry-after"] == "2"
    assert locked.headers["x-should-retry"] == "true"


async def test_what_is_wrong_with_a_conversation_is_said(store: ResponseStore) -> None:
    async with serving(engine_on(store)) as server:
        hello = {"model": "scripted", "input": "Hello"}
        both = {"conversation": "conv_1", "previous_response_id": "resp_1"}
        refused = await server.ask("POST", RESPONSES, hello | both)
        unknown = await server.ask("POST", RESPONSES, hello | {"conversation": "conv_1"})
    assert (refused.status, refused.error["param"]) == (400, "conversation")
    assert refused.error["code"] == "mutually_exclusive_parameters"
    assert (unknown.status, unknown.error["param"]) == (404, "conversation")
    assert json.dumps(unknown.error).count("conv_1") == 1
