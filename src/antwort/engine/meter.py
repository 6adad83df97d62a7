"""How many tokens a request has: by the backend's own tokenizer, or by an estimate that learns."""

from __future__ import annotations

import math

import msgspec

from antwort.engine.sizes import PER_REQUEST, Size, message_size, size_of
from antwort.providers.base import ChatMessage, ChatRequest, Provider, TokenCounter

_MODELS = 256
"""How many models' rates are remembered; the one that was heard of least lately is forgotten."""
_LEAST, _MOST = 1 / 16, 1.0
"""Tokens for each byte. Below is a report of something else, such as of what was not in a cache; above there is
nothing: a tokenizer that knows no word of a text has a token for each of its bytes."""
_TELLING = 128
"""Bytes of text below which a report says more about the template than about the text."""
_WHOLE = 1024
"""Bytes from which on it counts in full."""
_UP, _DOWN = 0.5, 0.2
"""How far a report moves the rate: up faster than down, as too many is the better mistake."""
_FACTOR = 2.0
"""And how far at most, whatever is in it."""


class Rate(msgspec.Struct, frozen=True, gc=False):
    """Tokens for each byte of text, as far as is known."""

    mean: float
    spread: float
    """How far reports are from the mean, mostly."""
    reports: float = 0.0

    @property
    def likely(self) -> float:
        """A little above the mean."""
        return min(_MOST, self.mean + max(self.spread, self.mean * 0.05))

    @property
    def highest(self) -> float:
        """What hardly any text exceeds."""
        return _MOST if self.reports < 1 else min(_MOST, self.mean * 1.15 + 3 * max(self.spread, self.mean * 0.05))

    def after(self, seen: float, weight: float) -> Rate:
        """The rate when a report says `seen`, which counts by `weight`, from 0 to 1."""
        if not weight:
            return self
        seen = min(max(seen, self.mean / _FACTOR), self.mean * _FACTOR)
        pace = weight * max(_UP if seen > self.mean else _DOWN, 1 / (1 + self.reports))
        spread = self.spread + min(pace, _UP) * (abs(seen - self.mean) - self.spread)
        mean = self.mean + pace * (seen - self.mean)
        return Rate(min(max(mean, _LEAST), _MOST), spread, self.reports + weight)


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Those of one model, for ASCII and for all else. Before anything is known they are those of dense text."""

    plain: Rate = Rate(0.29, 0.06)
    wide: Rate = Rate(0.40, 0.10)

    def likely(self, size: Size) -> int:
        return _tokens(size, self.plain.likely, self.wide.likely)

    def highest(self, size: Size) -> int:
        return _tokens(size, self.plain.highest, self.wide.highest)

    def after(self, size: Size, tokens: int) -> Rates:
        """When a text of this size has so many. What it has more than was thought, or less, is laid on both rates."""
        factor = tokens / _tokens(size, self.plain.mean, self.wide.mean)
        whole, share = min(1.0, size.text / _WHOLE), size.wide / size.text
        return Rates(
            self.plain.after(self.plain.mean * factor, whole * (1 - share)),
            self.wide.after(self.wide.mean * factor, whole * share),
        )


def _tokens(size: Size, plain: float, wide: float) -> int:
    """Of the text alone."""
    return math.ceil((size.text - size.wide) * plain + size.wide * wide)


class Meter:
    """One for each engine. What it says errs on the side of too many.

    `is_near`, `estimate` and `at_most` never wait and cost next to nothing, so they come first; only where `is_near`
    says so, `count` is worth its round trip. All learn from what is reported: whoever has made an inference calls
    `learn` with its request, as it went out, and the input tokens of the usage that came back, each time. A count by
    the backend is learned from here.
    """

    def __init__(self, provider: Provider) -> None:
        self._counter = provider if isinstance(provider, TokenCounter) else None
        self._rates: dict[str, Rates] = {}

    def estimate(self, request: ChatRequest) -> int:
        size = size_of(request)
        return self._of(request.model).likely(size) + size.fixed + PER_REQUEST

    def estimate_message(self, model: str, message: ChatMessage) -> int:
        """What the message adds to the estimate of a request, or little more."""
        size = message_size(message)
        return self._of(model).likely(size) + size.fixed

    def at_most(self, request: ChatRequest) -> int:
        """What it hardly has more than."""
        size = size_of(request)
        return self._of(request.model).highest(size) + size.fixed + PER_REQUEST

    def is_near(self, request: ChatRequest, limit: int) -> bool:
        """Whether it may have more than `limit` tokens, so that it is worth counting them."""
        return self.at_most(request) > limit

    async def count(self, request: ChatRequest) -> int:
        """By the backend's tokenizer where it has one, else the estimate. It may wait for two seconds, and raises
        nothing."""
        counted = await self.exact(request)
        return self.estimate(request) if counted is None else counted

    async def exact(self, request: ChatRequest) -> int | None:
        """By the backend's tokenizer; None where it has none, or does not answer."""
        counted = None if self._counter is None else await self._counter.count(request)
        if counted is not None:
            self.learn(request, counted)
        return counted

    def learn(self, request: ChatRequest, tokens: int) -> None:
        """The backend says that the request had so many. To be called after each inference that reports its usage, with
        its `input_tokens`; reports that say nothing of the text, as zero does, change nothing.
        """
        size = size_of(request)
        if size.attachments or size.text < _TELLING:
            return
        said = tokens - size.fixed
        if said < size.text * _LEAST:
            return
        known = self._rates.pop(request.model, _UNKNOWN)
        if len(self._rates) >= _MODELS:
            self._rates.pop(next(iter(self._rates)))
        self._rates[request.model] = known.after(size, said)

    def _of(self, model: str) -> Rates:
        return self._rates.get(model, _UNKNOWN)


_UNKNOWN = Rates()
