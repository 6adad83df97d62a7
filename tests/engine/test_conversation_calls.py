"""What stands in a conversation besides words: calls that a later turn answers or runs, references, reasoning, and what
was compacted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpCall, McpListTools, Message, Reasoning
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendUnavailable, InvalidField, ItemNotFound
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities
from antwort.storage.base import Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think
from conversation_kit import begun, said, user, words
from engine_kit import (
    CLOCK,
    SERVER,
    ask,
    engine_of,
    function_calls,
    only,
    sent,
    sent_messages,
    text_of,
)
from plan_kit import depot


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    opened = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")
    yield opened
    await opened.close()


def heard(provider: ScriptedProvider, at: int = -1) -> list[Any]:
    messages: list[Any] = sent(provider.requests[at])["messages"]
    return messages


# ---- calls, across turns ----


async def test_a_client_answers_a_call_of_an_earlier_turn(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Noon.")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    first = await engine.create(ask("Time?", conversation=conversation, tools=[CLOCK]))
    output = {"type": "function_call_output", "call_id": only(first, FunctionCall).call_id, "output": "12:00"}
    await engine.create(ask([output], conversation=conversation, tools=[CLOCK]))
    assert [message["role"] for message in heard(provider)] == ["user", "assistant", "tool"]
    assert heard(provider)[2]["content"] == "12:00"
    kinds = ["user: Time?", "function_call", "function_call_output", "assistant: Noon."]
    assert words(await said(store, conversation)) == kinds


@pytest.mark.parametrize(
    ("call_id", "code"), [("call_other", "unknown_call_id"), ("call_1", "duplicate_output")], ids=["unknown", "twice"]
)
async def test_an_output_fits_a_call_of_the_conversation_that_has_none(
    store: ResponseStore, call_id: str, code: str
) -> None:
    engine = engine_of(ScriptedProvider(), store=store)
    asked = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "call_1", "output": "12:00"}
    conversation = await begun(engine, user("Time?"), asked, done)
    output = {"type": "function_call_output", "call_id": call_id, "output": "13:00"}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([user("So?"), output], conversation=conversation))
    assert (caught.value.param, caught.value.code) == ("input[1].call_id", code)
    assert len(engine.conversation_locks) == 0


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_servers_call_of_a_turn_that_paused_is_run_first(store: ResponseStore, is_stored: bool) -> None:
    provider = ScriptedProvider(answer(call("depot_stock"), call("clock")), answer(say("Three, at noon.")))
    engine = engine_of(provider, depot(), store=store)
    conversation = await begun(engine)
    fields: dict[str, Any] = {"conversation": conversation, "tools": [SERVER, CLOCK], "store": is_stored}
    first = await engine.create(ask("Stock?", **fields))
    assert first.status == "requires_action"
    (asked,) = function_calls(first)
    output = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    second = await engine.create(ask([output], **fields))
    assert only(second, McpCall).output == "3 left"
    assert [message["content"] for message in heard(provider) if message["role"] == "tool"] == ["3 left", "noon"]
    assert words(await said(store, conversation)) == [
        "user: Stock?",
        "mcp_list_tools",
        "mcp_call",
        "function_call",
        "function_call_output",
        "mcp_call",
        "assistant: Three, at noon.",
    ]


async def test_a_list_of_tools_is_added_once_and_again_when_it_has_changed(store: ResponseStore) -> None:
    provider = ScriptedProvider(*(answer(say(str(number))) for number in range(3)))
    engine = engine_of(provider, depot(), store=store)
    conversation = await begun(engine)
    other = {**SERVER, "allowed_tools": ["stock"]}
    for tools, is_shown in (([SERVER], True), ([SERVER], False), ([other], True)):
        response = await engine.create(ask("And?", conversation=conversation, tools=tools))
        assert any(isinstance(item, McpListTools) for item in response.output) is is_shown
    turn = ["user: And?", "mcp_list_tools", "assistant: 0"]
    again = ["user: And?", "assistant: 1"]
    changed = ["user: And?", "mcp_list_tools", "assistant: 2"]
    assert words(await said(store, conversation)) == [*turn, *again, *changed]


async def test_a_servers_call_is_run_once_however_often_its_turn_is_tried(store: ResponseStore) -> None:
    runs: list[str] = []

    async def stock(asked: Any, context: Any) -> str:
        runs.append(asked.id)
        return "3 left"

    provider = ScriptedProvider(
        answer(call("stock"), call("clock")), answer(BackendUnavailable("Not now.")), answer(say("Three."))
    )
    engine = engine_of(provider, ToolServerFake("depot", stock=stock), store=store)
    conversation = await begun(engine)
    fields: dict[str, Any] = {"conversation": conversation, "tools": [SERVER, CLOCK]}
    first = await engine.create(ask("Stock?", **fields))
    (asked,) = function_calls(first)
    output = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    with pytest.raises(BackendUnavailable):
        await engine.create(ask([output], **fields))
    second = await engine.create(ask([output], **fields))
    assert (text_of(second), len(runs)) == ("Three.", 1)
    assert "3 left" in [message["content"] for message in heard(provider)]
    third = words(await said(store, conversation))
    assert third.count("mcp_call") == 2, "as it was asked for, and as it was run"


# ---- references and reasoning ----


async def test_a_reference_to_what_the_conversation_holds_says_and_adds_nothing(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    first = await engine.create(ask("And?", conversation=conversation))
    reference = {"type": "item_reference", "id": only(first, Message).id}
    second = await engine.create(ask([reference, user("So?")], conversation=conversation))
    assert sent_messages(provider.requests[1]) == [("user", "And?"), ("assistant", "One"), ("user", "So?")]
    assert words(await said(store, conversation)) == ["user: And?", "assistant: One", "user: So?", "assistant: Two"]
    listed = await engine.input_items(ANONYMOUS, second.id, Page())
    assert words(listed.items) == ["user: So?"]


async def test_a_reference_to_another_response_adds_what_it_stands_for(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("Elsewhere")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    elsewhere = await engine.create(ask("And?"))
    conversation = await begun(engine)
    reference = {"type": "item_reference", "id": only(elsewhere, Message).id}
    await engine.create(ask([reference, user("So?")], conversation=conversation))
    assert words(await said(store, conversation)) == ["assistant: Elsewhere", "user: So?", "assistant: Two"]


async def test_a_reference_to_nothing_is_refused(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(), store=store)
    conversation = await begun(engine)
    with pytest.raises(ItemNotFound) as caught:
        await engine.create(ask([user("So?"), {"type": "item_reference", "id": "x"}], conversation=conversation))
    assert caught.value.param == "input[1].id"


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]], ids=["in clear", "sealed too"])
async def test_what_the_model_thought_is_there_in_the_next_turn(store: ResponseStore, include: list[str]) -> None:
    provider = ScriptedProvider(
        answer(think("Hm, seven."), say("Seven")),
        answer(say("Why not?")),
        capabilities=Capabilities(reasoning_field="reasoning_content"),
    )
    engine = Engine(provider, store=store, settings=EngineSettings())
    conversation = await begun(engine)
    await engine.create(ask("A number?", conversation=conversation, include=include))
    assert [type(item) for item in await said(store, conversation)] == [Message, Reasoning, Message]
    await engine.create(ask("Why?", conversation=conversation))
    assert heard(provider)[1]["reasoning_content"] == "Hm, seven."


async def test_reasoning_that_a_client_brings_sealed_is_opened_in_the_turns_that_follow(store: ResponseStore) -> None:
    provider = ScriptedProvider(
        answer(think("Hm, seven."), say("Seven")),
        answer(say("Why not?")),
        answer(say("Because.")),
        capabilities=Capabilities(reasoning_field="reasoning_content"),
    )
    engine = Engine(provider, store=store)
    kept = await engine.create(ask("A number?", store=False, include=["reasoning.encrypted_content"]))
    thought = to_plain(only(kept, Reasoning)) | {"content": None}
    conversation = await begun(engine)
    await engine.create(ask([thought, to_plain(only(kept, Message)), user("Why?")], conversation=conversation))
    await engine.create(ask("Really?", conversation=conversation))
    for at in (1, 2):
        assert heard(provider, at)[0]["reasoning_content"] == "Hm, seven."


async def test_ids_that_a_client_gives_twice_make_two_items(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    for text in ("a", "b"):
        await engine.create(ask([{**user(text), "id": "msg_same"}], conversation=conversation))
    items = await said(store, conversation)
    assert words(items) == ["user: a", "assistant: One", "user: b", "assistant: Two"]
    assert len({item.id for item in items}) == 4


async def test_what_was_compacted_in_a_turn_is_heard_as_its_summary_from_then_on(store: ResponseStore) -> None:
    provider = ScriptedProvider(
        answer(say("Rome is lovely.")), answer(say("They spoke of Rome.")), answer(say("Two")), answer(say("Three"))
    )
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    compacting = [{"type": "compaction", "compact_threshold": 200}]
    await engine.create(ask("Rome? " * 200, conversation=conversation))
    await engine.create(ask("Go on.", conversation=conversation, context_management=compacting))
    await engine.create(ask("And?", conversation=conversation))
    assert words(await said(store, conversation))[2:] == [
        "user: Go on.",
        "compaction",
        "assistant: Two",
        "user: And?",
        "assistant: Three",
    ]
    told = str(heard(provider))
    assert "They spoke of Rome." in told
    assert "Rome? Rome?" not in told
    assert heard(provider)[-1]["content"] == "And?"


async def test_a_conversation_goes_on_with_all_that_was_said_where_its_compaction_cannot_be_opened(
    store: ResponseStore, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ScriptedProvider(answer(say("Lovely.")), answer(say("They spoke of Rome.")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    compacting = [{"type": "compaction", "compact_threshold": 200}]
    await engine.create(ask("Rome? " * 200, conversation=conversation))
    made = await engine.create(ask("Go on.", conversation=conversation, context_management=compacting))
    later = ScriptedProvider(answer(say("Three")), answer(say("Four")))
    engine = engine_of(later, store=store)
    await engine.create(ask("And?", conversation=conversation))
    told = [content for _, content in sent_messages(later.requests[0])]
    assert told == ["Rome? " * 200, "Lovely.", "Go on.", "Two", "And?"]
    assert "its key is gone" in caplog.text
    again = [to_plain(item) for item in made.output]
    await engine.create(ask([*again, user("So?")], conversation=conversation))
    assert [content for _, content in sent_messages(later.requests[1])] == [*told, "Three", "So?"]


async def test_a_compaction_with_nothing_before_it_is_all_there_is_and_its_loss_is_told(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("They spoke of Rome.")))
    engine = engine_of(provider, store=store)
    window = await engine.compact(model="scripted", input=[user("Rome?"), {"role": "assistant", "content": "Lovely."}])
    conversation = await begun(engine, {"role": "developer", "content": "Be brief."}, to_plain(window.output[-1]))
    later = engine_of(ScriptedProvider(), store=store)
    with pytest.raises(InvalidField) as caught:
        await later.create(ask("And?", conversation=conversation))
    assert (caught.value.param, caught.value.code) == ("conversation", "invalid_encrypted_content")
