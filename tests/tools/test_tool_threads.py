from __future__ import annotations

import asyncio
import threading

import pytest

from antwort.tools.threads import post, run_in_thread


async def test_it_returns_what_the_function_returns() -> None:
    assert await run_in_thread(lambda: 42, "t") == 42


async def test_stop_iteration_does_not_end_the_caller() -> None:
    def function() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run_in_thread(function, "t")


@pytest.mark.parametrize("error", [None, ValueError("too late")])
async def test_what_comes_after_cancellation_is_dropped(error: Exception | None) -> None:
    begun, release = threading.Event(), threading.Event()
    ended: list[threading.Thread] = []

    def function() -> None:
        ended.append(threading.current_thread())
        begun.set()
        release.wait(5)
        if error:
            raise error

    task = asyncio.create_task(run_in_thread(function, "t"))
    assert await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await asyncio.to_thread(ended[0].join, 5)
    assert not ended[0].is_alive()
    await asyncio.to_thread(lambda: None)  # what the thread posted has been called by now, and raised nothing


def test_a_thread_that_outlives_its_event_loop_ends_quietly() -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []

    def function() -> None:
        threads.append(threading.current_thread())
        release.wait(5)

    async def abandon() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_thread(function, "t"), 0.01)

    asyncio.run(abandon())
    release.set()
    threads[0].join(5)
    assert not threads[0].is_alive()


def test_posting_to_a_closed_loop_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    called: list[int] = []
    post(loop, called.append, 1)
    assert called == []
