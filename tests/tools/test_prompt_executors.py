"""Calls of an executor that ends when it is told to need no task of their own, and are held to the same limits."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import pytest

from antwort.concurrency import Signal
from antwort.errors import Cancelled
from antwort.testing.executors import call, context
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import Limited, ToolLimits

ASKED = call("scripted")
OK = ToolResult("call_test", "fine")


class Prompt:
    """Runs calls as it is told to, and ends when it is cancelled."""

    kind = ToolKind.MCP
    ends_when_told: Literal[True] = True

    def __init__(self, run: Callable[[], Awaitable[ToolResult]]) -> None:
        self._run = run
        self.tasks: list[asyncio.Task[object] | None] = []
        self.has_begun = asyncio.Event()

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.tasks.append(asyncio.current_task())
        self.has_begun.set()
        return await self._run()


async def at_once() -> ToolResult:
    return OK


async def never() -> ToolResult:
    await asyncio.Event().wait()
    return OK


async def in_trouble() -> ToolResult:
    """As an SDK does whose connection is gone."""
    raise asyncio.CancelledError("of its own making")


async def test_it_runs_in_the_task_of_whoever_asks() -> None:
    executor = Prompt(at_once)
    assert await Limited(executor).execute(ASKED, context()) == OK
    assert executor.tasks == [asyncio.current_task()]


async def test_a_call_that_takes_too_long_is_stopped_and_the_task_goes_on() -> None:
    result = await Limited(Prompt(never), ToolLimits(timeout=0.01)).execute(ASKED, context())
    assert (result.is_error, result.output) == (True, "The tool 'scripted' did not answer within 0.01 s.")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "it was the call that was told to stop"


async def test_a_result_that_comes_in_spite_of_the_end_of_the_time_is_too_late() -> None:
    async def stubborn() -> ToolResult:
        try:
            return await never()
        except asyncio.CancelledError:
            return OK

    result = await Limited(Prompt(stubborn), ToolLimits(timeout=0.01)).execute(ASKED, context())
    assert result.is_error


async def test_whoever_is_cancelled_is_cancelled_with_the_call() -> None:
    executor = Prompt(never)
    asking = asyncio.create_task(Limited(executor).execute(ASKED, context()))
    await executor.has_begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_run_that_is_told_to_stop_hears_its_reason() -> None:
    executor, signal = Prompt(never), Signal()
    asking = asyncio.create_task(signal.race(lambda: Limited(executor).execute(ASKED, context())))
    await executor.has_begun.wait()
    signal.set(Cancelled())
    with pytest.raises(Cancelled):
        await asking


async def test_a_cancellation_of_the_tools_own_making_is_a_failure_of_the_tool() -> None:
    result = await Limited(Prompt(in_trouble)).execute(ASKED, context())
    assert (result.is_error, result.output) == (True, "of its own making")


async def test_what_it_holds_is_given_back_however_it_ends() -> None:
    limits = ToolLimits(timeout=0.01, concurrency=1, total=1)
    executor = Limited(Prompt(never), limits)
    assert [(await executor.execute(ASKED, context())).is_error for _ in range(3)] == [True] * 3


async def failing() -> ToolResult:
    raise KeyError("nothing there")


@pytest.mark.parametrize("run", [failing, in_trouble, never])
async def test_nothing_of_the_run_is_held_on_to_by_how_a_call_failed(
    run: Callable[[], Awaitable[ToolResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("antwort.tools"), "disabled", True)  # what is caught here of a log is kept
    executor, asked = Prompt(run), context()
    cancelled = weakref.ref(asked.cancelled)
    gc.disable()  # it would go through all that lives to find out
    try:
        asking = asyncio.create_task(Limited(executor, ToolLimits(timeout=5)).execute(ASKED, asked))
        await executor.has_begun.wait()
        if run is never:
            asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        executor.tasks.clear()
        del asking, asked
        await asyncio.sleep(0)
        assert cancelled() is None
    finally:
        gc.enable()
