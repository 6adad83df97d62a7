"""One at a time, in the whole process."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from antwort.tools.turnstile import Passage, StillAtWork, Turnstile, _known, turnstile_of


async def entered(turnstile: Turnstile, order: list[int], number: int) -> Passage:
    passage = await turnstile.enter()
    order.append(number)
    return passage


async def waiting(turnstile: Turnstile, order: list[int], number: int) -> asyncio.Task[Passage]:
    """A task that waits by now."""
    task = asyncio.create_task(entered(turnstile, order, number))
    await asyncio.sleep(0)  # it runs up to its first wait
    return task


async def test_they_go_through_one_by_one_in_the_order_they_came() -> None:
    turnstile, order = Turnstile(), list[int]()
    first = await entered(turnstile, order, 1)
    second, third = await waiting(turnstile, order, 2), await waiting(turnstile, order, 3)
    assert order == [1]
    first.leave()
    passage = await second
    assert order == [1, 2]
    passage.leave()
    passage.leave()  # once is enough
    (await third).leave()
    assert order == [1, 2, 3]
    assert not turnstile._is_taken


async def test_who_stops_waiting_holds_up_nobody() -> None:
    turnstile, order = Turnstile(), list[int]()
    first = await entered(turnstile, order, 1)
    second, third = await waiting(turnstile, order, 2), await waiting(turnstile, order, 3)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    first.leave()
    (await third).leave()
    assert order == [1, 3]


async def test_who_is_let_in_and_stopped_at_once_lets_the_next_one_in() -> None:
    turnstile, order = Turnstile(), list[int]()
    first = await entered(turnstile, order, 1)
    second, third = await waiting(turnstile, order, 2), await waiting(turnstile, order, 3)
    first.leave()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    (await third).leave()
    assert order == [1, 3]
    assert not turnstile._is_taken


async def test_behind_one_that_is_left_nobody_waits_and_nobody_enters_until_it_has_ended() -> None:
    turnstile, order, end = Turnstile(), list[int](), asyncio.Event()
    first = await entered(turnstile, order, 1)
    second = await waiting(turnstile, order, 2)
    task: asyncio.Task[object] = asyncio.create_task(end.wait())
    first.leave_behind(task)
    first.leave()
    with pytest.raises(StillAtWork):
        await second
    with pytest.raises(StillAtWork):
        await turnstile.enter()
    end.set()
    await task
    await asyncio.sleep(0)
    (await turnstile.enter()).leave()
    assert order == [1]


def test_it_holds_between_event_loops_too() -> None:
    turnstile, order = Turnstile(), list[str]()
    is_inside, is_waiting = threading.Event(), threading.Event()

    async def first() -> None:
        passage = await turnstile.enter()
        is_inside.set()
        await asyncio.to_thread(is_waiting.wait, 10)
        order.append("first")
        passage.leave()

    async def second() -> None:
        await asyncio.to_thread(is_inside.wait, 10)
        task = asyncio.create_task(turnstile.enter())
        await asyncio.sleep(0)
        is_waiting.set()
        (await task).leave()
        order.append("second")

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    asyncio.run(second())
    thread.join()
    assert order == ["first", "second"]


async def test_one_whose_event_loop_has_ended_is_passed_over() -> None:
    turnstile = Turnstile()
    passage = await turnstile.enter()

    async def wait() -> None:
        task = asyncio.create_task(turnstile.enter())
        await asyncio.sleep(0)
        turnstile._waiting.append(turnstile._waiting[0])  # cancelled below, it takes only one of the two back
        task.cancel()

    await asyncio.to_thread(lambda: asyncio.run(wait()))
    assert len(turnstile._waiting) == 1
    passage.leave()
    assert not turnstile._is_taken


async def test_the_same_key_is_the_same_turnstile_as_long_as_somebody_uses_it() -> None:
    held = turnstile_of(("depot", "stock"))
    assert turnstile_of(("depot", "stock")) is held
    assert turnstile_of(("depot", "price")) is not held
    del held
    gc.collect()
    assert ("depot", "stock") not in _known
