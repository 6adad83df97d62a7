"""A signal that stops one task at its next wait, and tasks that are told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import islice

import pytest

from antwort.concurrency import Once, Signal, backoff, side_by_side, stop, within
from antwort.errors import Cancelled, ClientLeft


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def value() -> str:
    return "value"


async def racing(signal: Signal, until: asyncio.Event) -> asyncio.Task[bool]:
    """A task that waits for `until` inside a race."""
    task = asyncio.create_task(signal.race(until.wait))
    await settle()
    assert not task.done()
    return task


def no_cancellation_is_left(task: asyncio.Task[object] | None) -> bool:
    assert task is not None
    return task.cancelling() == 0


# ---- nothing happens ----


async def test_without_a_signal_a_race_gives_what_was_awaited() -> None:
    signal = Signal()
    assert await signal.race(value) == "value"
    assert signal.reason is None
    assert not signal.fired.is_set()


async def test_without_a_signal_an_error_goes_through_as_it_is() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Signal().race(fail)


async def test_the_end_of_a_generator_goes_through_as_it_is() -> None:
    async def nothing() -> AsyncGenerator[int, None]:
        return
        yield

    with pytest.raises(StopAsyncIteration):
        await Signal().race(nothing().__anext__)


# ---- fired ----


async def test_after_the_signal_nothing_is_started() -> None:
    signal, started = Signal(), False

    async def begin() -> None:
        nonlocal started
        started = True

    signal.set(ClientLeft())
    with pytest.raises(ClientLeft):
        await signal.race(begin)
    assert not started


async def test_a_signal_between_races_is_raised_by_the_next_one() -> None:
    signal = Signal()
    assert await signal.race(value) == "value"
    signal.set(ClientLeft())
    await settle()  # nothing was cancelled meanwhile
    with pytest.raises(ClientLeft):
        await signal.race(value)


@pytest.mark.proves("TR-021")
async def test_a_signal_breaks_off_the_wait_and_its_reason_is_raised_there() -> None:
    signal, never = Signal(), asyncio.Event()
    task = await racing(signal, never)
    reason = Cancelled()
    signal.set(reason)
    with pytest.raises(Cancelled) as caught:
        await task
    assert caught.value is reason
    assert not task.cancelled()


async def test_what_is_awaited_learns_that_it_is_broken_off() -> None:
    signal, closed = Signal(), asyncio.Event()

    async def hold() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()

    task = asyncio.create_task(signal.race(hold))
    await settle()
    signal.set(ClientLeft())
    with pytest.raises(ClientLeft):
        await task
    assert closed.is_set()


async def test_only_the_first_reason_counts() -> None:
    signal, first = Signal(), ClientLeft()
    task = await racing(signal, asyncio.Event())
    signal.set(first)
    signal.set(Cancelled())
    with pytest.raises(ClientLeft):
        await task
    assert signal.reason is first
    assert signal.fired.is_set()


async def test_every_later_race_raises_the_same_reason() -> None:
    signal = Signal()
    task = await racing(signal, asyncio.Event())
    signal.set(ClientLeft())
    with pytest.raises(ClientLeft):
        await task
    for _ in range(2):
        with pytest.raises(ClientLeft):
            await signal.race(value)


async def test_the_task_can_wait_again_after_it_was_told() -> None:
    """It closes what it has open, and that may take awaiting."""
    signal, tidied = Signal(), False

    async def run() -> str:
        nonlocal tidied
        try:
            await signal.race(asyncio.Event().wait)
        except ClientLeft:
            assert no_cancellation_is_left(asyncio.current_task())
            await asyncio.sleep(0)
            tidied = True
        return "ended by itself"

    task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    assert await task == "ended by itself"
    assert tidied


async def test_a_timeout_works_after_the_signal() -> None:
    """A cancellation that was not taken back would make it raise the wrong thing."""
    signal = Signal()

    async def run() -> str:
        try:
            await signal.race(asyncio.Event().wait)
        except ClientLeft:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "timed out"
        return "not reached"

    task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    assert await task == "timed out"


# ---- what is awaited has its own mind ----


async def test_a_value_that_comes_in_spite_of_the_signal_is_kept_and_the_next_race_raises() -> None:
    signal = Signal()

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "kept"

    async def run() -> str:
        got = await signal.race(stubborn)
        assert no_cancellation_is_left(asyncio.current_task())
        with pytest.raises(ClientLeft):
            await signal.race(value)
        return got

    task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    assert await task == "kept"


async def test_an_error_that_the_break_brings_is_not_taken_for_the_reason() -> None:
    signal = Signal()

    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("closed while reading") from None

    async def run() -> None:
        try:
            await signal.race(clumsy)
        finally:
            assert no_cancellation_is_left(asyncio.current_task())

    task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    with pytest.raises(ClientLeft) as caught:
        await task
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_generator_that_ends_when_it_is_broken_off_did_not_end_by_itself() -> None:
    signal = Signal()

    async def quiet() -> AsyncGenerator[int, None]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return
        yield 1

    async def run() -> None:
        await signal.race(quiet().__anext__)

    task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    with pytest.raises(ClientLeft):
        await task


async def test_a_value_that_is_there_when_the_signal_comes_loses() -> None:
    signal, ready = Signal(), asyncio.Event()
    task = await racing(signal, ready)
    ready.set()  # the task is due, but has not run yet
    signal.set(ClientLeft())
    with pytest.raises(ClientLeft):
        await task


async def test_a_race_that_ended_is_not_broken_off_later() -> None:
    signal, ready, after = Signal(), asyncio.Event(), asyncio.Event()

    async def run() -> str:
        await signal.race(ready.wait)
        await after.wait()
        return "undisturbed"

    task = asyncio.create_task(run())
    await settle()
    ready.set()
    await settle()
    signal.set(ClientLeft())
    after.set()
    assert await task == "undisturbed"


# ---- cancelled from outside as well ----


async def test_a_cancellation_from_outside_goes_through() -> None:
    task = await racing(Signal(), asyncio.Event())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_cancellation_from_outside_goes_before_the_signal(signal_first: bool) -> None:
    signal = Signal()
    task = await racing(signal, asyncio.Event())
    if signal_first:
        signal.set(ClientLeft())
        task.cancel()
    else:
        task.cancel()
        signal.set(ClientLeft())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert task.cancelling() == 1


async def test_a_timeout_around_a_race_is_a_timeout() -> None:
    signal = Signal()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await signal.race(asyncio.Event().wait)
    assert await signal.race(value) == "value"


# ---- one task, known beforehand ----


async def test_a_signal_that_knows_its_task_breaks_off_that_one() -> None:
    signal = Signal()

    async def run() -> str:
        try:
            await signal.race(asyncio.Event().wait)
        except ClientLeft:
            assert no_cancellation_is_left(asyncio.current_task())
        return "ended by itself"

    task = signal.task = asyncio.create_task(run())
    await settle()
    signal.set(ClientLeft())
    assert await task == "ended by itself"


# ---- what comes once ----


async def waiting_for(once: Once[str], how_many: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(once.wait()) for _ in range(how_many)]
    await settle()
    assert not any(task.done() for task in tasks)
    return tasks


async def test_what_came_before_is_there_at_once_for_everybody() -> None:
    once = Once[str]()
    assert not once.is_set
    once.set("it")
    assert [await once.wait(), await once.wait()] == ["it", "it"]


async def test_all_who_wait_get_what_comes() -> None:
    once = Once[str]()
    tasks = await waiting_for(once, 3)
    once.set("it")
    assert await asyncio.gather(*tasks) == ["it", "it", "it"]


async def test_all_who_wait_get_the_error_that_comes() -> None:
    once = Once[str]()
    tasks = await waiting_for(once, 2)
    once.fail(ClientLeft())
    for task in tasks:
        with pytest.raises(ClientLeft):
            await task
    with pytest.raises(ClientLeft):
        await once.wait()


async def test_nothing_may_come_too() -> None:
    once = Once[None]()
    once.set(None)
    await asyncio.wait_for(once.wait(), 1)
    assert once.is_set


@pytest.mark.parametrize("later", ["a value", "an error"])
async def test_only_what_comes_first_counts(later: str) -> None:
    def come_again(once: Once[str]) -> None:
        if later == "a value":
            once.set("late")
        else:
            once.fail(Cancelled())

    came, failed = Once[str](), Once[str]()
    came.set("first")
    failed.fail(ClientLeft())
    come_again(came)
    come_again(failed)
    assert await came.wait() == "first"
    with pytest.raises(ClientLeft):
        await failed.wait()


async def test_one_who_stops_waiting_disturbs_nobody() -> None:
    once = Once[str]()
    left, stays = await waiting_for(once, 2)
    left.cancel()
    await settle()
    assert left.cancelled()
    once.set("it")
    assert await stays == "it"


# ---- telling tasks to stop ----


async def _hold(closed: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        closed.append(name)


async def test_stop_cancels_and_waits_until_all_have_ended() -> None:
    closed: list[str] = []
    tasks = [asyncio.create_task(_hold(closed, name)) for name in "ab"]
    await settle()
    assert await stop(tasks, 1) == set()
    assert sorted(closed) == ["a", "b"]
    assert all(task.cancelled() for task in tasks)


async def test_stop_gives_those_that_would_not_end_in_time() -> None:
    freed = asyncio.Event()

    async def stubborn() -> str:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(_hold([], "a"))]
    await settle()
    assert await stop(tasks, 0.01) == {tasks[0]}
    assert tasks[1].cancelled()
    freed.set()
    assert await tasks[0] == "at last"


async def test_stop_leaves_alone_what_has_ended() -> None:
    task = asyncio.create_task(value())
    await settle()
    assert await stop([task], 0) == set()
    assert task.result() == "value"
    assert await stop([], 0) == set()


async def test_stop_lets_a_task_end_in_its_own_way() -> None:
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "tidied"

    task = asyncio.create_task(tidy())
    await settle()
    assert await stop([task], 1) == set()
    assert task.result() == "tidied"


# ---- side by side ----


async def test_work_side_by_side_is_begun_together_and_given_in_its_order() -> None:
    second_began = asyncio.Event()

    async def first() -> str:
        await second_began.wait()
        return "first"

    async def second() -> str:
        second_began.set()
        return "second"

    assert await side_by_side([first(), second()]) == ["first", "second"]


async def test_the_first_error_breaks_off_the_rest() -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await side_by_side([hang(), fail()])
    assert ended.is_set()


async def test_whoever_is_cancelled_breaks_off_the_work() -> None:
    ended: list[int] = []

    async def hang(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    task = asyncio.create_task(side_by_side([hang(1), hang(2)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [1, 2]


# ---- within a time ----


def no_clock() -> float:
    raise AssertionError("nobody waits")


async def test_what_does_not_wait_needs_no_clock() -> None:
    assert await within(no_clock, value()) == "value"

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await within(no_clock, fail())


async def test_what_waits_is_given_all_that_it_waits_for() -> None:
    async def wait() -> list[str]:
        loop, found = asyncio.get_running_loop(), []
        for word in ("one", "two"):
            coming: asyncio.Future[str] = loop.create_future()
            loop.call_later(0.001, coming.set_result, word)
            found.append(await coming)
        failing: asyncio.Future[str] = loop.create_future()
        loop.call_later(0.001, failing.set_exception, KeyError("x"))
        try:
            await failing
        except KeyError:
            found.append("three")
        return found

    assert await within(lambda: 5.0, wait()) == ["one", "two", "three"]


async def test_what_takes_too_long_is_broken_off_and_may_clean_up() -> None:
    told: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            told.append("over")
            raise

    with pytest.raises(TimeoutError):
        await within(lambda: 0.001, wait())
    assert told == ["over"]
    assert no_cancellation_is_left(asyncio.current_task())


async def test_who_waits_within_a_time_may_be_cancelled() -> None:
    task = asyncio.create_task(within(lambda: 5.0, asyncio.Event().wait()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_begun_and_is_dropped_is_closed() -> None:
    ends: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("closed")

    begun = within(lambda: 5.0, wait())
    begun.send(None)
    begun.close()
    assert ends == ["closed"]


def test_each_pause_of_a_backoff_is_twice_the_one_before_up_to_the_longest() -> None:
    assert [*islice(backoff(0.05, 0.3), 5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
