"""Wrap a provider whose models have no tool calls of their own."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from antwort.api.responses import Model
from antwort.errors import AntwortError
from antwort.providers.base import Capabilities, ChatRequest, Delta, Provider, count_at
from antwort.providers.tool_emulation.emulation import EmulatedInference, ToolCalling, ToolEmulation


class Constrained:
    """A provider with tool calls around one without, or with `auto` around one that may have them."""

    def __init__(
        self, provider: Provider, mode: ToolCalling = "auto", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = provider
        self._emulation = ToolEmulation(mode, provider.capabilities, clock=clock)
        self.capabilities: Callable[[str], Capabilities] = self._emulation.capabilities

    def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        emulated = self._emulation.begin(request)
        return self._provider.infer(request) if emulated is None else self._infer(emulated)

    async def _infer(self, emulated: EmulatedInference) -> AsyncGenerator[list[Delta], None]:
        while emulated.request is not None:
            try:
                async with aclosing(self._provider.infer(emulated.request)) as batches:
                    async for batch in batches:
                        out = emulated.feed(batch)
                        if out or not batch:
                            yield out
            except AntwortError as error:
                rest = emulated.finish(error)
            else:
                rest = emulated.finish()
            if rest:
                yield rest

    async def models(self) -> Sequence[Model]:
        return await self._provider.models()

    async def count(self, request: ChatRequest) -> int | None:
        """Count the tokens of the request as it would be sent now."""
        return await count_at(self._provider, self._emulation.rewrite(request))

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()
