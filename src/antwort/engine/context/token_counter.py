"""Count the tokens of a request with the backend's tokenizer, or estimate them from its bytes.

An estimate is the bytes of the text times a rate: the running mean of what the backend has reported for the model, or
the last report of the conversation where that is long. What one tenant sends changes no estimate of another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from antwort.api.decoding import Steps, at_once
from antwort.api.wire import UNSET, encode
from antwort.caching import Cache
from antwort.engine.context.message_text import INSTRUCTIONS
from antwort.engine.history.calls import ITEMS_PER_STEP
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool, Provider, count_at

PER_MESSAGE = 4
"""Tokens of a template around each message."""
PER_REQUEST = 8
"""Tokens of a template around them all."""
INITIAL_RATE = 0.25
"""Tokens per byte before any report."""
_MIN_RATE, _MAX_RATE = 1 / 16, 1.0
"""Tokens per byte. A report below is of something else, such as of what was not in a cache. No text has more tokens
than bytes."""
_MARGIN = 1.5
"""How many times the estimate a text may have."""
_MAX_TOKEN_BYTES = 16
"""Bytes of a token, on the average of any text."""
_MIN_TEXT_BYTES, _MIN_TOKENS = 128, 32
"""Below them a report says more about the template than about the text."""
_MEAN_WEIGHT = 1 / 8
"""How far a report moves the mean."""
_FEW_REPORTS = 32
"""So many reports are all taken, and then those of long conversations and one of many: measuring costs time."""
_MEASURED_OF = 32
"""Of so many later reports, one is taken."""
_MAX_MODELS, _MAX_CONVERSATIONS = 1024, 4096
_LIMIT_SECONDS = 3600.0
"""How long a learned limit holds: backends are reconfigured."""
_CLOSE = 0.75
"""The search for a limit ends when the largest accepted size is this share of the smallest refused one."""


# ---- sizes ----


class Size(msgspec.Struct, frozen=True, gc=False):
    text: int = 0
    """Bytes in UTF-8."""
    messages: int = 0
    attachments: int = 0

    @property
    def fixed(self) -> int:
        """Tokens that do not depend on the text."""
        return self.messages * PER_MESSAGE + self.attachments * ATTACHMENT_TOKENS


def size_of(request: ChatRequest) -> Size:
    return at_once(size_steps(request))


def size_steps(request: ChatRequest) -> Steps[Size]:
    """Measure a request in pieces: it may have many messages."""
    text, attachments = tools_size(request), 0
    for at, message in enumerate(request.messages, 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        for part in _texts(message):
            if part is None:
                attachments += 1
            else:
                text += text_size(part)
    return Size(text, len(request.messages), attachments)


def message_size(message: ChatMessage) -> Size:
    texts = _texts(message)
    return Size(sum(text_size(text) for text in texts if text is not None), 1, texts.count(None))


def text_size(text: str) -> int:
    """Return its bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def tools_size(request: ChatRequest) -> int:
    """Return the bytes of its tools as JSON."""
    tools: Sequence[ChatTool] = () if request.tools is UNSET else request.tools
    return sum([len(encode(tool)) for tool in tools])


def min_token_steps(request: ChatRequest) -> Steps[int]:
    """Return a lower bound for every tokenizer and template, in pieces: some drop whitespace, some drop reasoning."""
    size = 0
    for at, message in enumerate(request.messages, 1):
        size += sum(text_size("".join(text.split())) for text in _texts(message, with_reasoning=False) if text)
        if at % ITEMS_PER_STEP == 0:
            yield
    return size // _MAX_TOKEN_BYTES


def _texts(message: ChatMessage, *, with_reasoning: bool = True) -> list[str | None]:
    """Return every text in the message, and None for a part that is no text."""
    found: list[str | None] = []
    if isinstance(message.content, str):
        found.append(message.content)
    elif isinstance(message.content, list):
        texts = (part.get("text") for part in message.content)
        found += (text if isinstance(text, str) else None for text in texts)
    if message.tool_calls is not UNSET:
        for call in message.tool_calls:
            found += (call.function.name, call.function.arguments)
    if with_reasoning:
        found += (more for more in (message.reasoning_content, message.reasoning, message.refusal) if more is not UNSET)
    return found


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

    mean: float | None = None
    """The running mean of the tokens per byte."""
    reports: int = 0
    """Those that it was measured by."""
    skipped: int = 0


class Conversation(msgspec.Struct, frozen=True):
    """What a backend has reported about one conversation."""

    rate: float | None = None
    """The last report of its tokens per byte."""
    limit: LearnedLimit | None = None


