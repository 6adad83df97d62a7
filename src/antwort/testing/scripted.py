"""A provider that plays a script and keeps what it saw.

    provider = ScriptedProvider(
        answer(call("weather", city="Paris")),
        answer(say("It is sunny in Paris.")),
    )

Each inference plays the next answer. Between deltas a script may hold an `asyncio.Event`, which it waits for, or an
exception, which it raises: so a test decides when things happen, without a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.responses import Model, Usage
from antwort.api.wire import encode
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatRequest,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

Piece: TypeAlias = Delta | list[Delta] | asyncio.Event | Exception
Answer: TypeAlias = Sequence[Piece]


def say(text: str) -> list[Piece]:
    """The model says `text`, a word at a time."""
    words = text.split(" ")
    return [TextDelta(word if i == 0 else f" {word}") for i, word in enumerate(words)]


def think(text: str) -> list[Piece]:
    """The model reasons aloud."""
    return [ReasoningDelta(delta.text) for delta in say(text) if isinstance(delta, TextDelta)]


def refuse(text: str) -> list[Piece]:
    return [RefusalDelta(text)]


def call(name: str, arguments: str | None = None, /, **named: Any) -> list[Piece]:
    """The model calls a tool, with named arguments or with exactly this text."""
    text = encode(named).decode() if arguments is None else arguments
    half = len(text) // 2
    # The number is put in by `answer`, which knows how many came before.
    return [CallDelta(-1, name, text[:half]), CallDelta(-1, "", text[half:])]


def answer(
    *parts: Iterable[Piece] | asyncio.Event | Exception, finish: str | None = None, usage: Usage | None = None
) -> list[Piece]:
    """One whole answer: what `say`, `think` and `call` give, in order, and how it ends."""
    pieces: list[Piece] = []
    calls = -1
    for part in parts:
        for piece in [part] if isinstance(part, asyncio.Event | Exception) else part:
            if isinstance(piece, CallDelta) and piece.index < 0:
                calls += bool(piece.name)
                piece = msgspec.structs.replace(piece, index=calls)  # noqa: PLW2901
            pieces.append(piece)
    if not any(isinstance(piece, Finished) for piece in pieces):
        pieces.append(Finished(finish or ("tool_calls" if calls >= 0 else "stop"), usage))
    return pieces


def tokens(read: int, written: int) -> Usage:
    """A usage of so many tokens."""
    return Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)


class ScriptedProvider:
    """Plays one answer for each inference. A script that is over fails the inference, loudly. `counts` says how many
    tokens a request has; without it, it has no tokenizer.
    """

    def __init__(
        self,
        *answers: Answer,
        models: Sequence[str] = ("scripted",),
        capabilities: Capabilities = Capabilities(),  # noqa: B008 - a frozen value
        counts: Callable[[ChatRequest], int | None] = lambda _: None,
    ) -> None:
        self.requests: list[ChatRequest] = []
        self.counted: list[ChatRequest] = []
        self.under_way = 0
        self.is_closed = False
        self._answers = list(answers)
        self._models = models
        self._capabilities = capabilities
        self._counts = counts

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        self.requests.append(request)
        assert self._answers, "the script has no answer left"
        pieces = self._answers.pop(0)
        self.under_way += 1
        try:
            if not (pieces and isinstance(pieces[0], Exception)):
                yield []
            for piece in pieces:
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                elif isinstance(piece, Exception):
                    raise piece
                else:
                    yield piece if isinstance(piece, list) else [piece]
        finally:
            self.under_way -= 1

    async def models(self) -> Sequence[Model]:
        return [Model(id=name) for name in self._models]

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - the contract's
        return self._capabilities

    async def count(self, request: ChatRequest) -> int | None:
        self.counted.append(request)
        return self._counts(request)

    async def check(self) -> None:
        """A script is always there."""

    async def close(self) -> None:
        self.is_closed = True
