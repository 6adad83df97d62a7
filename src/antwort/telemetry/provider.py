"""provider -> provider: the same contract, and every inference is counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import NamedTuple

from antwort.api.responses import Model
from antwort.errors import AntwortError
from antwort.providers.base import (
    Capabilities,
    ChatRequest,
    Delta,
    Finished,
    Heard,
    Provider,
    Whole,
    count_at,
    whole_of,
)
from antwort.telemetry.counting import AT_ONCE, Key
from antwort.telemetry.labels import code_of
from antwort.telemetry.metrics import CHAT, Metrics


class _Told(NamedTuple):
    """Where an inference that ends well is told of, and what those of its model are counted by."""

    model: Key
    time: list[float]
    input: list[float]
    output: list[float]


class MeasuredProvider:
    """Goes around a single backend, inside of what tries again or elsewhere: every try is an inference of its own."""

    def __init__(self, provider: Provider, backend: str, metrics: Metrics) -> None:
        self._provider, self._backend, self._metrics = provider, backend, metrics
        self.capabilities: Callable[[str], Capabilities] = provider.capabilities
        self._whole = whole_of(provider)
        self._told: dict[str, _Told] = {}

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        began = perf_counter()
        first = 0.0
        last: list[Delta] = []
        error = "cancelled"
        try:
            async with aclosing(self._provider.infer(request)) as batches:
                async for batch in batches:
                    if batch:
                        if not last:
                            first = perf_counter()
                        last = batch
                    yield batch
            error = ""
        except AntwortError as exc:
            error = code_of(exc.code)
            raise
        finally:
            end = last[-1] if last else None
            self._count(request, began, first, "" if isinstance(end, Finished) else error, end)

    @property
    def whole(self) -> Whole | None:
        return None if self._whole is None else self._gathered

    async def _gathered(self, request: ChatRequest, heard: Heard) -> list[Delta]:
        assert self._whole is not None
        began, before = perf_counter(), len(heard)
        try:
            answer = await self._whole(request, heard)
        except BaseException as exc:
            error, end = code_of(exc.code) if isinstance(exc, AntwortError) else "cancelled", _last(heard[before:])
            self._count(request, began, 0.0, "" if isinstance(end, Finished) else error, end)
            raise
        told = self._told.get(request.model) or self._told_of(request.model)
        self._ended(told, perf_counter() - began, answer[-1] if answer else _last(heard[before:]))
        return answer

    def _count(self, request: ChatRequest, began: float, first: float, error: str, end: Delta | None) -> None:
        told, took = self._told.get(request.model) or self._told_of(request.model), perf_counter() - began
        if first and request.stream is True:
            self._metrics.first_chunk.add(told.model, first - began)
        if error:
            self._metrics.inference_time.add((*told.model, error), took)
        else:
            self._ended(told, took, end)

    def _ended(self, told: _Told, took: float, end: Delta | None) -> None:
        """As it should."""
        told.time.append(took)
        if isinstance(end, Finished) and (usage := end.usage) is not None:
            told.input.append(usage.input_tokens)
            told.output.append(usage.output_tokens)
        if len(told.time) >= AT_ONCE:
            self._metrics.inference_time.count()
            self._metrics.tokens.count()

    def _told_of(self, model: str) -> _Told:
        """Made once for each model that has a name of its own; there are only so many, and they keep it."""
        metrics, name = self._metrics, self._metrics.model(model)
        if (known := self._told.get(name)) is None:
            key = (CHAT, self._backend, name)
            tokens = (metrics.tokens.told((*key, kind)) for kind in ("input", "output"))
            known = self._told[name] = _Told(key, metrics.inference_time.told((*key, "")), *tokens)
        return known

    async def models(self) -> Sequence[Model]:
        return await self._provider.models()

    async def count(self, request: ChatRequest) -> int | None:
        return await count_at(self._provider, request)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()


def _last(heard: Heard) -> Delta | None:
    return next((batch[-1] for batch in reversed(heard) if batch), None)
