"""What is left of a run that has ended."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

import pytest

from antwort.engine.engine import Engine
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
async def test_a_run_goes_with_the_last_who_holds_it(stream: bool) -> None:
    async with Engine(ScriptedProvider(answer(say("Hello"))), store=MemoryStore()) as engine:
        run = await engine.start(ask(stream=stream))
        assert holds_itself(run)
        while stream and await run.read():
            pass
        await run.result()
        await run.wait()
        assert not holds_itself(run)
