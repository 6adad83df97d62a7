"""The lock of a conversation: one request has it at a time, first come first served, and nobody waits for good."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.runs.conversation_lock import ConversationKey, ConversationLocks, LockRequest
from antwort.errors import ConversationLocked, ShuttingDown
from plan_kit import STEADY

ONE: ConversationKey = ("tenant", "owner", "conv_1")
LONG = 3600.0


async def take(locks: ConversationLocks, key: ConversationKey, seconds: float) -> LockRequest:
    """A request that has the lock."""
    request = locks.request(key)
    await request.acquire(seconds)
    return request


async def pause(count: int = 3) -> None:
    """Let every task go as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def soon(taking: asyncio.Task[LockRequest]) -> LockRequest:
    """The lock that is acquired now, if all is well."""
    return await asyncio.wait_for(taking, 5)


async def test_a_free_lock_is_acquired_at_once() -> None:
    locks = ConversationLocks()
    lock = await take(locks, ONE, 0)
    assert len(locks) == 1
    lock.release()
    assert len(locks) == 0


@pytest.mark.parametrize("other", [("tenant", "owner", "conv_2"), ("tenant", "x", "conv_1"), ("x", "owner", "conv_1")])
async def test_the_lock_of_another_conversation_is_not_waited_for(other: ConversationKey) -> None:
    locks = ConversationLocks()
    held = [await take(locks, key, 0) for key in (ONE, other)]
    assert len(locks) == len(held)


async def test_requests_acquire_the_lock_in_the_order_in_which_they_came() -> None:
    locks, order = ConversationLocks(), list[int]()

    async def one(number: int) -> None:
        lock = await take(locks, ONE, LONG)
        order.append(number)
        await pause()
        assert order[-1] == number, "nobody else had the lock meanwhile"
        lock.release()

    await asyncio.gather(*(one(number) for number in range(20)))
    assert order == list(range(20))
    assert len(locks) == 0


async def test_a_request_that_waits_too_long_is_refused_and_the_others_wait_on() -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    patient = asyncio.create_task(take(locks, ONE, LONG))
    await pause()
    with pytest.raises(ConversationLocked) as caught:
        await take(locks, ONE, 0)
    error = caught.value
    assert (error.status, error.code, error.param, error.may_pass) == (409, "conversation_locked", "conversation", True)
    assert error.retry_after
    first.release()
    (await soon(patient)).release()
    assert len(locks) == 0


async def test_a_request_that_stops_waiting_leaves_the_queue() -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    waiting = [asyncio.create_task(take(locks, ONE, LONG)) for _ in range(3)]
    await pause()
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    first.release()
    (await soon(waiting[1])).release()
    (await soon(waiting[2])).release()
    assert len(locks) == 0


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_lock_that_is_passed_on_in_the_moment_its_request_leaves_goes_to_the_next(is_followed: bool) -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    leaving = asyncio.create_task(take(locks, ONE, LONG))
    await pause()
    following = asyncio.create_task(take(locks, ONE, LONG)) if is_followed else None
    await pause()
    first.release()
    leaving.cancel()  # before it has seen that it has the lock
    with pytest.raises(asyncio.CancelledError):
        await leaving
    if following is not None:
        (await soon(following)).release()
    assert len(locks) == 0


async def test_a_request_that_leaves_just_before_it_has_the_lock_is_passed_over() -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    leaving, following = (asyncio.create_task(take(locks, ONE, LONG)) for _ in range(2))
    await pause()
    leaving.cancel()
    first.release()  # before the one that leaves has taken itself out
    (await soon(following)).release()
    assert leaving.cancelled()
    assert len(locks) == 0


async def test_releasing_twice_takes_nothing_from_the_next() -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    second, third = (asyncio.create_task(take(locks, ONE, LONG)) for _ in range(2))
    await pause()
    first.release()
    held = await soon(second)
    first.release()
    await pause()
    assert not third.done()
    held.release()
    (await soon(third)).release()


async def test_a_request_that_is_dropped_releases_its_lock() -> None:
    locks = ConversationLocks()
    first: LockRequest | None = await take(locks, ONE, LONG)
    second = asyncio.create_task(take(locks, ONE, LONG))
    await pause()
    assert first is not None
    first = None
    gc.collect()
    (await soon(second)).release()
    assert len(locks) == 0


def test_a_request_that_outlives_its_loop_is_dropped_in_silence() -> None:
    lock: LockRequest | None = asyncio.run(take(ConversationLocks(), ONE, LONG))
    assert lock is not None
    lock = None
    gc.collect()


async def test_when_the_engine_closes_those_that_wait_are_refused_and_the_holder_ends() -> None:
    locks = ConversationLocks()
    first = await take(locks, ONE, LONG)
    waiting = [asyncio.create_task(take(locks, ONE, LONG)) for _ in range(3)]
    await pause()
    waiting[0].cancel()
    locks.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, ShuttingDown, ShuttingDown]
    assert len(locks) == 1
    first.release()
    assert len(locks) == 0


# ---- whatever happens, and in whichever order ----


class Crowd:
    """Requests that come, stop waiting, end, fail and forget at any moment; who is inside is watched."""

    def __init__(self) -> None:
        self.locks = ConversationLocks()
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []
        self.inside: dict[int, list[int]] = {0: [], 1: []}
        self.came: dict[int, list[int]] = {0: [], 1: []}

    def come(self, conversation: int, seconds: float, *, forgets: bool) -> None:
        number = len(self.tasks)
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._one(number, conversation, seconds, forgets=forgets)))

    async def _one(self, number: int, conversation: int, seconds: float, *, forgets: bool) -> None:
        lock = await take(self.locks, ("t", "o", f"conv_{conversation}"), seconds)
        self.came[conversation].append(number)
        inside = self.inside[conversation]
        assert not inside, "one at a time"
        inside.append(number)
        try:
            await self.ends[number].wait()
        finally:
            inside.clear()
            if not forgets:
                lock.release()
            del lock  # also where an error would hold on to it

    async def play(self, moves: list[tuple[str, int, Any]]) -> None:
        for move, which, detail in moves:
            if move == "come":
                seconds, forgets = detail
                self.come(which % 2, seconds, forgets=forgets)
            elif move == "turn" or not self.tasks:
                await pause(which % 3)
            elif move == "cancel":
                self.tasks[which % len(self.tasks)].cancel()
            else:
                self.ends[which % len(self.tasks)].set()

    async def end(self) -> None:
        for event in self.ends:
            event.set()
        await pause(5 * len(self.tasks))  # each hands on to the next
        assert all(task.done() for task in self.tasks)
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        allowed = (asyncio.CancelledError, ConversationLocked)
        assert all(result is None or isinstance(result, allowed) for result in results), results
        assert len(self.locks) == 0
        assert all(numbers == sorted(numbers) for numbers in self.came.values())


COMING = st.tuples(st.sampled_from([0.0, LONG]), st.booleans())
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 1), COMING),
        st.tuples(st.sampled_from(["turn", "cancel", "end"]), st.integers(0, 20), st.none()),
    ),
    max_size=40,
)


@STEADY
@given(MOVES)
def test_no_lock_is_ever_stuck_and_the_order_holds(moves: list[tuple[str, int, Any]]) -> None:
    async def scene() -> None:
        crowd = Crowd()
        await crowd.play(moves)
        await crowd.end()

    asyncio.run(scene())
