"""A provider that goes at the pace of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

from antwort.api.responses import Model, Usage
from antwort.providers.base import Capabilities, ChatRequest, Delta, Finished, TextDelta

Step: TypeAlias = list[Delta] | asyncio.Event | Exception

END: list[Delta] = [Finished("stop", Usage(input_tokens=3, output_tokens=2, total_tokens=5))]


def says(*pieces: str) -> list[Step]:
    """Each piece as a batch of its own, then the end."""
    batches: list[list[Delta]] = [[TextDelta(piece)] for piece in pieces]
    return [*batches, END]


class PacedProvider:
    """Every inference plays the same steps: a batch is yielded, an event is waited for, an exception is raised."""

    def __init__(self, *steps: Step, models: Sequence[str] = ("test-model",)) -> None:
        self.steps: Sequence[Step] = steps or says("Hello", " there")
        self.names = models
        self.requests: list[ChatRequest] = []
        self.open_inferences = 0
        self.batches = 0
        """How many were yielded and taken."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        self.requests.append(request)
        self.open_inferences += 1
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
                    self.batches += 1
        finally:
            self.open_inferences -= 1

    async def models(self) -> Sequence[Model]:
        return [Model(id=name) for name in self.names]

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    async def close(self) -> None:
        pass


async def until(claim: Callable[[], bool], within: float = 5.0) -> None:
    """Let the loop turn until the claim is true; a claim that does not come true fails the test."""
    async with asyncio.timeout(within):
        while not claim():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


async def until_quiet(count: Callable[[], int], turns: int = 2000) -> int:
    """The count once it has stayed the same for that many turns of the loop."""
    last, still = count(), 0
    async with asyncio.timeout(30):
        while still < turns:
            await asyncio.sleep(0)
            still = still + 1 if count() == last else 0
            last = count()
    return last
