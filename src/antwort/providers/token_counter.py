"""Ask a backend how many tokens a request has for the model's own tokenizer.

Engines count at different endpoints, or not at all. Which one a backend has is found out with the first request that is
counted, and remembered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import UNSET, UnsetType, Wire, encode, replace
from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.exchange import HttpFault
from antwort.providers.answer_parser import DECODE_ERRORS
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool
from antwort.providers.errors import Asked, error_for
from antwort.providers.native_request import native_request

COUNT_TIMEOUT_SECONDS = 2.0
"""For one count, however many requests it takes."""
SLOW_COUNT_SECONDS = 0.4
"""A count that is cancelled after this time is a failure of the backend."""
FAILURE_PAUSE_SECONDS = 30.0
"""How long a backend is not asked after a failure."""
UNSUPPORTED_PAUSE_SECONDS = 600.0
"""How long a backend is not asked when it has none of the endpoints: it may be reconfigured."""
MAX_TEMPLATE_TOKENS = 8192
"""An upper bound for the tokens that a chat template adds to a request."""

_NO_ENDPOINT_STATUSES = frozenset({404, 405, 410, 501})
_UNFIT_STATUSES = frozenset({400, 413, 415, 422, 500})
"""Answers where a template cannot render the messages, and where an endpoint of another meaning knows no such body."""

T = TypeVar("T")


class Told(NamedTuple):
    """A backend's answer to a count."""

    status: int
    body: bytes


class Ask(Protocol):
    def __call__(self, path: str, body: bytes, *, is_beside: bool = False) -> Awaitable[Told]:
        """Post a body to a path below the base URL; `is_beside`: beside its `/v1`, where engines have endpoints of
        their own.
        """
        ...


Way: TypeAlias = Callable[[Ask, ChatRequest], Awaitable[int]]
"""Returns the count. Raises `NotThisWay` or an `AntwortError`."""


class NotThisWay(Exception):
    """The backend has no such endpoint; or, `is_doubtful`, it may have one that does not take this request."""

    def __init__(self, *, is_doubtful: bool = False) -> None:
        super().__init__()
        self.is_doubtful = is_doubtful


class Counter:
    """Count the tokens of requests at one backend, by the first of the methods that it supports."""

    def __init__(self, ask: Ask, ways: Sequence[Way], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._ways, self._clock = ask, tuple(ways), clock
        self._way: Way | None = None
        self._not_before = -math.inf

    async def count(self, request: ChatRequest) -> int | None:
        """Return the number of tokens; None where the backend cannot count them, or not in time."""
        if not self._ways or self._clock() < self._not_before:
            return None
        text_only, attachments = without_attachments(request)
        began = self._clock()
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
                tokens = await self._count_text(text_only)
        except ContextTooLong as refusal:
            tokens = refusal.asked
        except ModelNotFound:
            return None
        except (AntwortError, HttpFault, TimeoutError):
            self._not_before = self._clock() + FAILURE_PAUSE_SECONDS
            return None
        except asyncio.CancelledError:
            if self._clock() - began >= SLOW_COUNT_SECONDS:
                self._not_before = self._clock() + FAILURE_PAUSE_SECONDS
            raise
        if tokens is None or tokens > len(encode(text_only)) + MAX_TEMPLATE_TOKENS:
            return None
        return tokens + attachments * ATTACHMENT_TOKENS

    def forget(self) -> None:
        """Forget which method the backend supports: it was gone, and another one may have taken its place."""
        self._way, self._not_before = None, -math.inf

    async def _count_text(self, request: ChatRequest) -> int | None:
        is_doubtful = False
        for way in self._ways if self._way is None else (self._way,):
            try:
                tokens = await way(self._ask, request)
            except NotThisWay as refusal:
                is_doubtful = is_doubtful or refusal.is_doubtful
            else:
                self._way = way
                return tokens
        if self._way is None:
            self._not_before = self._clock() + UNSUPPORTED_PAUSE_SECONDS
        elif not is_doubtful:
            self._way = None  # the backend was reconfigured: the next count tries all methods
        return None


def without_attachments(request: ChatRequest) -> tuple[ChatRequest, int]:
    """Return the request with its text parts alone, and how many parts were removed.

    An endpoint that only counts might fetch the others, or refuse them.
    """
    removed = 0
    messages = []
    for message in request.messages:
        if isinstance(message.content, list):
            texts = [part for part in message.content if isinstance(part.get("text"), str)]
            removed += len(message.content) - len(texts)
            messages.append(replace(message, content=texts or ""))
        else:
            messages.append(message)
    return (replace(request, messages=messages), removed) if removed else (request, 0)


# ---- the methods ----


class _TemplateRequest(Wire):
    messages: list[ChatMessage]
    model: str | UnsetType = UNSET
    tools: list[ChatTool] | UnsetType = UNSET
    add_generation_prompt: bool | UnsetType = UNSET


_TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
"""A plausible count: every prompt has a token."""


class _Count(msgspec.Struct):
    count: _TokenCount


class _InputTokens(msgspec.Struct):
    input_tokens: _TokenCount


class _Prompt(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]


async def by_tokenize(ask: Ask, request: ChatRequest) -> int:
    """vLLM."""
    question = _TemplateRequest(
        model=request.model, messages=request.messages, tools=request.tools, add_generation_prompt=True
    )
    return _parse(await ask("/tokenize", encode(question), is_beside=True), _Count, request).count


async def by_input_tokens(ask: Ask, request: ChatRequest) -> int:
    """Recent llama.cpp."""
    question = _TemplateRequest(model=request.model, messages=request.messages, tools=request.tools)
    return _parse(await ask("/chat/completions/input_tokens", encode(question)), _InputTokens, request).input_tokens


async def by_native_input_tokens(ask: Ask, request: ChatRequest) -> int:
    """The Responses API."""
    native = native_request(request)
    question = {name: native[name] for name in ("model", "input", "tools", "tool_choice") if name in native}
    return _parse(await ask("/responses/input_tokens", encode(question)), _InputTokens, request).input_tokens


async def by_template(ask: Ask, request: ChatRequest) -> int:
    """Older llama.cpp, in two steps: render the prompt, then tokenize it."""
    question = _TemplateRequest(messages=request.messages, tools=request.tools)
    prompt = _parse(await ask("/apply-template", encode(question), is_beside=True), _Prompt, request).prompt
    text = {"content": prompt, "add_special": True, "parse_special": True}
    return len(_parse(await ask("/tokenize", encode(text), is_beside=True), _Tokens, request).tokens)


def _parse(answer: Told, to: type[T], request: ChatRequest) -> T:
    """Parse an answer; raise `NotThisWay`, or the error that it stands for."""
    status, body = answer
    if 200 <= status < 300:
        try:
            return msgspec.json.decode(body, type=to)
        except DECODE_ERRORS:
            raise NotThisWay from None
    error = error_for(status, {}, body, Asked(request.model, sent=encode(request)))
    if isinstance(error, ModelNotFound) or (isinstance(error, ContextTooLong) and error.asked is not None):
        raise error
    if status in _NO_ENDPOINT_STATUSES or status in _UNFIT_STATUSES:
        raise NotThisWay(is_doubtful=status in _UNFIT_STATUSES)
    raise error
