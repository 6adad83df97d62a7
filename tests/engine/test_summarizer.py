"""How summaries are asked for: how long they may be, what is one, and what gives way where there is little room."""

from __future__ import annotations

import re
from typing import Any

import pytest

from antwort.api.wire import UNSET
from antwort.crypto import Vault
from antwort.engine.context.summarizer import without_reasoning
from antwort.engine.engine import Engine
from antwort.errors import BackendError
from antwort.providers.base import ChatRequest
from antwort.testing import Answer, ScriptedProvider, answer, say, think, tokens
from compaction_kit import SUMMED, TALK, TRIGGER, Tight, is_question, memory_of, output_of, summaries, threshold
from engine_kit import ask, engine_of

# ---- how long it may be ----


def words_of(request: ChatRequest) -> int:
    (words,) = re.findall(r"at most (\d+) words", str(request.messages[0].content))
    return int(words)


async def test_how_long_the_answer_may_be_says_nothing_of_the_summary() -> None:
    provider = ScriptedProvider(SUMMED)
    await engine_of(provider).create(ask([*TALK, TRIGGER], max_output_tokens=16))
    assert (provider.requests[0].max_tokens, words_of(provider.requests[0])) == (4096, 1024)


async def test_a_summary_is_to_be_well_below_the_size_at_which_it_is_compacted() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")), counts=lambda _: 9000)
    long = [{**message, "content": "why " * 600} for message in TALK]
    await engine_of(provider).create(ask([*long, *TALK[:1]], context_management=[threshold(1000)]))
    assert (provider.requests[0].max_tokens, words_of(provider.requests[0])) == (4096, 125)


# ---- what is one ----


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("<think> hm </think>\nTea.", "Tea."),
        ("Tea.", "Tea."),
        (" <think>hm", ""),
        ("<think>a</think>b</think>c", "b</think>c"),
        ("They asked what </think> is for.", "They asked what </think> is for."),
        ("They use <think>\nand\n</think>\nin prompts.", "They use <think>\nand\n</think>\nin prompts."),
        ("hm, tea?\n</think>\n\nTea.", "Tea."),
    ],
)
def test_only_what_was_thought_first_is_no_part_of_it(said: str, left: str) -> None:
    assert without_reasoning(said) == left


CUT = answer(say("Ada likes"), finish="length", usage=tokens(30, 4))


async def summed_up(*replies: Answer) -> tuple[str, ScriptedProvider]:
    provider = ScriptedProvider(*replies)
    engine = engine_of(provider, hold_back=0)
    window = await engine.compact(model="scripted", input=TALK)
    return memory_of(engine, window).summary, provider


async def test_one_that_is_cut_is_asked_for_once_more_in_half_the_words() -> None:
    summary, provider = await summed_up(CUT, SUMMED)
    assert summary == "Ada likes tea."
    assert [words_of(request) for request in provider.requests] == [1024, 512]


@pytest.mark.parametrize(
    "again", [CUT, answer(think("Hm."), finish="length"), answer()], ids=["cut again", "thoughts", "nothing"]
)
async def test_one_that_cannot_be_had_whole_says_that_it_is_cut(again: Answer) -> None:
    summary, _ = await summed_up(CUT, again)
    assert summary == "Ada likes\n[The summary breaks off here: it became too long.]"


async def test_one_that_was_all_thought_is_asked_for_once_more() -> None:
    summary, _ = await summed_up(answer(think("Hm."), finish="length"), SUMMED)
    assert summary == "Ada likes tea."


@pytest.mark.parametrize(
    "replies",
    [
        [answer(say("I can"), finish="content_filter")],
        [answer(say("<think> so Ada likes"))],
        [answer(say("<think> so"), finish="length"), answer(say("<think> so"), finish="length")],
    ],
    ids=["filtered", "thought without an end", "thought without an end, cut"],
)
async def test_what_is_broken_is_no_summary(replies: list[Answer]) -> None:
    with pytest.raises(BackendError):
        await summed_up(*replies)


# ---- where there is little room ----

LONG: list[dict[str, Any]] = [
    message
    for n in range(8)
    for message in (
        {"role": "user", "content": f"Question {n}: " + "why " * 40},
        {"role": "assistant", "content": f"Answer {n}: " + "so " * 40},
    )
]
RULES = ("Follow the rules of the house. " * 400)[:12_000]


@pytest.mark.parametrize("says", [True, False], ids=["a known context", "an unknown context"])
@pytest.mark.parametrize("instructions", [None, RULES], ids=["without instructions", "with long instructions"])
@pytest.mark.parametrize("context", [256, 300, 512, 1024, 2048, 4096])
async def test_a_small_context_is_enough(context: int, instructions: str | None, says: bool) -> None:
    provider = Tight(context, says=says)
    engine = engine_of(provider, compaction_keep=0)
    await engine.compact(model="scripted", input=LONG, instructions=instructions)
    assert not (says and provider.refused)
    told = "".join(str(request.messages[1].content) for request in provider.requests)
    assert all(f"Question {n}:" in told for n in range(8))


async def test_a_summary_that_fills_a_small_context_is_folded_in_as_far_as_it_fits() -> None:
    provider = Tight(512, "tea " * 1000)
    await engine_of(provider).compact(model="scripted", input=LONG)
    assert (provider.refused, len(summaries(provider)) > 2) == (0, True)
    assert "characters left out" in str(provider.requests[-1].messages[1].content)


async def test_instructions_take_an_eighth_of_the_context_at_most() -> None:
    provider = Tight(4096)
    await engine_of(provider).compact(model="scripted", input=TALK, instructions=RULES)
    system = str(provider.requests[0].messages[0].content)
    assert system.count("rules of the house") * 30 < 4 * 4096 / 8
    assert "characters left out" in system


@pytest.mark.parametrize("more", [TALK[:2], []], ids=["and more", "alone"])
async def test_an_earlier_summary_that_is_too_long_for_the_model_is_summed_up_in_pieces(
    more: list[dict[str, Any]],
) -> None:
    secret = Vault(["a secret of the tests"])
    facts = " ".join(f"fact{n}" for n in range(1500))
    large = Engine(ScriptedProvider(answer(say(facts))), vault=secret)
    item = output_of(await large.compact(model="scripted", input=TALK[:2]))[-1]
    provider = Tight(2000)
    small = Engine(provider, vault=secret)
    window = await small.compact(model="scripted", input=[item, *more])
    told = "".join(str(request.messages[1].content) for request in provider.requests)
    assert all(f"fact{n}" in told for n in range(0, 1500, 100))
    assert memory_of(small, window).summary == "Ada likes tea."
    assert all(is_question(request) and request.tools is UNSET for request in provider.requests)
