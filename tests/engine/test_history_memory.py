"""How large histories are let into memory: in turn, within the bound, and no tenant alone."""

from __future__ import annotations

import asyncio

import pytest

from antwort.engine.history.memory_limit import HistoryMemory
from antwort.errors import HistoryMemoryFull
from serving import until


async def test_those_who_wait_are_let_in_in_their_order_and_a_small_one_does_not_pass_a_large_one() -> None:
    memory, came = HistoryMemory(100), list[str]()

    async def enter(name: str, size: int) -> None:
        await memory.admit(name, size, None)
        came.append(name)

    await enter("a", 60)
    tasks = [asyncio.create_task(enter(name, size)) for name, size in (("b", 50), ("c", 30), ("d", 20))]
    await until(lambda: memory.waiting == 3)
    memory.release("a", 60)
    await asyncio.gather(*tasks)
    assert (came, memory.held) == (["a", "b", "c", "d"], 100)


async def test_a_tenant_has_half_of_it_and_the_others_pass_by() -> None:
    memory = HistoryMemory(100)
    await memory.admit("greedy", 30, None)
    more = asyncio.create_task(memory.admit("greedy", 30, None))
    await until(lambda: memory.waiting == 1)
    await memory.admit("other", 40, None)
    assert (memory.held, memory.waiting) == (70, 1)
    memory.release("greedy", 30)
    await more
    assert memory.held == 70


async def test_a_history_that_is_larger_than_all_of_it_is_let_in_alone() -> None:
    memory = HistoryMemory(100)
    await memory.admit("a", 500, None)
    behind = asyncio.create_task(memory.admit("b", 10, None))
    await until(lambda: memory.waiting == 1)
    memory.release("a", 500)
    await behind
    assert memory.held == 10


async def test_who_gives_up_lets_those_behind_pass() -> None:
    memory = HistoryMemory(100)
    await memory.admit("a", 60, None)
    first = asyncio.create_task(memory.admit("b", 60, None))
    second = asyncio.create_task(memory.admit("c", 30, None))
    await until(lambda: memory.waiting == 2)
    first.cancel()
    await second
    assert (memory.held, memory.waiting) == (90, 0)


async def test_after_its_time_a_request_is_told_to_come_again() -> None:
    memory = HistoryMemory(100)
    await memory.admit("a", 60, None)
    with pytest.raises(HistoryMemoryFull) as caught:
        await memory.admit("b", 60, 0)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "history_memory_full", 5)
    assert (memory.held, memory.waiting) == (60, 0)
