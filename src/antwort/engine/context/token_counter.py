"""Count the tokens of a request with the backend's tokenizer, or estimate them from its bytes.

An estimate is the bytes of the text times a rate: the running mean of what the backend has reported for the model. A
text that is denser than the mean may turn out too long: then the backend refuses it, and the window sends less. Each
tenant has means and learned limits of its own, so that the texts of one change no estimate of another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

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
_MEAN_REPORTS = 6
"""The mean is that of about so many reports, the last ones weighing most. At first the guess counts as one of them."""
_FEW_REPORTS = 32
"""So many reports are all taken, and one in as many of those that follow: measuring a request costs time."""
_MAX_MODELS = 1024
_LIMIT_SECONDS = 3600.0
"""How long a learned limit holds: backends are reconfigured."""
_CLOSE = 0.75
"""The search for a limit ends when the largest accepted size is this share of the smallest refused one."""


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


class LearnedModel(msgspec.Struct, gc=False):
    """What a backend has reported about one model to one tenant."""

    factor: float = 1.0
    """The running mean of how many times the guess texts have in tokens."""
    reports: int = 0
    seen: int = 0
    """Reports with those that were skipped or told nothing."""
    limit: LearnedLimit | None = None


class TokenEstimator(msgspec.Struct, frozen=True, eq=False):
    """Estimate, count, and learn from what backends report, for one tenant.

    `is_near` and `estimate` return at once; `count` and `exact` may ask the backend.
    """

    provider: Provider
    clock: Callable[[], float] = time.monotonic
    tenant: str = ""
    learned: Cache[tuple[str, str], LearnedModel] = msgspec.field(default_factory=lambda: Cache(_MAX_MODELS))
    """By tenant and model."""

    def for_tenant(self, tenant: str) -> TokenEstimator:
        """Return an estimator for another tenant, with the same cache."""
        return msgspec.structs.replace(self, tenant=tenant)

    # ---- estimates ----

    def estimate(self, request: ChatRequest) -> int:
        return self.estimate_size(request.model, size_of(request)) + PER_REQUEST

    def estimate_size(self, model: str, size: Size) -> int:
        """Return what a part of a request adds to its estimate."""
        return math.ceil(size.guess * self._model(model).factor) + size.fixed

    def tokens_per_byte(self, model: str) -> float:
        return ASCII_RATE * self._model(model).factor

    def is_near(self, model: str, size: Size, limit: int) -> bool:
        """Return whether a request of this size may have more than `limit` tokens: then it is worth counting them."""
        most = size.text * _MAX_RATE
        if most + size.fixed + PER_REQUEST <= limit:
            return False
        if (learned := self._model(model)).reports:
            most = min(most, size.guess * learned.factor * _MARGIN)
        return most + size.fixed + PER_REQUEST > limit

    def _model(self, model: str) -> LearnedModel:
        return self.learned.get((self.tenant, model)) or _UNKNOWN_MODEL

    # ---- counts ----

    async def count(self, request: ChatRequest) -> int:
        """Return the backend's count, or the estimate."""
        counted = await self.exact(request)
        return self.estimate(request) if counted is None else counted

    async def exact(self, request: ChatRequest) -> int | None:
        """Return the backend's count, or None where it has no tokenizer or does not answer."""
        counted = await self.provider.count(request) if isinstance(self.provider, TokenCounter) else None
        if counted is not None:
            self.learn(request, counted)
        return counted

    # ---- learning ----

    def learn(self, request: ChatRequest, tokens: int, *, is_short: bool = False) -> None:
        """Take the tokens that the backend has reported for a request. Where much has been reported, most reports of
        short requests are skipped.
        """
        model = self.learned.get((self.tenant, request.model)) or self._add(request.model)
        model.seen += 1
        if is_short and model.seen > _FEW_REPORTS and model.seen % _FEW_REPORTS:
            return
        size = size_of(request)
        text_tokens = tokens - size.fixed
        if size.attachments or size.text < _MIN_TEXT_BYTES or text_tokens < size.text * _MIN_RATE:
            return
        model.reports += 1
        factor = min(text_tokens, size.text * _MAX_RATE) / size.guess
        model.factor += (factor - model.factor) / min(model.reports + 1, _MEAN_REPORTS)

    def learned_limit(self, model: str) -> LearnedLimit | None:
        """Return what refusals have told about the length that fits."""
        limit = self._model(model).limit
        return None if limit is None or self.clock() - limit.at >= _LIMIT_SECONDS else limit

    def learn_limit(self, model: str, fits: int, refused: int | None) -> None:
        learned = self.learned.get((self.tenant, model)) or self._add(model)
        learned.limit = LearnedLimit(fits, refused, self.clock())

    def _add(self, model: str) -> LearnedModel:
        self.learned.put((self.tenant, model), learned := LearnedModel())
        return learned


_UNKNOWN_MODEL = LearnedModel()
