"""provider -> provider: models that have no tool calls make them all the same.

A request with tools goes out without them: they are described in the prompt, and a JSON schema holds the answer to
calls that fit them, or to words where those will do. What comes back is lifted to the deltas of a model with calls.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias

from antwort.api.responses import Model
from antwort.api.wire import UNSET, Plain, replace
from antwort.errors import AntwortError, RequestError
from antwort.notes import note
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatRequest,
    Delta,
    Finished,
    Provider,
    RefusalDelta,
)
from antwort.providers.choices import Kind, choice_of, has_calls, kind_of, names_allowed, offered
from antwort.providers.fitted import response_format
from antwort.providers.lifting import Lifting
from antwort.providers.lowering import lowered, told_plainly
from antwort.providers.suited import suited

_log = logging.getLogger("antwort.providers")

ToolCalling: TypeAlias = Literal["native", "constrained", "auto"]

_MOST_KNOWN = 1024
"""Models of which is remembered what does not work natively; names of models may be a client's invention."""


class Constrained:
    """Goes around a single backend, whose way with tools it knows or, with `auto`, finds out.

    `auto` asks natively first. Where the backend refuses, or a call that must come does not, the same request is asked
    again constrained, as long as nothing of the first answer was let out; that is remembered for each model and kind of
    choice.
    """

    def __init__(self, provider: Provider, mode: ToolCalling = "auto") -> None:
        self._provider, self._mode = provider, mode
        self._known: dict[tuple[str, Kind], None] = {}

    def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        if not offered(request) and not has_calls(request.messages):
            return self._provider.infer(request)
        kind = kind_of(request)
        if self._mode == "constrained" or self._is_known(request.model, kind):
            return self._constrained(request)
        if self._mode == "native":
            return self._provider.infer(self._native(request))
        return self._held(request, kind) if kind in ("required", "named") else self._watched(request, kind)

    async def models(self) -> Sequence[Model]:
        return await self._provider.models()

    def capabilities(self, model: str) -> Capabilities:
        inner = self._provider.capabilities(model)
        return inner if self._mode == "native" else replace(inner, allowed_tools=True)

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
        return request if inner.allowed_tools else suited(request, inner)

    def _constrained(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        bare = without_tools(request)
        choice = choice_of(request)
        if not choice.tools:
            return self._provider.infer(replace(bare, messages=told_plainly(request.messages)))
        answer = _answer_asked(request)
        asked = replace(
            bare,
            messages=lowered(request.messages, choice),
            response_format=response_format(choice, answer),
            logprobs=UNSET,  # of a text that nobody sees
            top_logprobs=UNSET,
        )
        return self._lifted(asked, Lifting(is_raw=answer is not None))

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
        async with aclosing(self._again(request, kind, refusal)) as batches:
            async for batch in batches:
                yield batch

    async def _held(self, request: ChatRequest, kind: Kind) -> AsyncGenerator[list[Delta], None]:
        """Natively, if the call that must come comes: until then nothing of the answer is let out."""
        first: AntwortError | list[Delta] = []
        held: list[Delta] = []
        is_kept = False
        allowed = names_allowed(request)
        try:
            async with aclosing(self._provider.infer(self._native(request))) as batches:
                async for batch in batches:
                    if is_kept or not batch:
                        yield batch
                        continue
                    held += batch
                    if is_kept := _keeps_to(allowed, held):
                        yield held
            if is_kept:
                return
            first = held
        except AntwortError as error:
            if is_kept or not refuses_tools(error):
                raise
            first = error
        async with aclosing(self._again(request, kind, first)) as batches:
            async for batch in batches:
                yield batch

    async def _again(
        self, request: ChatRequest, kind: Kind, first: AntwortError | list[Delta]
    ) -> AsyncGenerator[list[Delta], None]:
        """The same, constrained. Where that does not work either, what came `first` stands."""
        has_begun = False
        try:
            async with aclosing(self._constrained(request)) as batches:
                async for batch in batches:
                    if batch:
                        has_begun = True
                        self._learn(request.model, kind, first, batch)
                    yield batch
        except AntwortError as error:
            if has_begun:
                raise
            if isinstance(first, AntwortError):
                raise (first if isinstance(error, RequestError) else error) from error
            yield first

    def _is_known(self, model: str, kind: Kind) -> bool:
        """Where calls of one kind do not work, those that were made before are not understood either."""
        if kind == "none":
            return any((model, other) in self._known for other in ("auto", "required", "named"))
        return (model, kind) in self._known

    def _learn(self, model: str, kind: Kind, first: AntwortError | list[Delta], batch: list[Delta]) -> None:
        """That an answer had no call may be chance, or a limit; that the constrained one has one tells."""
        if (model, kind) in self._known or not (isinstance(first, AntwortError) or _calls_in(batch)):
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[model, kind] = None
        why = (
            "the backend refuses tools"
            if isinstance(first, AntwortError)
            else "the call that was asked for did not come"
        )
        note(_log, logging.INFO, f"tool calls are constrained from now on: {why}", model=model, choice=kind)


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


def _calls_in(batch: Sequence[Delta]) -> bool:
    return any(isinstance(delta, CallDelta) for delta in batch)


def _keeps_to(allowed: frozenset[str] | None, held: Sequence[Delta]) -> bool:
    """Whether an answer that must call does, as far as it came, or says why it will not."""
    for delta in held:
        if isinstance(delta, CallDelta) and delta.name:
            return allowed is None or delta.name in allowed
    return any(
        isinstance(delta, RefusalDelta) or (isinstance(delta, Finished) and delta.finish == "content_filter")
        for delta in held
    )


_ABOUT_TOOLS = re.compile(r"\btools?\b|tool[-_ ](?:choice|call|use|parser)|function[-_ ]?call", re.IGNORECASE)
_NOT_OFFERED = re.compile(
    r"not (?:\w+ )?(?:support|enabled|configured|available|permitted|allowed|implemented|recogni)|n't support"
    r"|unsupported|requires --|(?:unrecogni[sz]ed|unknown|unexpected|extra) (?:\w+ )?(?:input|field|param|arg|key)",
    re.IGNORECASE,
)


def refuses_tools(error: AntwortError) -> bool:
    """Whether a backend says that it has no tool calls, or not this kind: not that a tool is wrong."""
    said = error.message
    is_request = isinstance(error, RequestError)
    return is_request and _ABOUT_TOOLS.search(said) is not None and _NOT_OFFERED.search(said) is not None
