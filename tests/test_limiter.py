"""Slots, handed out in the order of the requests, in the whole process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from antwort.limiter import Limiter, SlotsStuck
from serving import until


async def acquired(limiter: Limiter, order: list[int], number: int) -> None:
    await limiter.acquire()
    order.append(number)


async def waiting(limiter: Limiter, order: list[int], number: int) -> asyncio.Task[None]:
    """A task that waits by now."""
    task = asyncio.create_task(acquired(limiter, order, number))
    await asyncio.sleep(0)  # it runs up to its first wait
    return task


async def test_slots_are_handed_out_in_the_order_of_the_requests() -> None:
    limiter, order = Limiter(1), list[int]()
    await acquired(limiter, order, 1)
    second, third = await waiting(limiter, order, 2), await waiting(limiter, order, 3)
    assert order == [1]
    limiter.release()
    await second
    assert order == [1, 2]
    limiter.release()
    await third
    limiter.release()
    assert order == [1, 2, 3]
    assert limiter.taken == 0


@pytest.mark.parametrize("released", ["before", "after"])
async def test_a_task_that_stops_waiting_leaves_its_slot_to_the_next(released: str) -> None:
    limiter, order = Limiter(1), list[int]()
    await acquired(limiter, order, 1)
    second, third = await waiting(limiter, order, 2), await waiting(limiter, order, 3)
    if released == "before":
        limiter.release()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    if released == "after":
        limiter.release()
    await third
    limiter.release()
    assert order == [1, 3]
    assert limiter.taken == 0


async def test_nobody_waits_for_slots_of_tasks_that_do_not_end() -> None:
    limiter, order, end = Limiter(1), list[int](), asyncio.Event()
    await acquired(limiter, order, 1)
    second = await waiting(limiter, order, 2)
    task: asyncio.Task[object] = asyncio.create_task(end.wait())
    limiter.abandon(task)
    with pytest.raises(SlotsStuck):
        await second
    with pytest.raises(SlotsStuck):
        await limiter.acquire()
    end.set()
    await task
    await asyncio.sleep(0)
    await acquired(limiter, order, 3)
    assert order == [1, 3]


async def test_a_waiter_that_is_cancelled_while_the_slots_become_stuck_takes_none() -> None:
    limiter, end = Limiter(1), asyncio.Event()
    await limiter.acquire()
    second = await waiting(limiter, [], 2)
    task: asyncio.Task[object] = asyncio.create_task(end.wait())
    limiter.abandon(task)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    end.set()
    await task
    await asyncio.sleep(0)
    assert limiter.taken == 0


def test_it_holds_between_event_loops_too() -> None:
    limiter, order = Limiter(1), list[str]()
    is_inside, is_waiting = threading.Event(), threading.Event()

    async def first() -> None:
        await limiter.acquire()
        is_inside.set()
        await asyncio.to_thread(is_waiting.wait, 10)
        order.append("first")
        limiter.release()

    async def second() -> None:
        await asyncio.to_thread(is_inside.wait, 10)
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        is_waiting.set()
        await task
        order.append("second")
        limiter.release()

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    asyncio.run(second())
    thread.join()
    assert order == ["first", "second"]


def test_a_waiter_of_another_event_loop_may_run_before_the_release_returns() -> None:
    limiter, is_waiting, is_acquired, is_over = Limiter(1), *(threading.Event() for _ in range(3))

    class EagerLoop(asyncio.SelectorEventLoop):
        """Runs what another thread passes to it before that thread goes on."""

        def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]  # passed on
            handle = super().call_soon_threadsafe(*args, **kwargs)
            assert is_over.wait(10)
            return handle

    async def acquired() -> None:
        asyncio.get_running_loop().call_soon(is_waiting.set)
        try:
            async with asyncio.timeout(10):
                await limiter.acquire()
            is_acquired.set()
        finally:
            is_over.set()

    def wait() -> None:
        with asyncio.Runner(loop_factory=EagerLoop) as runner, suppress(SlotsStuck):
            runner.run(acquired())

    asyncio.run(limiter.acquire())
    thread = threading.Thread(target=wait)
    thread.start()
    assert is_waiting.wait(10)
    limiter.release()
    thread.join()
    assert is_acquired.is_set()
    limiter.release()
    assert limiter.taken == 0


def test_no_slot_is_lost_where_threads_contend() -> None:
    limiter, acquired = Limiter(1), list[None]()

    async def contend() -> None:
        for _ in range(500):
            async with asyncio.timeout(10):
                await limiter.acquire()
            await asyncio.sleep(0)
            acquired.append(None)
            limiter.release()

    async def contend_side_by_side() -> None:
        await asyncio.gather(*(contend() for _ in range(4)))

    threads = [threading.Thread(target=lambda: asyncio.run(contend_side_by_side())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acquired) == 2 * 4 * 500
    assert limiter.taken == 0


async def test_a_waiter_whose_event_loop_is_closed_is_passed_over() -> None:
    limiter = Limiter(1)
    await limiter.acquire()

    def abandon_a_waiter() -> None:
        loop = asyncio.new_event_loop()
        waiter = limiter.acquire()
        loop.call_soon(lambda: waiter.send(None))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        waiters.append(waiter)

    waiters: list[object] = []
    await asyncio.to_thread(abandon_a_waiter)
    limiter.release()
    assert limiter.taken == 0


# ---- several slots at once, and owners with a share of them ----


async def test_those_who_wait_are_admitted_in_their_order_and_a_small_one_does_not_pass_a_large_one() -> None:
    limiter, came = Limiter(100), list[str]()

    async def enter(name: str, amount: int) -> None:
        await limiter.acquire(name, amount)
        came.append(name)

    await enter("a", 60)
    tasks = [asyncio.create_task(enter(name, amount)) for name, amount in (("b", 50), ("c", 30), ("d", 20))]
    await until(lambda: limiter.waiting == 3)
    limiter.release("a", 60)
    await asyncio.gather(*tasks)
    assert (came, limiter.taken) == (["a", "b", "c", "d"], 100)


async def test_an_owner_has_its_share_and_the_others_pass_by() -> None:
    limiter = Limiter(100, per_owner=50)
    await limiter.acquire("greedy", 30)
    more = asyncio.create_task(limiter.acquire("greedy", 30))
    await until(lambda: limiter.waiting == 1)
    await limiter.acquire("other", 40)
    assert (limiter.taken, limiter.waiting) == (70, 1)
    limiter.release("greedy", 30)
    await more
    assert limiter.taken == 70


async def test_a_request_for_more_than_all_slots_is_admitted_alone() -> None:
    limiter = Limiter(100, per_owner=50)
    await limiter.acquire("a", 500)
    behind = asyncio.create_task(limiter.acquire("b", 10))
    await until(lambda: limiter.waiting == 1)
    limiter.release("a", 500)
    await behind
    assert limiter.taken == 10


async def test_an_owner_that_holds_slots_does_not_wait_for_itself() -> None:
    limiter = Limiter(100, per_owner=50)
    await limiter.acquire("a", 60)
    await limiter.acquire("a", 60, held=60)
    assert limiter.taken == 120
    limiter.release("a", 120)
    assert limiter.taken == 0


async def test_who_gives_up_lets_those_behind_pass() -> None:
    limiter = Limiter(100)
    await limiter.acquire("a", 60)
    first = asyncio.create_task(limiter.acquire("b", 60))
    second = asyncio.create_task(limiter.acquire("c", 30))
    await until(lambda: limiter.waiting == 2)
    first.cancel()
    await second
    assert (limiter.taken, limiter.waiting) == (90, 0)


async def test_a_request_that_fits_does_not_wait_at_all() -> None:
    limiter = Limiter(100, per_owner=50)
    await limiter.acquire("a", 30)
    waiting = asyncio.create_task(limiter.acquire("a", 30))
    await until(lambda: limiter.waiting == 1)
    async with asyncio.timeout(0):
        await limiter.acquire("b", 30)
    waiting.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await limiter.acquire("b", 30)
    assert limiter.taken == 60


async def test_a_slot_is_released_at_the_end_of_a_block() -> None:
    limiter = Limiter(1)
    with suppress(ValueError):
        async with limiter:
            assert limiter.taken == 1
            raise ValueError
    assert limiter.taken == 0