class TokenEstimator(msgspec.Struct, frozen=True, eq=False):
    """Estimate, count, and learn from what backends report, for one tenant.

    The `whole` request is that from which another was made by leaving out messages: it identifies the conversation.
    """

    provider: Provider
    clock: Callable[[], float] = time.monotonic
    tenant: str = ""
    models: Cache[tuple[str, str], ModelRate] = msgspec.field(default_factory=lambda: Cache(_MAX_MODELS))
    """By tenant and model."""
    conversations: Cache[int, Conversation] = msgspec.field(default_factory=lambda: Cache(_MAX_CONVERSATIONS))

    # ---- estimates ----

    def estimate(self, request: ChatRequest, whole: ChatRequest | None = None) -> int:
        return self.estimate_size(whole or request, size_of(request)) + PER_REQUEST

    def estimate_size(self, whole: ChatRequest, size: Size) -> int:
        """Return what a part of this size adds to the estimate of a request."""
        return math.ceil(size.text * self.rate(whole.model, whole)) + size.fixed

    def rate(self, model: str, whole: ChatRequest | None = None) -> float:
        """Return the tokens per byte, as far as is known."""
        rate = None if whole is None else self._conversation(whole).rate
        return rate or self._model(model).mean or INITIAL_RATE

    def is_near(self, request: ChatRequest, size: Size, limit: int) -> bool:
        """Return whether a request of this size may have more than `limit` tokens: then it is worth counting them."""
        left = limit - size.fixed - PER_REQUEST
        if size.text * _MAX_RATE <= left:
            return False
        if self._model(request.model).mean is None:
            return True
        return size.text * min(_MAX_RATE, self.rate(request.model, request) * _MARGIN) > left

    # ---- counts ----

    async def count(self, request: ChatRequest) -> int:
        """Return the backend's count, or the estimate."""
        counted = await self.exact(request, request)
        return self.estimate(request) if counted is None else counted

    async def exact(self, request: ChatRequest, whole: ChatRequest) -> int | None:
        """Return the backend's count, or None where it has no tokenizer or does not answer."""
        counted = await count_at(self.provider, request)
        if counted is not None:
            self.learn(request, counted, whole, is_long=True)
        return counted

    # ---- learning ----

    def learn(self, request: ChatRequest, tokens: int, whole: ChatRequest, *, is_long: bool) -> None:
        """Take the tokens that the backend has reported for a request. Only a long conversation is remembered."""
        if tokens < _MIN_TOKENS:
            return
        model = self._model(request.model)
        if model.reports >= _FEW_REPORTS and not is_long:
            model.skipped += 1
            if model.skipped % _MEASURED_OF:
                return
        size = size_of(request)
        text_tokens = tokens - size.fixed
        if not size.attachments and size.text >= _MIN_TEXT_BYTES and text_tokens >= size.text * _MIN_RATE:
            rate = min(text_tokens / size.text, _MAX_RATE)
            known = INITIAL_RATE if model.mean is None else model.mean
            mean = known + (rate - known) * _MEAN_WEIGHT
            self.models.put((self.tenant, request.model), ModelRate(mean, model.reports + 1, model.skipped))
            if is_long:
                self._remember(whole, rate=rate)

    def learned_limit(self, whole: ChatRequest) -> LearnedLimit | None:
        """Return what refusals have told about the length that fits."""
        limit = self._conversation(whole).limit
        return None if limit is None or self.clock() - limit.at >= _LIMIT_SECONDS else limit

    def learn_limit(self, whole: ChatRequest, fits: int, refused: int | None) -> None:
        self._remember(whole, limit=LearnedLimit(fits, refused, self.clock()))

    def _model(self, model: str) -> ModelRate:
        return self.models.get((self.tenant, model), _UNKNOWN_MODEL)

    def _remember(self, whole: ChatRequest, **news: object) -> None:
        known = msgspec.structs.replace(self._conversation(whole), **news)
        self.conversations.put(self._keys(whole)[0], known)

    def _conversation(self, whole: ChatRequest) -> Conversation:
        keys = self._keys(whole) if self.conversations else ()
        return next((self.conversations[key] for key in keys if key in self.conversations), _UNKNOWN_CONVERSATION)

    def _keys(self, whole: ChatRequest) -> list[int]:
        """Return what identifies the conversation, the best first: the messages up to the model's first answer, as many
        conversations begin alike; while that is the only one, also what was asked before it. Clients change
        instructions on the way. Only so many messages count as can be looked at without a pause.
        """
        spoken = [each for each in whole.messages[:ITEMS_PER_STEP] if each.role not in INSTRUCTIONS]
        answers = [at for at, each in enumerate(spoken) if each.role == "assistant"]
        ends = [answers[0] + 1, answers[0]] if answers else [len(spoken)]
        if len(answers) > 1:
            ends.pop()
        texts = [(each.role, *_texts(each)) for each in spoken[: ends[0]]]
        return [hash((self.tenant, whole.model, *texts[:end])) for end in ends]


_UNKNOWN_MODEL = ModelRate()
_UNKNOWN_CONVERSATION = Conversation()
