"""Count the tokens of a request with the backend's tokenizer, or estimate them from its bytes.

An estimate is the bytes of the text times a rate: the running mean of what the backend has reported for the model, or
the last report of the conversation where that is long. What one tenant sends changes no estimate of another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from antwort.api.decoding import Steps, at_once
from antwort.api.wire import UNSET, encode
from antwort.caching import Cache
from antwort.engine.history.calls import ITEMS_PER_STEP
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool, Provider, TokenCounter

PER_MESSAGE = 4
"""Tokens of a template around each message."""
PER_REQUEST = 8
"""Tokens of a template around them all."""
ASCII_RATE, _WIDE_RATE = 0.25, 0.35
"""Tokens per byte before any report."""
_MIN_RATE, _MAX_RATE = 1 / 16, 1.0
"""Tokens per byte. A report below is of something else, such as of what was not in a cache. No text has more tokens
than bytes."""
_MARGIN = 1.5
"""How many times the estimate a text may have."""
_MAX_TOKEN_BYTES = 16
"""Bytes of a token, on the average of any text."""
_MIN_TEXT_BYTES = 128
"""Bytes below which a report says more about the template than about the text."""
_MEAN_WEIGHT = 1 / 8
"""How far a report moves the mean."""
_FEW_REPORTS = 32
"""So many reports are all taken, and one in as many of those that follow: measuring a request costs time."""
_MAX_MODELS, _MAX_CONVERSATIONS = 1024, 4096
_LIMIT_SECONDS = 3600.0
"""How long a learned limit holds: backends are reconfigured."""
_CLOSE = 0.75
"""The search for a limit ends when the largest accepted size is this share of the smallest refused one."""
_INSTRUCTIONS = ("system", "developer")


# ---- sizes ----


class Size(msgspec.Struct, frozen=True, gc=False):
    text: int = 0
    """Bytes in UTF-8."""
    wide: int = 0
    """How many of them are not ASCII."""
    messages: int = 0
    attachments: int = 0

    @property
    def fixed(self) -> int:
        """Tokens that do not depend on the text."""
        return self.messages * PER_MESSAGE + self.attachments * ATTACHMENT_TOKENS

    @property
    def guess(self) -> float:
        """Tokens of the text, before any report."""
        return (self.text - self.wide) * ASCII_RATE + self.wide * _WIDE_RATE


def size_of(request: ChatRequest) -> Size:
    return at_once(size_steps(request))


def size_steps(request: ChatRequest) -> Steps[Size]:
    """Measure a request in pieces: it may have many messages."""
    text = wide = attachments = 0
    for at, message in enumerate(request.messages, 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        if (plain := _plain_text(message)) is not None and plain.isascii():  # most messages, and there are many
            text += len(plain)
            continue
        size = message_size(message)
        text += size.text
        wide += size.wide
        attachments += size.attachments
    return Size(text + tools_size(request), wide, len(request.messages), attachments)


def message_size(message: ChatMessage) -> Size:
    text = wide = attachments = 0
    for part in _texts(message):
        if part is None:
            attachments += 1
            continue
        text += (size := text_size(part))
        if size != len(part):
            wide += size - len(part.encode("ascii", "ignore"))
    return Size(text, wide, 1, attachments)


def text_size(text: str) -> int:
    """Return its bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def tools_size(request: ChatRequest) -> int:
    """Return the bytes of its tools as JSON."""
    tools: Sequence[ChatTool] = () if request.tools is UNSET else request.tools
    return sum(len(encode(tool)) for tool in tools)


def min_token_steps(request: ChatRequest) -> Steps[int]:
    """Return a lower bound for every tokenizer and template, in pieces: some drop whitespace, some drop reasoning."""
    size = 0
    for at, message in enumerate(request.messages, 1):
        size += sum(text_size("".join(text.split())) for text in _content(message) if text)
        if at % ITEMS_PER_STEP == 0:
            yield
    return size // _MAX_TOKEN_BYTES


def _plain_text(message: ChatMessage) -> str | None:
    """Return the content of a message that has nothing else."""
    is_plain = message.tool_calls is message.reasoning_content is message.reasoning is message.refusal is UNSET
    return message.content if is_plain and isinstance(message.content, str) else None


def _texts(message: ChatMessage) -> Iterator[str | None]:
    """Yield every text in the message, and None for a part that is no text."""
    yield from _content(message)
    for more in (message.reasoning_content, message.reasoning, message.refusal):
        if more is not UNSET:
            yield more


def _content(message: ChatMessage) -> Iterator[str | None]:
    content = message.content
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text")
            yield text if isinstance(text, str) else None
    if message.tool_calls is not UNSET:
        for call in message.tool_calls:
            yield call.function.name
            yield call.function.arguments


# ---- what backends have reported ----


class LearnedLimit(msgspec.Struct, frozen=True, gc=False):
    """Tokens that fit, learned from refusals where the length of the context is unknown."""

    fits: int
    refused: int | None = None
    """None: the backend has named the limit."""
    at: float = 0.0

    @property
    def next(self) -> int:
        """Return the size to try next: halfway between both, until they are close."""
        if self.refused is None or self.fits >= self.refused * _CLOSE:
            return self.fits
        return (self.fits + self.refused) // 2


class ModelRate(msgspec.Struct, gc=False):
    """What a backend has reported about one model to one tenant."""

    factor: float = 1.0
    """The running mean of how many times the guess texts have in tokens."""
    reports: int = 0
    seen: int = 0
    """Reports with those that were skipped or told nothing."""


class ConversationRate(msgspec.Struct, frozen=True):
    """What a backend has reported about one conversation."""

    factor: float | None = None
    """How many times the guess it had in tokens."""
    limit: LearnedLimit | None = None


