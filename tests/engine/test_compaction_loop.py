"""Compaction in a response: by a trigger, and before the model is asked when the context has grown."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from antwort.api.events import Compacted
from antwort.api.items import Compaction, FunctionCallOutput, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.engine.runs.subscription import LiveSubscription
from antwort.errors import ContextTooLong
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, tokens
from compaction_kit import (
    RECAP,
    SUMMED,
    TALK,
    TRIGGER,
    Tight,
    always,
    inside,
    memory_of,
    output_like,
    output_of,
    summaries,
    threshold,
)
from engine_kit import (
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    only,
    replies,
    sent_messages,
    stream,
    text_of,
    weather_tool,
)
from serving import until
from takeover_kit import Log, engine_on

# ---- a trigger ----


async def test_a_trigger_at_the_end_gives_a_response_of_one_compaction() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    outcome = await stream(engine, ask([*TALK, TRIGGER], tools=[WEATHER, SERVER], store=False))
    assert outcome.names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert (outcome.response.status, kinds(outcome.response)) == ("completed", ["compaction"])
    assert outcome.response.usage == tokens(30, 4)
    item = output_like(outcome.response.output[0])
    await engine.create(ask([TALK[0], TALK[2], item, {"role": "user", "content": "And?"}]))
    assert [text for _, text in sent_messages(provider.requests[1])] == [f"{RECAP}\n\nI like tea.", "Noted.", "And?"]


async def test_a_triggered_compaction_can_be_gone_on_from_by_its_id() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    compacted = await engine.create(ask([*TALK, TRIGGER]))
    await engine.create(ask("And?", previous_response_id=compacted.id))
    assert [text for _, text in sent_messages(provider.requests[1])] == [f"{RECAP}\n\nI like tea.", "Noted.", "And?"]


async def test_a_trigger_that_is_not_the_last_item_asks_for_nothing() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    response = await engine_of(provider).create(ask([TRIGGER, *TALK[:1]]))
    assert kinds(response) == ["message"]


async def test_a_triggered_compaction_without_a_summary_fails() -> None:
    response = await engine_of(ScriptedProvider(answer()), hold_back=0).create(ask([*TALK, TRIGGER]))
    assert (response.status, response.output) == ("failed", ())


async def test_what_was_spent_on_a_summary_that_came_to_nothing_is_told() -> None:
    engine = engine_of(ScriptedProvider(answer(usage=tokens(30, 4))), hold_back=0)
    response = await engine.create(ask([*TALK, TRIGGER]))
    assert (response.status, response.usage) == ("failed", tokens(30, 4))


async def test_what_a_compaction_took_that_was_stopped_is_told() -> None:
    first = answer(say("Ada."), usage=tokens(700, 10))
    provider = ScriptedProvider(first, answer(asyncio.Event()), capabilities=Capabilities(context_length=1000))
    engine = engine_of(provider)
    long = [{**message, "content": "why " * 200} for _ in range(6) for message in TALK]
    run = await engine.start(ask([*long, TRIGGER]))
    await until(lambda: len(provider.requests) == 2)
    response = await engine.cancel(ANONYMOUS, run.response_id)
    assert (response.status, response.usage) == ("cancelled", tokens(700, 10))


async def test_a_conversation_goes_on_from_its_compaction() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    conversation = (await engine.conversations.create(items=TALK)).id
    await engine.create(ask([TRIGGER], conversation=conversation))
    await engine.create(ask("And?", conversation=conversation))
    assert [text for _, text in sent_messages(provider.requests[1])] == [f"{RECAP}\n\nI like tea.", "Noted.", "And?"]


# ---- when the context has grown ----


async def test_a_context_that_has_grown_is_compacted_before_the_model_is_asked() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea."), usage=tokens(50, 2)), counts=always(2000))
    engine = engine_of(provider, compaction_keep=4)
    request = ask([*TALK, {"role": "user", "content": "What do I like?"}], context_management=[threshold(50)])
    outcome = await stream(engine, request)
    assert kinds(outcome.response) == ["compaction", "message"]
    assert text_of(outcome.response) == "Tea."
    assert outcome.response.usage == tokens(80, 6)
    assert [text for _, text in sent_messages(provider.requests[1])] == [f"{RECAP}\n\nWhat do I like?"]


async def test_below_the_threshold_nothing_is_counted_or_compacted() -> None:
    provider = ScriptedProvider(answer(say("Tea.")), counts=always(5000))
    response = await engine_of(provider).create(ask(TALK[:3], context_management=[threshold(1000)]))
    assert (kinds(response), provider.counted) == (["message"], [])


async def test_what_the_tokenizer_says_counts_where_it_is_near() -> None:
    provider = ScriptedProvider(answer(say("Tea.")), counts=always(49))
    response = await engine_of(provider).create(ask(TALK[:3], context_management=[threshold(50)]))
    assert (kinds(response), len(provider.counted)) == (["message"], 1)


@pytest.mark.parametrize("entries", [[], [{"type": "something_new"}], [threshold(None)]])
async def test_what_names_no_threshold_and_no_known_type_changes_nothing(entries: list[dict[str, Any]]) -> None:
    provider = ScriptedProvider(answer(say("Tea.")), counts=always(5000))
    response = await engine_of(provider).create(ask(TALK[:3], context_management=entries))
    assert kinds(response) == ["message"]


async def test_without_a_threshold_three_quarters_of_the_context_count() -> None:
    provider = ScriptedProvider(
        SUMMED, answer(say("Tea.")), counts=always(750), capabilities=Capabilities(context_length=1000)
    )
    long = [{**message, "content": "why " * 60} for message in TALK]
    request = ask([*long, *TALK[:1]], context_management=[threshold(None)], max_output_tokens=16)
    assert kinds(await engine_of(provider).create(request)) == ["compaction", "message"]


async def test_it_is_compacted_between_the_turns_of_a_loop_and_once_for_each() -> None:
    sizes = iter([10, 3000, 3000])
    provider = ScriptedProvider(
        answer(call("weather", city="Rome")),
        SUMMED,
        answer(call("weather", city="Oslo")),
        answer(say("Both are asked.")),
        answer(say("Done.")),
        counts=lambda _: next(sizes),
    )
    engine = engine_of(provider, weather_tool())
    request = ask([*TALK, {"role": "user", "content": "Warm?"}], tools=[WEATHER], context_management=[threshold(60)])
    outcome = await stream(engine, request)
    assert kinds(outcome.response) == [
        "function_call",
        "function_call_output",
        "compaction",
        "function_call",
        "function_call_output",
        "compaction",
        "message",
    ]
    assert [role for role, _ in sent_messages(provider.requests[2])] == ["user", "assistant", "tool"]
    assert provider.requests[3].tools is UNSET
    assert text_of(outcome.response) == "Done."


async def test_what_the_summary_took_does_not_count_as_answered() -> None:
    provider = ScriptedProvider(answer(say("Ada."), usage=tokens(9, 14)), answer(say("Tea.")), counts=always(2000))
    request = ask([*TALK, *TALK[2:3]], context_management=[threshold(50)], max_output_tokens=16)
    await engine_of(provider).create(request)
    assert provider.requests[1].max_tokens == 16


async def test_without_a_summary_the_response_goes_on_with_all_that_was_said(caplog: pytest.LogCaptureFixture) -> None:
    provider = ScriptedProvider(answer(), answer(say("Tea.")), counts=always(2000))
    outcome = await stream(engine_of(provider), ask([*TALK, *TALK[2:3]], context_management=[threshold(50)]))
    assert (outcome.response.status, kinds(outcome.response)) == ("completed", ["message"])
    assert len(provider.requests[1].messages) == 5
    assert "there is no summary" in caplog.text


async def test_where_all_is_new_there_is_nothing_to_compact() -> None:
    provider = ScriptedProvider(answer(say("Tea.")), counts=always(2000))
    response = await engine_of(provider).create(ask("A long question.", context_management=[threshold(10)]))
    assert kinds(response) == ["message"]


# ---- what it is worth ----

RULES = "Follow the rules of the house. " * 100


async def test_what_cannot_help_is_not_paid_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "antwort.engine")
    provider = Tight(100_000)
    engine, last = engine_of(provider), None
    for n in range(6):
        fields = {"instructions": RULES, "context_management": [threshold(500)], "previous_response_id": last}
        last = (await engine.create(ask(f"Question {n}?", **fields))).id
    assert summaries(provider) == []
    assert "did not compact: too little would be gained" in caplog.text


async def test_what_has_grown_since_is_summed_up_beside_long_instructions() -> None:
    provider = Tight(100_000)
    engine, last, found = engine_of(provider), None, []
    for _ in range(12):
        fields = {"instructions": RULES, "context_management": [threshold(500)], "previous_response_id": last}
        response = await engine.create(ask("Why? " * 40, **fields))
        last = response.id
        found.append(len(response.output) - 1)
    assert sum(found) == len(summaries(provider)) in range(2, 5)
    assert all(first + second < 2 for first, second in pairwise(found))


async def test_a_loop_with_little_in_its_turns_is_not_compacted_each_time() -> None:
    provider = ScriptedProvider(
        *(answer(call("weather", city="Rome")) for _ in range(6)), answer(say("Done.")), counts=always(900)
    )
    request = ask(TALK[:1], instructions=RULES, tools=[WEATHER], context_management=[threshold(800)])
    response = await engine_of(provider, weather_tool()).create(request)
    assert "compaction" not in kinds(response)


async def test_instructions_that_are_told_again_and_again_are_something_to_gain() -> None:
    provider = Tight(2000)
    engine, last = engine_of(provider), None
    for n in range(24):
        told = {"role": "system", "content": RULES[:400]}
        fields = {"context_management": [threshold(None)], "previous_response_id": last}
        last = (await engine.create(ask([told, {"role": "user", "content": f"Question {n}?"}], **fields))).id
    assert len(summaries(provider)) in (1, 2)


@pytest.mark.parametrize("context", [960, 1024], ids=["no answer", "a short answer"])
async def test_where_there_is_no_room_for_an_answer_otherwise_little_is_enough(context: int) -> None:
    provider = Tight(context)
    talk = [{"role": role, "content": "Why? " * 70} for role in ("user", "assistant")]
    request = ask([*talk, TALK[0]], instructions=RULES, context_management=[threshold(None)])
    response = await engine_of(provider, compaction_keep=0).create(request)
    assert (kinds(response), len(summaries(provider))) == (["compaction", "message"], 1)


async def test_what_does_not_fit_either_way_is_refused_at_once() -> None:
    provider = Tight(600)
    talk = [{"role": role, "content": "Why? " * 60} for role in ("user", "assistant", "user")]
    with pytest.raises(ContextTooLong):
        await engine_of(provider).create(ask(talk, instructions=RULES, context_management=[threshold(None)]))
    assert provider.requests == []


# ---- a result that is too long to be kept ----

LOG: list[dict[str, Any]] = [
    {"role": "user", "content": "Read the log."},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "line\n" * 6000},
]


async def test_what_a_window_holds_fits_into_the_context() -> None:
    provider = Tight(2000)
    engine = engine_of(provider)
    window = await engine.compact(model="scripted", input=[*TALK, *LOG])
    for _ in range(2):
        response = await engine.create(ask([output_of(window)[-1]]))
        assert (response.status, provider.refused) == ("completed", 0)
        told = sent_messages(provider.requests[-1])
        assert [role for role, _ in told][-2:] == ["assistant", "tool"]
        assert "characters left out" in told[-1][1]
        window = await engine.compact(model="scripted", input=[output_of(window)[-1]])


async def test_where_nobody_knows_the_context_it_is_bounded_all_the_same() -> None:
    provider = ScriptedProvider(SUMMED)
    engine = engine_of(provider)
    items = [*TALK, *LOG[:2], {**LOG[2], "output": "line\n" * 60_000}]
    window = await engine.compact(model="scripted", input=items)
    (result,) = (item for item in memory_of(engine, window).recent if isinstance(item, FunctionCallOutput))
    assert 20_000 < len(result.output) < 80_000


@pytest.mark.parametrize(("before", "asked"), [(TALK, 1), ([], 0)], ids=["after more", "alone"])
async def test_a_response_goes_on_with_a_result_that_was_too_long(before: list[dict[str, Any]], asked: int) -> None:
    """Where nothing but the result has to give way, no summary is asked for."""
    provider = Tight(2000)
    response = await engine_of(provider).create(ask([*before, *LOG], context_management=[threshold(None)]))
    assert kinds(response) == ["compaction", "message"]
    assert (len(summaries(provider)), provider.refused) == (asked, 0)


async def test_instructions_and_tools_leave_less_room_for_results() -> None:
    provider = Tight(2000)
    request = ask([*TALK, *LOG], instructions=RULES + RULES[:1000], context_management=[threshold(None)])
    response = await engine_of(provider).create(request)
    assert (kinds(response), provider.refused) == (["compaction", "message"], 0)


async def test_a_servers_calls_are_kept_as_they_are() -> None:
    sizes = iter([10, 3000])
    provider = ScriptedProvider(
        answer(call("lookup", key="a")), SUMMED, answer(say("Found.")), counts=lambda _: next(sizes)
    )
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("3 left")))
    request = ask([*TALK, *TALK[:1]], tools=[SERVER], context_management=[threshold(60)])
    response = await engine.create(request)
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "compaction", "message"]
    memory = inside(engine, only(response, Compaction))
    assert any(isinstance(item, McpCall) for item in memory.recent)
    assert [role for role, _ in sent_messages(provider.requests[2])] == ["user", "assistant", "tool"]


async def test_the_next_response_goes_on_from_what_was_compacted() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")), answer(say("Bye.")), counts=always(2000))
    engine = engine_of(provider, compaction_keep=4)
    told = {"role": "system", "content": "Be brief."}
    first = await engine.create(
        ask([told, *TALK, {"role": "user", "content": "What?"}], context_management=[threshold(50)])
    )
    await engine.create(ask("Bye", previous_response_id=first.id))
    assert [text for _, text in sent_messages(provider.requests[2])] == [
        "Be brief.",
        f"{RECAP}\n\nWhat?",
        "Tea.",
        "Bye",
    ]


async def test_the_record_marks_where_it_was_compacted() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")), counts=always(2000))
    engine = engine_of(provider)
    request: CreateRequest = ask([*TALK, *TALK[2:3]], context_management=[threshold(50)])
    run = await engine.start(request)
    await run.result()
    assert isinstance(run, LiveSubscription)
    marks = [(at, mark) for at, mark in run.run.run.marks if isinstance(mark, Compacted)]
    assert marks == [(1, Compacted(usage=tokens(30, 4)))]
    assert function_calls(run.response) == []


async def test_for_one_that_the_server_made_itself_the_whole_record_counts() -> None:
    store, secret = MemoryStore(), Vault(["the first secret of all"])
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")), counts=always(5000))
    first = Engine(provider, store=store, vault=secret)
    kept = await first.create(ask([*TALK, {"role": "user", "content": "And?"}], context_management=[threshold(50)]))
    assert kinds(kept) == ["compaction", "message"]
    later = ScriptedProvider(answer(say("Yes.")))
    await Engine(later, store=store, vault=Vault(["another secret entirely"])).create(
        ask("And now?", previous_response_id=kept.id)
    )
    assert sent_messages(later.requests[0])[0] == ("user", "My name is Ada.")


# ---- between two processes ----


async def test_one_that_is_handed_over_is_made_by_whoever_goes_on() -> None:
    log, vault = Log(), Vault.ephemeral()
    words = [{"role": role, "content": "word " * 200} for role in ("user", "assistant")] * 4
    request = ask([*TALK, *words, TALK[0]], background=True, context_management=[threshold(1000)])
    leaving = ScriptedProvider(answer(say("Sum"), asyncio.Event()))
    async with engine_on(log, leaving, vault=vault) as engine:
        queued = await engine.create(request)
        await until(lambda: bool(leaving.requests))
        await engine.drain(0)
    async with engine_on(log, Tight(1500), vault=vault) as engine:
        response = await engine.ended(queued.id)
    assert (response.status, kinds(response)) == ("completed", ["compaction", "message"])
