"""Who may take a turn in a conversation: one at a time, first come first served, and nobody is held up for good."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from antwort.engine.queues import Name, Place, Queues
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import ConversationLocked, ShuttingDown
from plan_kit import STEADY

ONE: Name = ("tenant", "owner", "conv_1")
LONG = 3600.0


async def take(queues: Queues, name: Name, seconds: float) -> Place:
    """A place whose turn has come."""
    place = queues.join(name)
    await place.turn(seconds)
    return place


async def turns(count: int = 3) -> None:
    """Let all that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def soon(taking: asyncio.Task[Place]) -> Place:
    """The turn that comes now, if all is well."""
    return await asyncio.wait_for(taking, 5)


async def test_a_free_conversation_is_taken_at_once() -> None:
    queues = Queues()
    place = await take(queues, ONE, 0)
    assert len(queues) == 1
    place.give_up()
    assert len(queues) == 0


@pytest.mark.parametrize("other", [("tenant", "owner", "conv_2"), ("tenant", "x", "conv_1"), ("x", "owner", "conv_1")])
async def test_another_conversation_is_not_waited_for(other: Name) -> None:
    queues = Queues()
    places = [await take(queues, name, 0) for name in (ONE, other)]
    assert len(queues) == len(places)


async def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    queues, order = Queues(), list[int]()

    async def one(number: int) -> None:
        place = await take(queues, ONE, LONG)
        order.append(number)
        await turns()
        assert order[-1] == number, "nobody else came meanwhile"
        place.give_up()

    await asyncio.gather(*(one(number) for number in range(20)))
    assert order == list(range(20))
    assert len(queues) == 0


async def test_a_turn_that_does_not_come_in_time_is_refused_and_the_others_wait_on() -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    patient = asyncio.create_task(take(queues, ONE, LONG))
    await turns()
    with pytest.raises(ConversationLocked) as caught:
        await take(queues, ONE, 0)
    error = caught.value
    assert (error.status, error.code, error.param, error.may_pass) == (409, "conversation_locked", "conversation", True)
    assert error.retry_after
    first.give_up()
    (await soon(patient)).give_up()
    assert len(queues) == 0


async def test_who_stops_waiting_leaves_the_queue() -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    waiting = [asyncio.create_task(take(queues, ONE, LONG)) for _ in range(3)]
    await turns()
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    first.give_up()
    (await soon(waiting[1])).give_up()
    (await soon(waiting[2])).give_up()
    assert len(queues) == 0


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_turn_that_comes_in_the_moment_its_request_leaves_goes_to_the_next(is_followed: bool) -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    leaving = asyncio.create_task(take(queues, ONE, LONG))
    await turns()
    following = asyncio.create_task(take(queues, ONE, LONG)) if is_followed else None
    await turns()
    first.give_up()
    leaving.cancel()  # before it has seen that its turn has come
    with pytest.raises(asyncio.CancelledError):
        await leaving
    if following is not None:
        (await soon(following)).give_up()
    assert len(queues) == 0


async def test_a_request_that_leaves_just_before_its_turn_comes_is_passed_over() -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    leaving, following = (asyncio.create_task(take(queues, ONE, LONG)) for _ in range(2))
    await turns()
    leaving.cancel()
    first.give_up()  # before the one that leaves has taken itself out
    (await soon(following)).give_up()
    assert leaving.cancelled()
    assert len(queues) == 0


async def test_giving_up_twice_takes_nothing_from_the_next() -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    second, third = (asyncio.create_task(take(queues, ONE, LONG)) for _ in range(2))
    await turns()
    first.give_up()
    held = await soon(second)
    first.give_up()
    await turns()
    assert not third.done()
    held.give_up()
    (await soon(third)).give_up()


async def test_a_place_that_is_forgotten_gives_itself_up() -> None:
    queues = Queues()
    first: Place | None = await take(queues, ONE, LONG)
    second = asyncio.create_task(take(queues, ONE, LONG))
    await turns()
    assert first is not None
    first = None
    gc.collect()
    (await soon(second)).give_up()
    assert len(queues) == 0


def test_a_place_that_outlives_its_loop_is_forgotten_in_silence() -> None:
    place: Place | None = asyncio.run(take(Queues(), ONE, LONG))
    assert place is not None
    place = None
    gc.collect()


async def test_when_the_house_closes_those_who_wait_are_told_and_the_one_inside_ends() -> None:
    queues = Queues()
    first = await take(queues, ONE, LONG)
    waiting = [asyncio.create_task(take(queues, ONE, LONG)) for _ in range(3)]
    await turns()
    waiting[0].cancel()
    queues.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, ShuttingDown, ShuttingDown]
    assert len(queues) == 1
    first.give_up()
    assert len(queues) == 0


# ---- whatever happens, and in whichever order ----


class Crowd:
    """Requests that come, stop waiting, end, fail and forget at any moment; who is inside is watched."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []
        self.inside: dict[int, list[int]] = {0: [], 1: []}
        self.came: dict[int, list[int]] = {0: [], 1: []}

    def come(self, conversation: int, seconds: float, *, forgets: bool) -> None:
        number = len(self.tasks)
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._one(number, conversation, seconds, forgets=forgets)))

    async def _one(self, number: int, conversation: int, seconds: float, *, forgets: bool) -> None:
        place = await take(self.queues, ("t", "o", f"conv_{conversation}"), seconds)
        self.came[conversation].append(number)
        inside = self.inside[conversation]
        assert not inside, "one at a time"
        inside.append(number)
        try:
            await self.ends[number].wait()
        finally:
            inside.clear()
            if not forgets:
                place.give_up()
            del place  # also where an error would hold on to it

    async def play(self, moves: list[tuple[str, int, Any]]) -> None:
        for move, which, detail in moves:
            if move == "come":
                seconds, forgets = detail
                self.come(which % 2, seconds, forgets=forgets)
            elif move == "turn" or not self.tasks:
                await turns(which % 3)
            elif move == "cancel":
                self.tasks[which % len(self.tasks)].cancel()
            else:
                self.ends[which % len(self.tasks)].set()

    async def end(self) -> None:
        for event in self.ends:
            event.set()
        await turns(5 * len(self.tasks))  # each hands on to the next
        assert all(task.done() for task in self.tasks)
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        allowed = (asyncio.CancelledError, ConversationLocked)
        assert all(result is None or isinstance(result, allowed) for result in results), results
        assert len(self.queues) == 0
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
def test_no_queue_ever_sticks_and_its_order_holds(moves: list[tuple[str, int, Any]]) -> None:
    async def scene() -> None:
        crowd = Crowd()
        await crowd.play(moves)
        await crowd.end()

    asyncio.run(scene())
