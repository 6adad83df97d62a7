"""A program whose tasks begin as soon as they are made, as with `asyncio.eager_task_factory`."""

from __future__ import annotations

import asyncio
from typing import Any

from antwort.concurrency import rest_of
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask, engine_of, text_of


def runs_at_once(loop: asyncio.AbstractEventLoop, work: Any, /, **named: Any) -> asyncio.Task[Any]:
    """What that factory does, which is not there before Python 3.12: the first step of a run is made here."""
    if getattr(work, "__qualname__", "") != "LiveRun._run":
        return asyncio.Task(work, loop=loop, **named)
    waits = work.send(None)

    async def rest() -> Any:
        return await rest_of(work, waits)

    return asyncio.Task(rest(), loop=loop, **named)


async def test_a_run_may_begin_before_anybody_has_its_task() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(gate, say("Hello")))
    engine = engine_of(provider)
    asyncio.get_running_loop().set_task_factory(runs_at_once)
    run = await engine.start(ask(stream=True))
    assert provider.requests
    gate.set()
    assert text_of(await asyncio.wait_for(run.result(), 1)) == "Hello"
    await engine.close()
