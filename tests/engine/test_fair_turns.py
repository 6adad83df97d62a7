"""Between the pieces of what one request says, others have their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any

import pytest

from antwort.api.requests import Limits, read_request
from antwort.engine.engine import Engine
from antwort.providers.base import Capabilities
from antwort.testing import ScriptedProvider

MANY = 100
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
