"""provider -> provider: models that have no tool calls make them all the same.

A request with tools goes out without them: they are described in the prompt, and a JSON schema holds the answer to
calls that fit them, or to words where those will do. What comes back is lifted to the deltas of a model with calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias

from antwort.api.responses import Model
from antwort.api.wire import UNSET, Plain, replace
from antwort.errors import AntwortError, RequestError
from antwort.notes import note
from antwort.providers.awaited import Awaited, costing, ending
from antwort.providers.base import (
    CUT,
    Capabilities,
    ChatRequest,
    Delta,
    Provider,
    TextDelta,
    count_at,
)
from antwort.providers.capabilities import adapt
from antwort.providers.choices import Kind, choice_of, has_calls, kind_of, names_allowed, offered
from antwort.providers.errors import says_no_schemas, says_no_tools
from antwort.providers.fitted import response_format
from antwort.providers.learned import Learned
from antwort.providers.lifting import Lifting
from antwort.providers.lowering import lowered

_log = logging.getLogger("antwort.providers")

ToolCalling: TypeAlias = Literal["native", "constrained", "auto"]

MUST_CALL = frozenset({"required", "named"})
"""Kinds of choice that leave no other answer than a call."""
LASTS = 600.0
"""Seconds for which `auto` goes by what it has seen."""


class Constrained:
    """Goes around a single backend, whose way with tools it knows or, with `auto`, finds out.

    `auto` asks natively first. Where the backend refuses tools, the same request is asked again constrained. So it is
    where a call that must come does not; the first answer is held back until it has a call, and stands if the second
    answer has none either. What is found out is remembered for each model and kind of choice, for ten minutes.
    """

    def __init__(
        self, provider: Provider, mode: ToolCalling = "auto", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider, self._mode = provider, mode
        self._learned = Learned(clock, LASTS)
        self._told: Capabilities | None = None
        self._known = Capabilities()
        """What comes of what the backend has told of itself last."""

    def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        if not offered(request) and not has_calls(request.messages):
            return self._provider.infer(request)
        kind = kind_of(request)
        way = self._learned.way(request.model, kind)
        if self._mode == "auto" and way == "constrained" and kind in MUST_CALL:
            return self._constrained_first(request)
        if self._mode == "constrained" or way == "constrained":
            return self._constrained(request)
        if self._mode == "native" or way == "neither":
            return self._provider.infer(self._native(request))
        if kind in MUST_CALL:
            return self._held(request, kind)
        return self._watched(request, kind)

    async def models(self) -> Sequence[Model]:
        return await self._provider.models()

    def capabilities(self, model: str) -> Capabilities:
        told = self._provider.capabilities(model)
        if told is not self._told:
            self._told, self._known = told, self._own(told)
        return self._known

    def _own(self, inner: Capabilities) -> Capabilities:
        if self._mode == "native":
            return inner
        # Schemas that are cleaned for decoders keep plain patterns only; `auto` may ask as the backend is asked.
        is_held = self._mode == "constrained" or inner.grammar != "described"
        return replace(inner, allowed_tools=True, folds=True, grammar="plain_pattern" if is_held else "described")

    async def count(self, request: ChatRequest) -> int | None:
        """As it is asked, by what is known of the backend now."""
        return await count_at(self._provider, self._as_asked(request))

    def _as_asked(self, request: ChatRequest) -> ChatRequest:
        if not offered(request) and not has_calls(request.messages):
            return request
        is_constrained = self._mode == "constrained" or (
            self._mode == "auto" and self._learned.way(request.model, kind_of(request)) == "constrained"
        )
        return _lowered(request)[0] if is_constrained else self._native(request)

    async def check(self) -> None:
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    # ---- the two ways ----

    def _native(self, request: ChatRequest) -> ChatRequest:
        """A list of allowed tools is ours to take; the backend may not know such."""
        if not isinstance(request.tool_choice, dict) or request.tool_choice.get("type") != "allowed_tools":
            return request
        inner = self._provider.capabilities(request.model)
        return request if inner.allowed_tools else adapt(request, inner)

    def _constrained(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        asked, lifting = _lowered(request)
        return self._provider.infer(asked) if lifting is None else self._lifted(asked, lifting)

    async def _lifted(self, request: ChatRequest, lifting: Lifting) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(self._provider.infer(request)) as batches:
            async for batch in batches:
                lifted = lifting.read(batch)
                if lifted or not batch:
                    yield lifted

    # ---- finding out ----

    async def _watched(self, request: ChatRequest, kind: Kind) -> AsyncGenerator[list[Delta], None]:
        """Natively, unless the backend refuses."""
        has_begun = False
        try:
            async with aclosing(self._provider.infer(self._native(request))) as batches:
                async for batch in batches:
                    has_begun = has_begun or bool(batch)
                    yield batch
                return
        except AntwortError as error:
            if has_begun or not refuses_tools(error):
                raise
            refusal = error
        async with aclosing(self._after_refusal(request, kind, refusal)) as batches:
            async for batch in batches:
                yield batch

    async def _held(self, request: ChatRequest, kind: Kind) -> AsyncGenerator[list[Delta], None]:
        """Ask natively for a call that must come, and pass on nothing but reasoning until it does."""
        first = Awaited(names_allowed(request))
        has_begun = False
        again: AsyncGenerator[list[Delta], None]
        try:
            async with aclosing(self._provider.infer(self._native(request))) as batches:
                async for batch in batches:
                    out = first.read(batch)
                    has_begun = has_begun or bool(out)
                    if out or not batch:
                        yield out
            if first.is_released:
                return
            again = self._after_miss(request, kind, first.held)
        except AntwortError as error:
            if has_begun or not refuses_tools(error):
                raise
            again = self._after_refusal(request, kind, error)
        async with aclosing(again) as batches:
            async for batch in batches:
                yield batch

    async def _constrained_first(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        """Ask constrained for a call that must come, since that has worked before. If none comes, ask natively: what
        the model says then stands, unless the backend refuses tools.
        """
        first = Awaited(names_allowed(request), is_first=False)
        async with aclosing(self._constrained(request)) as batches:
            async for batch in batches:
                if (out := first.read(batch)) or not batch:
                    yield out
        if first.is_released:
            return
        end, has_begun = ending(first.held), False
        try:
            async with aclosing(self._provider.infer(self._native(request))) as batches:
                async for batch in batches:
                    has_begun = has_begun or bool(batch)
                    yield costing(batch, end.usage if end else None)
        except AntwortError as error:
            if has_begun or not refuses_tools(error):
                raise
            yield first.held

    async def _after_refusal(
        self, request: ChatRequest, kind: Kind, refusal: AntwortError
    ) -> AsyncGenerator[list[Delta], None]:
        """Ask constrained, since the backend refuses tools. Where it refuses schemas too, the first refusal stands."""
        has_begun = False
        try:
            async with aclosing(self._constrained(request)) as batches:
                async for batch in batches:
                    if batch and not has_begun:
                        has_begun = True
                        self._go_constrained(request.model, kind, "the backend refuses tools")
                    yield batch
        except AntwortError as error:
            if has_begun or not isinstance(error, RequestError):
                raise  # as it is: an error that is its own cause has no end
            self._learn_refused_schema(request.model, kind, error)
            raise refusal from error

    async def _after_miss(
        self, request: ChatRequest, kind: Kind, first: list[Delta]
    ) -> AsyncGenerator[list[Delta], None]:
        """Ask once more, constrained, for a call that did not come. If none comes now either, the `first` answer
        stands. The cost of both counts.
        """
        model, end = request.model, ending(first)
        is_cut = end is not None and end.finish in CUT  # by a limit: that says nothing of the backend
        second = Awaited(names_allowed(request), is_first=False)
        try:
            async with aclosing(self._constrained(request)) as batches:
                async for batch in batches:
                    out = second.read(batch)
                    if second.is_released and not is_cut and self._learned.way(model, kind) != "constrained":
                        self._go_constrained(model, kind, "the call that was asked for did not come")
                    if out or not batch:
                        yield costing(out, end.usage if end else None)
        except AntwortError as error:
            if second.is_released:
                raise
            self._learn_refused_schema(model, kind, error)
        if second.is_released:
            return
        last = ending(second.held)
        has_words = any(isinstance(delta, TextDelta) for delta in second.held)
        if has_words and last is not None and last.finish not in CUT and not is_cut:
            self._learned.learn(model, kind, "neither")  # words where a schema allows only calls
        yield costing(first, last.usage if last else None)

    # ---- remembering ----

    def _learn_refused_schema(self, model: str, kind: Kind, error: AntwortError) -> None:
        if isinstance(error, RequestError) and says_no_schemas(error.message):
            self._learned.learn(model, kind, "neither")

    def _go_constrained(self, model: str, kind: Kind, why: str) -> None:
        self._learned.learn(model, kind, "constrained")
        note(_log, logging.INFO, f"tool calls are constrained for ten minutes: {why}", model=model, choice=kind)


def _lowered(request: ChatRequest) -> tuple[ChatRequest, Lifting | None]:
    """The request as it is asked constrained, and who lifts the answer. Where nothing may be called and nothing was, no
    form is in sight, and the answer needs none.
    """
    bare, choice = without_tools(request), choice_of(request)
    if not choice.tools and not has_calls(request.messages):
        return bare, None
    answer = _answer_asked(request)
    asked = replace(
        bare,
        messages=lowered(request.messages, choice),
        response_format=response_format(choice, answer),
        logprobs=UNSET,  # of a text that nobody sees
        top_logprobs=UNSET,
    )
    return asked, Lifting(is_raw=answer is not None)


def without_tools(request: ChatRequest) -> ChatRequest:
    return replace(request, tools=UNSET, tool_choice=UNSET, parallel_tool_calls=UNSET)


def _answer_asked(request: ChatRequest) -> Plain | None:
    """The schema of the answer that the request asks for by itself; None: words."""
    asked = request.response_format
    if not isinstance(asked, dict) or asked.get("type") not in ("json_object", "json_schema"):
        return None
    inner = asked.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else {"type": "object", "additionalProperties": True}


def refuses_tools(error: AntwortError) -> bool:
    """Whether a backend says that it has no tool calls, or not this kind: not that a tool is wrong."""
    return isinstance(error, RequestError) and says_no_tools(error.message)
