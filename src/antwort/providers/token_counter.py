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
from antwort.net.response import HttpError
from antwort.providers.answer_parser import DECODE_ERRORS
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool
from antwort.providers.errors import MAX_TOKEN_COUNT, SentRequest, error_for

COUNT_TIMEOUT_SECONDS = 2.0
"""For one count, however many requests it takes."""
SLOW_COUNT_SECONDS = 0.4
"""A count that is cancelled after this time is a failure of the backend."""
FAILURE_PAUSE_SECONDS = 30.0
"""How long no counts are requested after a failure."""
UNSUPPORTED_PAUSE_SECONDS = 600.0
"""How long no counts are requested from a backend without any of the endpoints: it may be reconfigured."""
MAX_TEMPLATE_TOKENS = 8192
"""An upper bound for the tokens that a chat template adds to a request."""

_NO_ENDPOINT_STATUSES = frozenset({404, 405, 410, 501})
_UNFIT_STATUSES = frozenset({400, 413, 415, 422, 500})
"""The template cannot render the messages, or the endpoint has another purpose and refuses the body."""

T = TypeVar("T")


class CountReply(NamedTuple):
    """A backend's answer to a request for a count."""

    status: int
    body: bytes


class Post(Protocol):
    def __call__(self, path: str, body: bytes, *, is_unversioned: bool = False) -> Awaitable[CountReply]:
        """Post a body to a path below the base URL; `is_unversioned`: beside its `/v1`, where engines have endpoints of
        their own.
        """
        ...


CountMethod: TypeAlias = Callable[[Post, ChatRequest], Awaitable[int]]
"""Returns the count. Raises `CountUnsupported` or an `AntwortError`."""


class CountUnsupported(Exception):
    """The backend has no such endpoint; or, `is_uncertain`, it may have one that does not take this request."""

    def __init__(self, *, is_uncertain: bool = False) -> None:
        super().__init__()
        self.is_uncertain = is_uncertain


class BackendTokenCounter:
    """Count the tokens of requests at one backend, by the first of the methods that it supports."""

    def __init__(
        self, post: Post, methods: Sequence[CountMethod], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._post, self._methods, self._clock = post, tuple(methods), clock
        self._method: CountMethod | None = None
        self._not_before = -math.inf

    async def count(self, request: ChatRequest) -> int | None:
        """Return the number of tokens; None where the backend cannot count them, or not in time."""
        if not self._methods or self._clock() < self._not_before:
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
        except (AntwortError, HttpError, TimeoutError):
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
        self._method, self._not_before = None, -math.inf

    async def _count_text(self, request: ChatRequest) -> int | None:
        is_uncertain = False
        for method in self._methods if self._method is None else (self._method,):
            try:
                tokens = await method(self._post, request)
            except CountUnsupported as refusal:
                is_uncertain = is_uncertain or refusal.is_uncertain
            else:
                self._method = method
                return tokens
        if self._method is None:
            self._not_before = self._clock() + UNSUPPORTED_PAUSE_SECONDS
        elif not is_uncertain:
            self._method = None  # the backend was reconfigured: the next count tries all methods
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


_TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_COUNT)]
"""A plausible count: every prompt has a token."""


class _Count(msgspec.Struct):
    count: _TokenCount


class _InputTokens(msgspec.Struct):
    input_tokens: _TokenCount


class _Prompt(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]


async def by_tokenize(post: Post, request: ChatRequest) -> int:
    """Count tokens at vLLM."""
    question = _TemplateRequest(
        model=request.model, messages=request.messages, tools=request.tools, add_generation_prompt=True
    )
    return _parse(await post("/tokenize", encode(question), is_unversioned=True), _Count, request).count


async def by_input_tokens(post: Post, request: ChatRequest) -> int:
    """Count tokens at a recent llama.cpp."""
    question = _TemplateRequest(model=request.model, messages=request.messages, tools=request.tools)
    return await post_for_input_tokens(post, "/chat/completions/input_tokens", encode(question), request)


async def post_for_input_tokens(post: Post, path: str, body: bytes, request: ChatRequest) -> int:
    """Return the `input_tokens` of an endpoint's answer."""
    return _parse(await post(path, body), _InputTokens, request).input_tokens


async def by_template(post: Post, request: ChatRequest) -> int:
    """Count tokens at an older llama.cpp, in two steps: render the prompt, then tokenize it."""
    question = _TemplateRequest(messages=request.messages, tools=request.tools)
    prompt = _parse(await post("/apply-template", encode(question), is_unversioned=True), _Prompt, request).prompt
    text = {"content": prompt, "add_special": True, "parse_special": True}
    return len(_parse(await post("/tokenize", encode(text), is_unversioned=True), _Tokens, request).tokens)


def _parse(answer: CountReply, to: type[T], request: ChatRequest) -> T:
    """Parse an answer; raise `CountUnsupported`, or the error that it stands for."""
    status, body = answer
    if 200 <= status < 300:
        try:
            return msgspec.json.decode(body, type=to)
        except DECODE_ERRORS:
            raise CountUnsupported from None
    error = error_for(status, {}, body, SentRequest(request.model, body=encode(request)))
    if isinstance(error, ModelNotFound) or (isinstance(error, ContextTooLong) and error.asked is not None):
        raise error
    if status in _NO_ENDPOINT_STATUSES or status in _UNFIT_STATUSES:
        raise CountUnsupported(is_uncertain=status in _UNFIT_STATUSES)
    raise error
