"""What is left of a run that has ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from types import FunctionType, ModuleType

import pytest

from antwort.engine.engine import Engine
from antwort.engine.runs.live import RunSummary
from antwort.engine.settings import OnDisconnect
from antwort.errors import BackendError, Cancelled, ServerFault
from antwort.providers.base import ChatRequest, Delta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask


def holds_itself(thing: object) -> bool:
    """Whether it stays, with all that it holds, until somebody looks for circles."""
    seen: dict[int, object] = {}
    waiting = gc.get_referents(thing)
    while waiting:
        held = waiting.pop()
        if held is thing:
            return True
        if id(held) not in seen and not isinstance(held, type | ModuleType | FunctionType):
            seen[id(held)] = held
            waiting += gc.get_referents(held)
    return False


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
async def test_a_run_goes_with_the_last_who_holds_it(stream: bool, on_disconnect: OnDisconnect) -> None:
    async with Engine(ScriptedProvider(answer(say("Hello"))), store=MemoryStore()) as engine:
        run = await engine.start(ask(stream=stream), on_disconnect=on_disconnect)
        live = engine.live_runs[run.response_id]
        assert holds_itself(live)
        while stream and await run.read():
            pass
        await run.result()
        await run.wait()
        assert not holds_itself(live)
        assert not holds_itself(run)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("way", ["fails", "is left", "is cancelled"])
async def test_so_does_one_that_does_not_complete(stream: bool, way: str) -> None:
    said = answer(say("Hello"), BackendError("Gone.") if way == "fails" else asyncio.Event())
    async with Engine(ScriptedProvider(said), store=MemoryStore()) as engine:
        run = await engine.start(ask(stream=stream))
        live = engine.live_runs[run.response_id]
        await run.answered()
        if way == "is left":
            run.leave()
        elif way == "is cancelled":
            live.stop(Cancelled())
        await run.wait()
        assert (await run.result()).status == ("failed" if way == "fails" else "cancelled")
        assert not holds_itself(live)
        assert not holds_itself(run)


class Cancelling(ScriptedProvider):
    """A backend whose own work was cancelled, by nobody who wanted to stop the run."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        if request.messages:
            raise asyncio.CancelledError
        yield []


async def test_a_run_in_which_something_is_cancelled_is_broken_off_and_reported() -> None:
    ended: list[RunSummary] = []
    async with Engine(Cancelling(), on_end=[ended.append]) as engine:
        with pytest.raises(ServerFault, match="broken off"):
            await engine.create(ask())
        assert len(ended) == 1