class TokenEstimator(msgspec.Struct, frozen=True, eq=False):
    """Estimate, count, and learn from what backends report, for one tenant.

    The `whole` request is that from which another was made by leaving out messages: it identifies the conversation.
    `is_near` and `estimate` return at once; `count` and `exact` may ask the backend.
    """

    provider: Provider
    clock: Callable[[], float] = time.monotonic
    tenant: str = ""
    models: Cache[tuple[str, str], ModelRate] = msgspec.field(default_factory=lambda: Cache(_MAX_MODELS))
    """By tenant and model."""
    conversations: Cache[int, ConversationRate] = msgspec.field(default_factory=lambda: Cache(_MAX_CONVERSATIONS))

    def for_tenant(self, tenant: str) -> TokenEstimator:
        """Return an estimator for another tenant, with the same caches."""
        return msgspec.structs.replace(self, tenant=tenant)

    # ---- estimates ----

    def estimate(self, request: ChatRequest, whole: ChatRequest | None = None) -> int:
        return self.estimate_size(whole or request, size_of(request)) + PER_REQUEST

    def estimate_size(self, whole: ChatRequest, size: Size) -> int:
        """Return what a part of this size adds to the estimate of a request."""
        return math.ceil(size.guess * self._factor(whole)) + size.fixed

    def tokens_per_byte(self, model: str, whole: ChatRequest | None = None) -> float:
        return ASCII_RATE * (self._model(model).factor if whole is None else self._factor(whole))

    def is_near(self, request: ChatRequest, size: Size, limit: int) -> bool:
        """Return whether a request of this size may have more than `limit` tokens: then it is worth counting them."""
        most = size.text * _MAX_RATE
        if most + size.fixed + PER_REQUEST <= limit:
            return False
        if self._model(request.model).reports:
            most = min(most, size.guess * self._factor(request) * _MARGIN)
        return most + size.fixed + PER_REQUEST > limit

    def _model(self, model: str) -> ModelRate:
        return self.models.get((self.tenant, model)) or _UNKNOWN_MODEL

    def _factor(self, whole: ChatRequest) -> float:
        factor = self._conversation(whole).factor
        return self._model(whole.model).factor if factor is None else factor

    # ---- counts ----

    async def count(self, request: ChatRequest) -> int:
        """Return the backend's count, or the estimate."""
        counted = await self.exact(request, request)
        return self.estimate(request) if counted is None else counted

    async def exact(self, request: ChatRequest, whole: ChatRequest) -> int | None:
        """Return the backend's count, or None where it has no tokenizer or does not answer."""
        counted = await self.provider.count(request) if isinstance(self.provider, TokenCounter) else None
        if counted is not None:
            self.learn(request, counted, whole)
        return counted

    # ---- learning ----

    def learn(self, request: ChatRequest, tokens: int, whole: ChatRequest | None = None) -> None:
        """Take the tokens that the backend has reported for a request; `whole` is None where the conversation is short.
        Where much has been reported, most reports of those are skipped.
        """
        key = (self.tenant, request.model)
        if (model := self.models.get(key)) is None:
            self.models.put(key, model := ModelRate())
        model.seen += 1
        if whole is None and model.seen > _FEW_REPORTS and model.seen % _FEW_REPORTS:
            return
        size = size_of(request)
        text_tokens = tokens - size.fixed
        if size.attachments or size.text < _MIN_TEXT_BYTES or text_tokens < size.text * _MIN_RATE:
            return
        factor = min(text_tokens, size.text * _MAX_RATE) / size.guess
        model.reports += 1
        model.factor += (factor - model.factor) * _MEAN_WEIGHT
        if whole is not None:
            self._remember(whole, factor=factor)

    def learned_limit(self, whole: ChatRequest) -> LearnedLimit | None:
        """Return what refusals have told about the length that fits."""
        limit = self._conversation(whole).limit
        return None if limit is None or self.clock() - limit.at >= _LIMIT_SECONDS else limit

    def learn_limit(self, whole: ChatRequest, fits: int, refused: int | None) -> None:
        self._remember(whole, limit=LearnedLimit(fits, refused, self.clock()))

    # ---- conversations ----

    def _remember(self, whole: ChatRequest, **news: object) -> None:
        known = self._conversation(whole)
        *_, key = self._keys(whole)
        self.conversations.put(key, msgspec.structs.replace(known, **news))

    def _conversation(self, whole: ChatRequest) -> ConversationRate:
        if not self.conversations:
            return _UNKNOWN_CONVERSATION
        found = (self.conversations.get(key) for key in reversed(self._keys(whole)))
        return next(filter(None, found), _UNKNOWN_CONVERSATION)

    def _keys(self, whole: ChatRequest) -> list[int]:
        """Return what identifies the conversation, the best last: its messages up to the model's first answer, as many
        conversations begin alike. One that has a single answer is also known by what was asked first. Clients change
        instructions on the way. Before an answer only so many messages count as can be looked at without a pause.
        """
        beginning: list[object] = [self.tenant, whole.model]
        keys: list[int] = []
        spoken = (message for message in whole.messages if message.role not in _INSTRUCTIONS)
        for message in islice(spoken, ITEMS_PER_STEP):
            is_answer = message.role == "assistant"
            if is_answer and len(keys) == 2:
                return keys[1:]
            if is_answer and not keys:
                keys.append(hash(tuple(beginning)))
            if len(keys) < 2:
                beginning += (message.role, *_texts(message))
            if is_answer:
                keys.append(hash(tuple(beginning)))
        return keys or [hash(tuple(beginning))]


_UNKNOWN_MODEL = ModelRate()
_UNKNOWN_CONVERSATION = ConversationRate()
