"""How many tokens a request has: by the backend's own tokenizer, or by an estimate that learns."""

from __future__ import annotations

from antwort.api.wire import encode
from antwort.providers.base import ChatRequest, Provider, TokenCounter

_BYTES = 4.0


class Meter:
    """One for each engine. An estimate costs no waiting; a count may ask the backend."""

    def __init__(self, provider: Provider) -> None:
        self._counter = provider if isinstance(provider, TokenCounter) else None

    def estimate(self, request: ChatRequest) -> int:
        return int(len(encode(request)) / _BYTES) + 1

    async def count(self, request: ChatRequest) -> int:
        """By the backend's tokenizer where it has one, else the estimate."""
        counted = None if self._counter is None else await self._counter.count(request)
        return self.estimate(request) if counted is None else counted

    def learn(self, request: ChatRequest, tokens: int) -> None:
        """The backend says that the request had so many."""
