"""When a conversation is compacted, and how much of it stays word for word, by the room that there is."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.providers.base import Capabilities, ChatRequest
from antwort.testing import ScriptedProvider, answer, say, think, tokens
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


# ---- beside long instructions ----

RULES = "Follow the rules of the house. " * 100


def size(request: ChatRequest) -> int:
    """As `Tight` counts."""
    return sum(4 + len(str(message.content)) // 4 for message in request.messages)


async def chain(provider: ScriptedProvider, rules: int, **fields: Any) -> list[int]:
    """The sizes of the requests that were answered, one after the other, with instructions of so many tokens."""
    engine, last, sizes = engine_of(provider), None, []
    management = {"context_management": [threshold(None)], "instructions": (RULES * 4)[: rules * 4]}
    for n in range(60):
        question = f"Question {n}? " + "Why? " * (n * 7 % 50)
        response = await engine.create(ask(question, **management, **fields, previous_response_id=last))
        assert response.status == "completed"
        last = response.id
        sizes.append(size(provider.requests[-1]))
    return sizes


@pytest.mark.parametrize("rules", [1240, 1320, 1680], ids=["some room", "little", "hardly any"])
async def test_a_chain_beside_long_instructions_goes_on(rules: int) -> None:
    provider = Tight(2000, summary="Ada likes tea. " * 40)
    sizes = await chain(provider, rules)
    assert (provider.refused, max(sizes) < 2000) == (0, True)
    assert 0 < len(summaries(provider)) < 50


async def test_room_for_an_answer_is_made_where_it_can_be() -> None:
    provider = Tight(4000)
    sizes = await chain(provider, 2480)
    assert max(sizes) <= 4000 - 500 + 125
    assert 0 < len(summaries(provider)) < 8


async def test_the_answer_that_is_asked_for_fits_behind_the_request() -> None:
    provider = Tight(2000)
    sizes = await chain(provider, 1200, max_output_tokens=400)
    assert (provider.refused, max(sizes) <= 1600) == (0, True)


async def test_what_is_kept_here_and_never_sent_is_nothing_to_gain() -> None:
    thoughts = [answer(think("Well, " * 400), say("Yes."), usage=tokens(900, 300)) for _ in range(8)]
    provider = ScriptedProvider(*thoughts, capabilities=Capabilities(reasoning_field=None), counts=size)
    engine, last = engine_of(provider), None
    for n in range(8):
        fields = {"context_management": [threshold(700)], "instructions": RULES, "previous_response_id": last}
        last = (await engine.create(ask(f"Question {n}?", **fields))).id
    assert summaries(provider) == []
