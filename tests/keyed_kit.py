"""What the tests of idempotency keys share: an engine with all that is around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from antwort import Engine, EngineSettings, MemoryStore, Response, StreamEvent
from antwort.api.events import TERMINAL
from antwort.api.responses import Model
from antwort.errors import BackendError
from antwort.storage.base import ResponseStore
from antwort.testing import Answer, ScriptedProvider, StreamChecker
from antwort.tools.base import ToolExecutor
from serving import until

FOR_GOOD = BackendError("The backend does not know us.", may_pass=False)


@dataclass
class Clock:
    now: float = 1_700_000_000.5

    def __call__(self) -> float:
        return self.now


@dataclass
class Ground:
    """An engine with all that is around it."""

    engine: Engine
    provider: ScriptedProvider
    store: ResponseStore
    clock: Clock
    ended: list[Any]


@asynccontextmanager
async def ground(
    *answers: Answer, store: ResponseStore | None = None, executors: Sequence[ToolExecutor] = (), **settings: Any
) -> AsyncIterator[Ground]:
    provider, kept, clock, ended = ScriptedProvider(*answers), store or MemoryStore(), Clock(), list[Any]()
    engine = Engine(
        provider,
        store=kept,
        executors=executors,
        settings=EngineSettings(**settings),
        on_end=[ended.append],
        clock=clock,
    )
    async with engine:
        yield Ground(engine, provider, kept, clock, ended)
    assert engine.idempotency_keys.unsettled == 0


async def settled(at: Ground) -> None:
    """Wait until it is decided what the keys of ended runs stand for: that takes a moment longer than their end."""
    await until(lambda: not at.engine.idempotency_keys.unsettled)


async def read(reader: Any) -> list[StreamEvent]:
    """To the end; the grammar and the numbers hold on the way."""
    await reader.answered()
    checker, events = StreamChecker(), list[StreamEvent]()
    while batches := await reader.read():
        for batch in batches:
            for number, event in enumerate(batch.events, batch.first):
                checker.feed(number, event)
                events.append(event)
    checker.finish()
    return events


def ended_as(event: StreamEvent) -> Response:
    """The response that the last event of a stream carries."""
    assert isinstance(event, TERMINAL), event
    return event.response


class Slow(ScriptedProvider):
    """Says which models there are when it is told to: so a request that names none is planned for as long."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.go = asyncio.Event()
        self.asked = 0

    async def models(self) -> Sequence[Model]:
        self.asked += 1
        await self.go.wait()
        return await super().models()
