"""How many tokens a request has: by the backend's own tokenizer, or by an estimate that learns."""

from __future__ import annotations

import math

from antwort.engine.context.rates import LEAST, MOST, Rates
from antwort.engine.context.remembered import Remembered, marks_of
from antwort.engine.context.text_sizes import PER_REQUEST, Size, message_size, size_of
from antwort.providers.base import ChatMessage, ChatRequest, Provider, TokenCounter

_MODELS = 256
"""How many models' rates are remembered; the one that was heard of least lately is forgotten."""
_FIRST = 3
"""Messages by which reports tell conversations apart: a first one may be the same in all."""
_TELLING = 128
"""Bytes of text below which a report says more about the template than about the text."""


class Meter:
    """One for each engine.

    `is_near`, `estimate` and `at_most` never wait and cost next to nothing, so they come first; only where `is_near`
    says so, `count` is worth its round trip. All learn from what is reported: whoever has made an inference calls
    `learn` with its request, as it went out, and the input tokens of the usage that came back, each time. A count by
    the backend is learned from here.
    """

    def __init__(self, provider: Provider, remembered: Remembered | None = None) -> None:
        self._counter = provider if isinstance(provider, TokenCounter) else None
        self._rates: dict[str, Rates] = {}
        self.remembered = remembered or Remembered()

    def estimate(self, request: ChatRequest, factor: float = 1.0) -> int:
        """Rather too few than too many. `factor` is that of the conversation, where it is known."""
        size = size_of(request)
        return math.ceil(self._of(request.model).likely(size) * factor) + size.fixed + PER_REQUEST

    def factor(self, whole: ChatRequest, who: str = "") -> float:
        """How many times the tokens that texts have the conversation has, by what the backend has said of it. What has
        come since is taken to be as texts are.
        """
        talk = self.remembered.talk(whole, who)
        if talk.size is None or not talk.rate:
            return 1.0
        rates, size = self._of(whole.model), size_of(whole)
        known = min(talk.size.text, size.text)
        new = Size(size.text - known, min(max(0, size.wide - talk.size.wide), size.text - known))
        return (talk.rate * known + rates.likely(new)) / rates.likely(size)

    def estimate_message(self, model: str, message: ChatMessage) -> int:
        """What the message adds to the estimate of a request, or little more."""
        size = message_size(message)
        return math.ceil(self._of(model).likely(size)) + size.fixed

    def at_most(self, request: ChatRequest) -> int:
        """What it hardly has more than."""
        return self._at_most(request.model, size_of(request))

    def _at_most(self, model: str, size: Size) -> int:
        return self._of(model).highest(size) + size.fixed + PER_REQUEST

    def is_near(self, request: ChatRequest, limit: int) -> bool:
        """Whether it may have more than `limit` tokens, so that it is worth counting them."""
        size = size_of(request)
        if size.text * MOST + size.fixed + PER_REQUEST <= limit:  # whatever was reported: mostly nobody has to look
            return False
        return self._at_most(request.model, size) > limit

    async def count(self, request: ChatRequest, who: str = "") -> int:
        """By the backend's tokenizer where it has one, else the estimate. It may wait for two seconds, and raises
        nothing."""
        counted = await self.exact(request, who=who)
        return self.estimate(request, self.factor(request, who)) if counted is None else counted

    async def exact(self, request: ChatRequest, whole: ChatRequest | None = None, who: str = "") -> int | None:
        """By the backend's tokenizer; None where it has none, or does not answer."""
        counted = None if self._counter is None else await self._counter.count(request)
        if counted is not None:
            self.learn(request, counted, whole, who)
        return counted

    def learn(self, request: ChatRequest, tokens: int, whole: ChatRequest | None = None, who: str = "") -> None:
        """The backend says that the request had so many. To be called after each inference that reports its usage, with
        its `input_tokens`; reports that say nothing of the text, as zero does, change nothing.

        `whole`: the conversation of which the request is what was sent. `who`: the client that said it.
        """
        size, whole = size_of(request), whole or request
        if self._note(request, tokens, whole, who, size):
            rate = min((tokens - size.fixed) / size.text, 1.0)
            self.remembered.keep(whole, who, size if whole is request else size_of(whole), rate)

    def hear(self, request: ChatRequest, tokens: int, whole: ChatRequest, who: str) -> None:
        """As `learn`, for what other conversations have: of this one nothing is remembered, and where much is known
        already, few reports are listened to, so that it costs next to nothing.
        """
        if tokens < _TELLING * LEAST:  # of so few, none is told below
            return
        known = self._rates.get(request.model)
        if known is None or known.wants_more():
            self._note(request, tokens, whole, who, size_of(request))

    def _note(self, request: ChatRequest, tokens: int, whole: ChatRequest, who: str, size: Size) -> bool:
        """Says whether the report tells anything."""
        said = tokens - size.fixed
        if size.attachments or size.text < _TELLING or said < size.text * LEAST:
            return False
        rates = self._rates.pop(request.model, None) or Rates()
        if len(self._rates) >= _MODELS:
            self._rates.pop(next(iter(self._rates)))
        self._rates[request.model] = rates
        *instead, about = marks_of(whole, who, _FIRST) or (hash(who),)
        rates.note(size, said, about, who, instead)
        return True

    def _of(self, model: str) -> Rates:
        return self._rates.get(model, _UNKNOWN)


_UNKNOWN = Rates()
