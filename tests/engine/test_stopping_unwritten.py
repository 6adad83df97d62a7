"""An engine that is drained while its record cannot be written: it ends all the same, and whoever reads is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import ResponseFailed
from antwort.engine.engine import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask
from jumping_time import jumping_time


class Stuck(MemoryStore):
    """Nothing that ends is ever written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def finish(self, *_: Any, **__: Any) -> None:
        self.is_asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("has_ended", [False, True])
@jumping_time
async def test_a_stream_whose_end_cannot_be_put_on_record_has_failed_when_the_engine_is_drained(
    has_ended: bool,
) -> None:
    store = Stuck()
    provider = ScriptedProvider(answer(say("Hello"), *(() if has_ended else (asyncio.Event(),))))
    engine = Engine(provider, store=store)
    run = await engine.start(ask(stream=True))
    await run.answered()
    if has_ended:
        await store.is_asked.wait()
    async with asyncio.timeout(60):
        await engine.drain(0)
        response = await run.result()
        events = [event for batch in await run.read() for event in batch.events]
    assert isinstance(events[-1], ResponseFailed)
    assert response.error is not None
    assert (response.status, response.error.code) == ("failed", "storage_error")
    assert not engine.live
