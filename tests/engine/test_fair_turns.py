"""Between the pieces of what one request says, others have their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import read_request
from antwort.engine.engine import Engine
from antwort.engine.history.calls import ITEMS_PER_STEP
from antwort.providers.base import Capabilities
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say

MANY = 100
LONG = 2048
WALKS = 5
"""How often a history is gone through at least, from its reading to its messages."""
WALKS_TO_FIT = 5
"""How often it is gone through besides, to truncate or to compact it."""
USER = {"role": "user", "content": "Hello"}


@pytest.fixture(autouse=True)
def all_work_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second."""
    seconds = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))


async def turns_of_others(work: Coroutine[Any, Any, object]) -> int:
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_while_items_are_added_to_a_conversation() -> None:
    engine = Engine(ScriptedProvider())
    items = [{"role": "user", "content": "x" * 2**16} for _ in range(Limits().conversation_items)]
    assert await turns_of_others(engine.conversations.create(items)) > len(items)


@pytest.mark.parametrize(
    "items",
    [
        [USER, {"type": "additional_tools", "role": "developer", "tools": [{"type": f"t{i}"} for i in range(MANY)]}],
        [
            {"type": "computer_call", "call_id": "c", "action": {}},
            {"type": "computer_call_output", "call_id": "c", "output": [{"image_url": "data:,"} for _ in range(MANY)]},
        ],
    ],
    ids=["declared tools", "pictures of a result"],
)
async def test_while_a_request_is_planned(items: list[dict[str, Any]]) -> None:
    engine = Engine(ScriptedProvider(capabilities=Capabilities(vision=True)))
    request = read_request({"model": "scripted", "input": items}, Limits())
    assert await turns_of_others(engine.plan(request)) > MANY


def many_calls(kind: str, first: int = 0) -> list[dict[str, Any]]:
    """Items that say little and take long: `LONG` calls, with their results."""
    numbers = range(first, first + LONG)
    if kind == "mcp_call":
        call = {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "output": "x"}
        return [{**call, "id": f"mcp_{n}"} for n in numbers]
    if kind == "function_call":
        calls = [{"type": kind, "call_id": f"call_{n}", "name": "f", "arguments": "{}"} for n in numbers]
    else:
        calls = [{"type": kind, "call_id": f"call_{n}", "action": "run"} for n in numbers]
    results = [{"type": f"{kind}_output", "call_id": f"call_{n}", "output": "x"} for n in numbers]
    return [item for pair in zip(calls, results, strict=True) for item in pair]


@pytest.mark.parametrize("kind", ["mcp_call", "function_call", "shell_call"])
async def test_while_a_body_of_many_calls_is_answered(kind: str) -> None:
    provider = ScriptedProvider(answer(say("Yes.")))
    async with Engine(provider) as engine:
        request = read_request({"model": "scripted", "input": [*many_calls(kind), USER]}, Limits())
        assert await turns_of_others(engine.create(request)) > WALKS * LONG / ITEMS_PER_STEP


@pytest.mark.parametrize("kind", ["mcp_call", "function_call", "shell_call"])
@pytest.mark.parametrize("goes_on", ["previous_response_id", "conversation"])
async def test_while_a_short_request_continues_a_long_history(kind: str, goes_on: str) -> None:
    provider = ScriptedProvider(*[answer(say("Yes."))] * 3)
    async with Engine(provider, store=MemoryStore()) as engine:
        fields: dict[str, Any] = {}
        if goes_on == "conversation":
            fields[goes_on] = (await engine.conversations.create()).id
        for first in (0, LONG):
            body = {"model": "scripted", "input": [*many_calls(kind, first), USER], **fields}
            response = await engine.create(read_request(body, Limits()))
            fields[goes_on] = fields.get("conversation", response.id)
        request = read_request({"model": "scripted", "input": "And?", **fields}, Limits())
        assert await turns_of_others(engine.create(request)) > WALKS * 2 * LONG / ITEMS_PER_STEP


def many_messages() -> list[dict[str, Any]]:
    exchange = [USER, {"role": "assistant", "content": "Hello to you, too."}]
    return exchange * LONG


long_conversations = pytest.mark.parametrize(
    "make",
    [many_messages, partial(many_calls, "function_call"), partial(many_calls, "mcp_call")],
    ids=["messages", "calls", "calls of one turn"],
)


@long_conversations
async def test_while_a_long_conversation_is_truncated(make: Callable[[], list[dict[str, Any]]]) -> None:
    request = read_request({"model": "scripted", "input": [*make(), USER], "truncation": "auto"}, Limits())
    turns: dict[int, int] = {}
    for context in (10_000_000, 1000):
        capabilities = Capabilities(context_length=context)
        async with Engine(ScriptedProvider(answer(say("Yes.")), capabilities=capabilities)) as engine:
            turns[context] = await turns_of_others(engine.create(request))
    assert turns[1000] - turns[10_000_000] > WALKS_TO_FIT * len(request.input) / ITEMS_PER_STEP


@long_conversations
@pytest.mark.parametrize("context", [None, 20_000], ids=["in one piece", "in pieces"])
async def test_while_a_long_conversation_is_compacted(
    make: Callable[[], list[dict[str, Any]]], context: int | None
) -> None:
    request = read_request({"model": "scripted", "input": [*make(), USER]}, Limits())
    provider = ScriptedProvider(*[answer(say("Yes."))] * MANY)
    async with Engine(provider) as engine:
        answered = await turns_of_others(engine.create(request))
    provider = ScriptedProvider(*[answer(say("Yes."))] * MANY, capabilities=Capabilities(context_length=context))
    async with Engine(provider) as engine:
        compacted = await turns_of_others(engine.compact(request))
    assert (len(provider.requests) > 1) is (context is not None)
    assert compacted - answered > WALKS_TO_FIT * len(request.input) / ITEMS_PER_STEP
