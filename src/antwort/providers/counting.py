"""How many tokens a request has for a backend's own tokenizer: engines count at endpoints of their own, or not at all.

Which one a backend has is found out with the first request that is to be counted, and remembered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from antwort.api.wire import UNSET, UnsetType, Wire, encode, replace
from antwort.errors import AntwortError, ContextTooLong, ModelNotFound
from antwort.net.exchange import HttpFault
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool
from antwort.providers.errors import Asked, error_for
from antwort.providers.native_request import native_request
from antwort.providers.reading import UNREADABLE

SECONDS = 2.0
"""The most that a count may take, however many questions it needs."""
PATIENCE = 0.4
"""After so much, whoever gives up on a count has waited for it: it counts as a failure."""
PAUSE = 30.0
"""Seconds after a failure in which it is not asked again."""
LONG_PAUSE = 600.0
"""Where it seems to count nothing, or not this: it may be set up anew."""
TEMPLATE = 8192
"""Tokens that a template adds to what it is given, at the very most."""


class Told(NamedTuple):
    """An answer, whole."""

    status: int
    body: bytes


class Ask(Protocol):
    def __call__(self, path: str, body: bytes, *, is_beside: bool = False) -> Awaitable[Told]:
        """Post a body to a path below the base address; or beside it, where engines have what is theirs alone."""
        ...


Way: TypeAlias = Callable[[Ask, ChatRequest], Awaitable[int]]
"""The count, or `NotThisWay`, or an `AntwortError`."""

_ABSENT = frozenset({404, 405, 410, 501})
_UNFIT = frozenset({400, 413, 415, 422, 500})
"""What some say where a template cannot make a prompt of the messages, and some where they know no such body."""
T = TypeVar("T")


class NotThisWay(Exception):
    """The backend has no such endpoint; or, `is_doubtful`, it has one that does not take this."""

    def __init__(self, *, is_doubtful: bool = False) -> None:
        super().__init__()
        self.is_doubtful = is_doubtful


class Counter:
    """Counts at one backend, by the first of `ways` that it answers."""

    def __init__(self, ask: Ask, ways: Sequence[Way], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._ways, self._clock = ask, tuple(ways), clock
        self._way: Way | None = None
        self._not_before = -math.inf

    async def count(self, request: ChatRequest) -> int | None:
        if not self._ways or self._clock() < self._not_before:
            return None
        bare, attachments = without_attachments(request)
        began = self._clock()
        try:
            async with asyncio.timeout(SECONDS):
                counted = await self._counted(bare)
        except ContextTooLong as refusal:
            counted = refusal.asked
        except ModelNotFound:
            return None
        except (AntwortError, HttpFault, TimeoutError):
            self._not_before = self._clock() + PAUSE
            return None
        except asyncio.CancelledError:
            if self._clock() - began >= PATIENCE:
                self._not_before = self._clock() + PAUSE
            raise
        if counted is None or counted > len(encode(bare)) + TEMPLATE:
            return None
        return counted + attachments * ATTACHMENT_TOKENS

    def forget(self) -> None:
        """The backend was gone: what comes back may be another one."""
        self._way, self._not_before = None, -math.inf

    async def _counted(self, request: ChatRequest) -> int | None:
        is_doubtful = False
        for way in self._ways if self._way is None else (self._way,):
            try:
                counted = await way(self._ask, request)
            except NotThisWay as refusal:
                is_doubtful = is_doubtful or refusal.is_doubtful
            else:
                self._way = way
                return counted
        if self._way is None:
            self._not_before = self._clock() + LONG_PAUSE
        elif not is_doubtful:
            self._way = None  # it has been set up anew; the next one finds out
        return None


def without_attachments(request: ChatRequest) -> tuple[ChatRequest, int]:
    """What there is to count, and how many parts are left away: an endpoint might fetch them, or refuse them."""
    messages = [_text_of(message) for message in request.messages]
    parts = (part for message in request.messages if isinstance(message.content, list) for part in message.content)
    left = sum(not _is_text(part) for part in parts)
    return (replace(request, messages=messages), left) if left else (request, 0)


def _text_of(message: ChatMessage) -> ChatMessage:
    if not isinstance(message.content, list):
        return message
    return replace(message, content=[part for part in message.content if _is_text(part)] or "")


def _is_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


# ---- the ways ----


class _Question(Wire):
    messages: list[ChatMessage]
    model: str | UnsetType = UNSET
    tools: list[ChatTool] | UnsetType = UNSET
    add_generation_prompt: bool | UnsetType = UNSET


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
"""A count that can be one: every prompt has a token."""


class _Count(msgspec.Struct):
    count: _Number


class _InputTokens(msgspec.Struct):
    input_tokens: _Number


class _Prompt(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]


async def by_tokenize(ask: Ask, request: ChatRequest) -> int:
    """vLLM's."""
    question = _Question(
        model=request.model, messages=request.messages, tools=request.tools, add_generation_prompt=True
    )
    return _read(await ask("/tokenize", encode(question), is_beside=True), _Count, request).count


async def by_input_tokens(ask: Ask, request: ChatRequest) -> int:
    """llama.cpp's, of late."""
    question = _Question(model=request.model, messages=request.messages, tools=request.tools)
    return _read(await ask("/chat/completions/input_tokens", encode(question)), _InputTokens, request).input_tokens


async def by_native_input_tokens(ask: Ask, request: ChatRequest) -> int:
    """That of the Responses API."""
    told = native_request(request)
    question = {name: told[name] for name in ("model", "input", "tools", "tool_choice") if name in told}
    return _read(await ask("/responses/input_tokens", encode(question)), _InputTokens, request).input_tokens


async def by_template(ask: Ask, request: ChatRequest) -> int:
    """llama.cpp's: the prompt is made, and then cut up."""
    question = _Question(messages=request.messages, tools=request.tools)
    prompt = _read(await ask("/apply-template", encode(question), is_beside=True), _Prompt, request).prompt
    text = {"content": prompt, "add_special": True, "parse_special": True}
    return len(_read(await ask("/tokenize", encode(text), is_beside=True), _Tokens, request).tokens)


def _read(told: Told, to: type[T], request: ChatRequest) -> T:
    """The answer; raises `NotThisWay`, or the error that it stands for."""
    if 200 <= told.status < 300:
        try:
            return msgspec.json.decode(told.body, type=to)
        except UNREADABLE:
            raise NotThisWay from None
    error = error_for(told.status, {}, told.body, Asked(request.model, sent=encode(request)))
    if isinstance(error, ModelNotFound) or (isinstance(error, ContextTooLong) and error.asked is not None):
        raise error
    if told.status in _ABSENT or told.status in _UNFIT:
        raise NotThisWay(is_doubtful=told.status in _UNFIT)
    raise error
