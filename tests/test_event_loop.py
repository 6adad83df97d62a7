"""The event loop is shared between tenants: short work, long work, and who goes first."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from antwort.event_loop import SHORT_PER_TURN, next_turn, turns
from antwort.identity import TENANT


async def test_of_many_requests_of_one_tenant_some_begin_in_each_turn_and_another_tenants_begins_at_once() -> None:
    begun: list[str] = []

    async def start(tenant: str) -> None:
        if (place := turns().begin_short(tenant)) is not None:
            await place
        begun.append(tenant)

    first = ["a"] * SHORT_PER_TURN
    tasks = [asyncio.create_task(start(tenant)) for tenant in [*first, "a", "a", "a", "b"]]
    await asyncio.sleep(0)
    assert begun == [*first, "b"]
    tasks[SHORT_PER_TURN].cancel()
    await asyncio.wait(tasks)
    assert begun == [*first, "b", "a", "a"]


async def test_of_long_work_one_piece_is_done_in_a_turn_and_tenants_take_turns_at_it() -> None:
    done: list[str] = []

    async def work(tenant: str, pieces: int) -> None:
        TENANT.set(tenant)
        for _ in range(pieces):
            await next_turn()
            done.append(tenant)

    async def count() -> None:
        while len(done) < 6:
            seen.append(len(done))
            await asyncio.sleep(0)

    seen: list[int] = []
    await asyncio.gather(work("a", 2), work("a", 2), work("b", 2), count())
    assert done == ["a", "b", "a", "b", "a", "a"]
    assert all(later - before <= 1 for before, later in pairwise(seen))


async def test_one_who_stops_waiting_for_a_turn_costs_the_others_none() -> None:
    async def work() -> None:
        await next_turn()

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, False, False]


async def test_short_work_does_not_wait_behind_long_work_of_the_same_tenant() -> None:
    done: list[str] = []

    async def long(name: str) -> None:
        await next_turn()
        done.append(name)

    async def short() -> None:
        if (place := turns().begin_short(TENANT.get())) is not None:
            await place
        done.append("short")

    await asyncio.gather(long("first"), long("second"), short())
    assert done == ["short", "first", "second"]
