"""A model with a small context, for tests of what happens at its end. A token is a word there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from antwort.api.responses import Model
from antwort.api.wire import UNSET
from antwort.errors import ContextTooLong
from antwort.providers.base import ATTACHMENT_TOKENS, Capabilities, ChatRequest, Delta
from antwort.testing.demo import words_in
from antwort.testing.scripted import Answer, ScriptedProvider, answer, say, tokens
from fitting_kit import refused


class SmallModel:
    """Plays one answer for each inference that it takes, the last one again and again. What has more words than its
    context it refuses, and it fails the test when what it gets is no conversation.
    """

    def __init__(self, context: int, *answers: Answer, length: int | None = 0, has_tokenizer: bool = True) -> None:
        """`length` is what it says that its context is: by default the truth."""
        self.context, self.has_tokenizer = context, has_tokenizer
        self.length = context if length == 0 else length
        self.requests: list[ChatRequest] = []
        self.refused: list[ChatRequest] = []
        self.counted = 0
        self.waiting = 0
        """Counts that are waited for."""
        self.hold: asyncio.Event | None = None
        """What a count waits for."""
        self.says_limit = True
        self.refuses_late = False
        """Whether it refuses when it has begun to answer, as some do."""
        self._answers = list(answers) or [answer(say("All right."))]

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        assert (problem := refused(request.messages)) is None, problem
        read = words_in(request)
        wanted = 1 if request.max_tokens is UNSET else request.max_tokens
        if read + wanted > self.context:
            self.refused.append(request)
            if self.refuses_late:
                yield []
            limit = self.context if self.says_limit else None
            raise ContextTooLong("The backend says: too long.", param="input", limit=limit)
        self.requests.append(request)
        pieces = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        scripted = ScriptedProvider([*pieces[:-1], *answer(usage=tokens(read, 5), finish=_finish(pieces))])
        async for batch in scripted.infer(request):
            yield batch

    async def count(self, request: ChatRequest) -> int | None:
        self.counted += 1
        self.waiting += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.waiting -= 1
        attached = sum(
            "text" not in part for each in request.messages if isinstance(each.content, list) for part in each.content
        )
        return words_in(request) + attached * ATTACHMENT_TOKENS if self.has_tokenizer else None

    async def models(self) -> Sequence[Model]:
        return [Model(id="scripted")]

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(context_length=self.length)

    async def check(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """It holds nothing."""


def _finish(pieces: Answer) -> str:
    return str(getattr(pieces[-1], "finish", "stop"))


def words(count: int, word: str = "word") -> str:
    return " ".join(f"{word}{n}" for n in range(count))
