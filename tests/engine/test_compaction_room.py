"""When a conversation is compacted, and how much of it stays word for word, by the room that there is."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.providers.base import ChatRequest
from antwort.testing import ScriptedProvider, answer, say, tokens
from compaction_kit import TALK, Tight, is_question, summaries, threshold
from engine_kit import ask, engine_of, kinds


class Dense(ScriptedProvider):
    """A digit is a token, and so are five bytes of other text. It counts if it is told to."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__(counts=lambda request: self.size(request) if counts else None)

    def size(self, request: ChatRequest) -> int:
        texts = [str(message.content) for message in request.messages]
        return sum(len(text) if text[-1:].isdigit() else len(text) // 5 for text in texts)

    def infer(self, request: ChatRequest) -> Any:
        text = "Ada likes tea." if is_question(request) else "Yes."
        self._answers.insert(0, list(answer(say(text), usage=tokens(self.size(request), 2))))
        return super().infer(request)


async def test_a_threshold_above_the_context_is_three_quarters_of_it() -> None:
    provider = Tight(1000)
    long = [{**message, "content": "why " * 190} for message in TALK]
    response = await engine_of(provider).create(ask([*long, TALK[0]], context_management=[threshold(100_000)]))
    assert (kinds(response), provider.refused) == (["compaction", "message"], 0)


@pytest.mark.parametrize("counts", [True, False], ids=["a tokenizer", "an estimate"])
async def test_a_conversation_denser_than_others_is_compacted_at_its_threshold(counts: bool) -> None:
    provider = Dense(counts=counts)
    engine, last, sizes = engine_of(provider), None, []
    for n in range(30):
        await engine.create(ask(f"{n} {'some words of prose ' * 80}", store=False))
    for _ in range(16):
        fields = {"context_management": [threshold(6000)], "previous_response_id": last}
        last = (await engine.create(ask("8417" * 200, **fields))).id
        sizes.append(provider.size(provider.requests[-1]))
    assert summaries(provider)
    assert max(sizes) < 8000
